"""Finding and explaining endpoints of the PVE API, from the facts of the cluster's own version."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from pve_schema.schema import Endpoint, Facts
from quorate.hints import NAMED, Advice, tools
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.risk import effects_of, refusal
from quorate.problems import BadArgument, NotFound
from quorate.pve.cluster import Cluster
from quorate.pve.privileges import root_only
from quorate.tools.api import find, objection

ENUM_SHOWN = 12


def describe(endpoint: Endpoint, parameter: str | None) -> dict[str, Any]:
    """The endpoint in short, or one of its parameters in full."""
    if parameter is not None:
        return {"parameter": parameter, **_in_full(endpoint, parameter)}
    effect = effects_of(endpoint)[0]  # the most severe one
    required = {name: _brief(spec) for name, spec in endpoint.parameters.items() if not spec.get("optional")}
    optional = {name: _brief(spec) for name, spec in endpoint.parameters.items() if spec.get("optional")}
    return {
        "endpoint": f"{endpoint.method} {endpoint.template}",
        "name": endpoint.name,
        "risk": f"{effect.risk.value}: {effect}",
        "refused": str(refusal(endpoint) or ""),
        "needs": needs_in_words(endpoint.permission),
        "required": required,
        "optional": optional,
        "returns": _returns(endpoint.returns),
        "task": ", ".join(endpoint.worker_types),
        "next": Advice("Call it", tools.api_call(method=endpoint.method, path="…", params="…")),
    }


def _in_full(endpoint: Endpoint, name: str) -> dict[str, Any]:
    known = endpoint.parameters
    numbered = re.sub(r"\d+$", "[n]", name)
    spec = known.get(name) or known.get(numbered)
    if spec is None:
        present = f"It has {', '.join(sorted(known)) or 'none'}"
        raise NotFound(f"{endpoint.method} {endpoint.template} has no parameter {name!r}", next_step=present)
    return dict(spec)


def _brief(spec: Mapping[str, Any]) -> str:
    """Type, choices and bounds in one line."""
    parts = [str(spec.get("type", "any"))]
    if "enum" in spec:
        choices = [str(choice) for choice in spec["enum"]]
        more = f"|… {len(choices) - ENUM_SHOWN} more" if len(choices) > ENUM_SHOWN else ""
        parts = ["|".join(choices[:ENUM_SHOWN]) + more]
    known = spec.get("format")
    if isinstance(known, str):
        parts.append(known)
    elif isinstance(known, Mapping):
        parts.append(f"key=value list of {', '.join(list(known)[:ENUM_SHOWN])}")
    for key, word in (("minimum", ">="), ("maximum", "<="), ("maxLength", "length <="), ("default", "default")):
        if key in spec:
            parts.append(f"{word} {spec[key]}")
    if "requires" in spec:
        parts.append(f"with {spec['requires']}")
    return " ".join(parts)


def _returns(spec: Mapping[str, Any]) -> str:
    kind = str(spec.get("type", "any"))
    inner = spec.get("items", spec) if kind == "array" else spec
    fields = list(inner.get("properties", {})) if isinstance(inner, Mapping) else []
    more = f" and {len(fields) - 30} more" if len(fields) > 30 else ""
    return f"{kind} of {', '.join(fields[:30])}{more}" if fields else kind


def needs_in_words(permission: Mapping[str, Any] | None) -> str:
    """The permission expression as a sentence part: "VM.Clone on /vms/{vmid} and (…)"."""
    if root_only(permission) or permission is None:
        return "root@pam itself"
    if permission.get("user") in ("all", "world") or "check" not in permission:
        mentioned = ", ".join(permission.get("privs_mentioned", ()))
        anyone = "no login" if permission.get("user") == "world" else "any login"
        return f"{anyone}; its code also asks for {mentioned}" if mentioned else anyone
    return _check_in_words(permission["check"])


def _check_in_words(check: Sequence[Any]) -> str:
    kind = check[0]
    if kind in ("and", "or"):
        return f" {kind} ".join(
            f"({_check_in_words(part)})" if part[0] in ("and", "or") else _check_in_words(part) for part in check[1:]
        )
    if kind == "perm":
        options = dict(zip(check[3::2], check[4::2], strict=False))
        return f"{(' or ' if options.get('any') else ' and ').join(check[2])} on {check[1]}"
    if kind == "perm-modify":
        return f"Permissions.Modify on {check[1]}"
    return "privileges on that user (User.Modify, Realm.AllocateUser)"


Method = Literal["GET", "POST", "PUT", "DELETE"]

COLUMNS = ("method", "path", "name", "risk", "privileges")
_WORD = re.compile(r"[a-z0-9]+")
_FILLERS = re.compile(r"a|all|an|and|by|do|for|from|how|i|in|is|my|of|on|or|the|to|what|which|with")
# Words that people use, and PVE's words for them.
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
    toolset="api",
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
    all_words = _WORD.findall(words.lower())
    searched = [word for word in all_words if not _FILLERS.fullmatch(word)] or all_words
    if not searched:
        raise BadArgument(
            "There are no words to search for",
            next_step=Advice("Give {words} such as snapshot or firewall rule", words=NAMED),
        )
    scored = [
        (score, endpoint)
        for endpoint in facts.endpoints()
        if method in (None, endpoint.method) and (score := _score(endpoint, searched))
    ]
    scored.sort(key=lambda pair: (-pair[0], len(pair[1].template), pair[1].template, pair[1].method))
    table = page(COLUMNS, (_row(endpoint) for _, endpoint in scored), limit=limit, offset=offset)
    table.facts["next"] = (
        Advice("{path} and {method} show the parameters of one", path="", method="")
        if scored
        else "Try other words, such as PVE's own"
    )
    return table


def _score(endpoint: Endpoint, words: list[str]) -> float:
    """How well the endpoint matches all the words; 0 if one of them occurs nowhere."""
    segments = _WORD.findall(endpoint.template.lower())
    name = _WORD.findall(endpoint.name.lower())
    parameters = {word for parameter in endpoint.parameters for word in _WORD.findall(parameter.lower())}
    privileges = {word for privilege in _privileges(endpoint) for word in _WORD.findall(privilege.lower())}
    total = 0.0
    for word in words:
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
    privileges = set(permission.get("privs_mentioned", ()))
    _collect(permission.get("check"), privileges)
    return sorted(privileges)


def _collect(check: Any, privileges: set[str]) -> None:
    """Add the privileges in an expression, which are its only words with a dot and no slash."""
    if isinstance(check, str):
        if re.fullmatch(r"[A-Z][A-Za-z]+(\.[A-Z][A-Za-z]+)+", check):
            privileges.add(check)
    elif isinstance(check, list):
        for part in check:
            _collect(part, privileges)


# -- the endpoint at a path --------------------------------------------------------------------------------------------


def _describe_path(facts: Facts, path: str, method: str | None, parameter: str | None) -> Table | dict[str, Any]:
    """The endpoint at a path; a table of its methods if it has several and none is named."""
    endpoints = _at(facts, path, method)
    if len(endpoints) == 1:
        return describe(endpoints[0], parameter)
    if parameter is not None:
        methods = ", ".join(endpoint.method for endpoint in endpoints)
        raise BadArgument(
            f"{path} has {methods}, each with its own parameters",
            next_step=Advice("Say which with {method}", method=""),
        )
    table = page(COLUMNS, map(_row, endpoints), limit=len(endpoints), offset=0)
    table.facts["next"] = Advice("{method} shows the parameters of one", method="")
    return table


def _at(facts: Facts, path: str, method: str | None) -> list[Endpoint]:
    """The endpoints of a path, with or without placeholders."""
    methods = [verb for verb in get_args(Method) if method in (None, verb)]
    if "{" in path:
        endpoints = [
            endpoint for endpoint in facts.endpoints() if endpoint.template == path and endpoint.method in methods
        ]
        if not endpoints:
            what = f"{method} {path}" if method else path
            raise NotFound(
                f"PVE {facts.version} has no {what}", next_step=Advice("Find the path by words", tools.api_search)
            )
        return endpoints
    if problem := objection(path):
        raise problem
    matches = [match for verb in methods if (match := facts.find(verb, path))]
    return [match.endpoint for match in matches] or [find(facts, methods[0], path).endpoint]
