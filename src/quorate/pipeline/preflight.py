"""Check a plan against the API facts and our privileges before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pve_schema.schema import Endpoint, Facts
from quorate.operations.backend import Backend
from quorate.operations.plan import Call, Plan
from quorate.problems import ParameterRejected, PermissionMissing
from quorate.pve.cluster import Cluster
from quorate.pve.privileges import is_decisive, missing, needs, root_only


async def check_plan(backend: Backend, plan: Plan) -> str:
    """Raise the first error that PVE would answer with; return a clause that says what was checked."""
    if not plan.api_calls:
        return "Parameters are checked"
    parts = [await _check((where or backend).api, part) for where, part in plan.parts() if part.api_calls]
    return "Parameters and privileges are checked" if all(parts) else "Parameters are checked, but not all privileges"


async def _check(cluster: Cluster, plan: Plan) -> bool:
    """Return whether the privileges could be checked in full."""
    facts = await cluster.facts()
    complete = True
    pools: dict[str, str] = {}
    for call in plan.api_calls:
        endpoint, values = _endpoint(facts, call)
        _check_parameters(call, endpoint, values)
        await _check_privileges(cluster, call, endpoint, values, pools)
        complete = complete and is_decisive(endpoint.permission)
        if new := call.params.get("pool") and (call.params.get("newid") or call.params.get("vmid")):
            pools[f"/vms/{new}"] = f"/pool/{call.params['pool']}"  # from then on the guest has the pool's privileges
    return complete


def _endpoint(facts: Facts, call: Call) -> tuple[Endpoint, dict[str, Any]]:
    match = facts.find(call.method, call.path)
    if match is None:
        raise ParameterRejected(f"PVE {facts.version} has no {call.method} {call.path}")
    return match.endpoint, {**match.values, **call.params}


def _check_parameters(call: Call, endpoint: Endpoint, values: Mapping[str, Any]) -> None:
    errors = endpoint.check(values)
    if errors:
        listed = "; ".join(f"{name}: {why.strip()}" for name, why in errors.items())
        raise ParameterRejected(
            f"PVE would not accept {call.method} {call.path}",
            why=listed,
            next_step="Nothing was sent",
            facts={"errors": errors},
        )


async def _check_privileges(
    cluster: Cluster, call: Call, endpoint: Endpoint, values: Mapping[str, Any], pools: Mapping[str, str]
) -> None:
    identity = cluster.client.identity
    asked = call.summary[:1].lower() + call.summary[1:]
    if cluster.client.is_token and (root_only(endpoint.permission) or not endpoint.allow_token):
        raise PermissionMissing(
            f"{identity} may not {asked}",
            why="PVE reserves this for root@pam logged in with a password"
            if root_only(endpoint.permission)
            else "No token may",
        )
    wanted = [(need.path, privilege) for need in needs(endpoint.permission, values) for privilege in need.privileges]

    async def may(path: str, privilege: str) -> bool:
        return await cluster.may(path, privilege) or (path in pools and await cluster.may(pools[path], privilege))

    held = {one: await may(*one) for one in wanted}  # in sequence, because the first answer is cached for the rest
    lacking = missing(endpoint.permission, values, lambda path, privilege: held.get((path, privilege), False))
    if lacking:
        need = lacking[0]
        raise await cluster.refusal(asked, need.path, need.privileges, any_of=need.any_of)
