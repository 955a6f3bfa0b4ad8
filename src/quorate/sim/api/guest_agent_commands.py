"""The guest agent's commands without arguments, one endpoint each, and the old endpoint for all of them."""

from __future__ import annotations

from typing import Any

from quorate.sim.agent_line import AgentLine, to_base64
from quorate.sim.routing import Call, Handler, route

_BASE = "/nodes/{node}/qemu/{vmid}/agent"
_READ = (
    "info", "get-time", "get-timezone", "get-users", "get-host-name", "get-osinfo", "get-vcpus", "get-fsinfo",
    "get-memory-blocks", "get-memory-block-info", "network-get-interfaces",
)  # fmt: skip
_WRITE = (
    "fsfreeze-freeze", "fsfreeze-status", "fsfreeze-thaw", "fstrim", "ping", "shutdown", "suspend-disk",
    "suspend-hybrid", "suspend-ram",
)  # fmt: skip


async def line_of(call: Call) -> AgentLine:
    """The line to the agent of the VM of the path, if it answers."""
    return await AgentLine.to(call.world, call.guest("qemu"))


def _simple(name: str) -> Handler:
    async def handler(call: Call) -> dict[str, Any]:
        return {"result": await (await line_of(call)).plain(name)}

    return handler


for _name in _READ:
    route(f"GET {_BASE}/{_name}")(_simple(_name))
for _name in _WRITE:
    route(f"POST {_BASE}/{_name}", needs_quorum=False)(_simple(_name))


@route(f"POST {_BASE}", needs_quorum=False)
async def any_command(call: Call) -> dict[str, Any]:
    """The old way: the command as a parameter."""
    return {"result": await (await line_of(call)).plain(call.params["command"])}


@route(f"POST {_BASE}/set-user-password", needs_quorum=False)
async def set_password(call: Call) -> dict[str, Any]:
    line = await line_of(call)
    result = await line.checked(
        "set-user-password",
        username=call.params["username"],
        password=to_base64(call.params["password"]),
        crypted=bool(call.params.get("crypted", False)),
    )
    return {"result": result}
