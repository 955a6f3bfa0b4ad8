"""Registered servers. Their numbers are made from their names, and so stay the same."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

from quorate.operations.registry import Risk
from quorate.pve.errors import BadArgument, NotFound
from quorate.surfaces.compat.declaring import Tool, may, need
from quorate.surfaces.compat.running import Run
from quorate.surfaces.compat.washyu import shapes
from quorate.surfaces.compat.washyu.shapes import ACCOUNT, KEY_PATH, PORT, good, told

KNOWN = {"name": "name", "address": "hostname", "port": "port", "user": "username", "key": "key_path",
         "display_name": "display_name", "verified": "last_verified", "verdict": "verification"}  # fmt: skip


def number(name: str) -> int:
    return zlib.crc32(name.encode()) & 0x7FFFFFFF


async def register(run: Run) -> dict[str, Any]:
    name = run["hostname"].replace(":", "-")
    done = await run.change(
        "host_register",
        host=name,
        address=run["hostname"],
        user=run["username"],
        key=run["key_path"],
        port=run["port"],
        display_name=run["display_name"],
        verify=run["verify_connection"],
    )
    return told(done, credential_id=number(name), hostname=run["hostname"])


async def listing(run: Run) -> dict[str, Any]:
    rows = await run.rows("host_list", clusters=False, inactive=not run["active_only"])
    found = await asyncio.gather(*(run.facts("host_list", host=row["name"]) for row in rows))
    servers = [
        {
            "id": number(one["name"]),
            **{theirs: one[ours] for ours, theirs in KNOWN.items() if ours in one},
            "is_active": one.get("active", True),
        }
        for one in found
    ]
    return good(total_servers=len(servers), servers=servers)


async def update(run: Run) -> dict[str, Any]:
    name = await _meant(run)
    done = await run.change(
        "host_update",
        host=name,
        user=run["username"],
        key=run["key_path"],
        port=run["port"],
        display_name=run["display_name"],
        active=run["is_active"],
    )
    return told(done, credential_id=number(name), hostname=name)


async def remove(run: Run) -> dict[str, Any]:
    name = await _meant(run)
    return told(await run.change("host_remove", host=name), credential_id=number(name), hostname=name)


async def _meant(run: Run) -> str:
    """The server of `credential_id`, of `hostname`, or of both, if they are the same."""
    wanted, hostname = run["credential_id"], run["hostname"]
    if wanted is None and not hostname:
        raise BadArgument(f"{run.tool} needs a server", next_step="Give credential_id or hostname")
    names = await shapes.servers(run)
    found = [
        name
        for name in names
        if (wanted is None or number(name) == wanted) and (not hostname or name == hostname.replace(":", "-"))
    ]
    if len(found) != 1:
        called = " ".join(str(one) for one in (wanted, hostname) if one)
        raise NotFound(f"There is no registered server {called}", next_step="list_registered_servers shows them")
    return found[0]


WHICH = (
    may("credential_id", "integer", about="As list_registered_servers tells it"),
    may("hostname", "string", about="Instead of it"),
)

TOOLS = (
    Tool(
        "register_server",
        "Register a server for SSH; its host key is trusted by the operator, with `quorate trust`.",
        (
            need("hostname", "string", "Name or address"),
            may("username", "string", ACCOUNT),
            KEY_PATH,
            PORT,
            may("display_name", "string"),
            may("verify_connection", "boolean", True, "Log in once it is registered"),
        ),
        Risk.CHANGE,
        "host_register",
        register,
    ),
    Tool(
        "list_registered_servers",
        "Registered servers, and whether they could be logged in to.",
        (may("active_only", "boolean", True),),
        Risk.READ,
        "host_list clusters=false",
        listing,
    ),
    Tool(
        "update_server_credentials",
        "Change what is kept of a registered server.",
        (
            *WHICH,
            may("username", "string"),
            KEY_PATH,
            may("port", "integer"),
            may("display_name", "string"),
            may("is_active", "boolean", about="false keeps it, but does not use it"),
        ),
        Risk.CHANGE,
        "host_update",
        update,
    ),
    Tool(
        "remove_server",
        "Forget a registered server; the machine itself is not touched.",
        WHICH,
        Risk.DESTROY,
        "host_remove",
        remove,
    ),
)
