"""The guest agent of a VM: commands, files and facts."""

from __future__ import annotations

import base64
from typing import Any, Self

from pve_simulator.guest_os.agents import Agent, AgentError, Agents, AgentSilent
from pve_simulator.guests.guest import Guest
from pve_simulator.http.refusals import ProxyFailure, Refusal, failure
from pve_simulator.http.routing import QEMU, Call, Handler, route
from pve_simulator.world import World

_ONE_BYTE = 0xFF


class AgentConnection:
    """A connection to an agent that has just answered a ping."""

    def __init__(self, guest: Guest, agent: Agent) -> None:
        self._guest = guest
        self._agent = agent

    @classmethod
    async def open(cls, world: World, guest: Guest) -> Self:
        """Refuses as PVE does, in PVE's order, if no agent answers."""
        if not guest.agent_configured():
            raise failure("No QEMU guest agent configured")
        if not guest.running:
            raise failure(f"VM {guest.vmid} is not running")
        agent = world.part(Agents).of(guest)
        try:
            await agent.ask("guest-ping", {})
        except (AgentSilent, AgentError) as error:
            raise failure("QEMU guest agent is not running") from error
        return cls(guest, agent)

    async def plain(self, name: str) -> Any:
        """Send a command without arguments; PVE returns the answer unchanged, even an error."""
        try:
            return await self.ask(name)
        except AgentError as error:
            return {"error": {"class": error.kind, "desc": str(error)}}

    async def ask_or_refuse(self, name: str, /, **arguments: Any) -> Any:
        """Send a command; an error becomes a refusal."""
        try:
            return await self.ask(name, **arguments)
        except AgentError as error:
            raise _to_refusal(error) from error

    async def ask(self, name: str, /, **named: Any) -> Any:
        """The answer to `guest-<name>`. Underscores in argument names become hyphens."""
        command = f"guest-{name}"
        arguments = {key.replace("_", "-"): value for key, value in named.items()}
        try:
            return await self._agent.ask(command, arguments)
        except AgentSilent as error:
            raise failure(f"VM {self._guest.vmid} qmp command '{command}' failed - {error}") from error


def to_base64(text: str) -> str:
    """Encode a text as PVE does for the agent: one byte per character. Wider characters make PVE fail."""
    if _wide(text):
        raise failure("Wide character in subroutine entry at /usr/share/perl5/PVE/API2/Qemu/Agent.pm line 478.")
    return base64.b64encode(text.encode("latin-1")).decode()


def from_bytes(data: bytes) -> str:
    """Decode bytes from a guest as PVE does: one character per byte, regardless of their encoding."""
    return data.decode("latin-1")


def render_execution(result: dict[str, Any]) -> dict[str, Any]:
    """An exec-status result as PVE returns it: outputs as text, booleans as numbers."""
    shown: dict[str, Any] = {}
    for name, value in result.items():
        if name in ("out-data", "err-data"):
            shown[name] = from_bytes(base64.b64decode(value))
        else:
            shown[name] = int(value)
    return shown


def _wide(text: str) -> bool:
    return any(ord(character) > _ONE_BYTE for character in text)


def _to_refusal(error: AgentError) -> Refusal | ProxyFailure:
    """Typographic quotes in the agent's error break PVE's status line and the connection."""
    if _wide(str(error)):
        return ProxyFailure(596, "Broken pipe")
    return failure(f"Agent error: {error}")


_BASE = f"{QEMU}/agent"


@route(f"POST {_BASE}/exec", needs_quorum=False)
async def execute(call: Call) -> dict[str, int]:
    agent = await connect(call)
    path, *rest = [str(each) for each in call.params["command"]] or [""]
    arguments: dict[str, Any] = {"path": path, "arg": rest, "capture_output": True}
    if "input-data" in call.params:
        arguments["input_data"] = to_base64(call.params["input-data"])
    started: dict[str, int] = await agent.ask_or_refuse("exec", **arguments)
    return started


@route(f"GET {_BASE}/exec-status")
async def execution_status(call: Call) -> dict[str, Any]:
    agent = await connect(call)
    return render_execution(await agent.ask_or_refuse("exec-status", pid=call.params["pid"]))


_MAX_READ = 16 * 1024 * 1024
_AT_ONCE = 1024 * 1024


@route(f"GET {_BASE}/file-read")
async def read_file(call: Call) -> dict[str, Any]:
    agent = await connect(call)
    handle = await agent.ask_or_refuse("file-open", path=call.params["file"])
    if call.params.get("offset"):
        await agent.ask_or_refuse("file-seek", handle=handle, offset=call.params["offset"], whence=0)
    left = call.params.get("count", _MAX_READ)
    data, ended = bytearray(), False
    while left > 0 and not ended:
        part = await agent.ask_or_refuse("file-read", handle=handle, count=min(left, _AT_ONCE))
        data += base64.b64decode(part["buf-b64"])
        left -= part["count"]
        ended = part["eof"]
    await agent.ask_or_refuse("file-close", handle=handle)
    decode = call.params.get("decode", True)
    content = from_bytes(bytes(data)) if decode else base64.b64encode(data).decode()
    result: dict[str, Any] = {"content": content, "bytes-read": len(data)}
    if not ended:
        result["truncated"] = 1
    return result


@route(f"POST {_BASE}/file-write", needs_quorum=False)
async def write_file(call: Call) -> None:
    agent = await connect(call)
    content = call.params["content"]
    packed = to_base64(content) if call.params.get("encode", True) else content
    handle = await agent.ask_or_refuse("file-open", path=call.params["file"], mode="wb")
    await agent.ask_or_refuse("file-write", handle=handle, buf_b64=packed)
    await agent.ask_or_refuse("file-close", handle=handle)


_READ = (
    "info", "get-time", "get-timezone", "get-users", "get-host-name", "get-osinfo", "get-vcpus", "get-fsinfo",
    "get-memory-blocks", "get-memory-block-info", "network-get-interfaces",
)  # fmt: skip
_WRITE = (
    "fsfreeze-freeze", "fsfreeze-status", "fsfreeze-thaw", "fstrim", "ping", "shutdown", "suspend-disk",
    "suspend-hybrid", "suspend-ram",
)  # fmt: skip


async def connect(call: Call) -> AgentConnection:
    """Connect to the agent of the VM in the path."""
    return await AgentConnection.open(call.world, call.guest())


def _simple(name: str) -> Handler:
    async def handler(call: Call) -> dict[str, Any]:
        return {"result": await (await connect(call)).plain(name)}

    return handler


for _name in _READ:
    route(f"GET {_BASE}/{_name}")(_simple(_name))
for _name in _WRITE:
    route(f"POST {_BASE}/{_name}", needs_quorum=False)(_simple(_name))


@route(f"POST {_BASE}", needs_quorum=False)
async def any_command(call: Call) -> dict[str, Any]:
    """The older endpoint: the command as a parameter."""
    return {"result": await (await connect(call)).plain(call.params["command"])}


@route(f"POST {_BASE}/set-user-password", needs_quorum=False)
async def set_password(call: Call) -> dict[str, Any]:
    agent = await connect(call)
    result = await agent.ask_or_refuse(
        "set-user-password",
        username=call.params["username"],
        password=to_base64(call.params["password"]),
        crypted=bool(call.params.get("crypted", False)),
    )
    return {"result": result}
