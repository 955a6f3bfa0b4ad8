"""What washyu's tools share: how a machine is named and logged in to, and answers that begin with a status."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from quorate.homelab.machines import Login, logging_in_by
from quorate.pve.errors import BadArgument, NotFound, Problem
from quorate.secret import Secret
from quorate.surfaces.compat.declaring import Tool, may, need
from quorate.surfaces.compat.recipes import speaks_of_tools
from quorate.surfaces.compat.running import Done, Run

ACCOUNT = "mcp_admin"
SSH_PORT = 22
PATIENCE = 600.0
"""Seconds: it has no tool that follows what goes on in the background, so calls follow it themselves."""

HOSTNAME = need("hostname", "string", "Registered server, name or address")
USERNAME = need("username", "string")
PASSWORD = may("password", "string", about="For this call only; kept nowhere")
KEY_PATH = may("key_path", "string", about="Private key on the machine of this server")
PORT = may("port", "integer", SSH_PORT)
DEVICE = need("device_id", "integer", "As get_network_sitemap tells it")


# -- machines ----------------------------------------------------------------------------------------------------------


def at(hostname: str, username: str | None = None, port: int | None = None) -> str:
    """The machine as the native tools name it. The usual port is as good as none: a registered server has its own."""
    place = f"[{hostname}]" if ":" in hostname and not hostname.startswith("[") else hostname
    user = f"{username}@" if username else ""
    return f"{user}{place}:{port}" if port and port != SSH_PORT else f"{user}{hostname}"


def named(run: Run) -> str:
    """The machine of `hostname`, `username` and `port`."""
    return at(run["hostname"], run["username"], run["port"])


async def servers(run: Run) -> list[str]:
    """Names of the registered servers, switched off ones too."""
    return [row["name"] for row in await run.rows("host_list", clusters=False, inactive=True)]


@contextlib.asynccontextmanager
async def reached(run: Run) -> AsyncIterator[str]:
    """The machine of the call, for operations that take no login; in this context they use the caller's.

    Where nobody says who logs in, a registered server has its own login, and everybody else the account of
    setup_mcp_admin.
    """
    usual = run["username"] in (None, ACCOUNT) and not run["password"]
    user = None if usual and run["hostname"] in await servers(run) else run["username"] or ACCOUNT
    with lending(run.arguments):
        yield at(run["hostname"], user, run["port"])


def lending(given: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
    """The key or password of the caller, for as long as the context lasts."""
    password = given.get("password")
    return logging_in_by(Login(key=given.get("key_path"), password=Secret(str(password)) if password else None))


async def device(run: Run, number: int) -> str:
    """The machine behind a device of the map. Of those that are not registered, only setup_mcp_admin knows a login."""
    rows = await run.rows("network_map")
    found = next((row for row in rows if row.get("device") == number), None)
    if found is None:
        raise NotFound(f"There is no device {number}", next_step="get_network_sitemap lists them")
    host = found.get("host")
    if not host:
        raise NotFound(
            f"Device {number} was only seen on the network; nobody has logged in to it",
            next_step="discover_and_map does",
        )
    return str(host) if "/" in host or host in await servers(run) else f"{ACCOUNT}@{host}"


# -- what stands in objects, whose parts no schema names ---------------------------------------------------------------


def an_object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value or {}, Mapping):
        raise BadArgument(f"{name} is no object")
    return value or {}


def a_list(value: Any, name: str) -> list[Any]:
    if not isinstance(value or [], list):
        raise BadArgument(f"{name} is no list")
    return value or []


# -- answers -----------------------------------------------------------------------------------------------------------


def good(**facts: Any) -> dict[str, Any]:
    return {"status": "success", **facts}


def told(done: Done, **about: Any) -> dict[str, Any]:
    """What became of a change: its status, what it was about, and the facts of the native answer.

    `status` is that of the call, so that of a guest is its `state`.
    """
    status = "dry_run" if done.was_dry_run else "running" if done.is_running else "success"
    facts = {
        "state" if key == "status" else key: value
        for key, value in done.facts.items()
        if key not in ("result", "plan", *about) and not (key == "next" and speaks_of_tools(value))
    }
    return {"status": status, "message": done.facts["plan"], **about, **facts}


def error(_: Tool, problem: Problem) -> dict[str, Any]:
    """`details` is what was done before it failed."""
    steps = problem.facts.get("steps")
    return {"status": "error", "message": str(problem), **({"details": steps} if steps else {})}
