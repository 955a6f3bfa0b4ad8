"""Finding and explaining endpoints of the PVE API, from the facts of the version that the cluster runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from pve_schema.schema import Endpoint, Facts
from quorate.hints import API_SEARCH, NAMED, Advice
from quorate.operations.api import paths as api_paths
from quorate.operations.api.endpoint_help import describe
from quorate.operations.api.risk import effects_of, refusal
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import BadArgument, NotFound
from quorate.pve.cluster import Cluster

Method = Literal["GET", "POST", "PUT", "DELETE"]

COLUMNS = ("method", "path", "name", "risk", "privileges")
_WORD = re.compile(r"[a-z0-9]+")
_FILLERS = re.compile(r"a|all|an|and|by|do|for|from|how|i|in|is|my|of|on|or|the|to|what|which|with")
# What people say, and what PVE calls it.
_MEANS = {
    "vm": ("qemu",),
    "vms": ("qemu",),
    "container": ("lxc",),
    "containers": ("lxc",),
    "ct": ("lxc",),
    "backup": ("vzdump",),
    "guest": ("qemu", "lxc"),
    "guests": ("qemu", "lxc"),
    "permission": ("acl", "permissions"),
    "permissions": ("acl",),
    "update": ("apt", "put"),
    "updates": ("apt",),
    "package": ("apt",),
    "create": ("post",),
    "add": ("post",),
    "delete": ("delete",),
    "remove": ("delete",),
    "list": ("get",),
    "read": ("get",),
    "show": ("get",),
    "change": ("put",),
    "realm": ("domains",),
    "reboot": ("status",),
    "console": ("vncproxy", "termproxy"),
}


@operation(
    risk=Risk.READ,
    spans="any",
    search_words="raw api endpoint parameter documentation reference look up path",
    example="words='firewall of a guest'",
)
async def api_search(
    pve: Cluster,
    words: Annotated[str, Meta(description="Such as 'backup job schedule' or 'VM.Clone'")] | None = None,
    path: Annotated[
        str, Meta(description="Describe this endpoint: /nodes/{node}/qemu or /nodes/pve1/qemu, with its method")
    ]
    | None = None,
    method: Method | None = None,
    parameter: Annotated[str, Meta(description="With path: only this one, in full")] | None = None,
    limit: Annotated[int, Meta(ge=1, le=100)] = 20,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table | dict[str, Any]:
    """Find endpoints of the PVE API by words in their paths, names, parameters and privileges, best first.

    With path, describe one: parameters, privileges, risk, what it returns, the task it starts.
    """
    if (words is None) == (path is None):
        raise BadArgument(
            "One of words and path is needed",
            next_step=Advice("{words} finds endpoints, {path} describes one", words=NAMED, path=NAMED),
        )
    facts = await pve.facts()
    if path is not None:
        return _describe_path(facts, path, method, parameter)
    if parameter is not None:
        raise BadArgument(
            "parameter needs path",
            next_step=Advice("Say which endpoint it belongs to with {path} and {method}", path="", method=""),
        )
    return _search(facts, str(words), method, limit=limit, offset=offset)


def _search(facts: Facts, words: str, method: str | None, *, limit: int, offset: int) -> Table:
    given = _WORD.findall(words.lower())
    wanted = [word for word in given if not _FILLERS.fullmatch(word)] or given
    if not wanted:
        raise BadArgument(
            "There are no words to search for",
            next_step=Advice("Give {words} such as snapshot or firewall rule", words=NAMED),
        )
    scored = [
        (score, endpoint)
        for endpoint in facts.endpoints()
        if method in (None, endpoint.method) and (score := _score(endpoint, wanted))
    ]
    scored.sort(key=lambda pair: (-pair[0], len(pair[1].template), pair[1].template, pair[1].method))
    table = page(COLUMNS, (_row(endpoint) for _, endpoint in scored), limit=limit, offset=offset)
    table.facts["next"] = (
        Advice("{path} and {method} show the parameters of one", path="", method="")
        if scored
        else "Try other words, such as PVE's own"
    )
    return table


def _score(endpoint: Endpoint, wanted: list[str]) -> float:
    """How well an endpoint fits all the words; 0 if one of them is nowhere."""
    segments = _WORD.findall(endpoint.template.lower())
    name = _WORD.findall(endpoint.name.lower())
    parameters = {word for parameter in endpoint.parameters for word in _WORD.findall(parameter.lower())}
    privileges = {word for one in _privileges(endpoint) for word in _WORD.findall(one.lower())}
    total = 0.0
    for word in wanted:
        best = max(
            _word_score(meant, endpoint.method.lower(), segments, name, parameters, privileges)
            for meant in (word, *_MEANS.get(word, ()))
        )
        if not best:
            return 0.0
        total += best
    return total


def _word_score(
    word: str, method: str, segments: Sequence[str], name: Sequence[str], parameters: set[str], privileges: set[str]
) -> float:
    if word in segments:
        return 6.0 + (2.0 if segments and segments[-1] == word else 0.0)
    if word in name:
        return 5.0
    if word == method:
        return 3.0
    if len(word) > 2 and any(word in segment or segment in word for segment in segments if len(segment) > 3):
        return 3.0
    if word in privileges:
        return 2.5
    if word in parameters:
        return 2.0
    return 1.0 if len(word) > 3 and any(word in parameter for parameter in parameters) else 0.0


def _row(endpoint: Endpoint) -> list[Any]:
    risk = "refused" if refusal(endpoint) else effects_of(endpoint)[0].risk.value
    return [endpoint.method, endpoint.template, endpoint.name, risk, ", ".join(_privileges(endpoint))]


def _privileges(endpoint: Endpoint) -> list[str]:
    permission = endpoint.permission or {}
    found = set(permission.get("privs_mentioned", ()))
    _collect(permission.get("check"), found)
    return sorted(found)


def _collect(check: Any, found: set[str]) -> None:
    """The privileges in an expression; they are the only words of it with a dot and no slash."""
    if isinstance(check, str):
        if re.fullmatch(r"[A-Z][A-Za-z]+(\.[A-Z][A-Za-z]+)+", check):
            found.add(check)
    elif isinstance(check, list):
        for part in check:
            _collect(part, found)


# -- the endpoint at a path --------------------------------------------------------------------------------------------


def _describe_path(facts: Facts, path: str, method: str | None, parameter: str | None) -> Table | dict[str, Any]:
    """The requested endpoint; if the path has several methods and none is named, what they are."""
    found = _at(facts, path, method)
    if len(found) == 1:
        return describe(found[0], parameter)
    if parameter is not None:
        methods = ", ".join(endpoint.method for endpoint in found)
        raise BadArgument(
            f"{path} has {methods}, each with its own parameters",
            next_step=Advice("Say which with {method}", method=""),
        )
    table = page(COLUMNS, map(_row, found), limit=len(found), offset=0)
    table.facts["next"] = Advice("{method} shows the parameters of one", method="")
    return table


def _at(facts: Facts, path: str, method: str | None) -> list[Endpoint]:
    """The endpoints of a path, with or without placeholders."""
    methods = [one for one in get_args(Method) if method in (None, one)]
    if "{" in path:
        found = [one for one in facts.endpoints() if one.template == path and one.method in methods]
        if not found:
            what = f"{method} {path}" if method else path
            raise NotFound(f"PVE {facts.version} has no {what}", next_step=Advice("Find the path by words", API_SEARCH))
        return found
    if problem := api_paths.objection(path):
        raise problem
    matches = [match for one in methods if (match := facts.find(one, path))]
    return [match.endpoint for match in matches] or [api_paths.find(facts, methods[0], path).endpoint]
