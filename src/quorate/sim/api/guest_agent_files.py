"""Files inside a VM through the guest agent."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from quorate.sim.api.guest_agent_commands import agent_of, refused_by_agent
from quorate.sim.api.guests_inside import guest_with_agent
from quorate.sim.guest_os.agent import AgentError
from quorate.sim.guest_os.files import FileError, FileSystem
from quorate.sim.guest_os.machine import Machines
from quorate.sim.refusals import Refusal, failure
from quorate.sim.routing import Call, route

_BASE = "/nodes/{node}/qemu/{vmid}/agent"
_MAX_READ = 16 * 1024 * 1024


def _files(call: Call, name: str) -> FileSystem:
    agent = agent_of(call)
    try:
        agent.check(name)
    except AgentError as error:
        raise refused_by_agent(error) from error
    return call.world.part(Machines).of(guest_with_agent(call)).files


def _cannot_open(path: str, mode: str, error: FileError) -> Refusal:
    return failure(f"Agent error: failed to open file '{path}' (mode: '{mode}'): {error.text}")


@route(f"GET {_BASE}/file-read")
def read_file(call: Call) -> dict[str, Any]:
    files, path = _files(call, "guest-file-open"), call.params["file"]
    entry = files.find(FileSystem.absolute(path, "/"))
    try:
        data = files.read(FileSystem.absolute(path, "/"))
    except FileError as error:
        if entry is not None and entry.is_directory:  # opening a directory works, reading it does not
            raise failure(f"Agent error: failed to read file: {error.text}") from error
        raise _cannot_open(path, "r", error) from error
    offset = call.params.get("offset", 0)
    wanted = data[offset : offset + call.params.get("count", _MAX_READ)]
    decode = call.params.get("decode", True)
    content = wanted.decode("utf-8", "replace") if decode else base64.b64encode(wanted).decode()
    result: dict[str, Any] = {"content": content, "bytes-read": len(wanted)}
    if offset + len(wanted) < len(data):
        result["truncated"] = 1
    return result


@route(f"POST {_BASE}/file-write", needs_quorum=False)
def write_file(call: Call) -> None:
    files, path = _files(call, "guest-file-open"), call.params["file"]
    content = call.params["content"]
    data = content.encode()
    if not call.params.get("encode", True):
        try:
            data = base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError) as error:
            raise failure("Agent error: Invalid parameter 'buf-b64'") from error
    try:
        files.write(FileSystem.absolute(path, "/"), data)
    except FileError as error:
        raise _cannot_open(path, "wb", error) from error
