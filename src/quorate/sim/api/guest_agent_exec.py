"""Commands inside a VM through the guest agent: started here, asked for later."""

from __future__ import annotations

from typing import Any

from quorate.sim.api.guest_agent_commands import agent_of, refused_by_agent
from quorate.sim.api.guests_inside import guest_with_agent
from quorate.sim.guest_os.agent import AgentError
from quorate.sim.guest_os.machine import Machine, Machines, Process
from quorate.sim.refusals import ProxyFailure, failure
from quorate.sim.routing import Call, route

_BASE = "/nodes/{node}/qemu/{vmid}/agent"
# The agent keeps this much of each output.
_MAX_OUTPUT = 16 * 1024 * 1024


def _machine(call: Call, name: str) -> Machine:
    agent = agent_of(call)
    try:
        agent.check(name)
    except AgentError as error:
        raise refused_by_agent(error) from error
    return call.world.part(Machines).of(guest_with_agent(call))


@route(f"POST {_BASE}/exec", needs_quorum=False)
async def execute(call: Call) -> dict[str, int]:
    machine = _machine(call, "guest-exec")
    argv = [str(each) for each in call.params["command"]]
    stdin = str(call.params.get("input-data", "")).encode()
    process = await machine.spawn(argv, stdin) if argv and argv[0] else None
    if process is None:
        # The agent's complaint has typographic quotes, which break PVE's status line and the connection with it.
        raise ProxyFailure(596, "Broken pipe")
    return {"pid": process.pid}


@route(f"GET {_BASE}/exec-status")
def execution_status(call: Call) -> dict[str, Any]:
    machine = _machine(call, "guest-exec-status")
    process = machine.processes.get(call.params["pid"])
    if process is None:
        raise failure("Agent error: Invalid parameter 'pid'")
    if not process.exited:
        return {"exited": 0}
    del machine.processes[process.pid]  # the agent forgets it once it was asked for
    return _result(process)


def _result(process: Process) -> dict[str, Any]:
    result: dict[str, Any] = {"exited": 1}
    if process.signal is not None:
        result["signal"] = process.signal
    else:
        result["exitcode"] = process.exitcode
    for name, data in (("out", process.io.out), ("err", process.io.err)):
        if data:
            result[f"{name}-data"] = data[:_MAX_OUTPUT].decode("utf-8", "replace")
            result[f"{name}-truncated"] = int(len(data) > _MAX_OUTPUT)
    return result
