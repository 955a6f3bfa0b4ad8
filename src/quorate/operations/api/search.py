"""Finding and explaining endpoints of the PVE API, from the facts of the version that the cluster runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations.api import paths as api_paths
from quorate.operations.api.risk import judge, refusal
from quorate.operations.registry import Risk, Table, operation, page
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument, NotFound
from quorate.pve.privileges import root_only
from quorate.pve.schema import Endpoint, Facts

Method = Literal["GET", "POST", "PUT", "DELETE"]

ENUM_SHOWN = 12
_WORD = re.compile(r"[a-z0-9]+")
# What people say, and what PVE calls it.
_MEANS = {
    "vm": ("qemu",),
    "vms": ("qemu",),
    "container": ("lxc",),
    "containers": ("lxc",),
    "ct": ("lxc",),
    "backup": ("vzdump",),
    "guest": ("qemu", "lxc"),
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


@operation(risk=Risk.READ)
async def api_search(
    pve: Cluster,
    words: Annotated[str, Meta(description="Such as 'backup job schedule' or 'VM.Clone'")],
    method: Method | None = None,
    limit: Annotated[int, Meta(ge=1, le=100)] = 20,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Find endpoints of the PVE API by words in their paths, names, parameters and privileges; best first."""
    wanted = _WORD.findall(words.lower())
    if not wanted:
        raise BadArgument("There are no words to search for", next_step="Give words such as snapshot or firewall rule")
    facts = await pve.facts()
    scored = [
        (score, endpoint)
        for endpoint in facts.endpoints()
        if method in (None, endpoint.method) and (score := _score(endpoint, wanted))
    ]
    scored.sort(key=lambda pair: (-pair[0], len(pair[1].template), pair[1].template, pair[1].method))
    table = page(
        ("method", "path", "name", "risk", "privileges"),
        (_row(endpoint) for _, endpoint in scored),
        limit=limit,
        offset=offset,
    )
    table.facts["next"] = "api_describe shows the parameters" if scored else "Try other words, such as PVE's own"
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
    risk = "refused" if refusal(endpoint) else judge(endpoint.method, endpoint.template)[0].value
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


@operation(risk=Risk.READ)
async def api_describe(
    pve: Cluster,
    method: Method,
    path: Annotated[str, Meta(description="With or without placeholders: /nodes/{node}/qemu or /nodes/pve1/qemu")],
    parameter: Annotated[str, Meta(description="Only this one, in full")] | None = None,
) -> dict[str, Any]:
    """One endpoint of the PVE API: parameters, privileges, risk, what it returns, the task it starts."""
    endpoint = _endpoint(await pve.facts(), method, path)
    if parameter is not None:
        return {"parameter": parameter, **_in_full(endpoint, parameter)}
    risk, because = judge(method, endpoint.template)
    required = {name: _brief(spec) for name, spec in endpoint.parameters.items() if not spec.get("optional")}
    optional = {name: _brief(spec) for name, spec in endpoint.parameters.items() if spec.get("optional")}
    return {
        "endpoint": f"{method} {endpoint.template}",
        "name": endpoint.name,
        "risk": f"{risk.value}: {because}",
        "refused": refusal(endpoint) or "",
        "needs": needs_in_words(endpoint.permission),
        "required": required,
        "optional": optional,
        "returns": _returns(endpoint.returns),
        "task": ", ".join(endpoint.worker_types),
        "next": f"api_call method={method} path=… params=…",
    }


def _endpoint(facts: Facts, method: str, path: str) -> Endpoint:
    if "{" in path:
        try:
            return facts.endpoint(method, path)
        except KeyError:
            raise NotFound(f"PVE {facts.version} has no {method} {path}", next_step="api_search finds paths") from None
    return api_paths.find(facts, method, path).endpoint


def _in_full(endpoint: Endpoint, name: str) -> dict[str, Any]:
    known = endpoint.parameters
    numbered = re.sub(r"\d+$", "[n]", name)
    found = known.get(name) or known.get(numbered)
    if found is None:
        raise NotFound(f"{endpoint.method} {endpoint.template} has no parameter {name!r}", next_step=_names(known))
    return dict(found)


def _names(known: Mapping[str, Any]) -> str:
    return f"It has {', '.join(sorted(known)) or 'none'}"


def _brief(spec: Mapping[str, Any]) -> str:
    """Type, choices and bounds in one line."""
    parts = [str(spec.get("type", "any"))]
    if "enum" in spec:
        choices = [str(one) for one in spec["enum"]]
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
    return "rights over the user that it is about (User.Modify, Realm.AllocateUser)"
