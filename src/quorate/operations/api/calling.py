"""Any call of the PVE API, through the same checks as every other operation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations.api import paths as api_paths
from quorate.operations.api.answers import bounded, cut, hide_secrets
from quorate.operations.api.risk import refusal, risk_of, worst
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import Risk, Table, operation
from quorate.operations.settling import same
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument, Conflict, NotFound, ParameterRejected, Refused
from quorate.pve.schema import NEWEST, OLDEST, Endpoint, Match, facts
from quorate.pve.tasks import Upid

_TASK_UNNAMED = "/nodes/{node}/lxc/{vmid}/template"  # PVE starts a task here, but answers with nothing


def _risk(arguments: Mapping[str, Any]) -> Risk:
    """What this call can do in any version; for what is not understood the worst is supposed."""
    method, path = arguments["method"], arguments["path"]
    matches = [] if api_paths.objection(path) else [facts(version).find(method, path) for version in (NEWEST, OLDEST)]
    risks = [risk_of(method, match.endpoint.template, arguments["params"]) for match in matches if match is not None]
    if risks:
        return worst(risks)
    return Risk.READ if method == "GET" else Risk.DESTROY


@operation(risk=Risk.DESTROY, risk_of=_risk, spans="one")
async def api_call(
    pve: Cluster,
    method: Literal["GET", "POST", "PUT", "DELETE"],
    path: Annotated[str, Meta(description="Such as /nodes/pve1/qemu/100/config")],
    params: dict[str, Any] | None = None,
    limit: Annotated[int, Meta(ge=1, le=200, description="Rows of a GET")] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table | dict[str, Any] | Plan:
    """Call any endpoint of the PVE API. Prefer the other tools; find and understand endpoints with api_search."""
    match = api_paths.find(await pve.facts(), method, path)
    given = dict(params or {})
    _refuse(match, given)
    if method == "GET":
        _check_parameters(match, path, given)
        answer = await pve.get(path, **given)
        return bounded(hide_secrets(match.endpoint.template, answer), limit=limit, offset=offset)
    return await _plan(pve, match, path, given)


def _refuse(match: Match, params: Mapping[str, Any]) -> None:
    endpoint = match.endpoint
    if why := refusal(endpoint):
        raise Refused(f"{endpoint.method} {endpoint.template} is never called", why=why[:1].upper() + why[1:])
    for name in params:
        if name in match.values:
            raise BadArgument(f"{name} stands in the path already", next_step="Leave it out of params")
    if endpoint.method == "GET" and "download" in params:
        raise Refused("download is never used", why="It answers with a file, not with facts")


def _check_parameters(match: Match, path: str, params: Mapping[str, Any]) -> None:
    errors = match.endpoint.check({**match.values, **params})
    if errors:
        listed = "; ".join(f"{name}: {why.strip()}" for name, why in errors.items())
        raise ParameterRejected(
            f"PVE would not accept GET {path}",
            why=listed,
            next_step="See api_search with this path and method",
            facts={"errors": errors},
        )


async def _plan(pve: Cluster, match: Match, path: str, params: Mapping[str, Any]) -> Plan:
    endpoint = match.endpoint
    says = f"{endpoint.method} {path}"
    call = Call(
        says,
        endpoint.method,
        path,
        params,
        await _target(pve, match, path),
        settled=_settled(pve, match, path, params),
        task_unnamed=endpoint.template == _TASK_UNNAMED,
    )

    def from_answers(answers: list[Any]) -> dict[str, Any]:
        return _answer(endpoint, answers[0])

    return Plan(says, (call,), from_answers=from_answers)


def _answer(endpoint: Endpoint, answer: Any) -> dict[str, Any]:
    """What PVE answered; a new token's secret is among it, and shown only here."""
    if answer is None or Upid.looks_like(answer):
        return {}
    return {"answer": cut(hide_secrets(endpoint.template, answer))}


async def _target(pve: Cluster, match: Match, path: str) -> Target:
    """What the call is about; a guest is looked up, so that its identity can be checked again before a DESTROY."""
    node = match.values.get("node", "")
    if "vmid" not in match.values:
        return Target("node", node, node=node) if node else Target("api", path)
    guest = await pve.guest(int(match.values["vmid"]))
    kind = "qemu" if "/qemu/" in match.endpoint.template else "lxc"
    if (guest.row.node, guest.row.type) != (node, kind):
        raise Conflict(f"{guest} is not there", next_step=f"Its path is {guest.path()}")
    return Target(guest.row.kind, str(guest.vmid), guest.row.name, guest.row.node)


def _settled(pve: Cluster, match: Match, path: str, params: Mapping[str, Any]) -> Callable[[], Awaitable[bool]] | None:
    """How the effect of a lost write can be seen: what was deleted is gone, what was set reads back."""
    if match.endpoint.method == "POST" or match.endpoint.worker_types:
        return None

    async def settled() -> bool:
        if (await pve.facts()).find("GET", path) is None:
            return False
        try:
            now = await pve.get(path)
        except NotFound:
            return match.endpoint.method == "DELETE"
        if match.endpoint.method == "DELETE" or not isinstance(now, dict):
            return False
        return bool(params) and all(name in now and same(now[name], value) for name, value in params.items())

    return settled
