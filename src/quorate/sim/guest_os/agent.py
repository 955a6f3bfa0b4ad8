"""The QEMU guest agent of a VM as its node sees it: one command in, one answer out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class AgentError(Exception):
    """An error that the agent itself answered, in its own words."""

    def __init__(self, text: str, kind: str = "GenericError") -> None:
        super().__init__(text)
        self.kind = kind


class AgentSilent(Exception):
    """Nobody answers at the other end, or not in time."""


class Agent(Protocol):
    """Whatever answers the agent's commands: simulated, or a real one behind its socket."""

    async def ask(self, command: str, arguments: Mapping[str, Any]) -> Any:
        """The answer to a command such as `guest-ping`; AgentError or AgentSilent."""
        ...
