"""Explaining an endpoint of the PVE API: parameters, privileges, risk, answer, task."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pve_schema.schema import Endpoint
from quorate.hints import API_CALL, Advice
from quorate.operations.api.risk import effects_of, refusal
from quorate.problems import NotFound
from quorate.pve.privileges import root_only

ENUM_SHOWN = 12


def describe(endpoint: Endpoint, parameter: str | None) -> dict[str, Any]:
    """All of it in short, or one parameter in full."""
    if parameter is not None:
        return {"parameter": parameter, **_in_full(endpoint, parameter)}
    gravest = effects_of(endpoint)[0]
    required = {name: _brief(spec) for name, spec in endpoint.parameters.items() if not spec.get("optional")}
    optional = {name: _brief(spec) for name, spec in endpoint.parameters.items() if spec.get("optional")}
    return {
        "endpoint": f"{endpoint.method} {endpoint.template}",
        "name": endpoint.name,
        "risk": f"{gravest.risk.value}: {gravest}",
        "refused": str(refusal(endpoint) or ""),
        "needs": needs_in_words(endpoint.permission),
        "required": required,
        "optional": optional,
        "returns": _returns(endpoint.returns),
        "task": ", ".join(endpoint.worker_types),
        "next": Advice("Call it", API_CALL(method=endpoint.method, path="…", params="…")),
    }


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
    return "privileges on that user (User.Modify, Realm.AllocateUser)"
