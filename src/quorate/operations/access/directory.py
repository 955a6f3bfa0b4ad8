"""Who and what PVE's access control knows: users, groups, roles, tokens and the access control list."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import Any

from quorate.operations.units import shortlist
from quorate.pve.cluster import Cluster
from quorate.pve.errors import NotFound

USER_ID = re.compile(r"[^\s:/!]+@[A-Za-z][A-Za-z0-9.\-_]+")
TOKEN_ID = re.compile(r"(?P<user>[^\s:/!]+@[A-Za-z][A-Za-z0-9.\-_]+)!(?P<name>[A-Za-z][A-Za-z0-9.\-_]+)")
PLAIN_ID = re.compile(r"[A-Za-z0-9.\-_]+")
NAMES_SHOWN = 20


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
