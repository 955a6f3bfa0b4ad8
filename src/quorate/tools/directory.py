"""PVE's access control: users, groups, roles, tokens and the access control list."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import see, tools
from quorate.problems import BadArgument, NotFound
from quorate.pve.cluster import Cluster
from quorate.suggestions import suggest
from quorate.units import moment, shortlist

USER_ID = re.compile(r"[^\s:/!]+@[A-Za-z][A-Za-z0-9.\-_]+")
TOKEN_ID = re.compile(r"(?P<user>[^\s:/!]+@[A-Za-z][A-Za-z0-9.\-_]+)!(?P<name>[A-Za-z][A-Za-z0-9.\-_]+)")
PLAIN_ID = re.compile(r"[A-Za-z0-9.\-_]+")
ENTRIES_SHOWN = 20
NAMES_SHOWN = 20


async def users(pve: Cluster) -> dict[str, dict[str, Any]]:
    """All users that these credentials can see, with groups and tokens."""
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
    """The groups of a user, which PVE writes as a list in some answers and as text in others."""
    groups = user.get("groups") or ""
    return sorted(groups if isinstance(groups, list) else [name for name in re.split(r"[,;\s]+", groups) if name])


def holder(entry: dict[str, Any]) -> str:
    """The holder of an ACL entry in one word: user@realm, user@realm!token or @group."""
    return f"@{entry['ugid']}" if entry["type"] == "group" else str(entry["ugid"])


_LISTED = ("user", "group", "role", "realm", "token", "pool")


def unknown(what: str, name: str, known: Collection[str]) -> NotFound:
    """The name does not exist: suggests the nearest one, or lists what exists."""
    listed = f"Available: {shortlist(sorted(known), NAMES_SHOWN)}"
    listing = tools.access_list(kind=f"{what}s") if what in _LISTED else tools.access_list
    hint = suggest(name, known, listed if known else see("See what these credentials can see", listing))
    return NotFound(f"There is no {what} {name!r}", next_step=hint)


_AGE = re.compile(r"(?P<count>\d{1,5})(?P<unit>[hdw])")
_SECONDS = {"h": 3600, "d": 86400, "w": 604800}

Expire = Annotated[str | int, Meta(description="never, 12h, 90d, 2027-01-31 or a Unix time")]


def expiry(entry: dict[str, Any]) -> str:
    return moment(entry["expire"]) if entry.get("expire") else ""


def parse_expiry(pve: Cluster, expire: str | int) -> int:
    """The Unix time of an expiry: 0 for "never", a duration from now, the start of a day in UTC."""
    text = str(expire).strip().lower()
    if text in ("never", "0"):
        return 0
    now = int(pve.clock.time())
    if age := _AGE.fullmatch(text):
        return now + int(age["count"]) * _SECONDS[age["unit"]]
    try:
        at = int(text) if text.isdecimal() else int(_day(text).timestamp())
    except ValueError:
        raise BadArgument(
            f"{expire!r} is not an expiry", next_step="Write never, 12h, 90d, 4w, 2027-01-31 or a Unix time"
        ) from None
    if at <= now:
        raise BadArgument(f"{expire} is in the past", next_step="Give a time in the future, or never")
    return at


def _day(text: str) -> datetime.datetime:
    return datetime.datetime.combine(datetime.date.fromisoformat(text), datetime.time(), datetime.UTC)


def owner_of(identity: str) -> str:
    """The user of an API token, or the user itself."""
    return identity.partition("!")[0]


def forget_own_privileges(pve: Cluster) -> Any:
    """Read Quorate's own privileges again after the change, which may have affected them."""

    async def after() -> dict[str, Any]:
        pve.forget_privileges()
        return {}

    return after
