"""What washyu's tools share: the names and logins of machines."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from quorate.homelab.machines import Login
from quorate.problems import NotFound, Problem
from quorate.secret import Secret
from quorate.surfaces.compat.execution import ToolCall
from quorate.surfaces.compat.washyu.answers import ACCOUNT

SSH_PORT = 22
PATIENCE = 600.0
"""Seconds. It has no tool that follows work in the background, so calls follow it to the end."""
REMEMBERED = 300.0


# -- machines ----------------------------------------------------------------------------------------------------------


def host_address(hostname: str, username: str | None = None, port: int | None = None) -> str:
    """The machine as the native tools name it. The usual port is as good as none: a registered server has its own."""
    place = f"[{hostname}]" if ":" in hostname and not hostname.startswith("[") else hostname
    user = f"{username}@" if username else ""
    return f"{user}{place}:{port}" if port and port != SSH_PORT else f"{user}{hostname}"


def host_of_call(call: ToolCall) -> str:
    """The machine of `hostname`, `username` and `port`."""
    return host_address(call["hostname"], call["username"], call["port"])


async def servers(call: ToolCall) -> dict[str, str]:
    """The registered servers, inactive ones included: name -> login."""
    rows = await call.rows("host_list", clusters=False, inactive=True)
    return {row["name"]: row.get("user", "") for row in rows}


async def host_as_admin(call: ToolCall, host: str, port: int | None = None) -> str:
    """The machine, logged in to as mcp_admin where that account works, whatever login the server is registered with.

    Whether it works is found by trying and remembered for some minutes, because failed logins are noticed.
    """
    registered = await servers(call)
    if host not in registered:
        return host_address(host, ACCOUNT, port)
    if registered[host] == ACCOUNT or not await _works(call, host_address(host, port=port)):
        return host_address(host, port=port)
    return host_address(host, ACCOUNT, port)


async def _works(call: ToolCall, host: str) -> bool:
    now = time.monotonic()
    known, when = call.memory.get(f"account of {host}", (False, -REMEMBERED))
    if now - when < REMEMBERED:
        return bool(known)
    try:
        facts = await call.facts("host_admin_verify", host=host, account=ACCOUNT)
        works = bool(facts.get("logged_in_as") == ACCOUNT)
    except Problem:
        works = False
    call.memory[f"account of {host}"] = (works, now)
    return works


@contextlib.asynccontextmanager
async def logged_in_host(call: ToolCall) -> AsyncIterator[str]:
    """The machine of the call, for operations that take no login; in this context they use the caller's.

    Where nobody says who logs in, that is the account of setup_mcp_admin where it works, else the registered login.
    """
    if call["username"] in (None, ACCOUNT) and not call["password"] and not call.arguments.get("key_path"):
        yield await host_as_admin(call, call["hostname"], call["port"])
        return
    with lend_login(call, call.arguments):
        yield host_address(call["hostname"], call["username"] or ACCOUNT, call["port"])


def lend_login(call: ToolCall, arguments: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
    """The key or password of the caller, for as long as the context lasts."""
    password = arguments.get("password")
    return call.lending(Login(key=arguments.get("key_path"), password=Secret(str(password)) if password else None))


async def device(call: ToolCall, number: int) -> str:
    """The machine behind a device of the map, with a login that works there."""
    rows = await call.rows("network_map")
    device_row = next((row for row in rows if row.get("device") == number), None)
    if device_row is None:
        raise NotFound(f"There is no device {number}", next_step="get_network_sitemap lists them")
    host = device_row.get("host")
    if not host:
        raise NotFound(
            f"Device {number} was only seen on the network; nobody has logged in to it",
            next_step="discover_and_map does",
        )
    if "/" in host:
        return str(host)
    if host not in await servers(call) and "." not in host and ":" not in host:  # a server that was removed since
        host = device_row.get("address") or host
    return await host_as_admin(call, str(host))
