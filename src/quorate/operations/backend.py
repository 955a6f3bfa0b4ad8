"""What operations run against: a cluster, or the homelab around the clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from quorate.command_rules import CommandRules
from quorate.problems import Problem
from quorate.pve.cluster import Cluster, Neighbors
from quorate.pve.connection import Clock
from quorate.pve.targets import Hides, Subject, TargetRef

if TYPE_CHECKING:
    from quorate.homelab.machines import Login


class Backend(Protocol):
    """What the pipeline needs of either; `Cluster` and `Homelab` implement it."""

    @property
    def name(self) -> str: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def command_rules(self) -> CommandRules: ...

    @property
    def api(self) -> Cluster:
        """The PVE API behind it. Raises NotConfigured where there is none."""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The addresses of its API, which distinguish two clusters of the same name; none for hosts."""

    def secrets(self) -> list[str]:
        """Secrets that must not leave, as far as they are in use."""

    async def visible_view(
        self, hides: Hides | None, neighbors: Neighbors, login: Login | None = None, *, local: bool = True
    ) -> Backend:
        """The same without what is hidden from a caller. `neighbors` are the clusters as that caller sees them.

        `login` are the caller's credentials for hosts, if the call brings any; `local` callers are on this machine.
        """

    async def visibility(self) -> str:
        """How much of it this view shows, in words."""

    async def blanker(self) -> Callable[[str], str]:
        """Removes mentions of hidden guests from a text, such as PVE's error or a task log."""

    async def lookup(self, arguments: Mapping[str, Any]) -> None:
        """Find the guests or hosts that the arguments name. Raises Problem if one is missing or hidden."""

    async def subjects(self, reach: Sequence[Sequence[TargetRef]], *, by_name: bool = False) -> list[list[Subject]]:
        """What each call reaches, with the facts that rules are about.

        `by_name`: rules match names, which a cluster's view learns late, so the nodes are asked.
        """

    def forget(self, changed: Iterable[int] = ()) -> None:
        """Drop what was read about guests, because something changed, such as these."""

    async def explain(self, problem: Problem) -> Problem:
        """The problem with what this backend knows about its cause, such as the command that grants what is missing."""

    async def close(self) -> None: ...
