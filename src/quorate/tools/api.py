"""The whole PVE API: any call, through the same checks as every other operation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from pve_schema.schema import NEWEST, OLDEST, Endpoint, Facts, Match, facts
from quorate.hints import NAMED, Advice, see, tools
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import InFull, Risk, Table, operation
from quorate.operations.risk import effects, refusal, worst
from quorate.problems import BadArgument, Conflict, ParameterRejected, Refused
from quorate.pve.cluster import Cluster
from quorate.pve.stored_objects import hide_secrets
from quorate.pve.tasks import Upid
from quorate.pve.wire import address, encode, read
from quorate.suggestions import suggest

_PLAIN = re.compile(r"/[A-Za-z0-9._~:@!$,=+\-/]*")
_FORMATS = ("api2", "json", "extjs", "html", "htmljs", "png", "spiceconfig")


def objection(path: str) -> BadArgument | None:
    """The reason to refuse the spelling of a path; None if it is fine."""
    for wrong, why, next_step in _FAULTS:
        if wrong(path):
            return BadArgument(f"The path {path[:200]!r} is not accepted", why=why, next_step=next_step)
    return None


_FAULTS = (
    (
        lambda path: any(mark in path for mark in "?#&"),
        "It has a query in it",
        "Give parameters in params",
    ),
    (lambda path: "{" in path, "It has a placeholder in it", "Fill in the real value, such as /nodes/pve1/status"),
    (lambda path: "%" in path, "It has percent-encoded characters", "Write it decoded; nothing in PVE needs encoding"),
    (
        lambda path: path.lstrip("/").partition("/")[0].lower() in _FORMATS,
        "It contains the API prefix",
        "Begin after /api2/json, such as /nodes or /cluster/status",
    ),
    (lambda path: not path.startswith("/"), "It does not begin with a slash", "Write it like /nodes/pve1/status"),
    (lambda path: _PLAIN.fullmatch(path) is None, "It has characters that no PVE path has", "Write it plainly"),
    (lambda path: "//" in path, "It has an empty part", "Write single slashes"),
    (lambda path: len(path) > 1 and path.endswith("/"), "It ends with a slash", "Leave the last slash out"),
    (lambda path: {".", ".."} & set(path.split("/")), "It has . or .. as a part", "Write the actual path"),
)


def find(facts: Facts, method: str, path: str) -> Match:
    """The endpoint at a path. Raises if the path is misspelled or there is none."""
    if problem := objection(path):
        raise problem
    match = facts.find(method, path)
    if match is None:
        raise _unknown(facts, method, path)
    return match


def _unknown(facts: Facts, method: str, path: str) -> BadArgument:
    others = [other for other in ("GET", "POST", "PUT", "DELETE") if facts.find(other, path)]
    if others:
        return BadArgument(f"{path} has no {method} in PVE {facts.version}", next_step=f"It has {', '.join(others)}")
    templates = {endpoint.template for endpoint in facts.endpoints()}
    hint = suggest(path.lower(), templates, Advice("Find the path by words", tools.api_search), count=3, cutoff=0.5)
    return BadArgument(f"PVE {facts.version} has no {path[:200]}", next_step=hint)


CELL_CHARACTERS = 300
TEXT_CHARACTERS = 4000
NESTED_ITEMS = 50
PAGE_CHARACTERS = 20_000


def bound_response(value: Any, *, limit: int, offset: int) -> Table | dict[str, Any]:
    """PVE's answer in bounds: a list as a table, a long text by its lines, anything else with long parts cut."""
    if isinstance(value, str) and "\n" in value.strip():
        return _page(("line",), [[line[:TEXT_CHARACTERS]] for line in value.splitlines()], limit, offset)
    if isinstance(value, list):
        if value and all(isinstance(item, Mapping) for item in value):
            return _table(value, limit, offset)
        return _page(("value",), [[_cell(item)] for item in value], limit, offset)
    return {"data": "PVE returned an empty answer" if value is None else cut(value)}


def _table(rows: list[Mapping[str, Any]], limit: int, offset: int) -> Table:
    shown = rows[offset : offset + limit]
    columns = tuple(dict.fromkeys(key for row in shown for key in row if key != "digest"))
    table = _page(columns, [[_cell(row.get(key)) for key in columns] for row in rows], limit, offset)
    digests = {row["digest"] for row in rows if row.get("digest")}
    if len(digests) == 1:
        table.facts["digest"] = digests.pop()
    return table


