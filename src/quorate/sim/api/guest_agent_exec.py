"""Commands inside a VM through the guest agent: started here, asked for later."""

from __future__ import annotations

from typing import Any

from quorate.sim.agent_line import execution_shown, to_base64
from quorate.sim.api.guest_agent_commands import line_of
from quorate.sim.routing import Call, route

_BASE = "/nodes/{node}/qemu/{vmid}/agent"


@route(f"POST {_BASE}/exec", needs_quorum=False)
async def execute(call: Call) -> dict[str, int]:
    line = await line_of(call)
    path, *rest = [str(each) for each in call.params["command"]] or [""]
    arguments: dict[str, Any] = {"path": path, "arg": rest, "capture_output": True}
    if "input-data" in call.params:
        arguments["input_data"] = to_base64(call.params["input-data"])
    started: dict[str, int] = await line.checked("exec", **arguments)
    return started


@route(f"GET {_BASE}/exec-status")
async def execution_status(call: Call) -> dict[str, Any]:
    line = await line_of(call)
    return execution_shown(await line.checked("exec-status", pid=call.params["pid"]))
