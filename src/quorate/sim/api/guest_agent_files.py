"""Files inside a VM through the guest agent."""

from __future__ import annotations

import base64
from typing import Any

from quorate.sim.agent_line import from_bytes, to_base64
from quorate.sim.api.guest_agent_commands import line_of
from quorate.sim.routing import Call, route

_BASE = "/nodes/{node}/qemu/{vmid}/agent"
_MAX_READ = 16 * 1024 * 1024
_AT_ONCE = 1024 * 1024


@route(f"GET {_BASE}/file-read")
async def read_file(call: Call) -> dict[str, Any]:
    line = await line_of(call)
    handle = await line.checked("file-open", path=call.params["file"])
    if call.params.get("offset"):
        await line.checked("file-seek", handle=handle, offset=call.params["offset"], whence=0)
    left = call.params.get("count", _MAX_READ)
    data, ended = bytearray(), False
    while left > 0 and not ended:
        part = await line.checked("file-read", handle=handle, count=min(left, _AT_ONCE))
        data += base64.b64decode(part["buf-b64"])
        left -= part["count"]
        ended = part["eof"]
    await line.checked("file-close", handle=handle)
    decode = call.params.get("decode", True)
    content = from_bytes(bytes(data)) if decode else base64.b64encode(data).decode()
    result: dict[str, Any] = {"content": content, "bytes-read": len(data)}
    if not ended:
        result["truncated"] = 1
    return result


@route(f"POST {_BASE}/file-write", needs_quorum=False)
async def write_file(call: Call) -> None:
    line = await line_of(call)
    content = call.params["content"]
    packed = to_base64(content) if call.params.get("encode", True) else content
    handle = await line.checked("file-open", path=call.params["file"], mode="wb")
    await line.checked("file-write", handle=handle, buf_b64=packed)
    await line.checked("file-close", handle=handle)