def _page(columns: tuple[str, ...], rows: list[list[Any]], limit: int, offset: int) -> Table:
    """The requested rows as far as they fit in a page; at least one, so that paging ends."""
    shown: list[list[Any]] = []
    characters = 0
    for row in rows[offset : offset + limit]:
        characters += sum(len(str(cell)) + 1 for cell in row)
        if shown and characters > PAGE_CHARACTERS:
            break
        shown.append(row)
    table = Table(columns, shown, len(rows), offset)
    if len(shown) < min(limit, len(rows) - offset):
        table.note = "the page is full; continue with offset"
    return table


def _cell(value: Any) -> Any:
    if isinstance(value, (Mapping, list)):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, str) and len(value) > CELL_CHARACTERS:
        return f"{value[:CELL_CHARACTERS]}… ({len(value)} characters)"
    return value


def cut(value: Any, items: int = NESTED_ITEMS) -> Any:
    """The same structure with long texts and lists shortened, as far as it takes to fit in a page; cuts are marked."""
    smaller = _cut(value, items, TEXT_CHARACTERS)
    if len(json.dumps(smaller, default=str)) <= PAGE_CHARACTERS:
        return smaller
    return _cut(value, max(5, items // 5), CELL_CHARACTERS)


def _cut(value: Any, items: int, characters: int) -> Any:
    if isinstance(value, str) and len(value) > characters:
        return f"{value[:characters]}… ({len(value)} characters)"
    if isinstance(value, Mapping):
        kept = {key: _cut(item, items, characters) for key, item in list(value.items())[: items * 4]}
        return kept | ({"…": f"{len(value) - len(kept)} more"} if len(kept) < len(value) else {})
    if isinstance(value, list):
        kept_items = [_cut(item, items, characters) for item in value[:items]]
        return kept_items + ([f"… {len(value) - items} more"] if len(value) > items else [])
    return value


_TASK_UNNAMED = "/nodes/{node}/lxc/{vmid}/template"  # PVE starts a task here, but answers with nothing


def _risk(arguments: Mapping[str, Any]) -> Risk:
    """The risk of this call in any version; what cannot be parsed counts as the highest."""
    method, path = arguments["method"], arguments["path"]
    params = arguments["params"] or {}
    versions = () if objection(path) else (NEWEST, OLDEST)
    requests = [read(facts(version), method, path, params) for version in versions]
    risks = [effects(request)[0].risk for request in requests if request is not None]
    if risks:
        return worst(risks)
    return Risk.READ if method == "GET" else Risk.DESTROY


@operation(
    toolset="api",
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
    match = find(await pve.facts(), method, path)
    parameters = dict(params or {})
    _refuse(match, parameters)
    path = await address(pve, path)
    match = find(await pve.facts(), method, path)
    if method == "GET":
        sent = encode(parameters, match.endpoint)
        _check_parameters(match, path, sent)
        answer = (await pve.client.request("GET", path, sent)).data
        visible = hide_secrets(match.endpoint.template, answer)
        return {"data": visible} if in_full else bound_response(visible, limit=limit, offset=offset)
    return await _plan(pve, match, path, parameters)


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
            next_step=see("See what this path takes", tools.api_search),
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
    return Plan(summary, (call,), from_answers=partial(_describe_answer, endpoint))


def _describe_answer(endpoint: Endpoint, answers: list[Any]) -> dict[str, Any]:
    """PVE's answer to the one call. It can contain the secret of a new token, which is shown only here."""
    answer = answers[0]
    if answer is None or Upid.looks_like(answer):
        return {}
    return {"answer": cut(hide_secrets(endpoint.template, answer))}


async def _target(pve: Cluster, match: Match, path: str) -> Target:
    """The target of the call; a guest is looked up, so that its identity can be checked again before a DESTROY."""
    node = match.values.get("node", "")
    if "vmid" not in match.values:
        return Target("node", node, node=node) if node else Target("api", path)
    guest = await pve.guest(int(match.values["vmid"]))
    kind = "qemu" if "/qemu/" in match.endpoint.template else "lxc"
    if (guest.row.node, guest.row.type) != (node, kind):
        raise Conflict(f"{guest} is not at this path", next_step=f"Its path is {guest.path()}")
    return Target.of_guest(guest)
