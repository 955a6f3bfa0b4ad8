"""What a caller needs to be allowed to call an endpoint, read from the table's permission expressions.

An expression is one of
    ["perm", path template, privileges, option, value, ...]
    ["and", expression, ...] or ["or", expression, ...]
    ["perm-modify", path template]
    ["userid-group", ...] or ["userid-param", ...]
The last two depend on the realm and the groups of the user that the call is about, which privileges alone do
not tell: they are taken as granted here, and PVE has the last word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_PLACEHOLDER: Final = re.compile(r"\{([^{}]+)\}")
_VALID_PATH: Final = re.compile(r"[A-Za-z0-9.\-_/]+")

# Who may allocate these objects may also hand out rights on them.
_OWNER_PRIVILEGE: Final = {"storage": "Datastore.Allocate", "vms": "VM.Allocate", "pool": "Pool.Allocate"}

Has = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Need:
    """One check: these privileges (all of them, or any one) on a path of the access tree."""

    path: str
    """Empty if the call's values give no valid path; PVE grants nothing there."""
    privileges: tuple[str, ...]
    any_of: bool


def root_only(permission: Mapping[str, Any] | None) -> bool:
    """Whether root@pam alone may call it; not even its API tokens may."""
    return permission is None


def needs(permission: Mapping[str, Any] | None, values: Mapping[str, object]) -> list[Need]:
    """Every check that the expression names, whether or not all have to pass. For explanations."""
    check = _expression(permission)
    return [] if check is None else list(dict.fromkeys(_named(check, values)))


def missing(permission: Mapping[str, Any] | None, values: Mapping[str, object], has: Has) -> list[Need]:
    """What has to be granted before the call is allowed; [] if it is allowed already.

    A need for several privileges at once names only those that are lacking. Where one of several ways would
    do, it is the way that lacks least. A root-only endpoint (see `root_only`) has nothing to grant: [].
    """
    check = _expression(permission)
    return [] if check is None else list(dict.fromkeys(_lacking(check, values, has)))


def _expression(permission: Mapping[str, Any] | None) -> Sequence[Any] | None:
    """The check to make: none for an endpoint open to all, even if it names one for part of its answer."""
    if permission is None or permission.get("user") in ("all", "world"):
        return None
    check: Sequence[Any] | None = permission.get("check")
    return check


def _named(check: Sequence[Any], values: Mapping[str, object]) -> list[Need]:
    kind = check[0]
    if kind in ("and", "or"):
        return [need for part in check[1:] for need in _named(part, values)]
    need = _need(check, values)
    return [] if need is None else [need]


def _lacking(check: Sequence[Any], values: Mapping[str, object], has: Has) -> list[Need]:
    kind = check[0]
    if kind == "and":
        return [need for part in check[1:] for need in _lacking(part, values, has)]
    if kind == "or":
        return _least(check[1:], values, has)
    need = _need(check, values)
    if need is None:
        return []
    if not _applies(check, values):
        return [need]
    return _ungranted(need, has)


def _least(ways: Sequence[Sequence[Any]], values: Mapping[str, object], has: Has) -> list[Need]:
    """The way that lacks least; a way that the call's parameters rule out only if there is no other."""
    open_ways = [way for way in ways if _applies(way, values)] or ways
    return min((_lacking(way, values, has) for way in open_ways), key=len)


def _applies(check: Sequence[Any], values: Mapping[str, object]) -> bool:
    """A check that requires a parameter fails for a call without it, whatever the caller may do."""
    required = _options(check).get("require_param") if check[0] == "perm" else None
    return required is None or values.get(required) is not None


def _ungranted(need: Need, has: Has) -> list[Need]:
    lacked = tuple(name for name in need.privileges if not need.path or not has(need.path, name))
    if not lacked or (need.any_of and len(lacked) < len(need.privileges)):
        return []
    return [need if need.any_of else Need(need.path, lacked, any_of=False)]


def _need(check: Sequence[Any], values: Mapping[str, object]) -> Need | None:
    """The need of a single check, None if privileges alone cannot decide it."""
    if check[0] == "perm":
        return Need(fill_in(check[1], values), tuple(check[2]), any_of=bool(_options(check).get("any")))
    if check[0] == "perm-modify":
        return _need_to_share(fill_in(check[1], values))
    return None


def _need_to_share(path: str) -> Need:
    segments = path.split("/")
    owner = _OWNER_PRIVILEGE.get(segments[1]) if len(segments) > 2 else None
    privileges = ("Permissions.Modify",) if owner is None else ("Permissions.Modify", owner)
    return Need(path, privileges, any_of=True)


def _options(check: Sequence[Any]) -> dict[str, Any]:
    """The options after path and privileges, written as alternating names and values."""
    return dict(zip(check[3::2], check[4::2], strict=False))


def fill_in(template: str, values: Mapping[str, object]) -> str:
    """A path of the access tree with the call's values in it, "-" for those that the call does not give."""

    def value_of(placeholder: re.Match[str]) -> str:
        value = values.get(placeholder[1])
        return "-" if value is None else str(value)

    filled = _PLACEHOLDER.sub(value_of, template)
    path = "/" + "/".join(segment for segment in filled.split("/") if segment)
    return path if _VALID_PATH.fullmatch(path) else ""
