"""Reading who may do what: users, groups, roles, realms, tokens and the access control list."""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Collection
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.units import moment, shortlist
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument, NotFound

USER_ID = re.compile(r"[^\s:/!]+@[A-Za-z][A-Za-z0-9.\-_]+")
TOKEN_ID = re.compile(r"(?P<user>[^\s:/!]+@[A-Za-z][A-Za-z0-9.\-_]+)!(?P<name>[A-Za-z][A-Za-z0-9.\-_]+)")
PLAIN_ID = re.compile(r"[A-Za-z0-9.\-_]+")
NAMES_SHOWN = 20

_AGE = re.compile(r"(?P<count>\d{1,5})(?P<unit>[hdw])")
_SECONDS = {"h": 3600, "d": 86400, "w": 604800}

Kind = Literal["users", "groups", "roles", "realms", "tokens", "acl"]
Expire = Annotated[str | int, Meta(description="never, 12h, 90d, 2027-01-31 or a Unix time")]


@operation(risk=Risk.READ)
async def access_list(
    pve: Cluster,
    kind: Kind,
    name: Annotated[str, Meta(description="Part of the id; for acl of path, holder or role")] | None = None,
    enabled: Annotated[bool, Meta(description="Only such users")] | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """List users, groups, roles, realms, API tokens or the ACL. Privileges of roles are shown when name is given."""
    if enabled is not None and kind != "users":
        raise BadArgument(f"enabled does not go with kind={kind}", next_step="It filters users")
    columns, rows, identifying = await _LISTS[kind](pve)
    if name is not None:
        rows = [row for row in rows if any(name.lower() in str(cell).lower() for cell in row[:identifying])]
    if enabled is not None:
        rows = [row for row in rows if (row[1] == "yes") == enabled]
    if kind == "roles" and name is None:
        rows = [[role, builtin, f"{len(held.split(','))} privileges" if held else ""] for role, builtin, held in rows]
    table = page(columns, rows, limit=limit, offset=offset)
    if table.next_offset is not None:
        table.note = "narrow with name"
    return table


async def _users(pve: Cluster) -> tuple[tuple[str, ...], list[list[Any]], int]:
    columns = ("user", "enabled", "expires", "groups", "tokens", "name", "email", "comment")
    rows = [
        [
            userid,
            "yes" if user.get("enable", 1) else "no",
            expiry(user),
            ",".join(groups_of(user)),
            len(user.get("tokens") or []) or "",
            f"{user.get('firstname', '')} {user.get('lastname', '')}".strip(),
            user.get("email", ""),
            user.get("comment", ""),
        ]
        for userid, user in (await users(pve)).items()
    ]
    return columns, rows, 1


async def _groups(pve: Cluster) -> tuple[tuple[str, ...], list[list[Any]], int]:
    rows = [[name, group.get("users", ""), group.get("comment", "")] for name, group in (await groups(pve)).items()]
    return ("group", "members", "comment"), rows, 1


async def _roles(pve: Cluster) -> tuple[tuple[str, ...], list[list[Any]], int]:
    rows = [
        [name, "yes" if role.get("special") else "", role.get("privs", "")] for name, role in (await roles(pve)).items()
    ]
    return ("role", "builtin", "privileges"), rows, 1


async def _realms(pve: Cluster) -> tuple[tuple[str, ...], list[list[Any]], int]:
    rows = [
        [row["realm"], row["type"], "yes" if row.get("default") else "", row.get("tfa", ""), row.get("comment", "")]
        for row in await pve.get("/access/domains")
    ]
    return ("realm", "type", "default", "tfa", "comment"), rows, 1


async def _tokens(pve: Cluster) -> tuple[tuple[str, ...], list[list[Any]], int]:
    rows = [
        [name, "own" if token.get("privsep", 1) else "all of its user", expiry(token), token.get("comment", "")]
        for name, token in tokens_in(await users(pve)).items()
    ]
    return ("token", "rights", "expires", "comment"), rows, 1


async def _acl(pve: Cluster) -> tuple[tuple[str, ...], list[list[Any]], int]:
    rows = [
        [entry["path"], holder(entry), entry["roleid"], "" if entry.get("propagate", 1) else "no"]
        for entry in await acl(pve)
    ]
    return ("path", "holder", "role", "propagates"), rows, 3


_LISTS = {
    "users": _users,
    "groups": _groups,
    "roles": _roles,
    "realms": _realms,
    "tokens": _tokens,
    "acl": _acl,
}


# -- what the other operations on access read, too ---------------------------------------------------------------------


async def users(pve: Cluster) -> dict[str, dict[str, Any]]:
    """All users that our credentials may see, with groups and tokens."""
    return {row["userid"]: row for row in await pve.get("/access/users", full=1)}


async def groups(pve: Cluster) -> dict[str, dict[str, Any]]:
    return {row["groupid"]: row for row in await pve.get("/access/groups")}


async def roles(pve: Cluster) -> dict[str, dict[str, Any]]:
    return {row["roleid"]: row for row in sorted(await pve.get("/access/roles"), key=lambda row: str(row["roleid"]))}


async def acl(pve: Cluster) -> list[dict[str, Any]]:
    return sorted(await pve.get("/access/acl"), key=lambda row: (row["path"], holder(row), row["roleid"]))


def tokens_in(known: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        f"{userid}!{token['tokenid']}": token for userid, user in known.items() for token in user.get("tokens") or []
    }


def groups_of(user: dict[str, Any]) -> list[str]:
    """PVE writes the groups of a user as a list in one place and as text in another."""
    given = user.get("groups") or ""
    return sorted(given if isinstance(given, list) else [name for name in re.split(r"[,;\s]+", given) if name])


def holder(entry: dict[str, Any]) -> str:
    """Who an ACL entry is about, in one word: user@realm, user@realm!token or @group."""
    return f"@{entry['ugid']}" if entry["type"] == "group" else str(entry["ugid"])


def expiry(entry: dict[str, Any]) -> str:
    return moment(entry["expire"]) if entry.get("expire") else ""


def parse_expiry(pve: Cluster, given: str | int) -> int:
    """The Unix time of "never" (0), of an age from now on, or of a day in UTC."""
    text = str(given).strip().lower()
    if text in ("never", "0"):
        return 0
    now = int(pve.clock.time())
    if age := _AGE.fullmatch(text):
        return now + int(age["count"]) * _SECONDS[age["unit"]]
    try:
        at = int(text) if text.isdecimal() else int(_day(text).timestamp())
    except ValueError:
        raise BadArgument(
            f"{given!r} is not an expiry", next_step="Write never, 12h, 90d, 4w, 2027-01-31 or a Unix time"
        ) from None
    if at <= now:
        raise BadArgument(f"{given} is over already", next_step="Give a time to come, or never")
    return at


def _day(text: str) -> datetime.datetime:
    return datetime.datetime.combine(datetime.date.fromisoformat(text), datetime.time(), datetime.UTC)


def unknown(what: str, name: str, known: Collection[str]) -> NotFound:
    """Nothing of that name: with the nearest one, or with what there is."""
    near = difflib.get_close_matches(name, known, 1)
    if near:
        hint = f"Did you mean {near[0]}?"
    elif known:
        hint = f"There are {shortlist(sorted(known), NAMES_SHOWN)}"
    else:
        hint = "access_list shows what our credentials may see"
    return NotFound(f"There is no {what} {name!r}", next_step=hint)
