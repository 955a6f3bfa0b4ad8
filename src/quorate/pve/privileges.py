"""The privileges that an endpoint needs, from the permission expressions of the API table.

An expression is one of
    ["perm", path template, privileges, option, value, ...]
    ["and", expression, ...] or ["or", expression, ...]
    ["perm-modify", path template]
    ["userid-group", ...] or ["userid-param", ...]
The last two depend on the realm and the groups of the user that the call is about. Privileges alone cannot tell, so
they count as granted here, and PVE decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_PLACEHOLDER: Final = re.compile(r"\{([^{}]+)\}")
_VALID_PATH: Final = re.compile(r"[A-Za-z0-9.\-_/]+")

# These privileges include granting privileges on the object.
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
    return [] if check is None else list(dict.fromkeys(_checks_in(check, values)))


def missing(permission: Mapping[str, Any] | None, values: Mapping[str, object], has: Has) -> list[Need]:
    """What has to be granted before the call is allowed; [] if it already is.

    A need for several privileges names only the missing ones. Of several alternatives, it is the one that lacks
    least. A root-only endpoint (see `root_only`) has nothing to grant: [].
    """
    check = _expression(permission)
    return [] if check is None else list(dict.fromkeys(_lacking(check, values, has)))


def is_decisive(permission: Mapping[str, Any] | None) -> bool:
    """Whether the expression alone decides. Otherwise PVE's code does, by the user or the options of the call."""
    check = _expression(permission)
    return permission is None or (check is not None and _decides(check))


def _decides(check: Sequence[Any]) -> bool:
    if check[0] in ("and", "or"):
        return all(_decides(part) for part in check[1:])
    need = _need(check, {})
    return need is not None and not (need.any_of and sum(map(_covers_options, need.privileges)) > 1)


def _covers_options(privilege: str) -> bool:
    """Whether the options of a call decide if the privilege is needed, because it is for some options of a guest."""
    return privilege.startswith("VM.Config.")


def granting_roles(identity: str, path: str, entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The roles that give `identity` what it has on `path`, and that nobody else has: extending one affects no other.

    A token has what both it and its user are granted, and one without privilege separation what its user is.
    """
    user = identity.split("!", 1)[0]
    shared = {str(entry["roleid"]) for entry in entries if entry["ugid"] not in (user, identity)}
    by_user, by_token = _closest_roles(user, path, entries), _closest_roles(identity, path, entries)
    unlimited = user == "root@pam" or "Administrator" in by_user
    own = by_token if unlimited else [role for role in by_user if role in by_token or not by_token]
    return [role for role in own if role not in shared]


def _closest_roles(holder: str, path: str, entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Entries on a path replace what is inherited from above; whether the holder is in a group is not known."""
    roles: dict[str, list[str]] = {}
    for entry in entries:
        if _covers(entry, path) and (entry["ugid"] == holder or entry.get("type") == "group"):
            roles.setdefault(str(entry["path"]), []).extend([str(entry["roleid"])] if entry["ugid"] == holder else [])
    return roles[max(roles, key=len)] if roles else []


def _covers(entry: Mapping[str, Any], path: str) -> bool:
    at = str(entry["path"])
    return at == path or (bool(int(entry.get("propagate", 1))) and f"{path}/".startswith(at.rstrip("/") + "/"))


def _expression(permission: Mapping[str, Any] | None) -> Sequence[Any] | None:
    """The check to make: none for an endpoint open to all, even if it names one for part of its answer."""
    if permission is None or permission.get("user") in ("all", "world"):
        return None
    check: Sequence[Any] | None = permission.get("check")
    return check


def _checks_in(check: Sequence[Any], values: Mapping[str, object]) -> list[Need]:
    kind = check[0]
    if kind in ("and", "or"):
        return [need for part in check[1:] for need in _checks_in(part, values)]
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
    return lacking_of(need, has)


def _least(ways: Sequence[Sequence[Any]], values: Mapping[str, object], has: Has) -> list[Need]:
    """The alternative that lacks least; one that the parameters rule out only if there is no other."""
    open_ways = [way for way in ways if _applies(way, values)] or ways
    return min((_lacking(way, values, has) for way in open_ways), key=len)


def _applies(check: Sequence[Any], values: Mapping[str, object]) -> bool:
    """A check that requires a parameter fails for a call without it, whatever the caller may do."""
    required = _options(check).get("require_param") if check[0] == "perm" else None
    return required is None or values.get(required) is not None


def lacking_of(need: Need, has: Has) -> list[Need]:
    """What lacks for one check; [] if it passes."""
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
