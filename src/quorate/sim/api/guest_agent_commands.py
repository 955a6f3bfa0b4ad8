"""The guest agent's commands without arguments, one endpoint each, and the old endpoint for all of them."""

from __future__ import annotations

from typing import Any

from quorate.sim.api.guests_inside import agent_interfaces, guest_with_agent, osinfo, ping
from quorate.sim.guest_os.agent import Agent, AgentError
from quorate.sim.guest_os.machine import Machines
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, Handler, route

_BASE = "/nodes/{node}/qemu/{vmid}/agent"
_READ = (
    "info", "get-time", "get-timezone", "get-users", "get-host-name", "get-vcpus", "get-fsinfo", "get-memory-blocks",
    "get-memory-block-info",
)  # fmt: skip
_WRITE = (
    "fsfreeze-freeze", "fsfreeze-status", "fsfreeze-thaw", "fstrim", "shutdown", "suspend-disk", "suspend-hybrid",
    "suspend-ram",
)  # fmt: skip


def agent_of(call: Call) -> Agent:
    """The agent of the VM of the path, if it answers."""
    return Agent(call.world.part(Machines).of(guest_with_agent(call)))


def refused_by_agent(error: AgentError) -> Exception:
    """How PVE passes on an error of the agent, where it looks for one."""
    return failure(f"Agent error: {error}")


def _simple(name: str) -> Handler:
    def handler(call: Call) -> dict[str, Any]:
        agent = agent_of(call)
        try:
            return {"result": agent.run(name)}
        except AgentError as error:  # PVE does not look into these answers
            return {"result": {"error": {"class": "GenericError", "desc": str(error)}}}

    return handler


_SIMPLE = {name: _simple(name) for name in (*_READ, *_WRITE)}

for _name in _READ:
    route(f"GET {_BASE}/{_name}")(_SIMPLE[_name])
for _name in _WRITE:
    route(f"POST {_BASE}/{_name}", needs_quorum=False)(_SIMPLE[_name])


@route(f"POST {_BASE}", needs_quorum=False)
def any_command(call: Call) -> Any:
    """The old way: the command as a parameter."""
    others: dict[str, Handler] = {
        "ping": ping,
        "get-osinfo": osinfo,
        "network-get-interfaces": agent_interfaces,
    }
    name = call.params["command"]
    return (others.get(name) or _SIMPLE[name])(call)


@route(f"POST {_BASE}/set-user-password", needs_quorum=False)
def set_password(call: Call) -> dict[str, Any]:
    agent = agent_of(call)
    try:
        agent.set_password(call.params["username"], call.params["password"])
    except AgentError as error:
        raise refused_by_agent(error) from error
    return {"result": {}}
