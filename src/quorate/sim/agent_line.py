"""How PVE talks to the agent of a VM: preconditions, commands, and what it makes of errors."""

from __future__ import annotations

import base64
import json
from typing import Any, Self

from quorate.sim.guest_os.agent import Agent, AgentError, AgentSilent
from quorate.sim.guest_os.agents import Agents
from quorate.sim.guests import Guest
from quorate.sim.refusals import ProxyFailure, Refusal, failure
from quorate.sim.world import World

_ONE_BYTE = 0xFF


class AgentLine:
    """The line to one agent that has just answered a ping."""

    def __init__(self, guest: Guest, agent: Agent) -> None:
        self._guest = guest
        self._agent = agent

    @classmethod
    async def to(cls, world: World, guest: Guest) -> Self:
        """Refuses as PVE does, in PVE's order, if there is no agent to talk to."""
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
        """A command without arguments; PVE hands its answer on without a look, an error too."""
        try:
            return await self.ask(name)
        except AgentError as error:
            return {"error": {"class": error.kind, "desc": str(error)}}

    async def checked(self, name: str, /, **arguments: Any) -> Any:
        """A command whose error becomes a refusal."""
        try:
            return await self.ask(name, **arguments)
        except AgentError as error:
            raise _refused(error) from error

    async def ask(self, name: str, /, **named: Any) -> Any:
        """The answer to `guest-<name>`. An underscore in an argument's name stands for the agent's hyphen."""
        command = f"guest-{name}"
        arguments = {key.replace("_", "-"): value for key, value in named.items()}
        if _wide(json.dumps(arguments, ensure_ascii=False)):
            raise failure("Wide character in syswrite at /usr/share/perl5/IO/Multiplex.pm line 914.")
        try:
            return await self._agent.ask(command, arguments)
        except AgentSilent as error:
            raise failure(f"VM {self._guest.vmid} qmp command '{command}' failed - {error}") from error


def to_base64(text: str) -> str:
    """How PVE packs a text for the agent: one byte for a character. It knows no answer to characters beyond that."""
    if _wide(text):
        raise failure("Wide character in subroutine entry at /usr/share/perl5/PVE/API2/Qemu/Agent.pm line 478.")
    return base64.b64encode(text.encode("latin-1")).decode()


def from_bytes(data: bytes) -> str:
    """How PVE shows bytes from inside a guest: one character for a byte, whatever encoding the guest had in mind."""
    return data.decode("latin-1")


def execution_shown(result: dict[str, Any]) -> dict[str, Any]:
    """The agent's word about a command as PVE passes it on: outputs as text, truths as numbers."""
    shown: dict[str, Any] = {}
    for name, value in result.items():
        if name in ("out-data", "err-data"):
            shown[name] = from_bytes(base64.b64decode(value))
        else:
            shown[name] = int(value)
    return shown


def _wide(text: str) -> bool:
    return any(ord(character) > _ONE_BYTE for character in text)


def _refused(error: AgentError) -> Refusal | ProxyFailure:
    """The agent's typographic quotes break PVE's status line, and the connection with it."""
    if _wide(str(error)):
        return ProxyFailure(596, "Broken pipe")
    return failure(f"Agent error: {error}")
