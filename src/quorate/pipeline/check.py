"""A plan against the API's own facts and against our rights, before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.operations.plan import Call, Plan
from quorate.pve.cluster import Cluster
from quorate.pve.errors import ParameterRejected, PermissionMissing
from quorate.pve.privileges import missing, needs, root_only
from quorate.pve.schema import Endpoint, Facts


async def check(cluster: Cluster, plan: Plan) -> None:
    """Raise the first problem that PVE would answer with."""
    for where, part in plan.parts():
        await _check(where or cluster, part)


async def _check(cluster: Cluster, plan: Plan) -> None:
    if not plan.api_calls:
        return
    facts = await cluster.facts()
    pools: dict[str, str] = {}
    for call in plan.api_calls:
        endpoint, values = _endpoint(facts, call)
        _check_parameters(call, endpoint, values)
        await _check_rights(cluster, call, endpoint, values, pools)
        if new := call.params.get("pool") and (call.params.get("newid") or call.params.get("vmid")):
            pools[f"/vms/{new}"] = f"/pool/{call.params['pool']}"  # from then on the pool's rights are the guest's


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


async def _check_rights(
    cluster: Cluster, call: Call, endpoint: Endpoint, values: Mapping[str, Any], pools: Mapping[str, str]
) -> None:
    identity = cluster.client.identity
    asked = call.says[:1].lower() + call.says[1:]
    if cluster.client.is_token and (root_only(endpoint.permission) or not endpoint.allow_token):
        raise PermissionMissing(
            f"{identity} may not {asked}",
            why="PVE keeps this for root@pam logged in by password"
            if root_only(endpoint.permission)
            else "No token may",
        )
    wanted = [(need.path, privilege) for need in needs(endpoint.permission, values) for privilege in need.privileges]

    async def may(path: str, privilege: str) -> bool:
        return await cluster.may(path, privilege) or (path in pools and await cluster.may(pools[path], privilege))

    held = {one: await may(*one) for one in wanted}  # one after the other: the first answer serves the rest
    lacking = missing(endpoint.permission, values, lambda path, privilege: held.get((path, privilege), False))
    if lacking:
        need = lacking[0]
        raise await cluster.refusal(asked, need.path, need.privileges, any_of=need.any_of)
