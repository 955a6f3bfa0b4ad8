"""Any call of the PVE API, through the same checks as every other operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from pve_schema.schema import NEWEST, OLDEST, Endpoint, Match, facts
from quorate.hints import API_SEARCH, NAMED, Advice, see
from quorate.operations.api import paths as api_paths
from quorate.operations.api.responses import bound_response, cut, hide_secrets
from quorate.operations.api.risk import effects, refusal, worst
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import InFull, Risk, Table, operation
from quorate.problems import BadArgument, Conflict, ParameterRejected, Refused
from quorate.pve.cluster import Cluster
from quorate.pve.tasks import Upid
from quorate.pve.wire import address, encode, read

_TASK_UNNAMED = "/nodes/{node}/lxc/{vmid}/template"  # PVE starts a task here, but answers with nothing


def _risk(arguments: Mapping[str, Any]) -> Risk:
    """The risk of this call in any version; what cannot be parsed counts as the highest."""
    method, path = arguments["method"], arguments["path"]
    given = arguments["params"] or {}
    versions = () if api_paths.objection(path) else (NEWEST, OLDEST)
    requests = [read(facts(version), method, path, given) for version in versions]
    risks = [effects(request)[0].risk for request in requests if request is not None]
    if risks:
        return worst(risks)
    return Risk.READ if method == "GET" else Risk.DESTROY


@operation(
    risk=Risk.DESTROY,
    risk_of=_risk,
    spans="one",
    search_words="raw api endpoint POST DELETE request path anything else no other tool",
    example="method=GET path=/cluster/status",
)
async def api_call(
    pve: Cluster,
    method: Literal["GET", "POST", "PUT", "DELETE"],
    path: Annotated[str, Meta(description="Such as /nodes/pve1/qemu/100/config")],
    params: dict[str, Any] | None = None,
    limit: Annotated[int, Meta(ge=1, le=200, description="Rows of a GET")] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
    *,
    in_full: InFull,
) -> Table | dict[str, Any] | Plan:
    """Call any endpoint of the PVE API. Prefer the other tools; find and understand endpoints with api_search."""
    match = api_paths.find(await pve.facts(), method, path)
    given = dict(params or {})
    _refuse(match, given)
    path = await address(pve, path)
    match = api_paths.find(await pve.facts(), method, path)
    if method == "GET":
        sent = encode(given, match.endpoint)
        _check_parameters(match, path, sent)
        answer = (await pve.client.request("GET", path, sent)).data
        visible = hide_secrets(match.endpoint.template, answer)
        return {"data": visible} if in_full else bound_response(visible, limit=limit, offset=offset)
    return await _plan(pve, match, path, given)


def _refuse(match: Match, params: Mapping[str, Any]) -> None:
    endpoint = match.endpoint
    if refused := refusal(endpoint):
        raise Refused(
            f"{endpoint.method} {endpoint.template} is never called",
            why=refused.why[:1].upper() + refused.why[1:],
            next_step=Advice("Use the tool for it", refused.instead) if refused.instead else None,
        )
    for name in params:
        if name in match.values:
            raise BadArgument(
                f"{name} is already in the path", next_step=Advice("Leave it out of {params}", params=NAMED)
            )
    if endpoint.method == "GET" and "download" in params:
        raise Refused("download is never used", why="It returns a file, not data")


def _check_parameters(match: Match, path: str, params: Mapping[str, Any]) -> None:
    errors = match.endpoint.check({**match.values, **params})
    if errors:
        listed = "; ".join(f"{name}: {why.strip()}" for name, why in errors.items())
        raise ParameterRejected(
            f"PVE would not accept GET {path}",
            why=listed,
            next_step=see("See what this path takes", API_SEARCH),
            facts={"errors": errors},
        )


async def _plan(pve: Cluster, match: Match, path: str, params: Mapping[str, Any]) -> Plan:
    endpoint = match.endpoint
    summary = f"{endpoint.method} {path}"
    call = Call(
        summary,
        endpoint.method,
        path,
        params,
        await _target(pve, match, path),
        task_unnamed=endpoint.template == _TASK_UNNAMED,
    )

    def from_answers(answers: list[Any]) -> dict[str, Any]:
        return _answer(endpoint, answers[0])

    return Plan(summary, (call,), from_answers=from_answers)


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
        raise Conflict(f"{guest} is not at this path", next_step=f"Its path is {guest.path()}")
    return Target.of_guest(guest)
