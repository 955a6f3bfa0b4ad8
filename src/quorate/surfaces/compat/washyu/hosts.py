"""Machines over SSH: discovery, the administration account, commands, terminals, and the registry of servers."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

from quorate.problems import BadArgument, NotFound
from quorate.surfaces.compat.declaration import Recipe
from quorate.surfaces.compat.execution import ToolCall
from quorate.surfaces.compat.washyu.answers import ACCOUNT, change_answer, success
from quorate.surfaces.compat.washyu.machines import (
    PATIENCE,
    host_address,
    host_of_call,
    lend_login,
    logged_in_host,
    servers,
)

THEN_A_SHELL = '%s\nexec "${SHELL:-/bin/sh}" -l'


async def discover(call: ToolCall) -> dict[str, Any]:
    facts = await call.facts(
        "host_discover", host=host_of_call(call), key=call["key_path"], password=call["password"], detail=True
    )
    label = facts.pop("host")
    way = facts.pop("way")
    hostname = (facts.get("system") or {}).get("hostname") or label
    return success(hostname=hostname, connection_ip=call["hostname"], way=way, data=facts)


async def execute(call: ToolCall) -> dict[str, Any]:
    """Output and errors as one text, errors last; the exit code shows whether it succeeded."""
    done = await call.change(
        "host_exec",
        follow=PATIENCE,
        host=host_of_call(call),
        password=call["password"],
        command=call["command"],
        sudo=call["sudo"],
    )
    about = {"hostname": call["hostname"], "command": call["command"], "sudo": call["sudo"]}
    answer = change_answer(done, **about)
    if answer["status"] == "dry_run":
        return answer
    answer["output"] = "".join(answer.pop(name, "") for name in ("stdout", "stderr"))
    return answer


async def set_up(call: ToolCall) -> dict[str, Any]:
    done = await call.change(
        "host_admin_setup",
        follow=PATIENCE,
        host=host_of_call(call),
        password=call["password"],
        account=ACCOUNT,
        adopt=True,
    )
    call.memory.clear()
    return change_answer(done, hostname=call["hostname"])


async def verify(call: ToolCall) -> dict[str, Any]:
    facts = await call.facts(
        "host_admin_verify", host=host_address(call["hostname"], port=call["port"]), account=ACCOUNT
    )
    return success(hostname=call["hostname"], **facts)


async def update_groups(call: ToolCall) -> dict[str, Any]:
    with lend_login(call, call.arguments):
        done = await call.change("host_admin_groups", host=host_of_call(call), account=ACCOUNT)
    return change_answer(done, hostname=call["hostname"])


async def open_shell(call: ToolCall) -> dict[str, Any]:
    """Open a shell that runs `initial_command` first."""
    first = call["initial_command"]
    command = ["/bin/sh", "-c", THEN_A_SHELL % first] if first else None
    async with logged_in_host(call) as host:
        done = await call.change("host_shell_open", host=host, command=command)
    answer = change_answer(done, hostname=call["hostname"])
    if "link" in answer:
        answer |= {"url": answer.pop("link"), "session_id": answer.pop("terminal")}
    return answer


# -- registered servers ------------------------------------------------------------------------------------------------


KNOWN = {"name": "name", "address": "hostname", "port": "port", "user": "username", "key": "key_path",
         "display_name": "display_name", "verified": "last_verified", "verdict": "verification"}  # fmt: skip


def server_id(name: str) -> int:
    return zlib.crc32(name.encode()) & 0x7FFFFFFF


async def register(call: ToolCall) -> dict[str, Any]:
    name = call["hostname"].replace(":", "-")
    done = await call.change(
        "host_register",
        host=name,
        address=call["hostname"],
        user=call["username"],
        key=call["key_path"],
        port=call["port"],
        display_name=call["display_name"],
        verify=call["verify_connection"],
    )
    return change_answer(done, credential_id=server_id(name), hostname=call["hostname"])


async def list_all(call: ToolCall) -> dict[str, Any]:
    rows = await call.rows("host_list", clusters=False, inactive=not call["active_only"])
    hosts = await asyncio.gather(*(call.facts("host_list", host=row["name"]) for row in rows))
    servers = [
        {
            "id": server_id(host["name"]),
            **{theirs: host[ours] for ours, theirs in KNOWN.items() if ours in host},
            "is_active": host.get("active", True),
        }
        for host in hosts
    ]
    return success(total_servers=len(servers), servers=servers)


async def update(call: ToolCall) -> dict[str, Any]:
    name = await _find_server(call)
    done = await call.change(
        "host_update",
        host=name,
        user=call["username"],
        key=call["key_path"],
        port=call["port"],
        display_name=call["display_name"],
        active=call["is_active"],
    )
    return change_answer(done, credential_id=server_id(name), hostname=name)


async def remove(call: ToolCall) -> dict[str, Any]:
    name = await _find_server(call)
    return change_answer(await call.change("host_remove", host=name), credential_id=server_id(name), hostname=name)


async def _find_server(call: ToolCall) -> str:
    """The server of `credential_id`, of `hostname`, or of both, if they are the same."""
    credential, hostname = call["credential_id"], call["hostname"]
    if credential is None and not hostname:
        raise BadArgument(f"{call.tool} needs a server", next_step="Give credential_id or hostname")
    names = await servers(call)
    matching = [
        name
        for name in names
        if (credential is None or server_id(name) == credential)
        and (not hostname or name == hostname.replace(":", "-"))
    ]
    if len(matching) != 1:
        called = " ".join(str(part) for part in (credential, hostname) if part)
        raise NotFound(f"There is no registered server {called}", next_step="list_registered_servers shows them")
    return matching[0]


RECIPES: dict[str, Recipe] = {
    "ssh_discover": discover,
    "setup_mcp_admin": set_up,
    "verify_mcp_admin": verify,
    "ssh_execute_command": execute,
    "start_interactive_shell": open_shell,
    "update_mcp_admin_groups": update_groups,
    "register_server": register,
    "list_registered_servers": list_all,
    "update_server_credentials": update,
    "remove_server": remove,
}
