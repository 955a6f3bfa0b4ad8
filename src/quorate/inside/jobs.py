"""Commands that go on in the background, so that they can be found again."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.inside.way import Job
from quorate.problems import NotFound, Refused
from quorate.pve.cluster import Cluster

MOST_JOBS = 32
KEPT_SECONDS = 900.0
"""How long an ended job can still be asked for."""
AGENT_SECONDS = 86_400.0
"""How long an agent's job is listed if nobody hears of its end; by its handle it is found afterwards as well."""


@dataclass(slots=True)
class Known:
    job: Job
    machine: str
    """`vm 102 docker01`, `host nas`"""
    line: str
    way: str
    begun: float
    cluster: str | None = None
    """The cluster of the machine, where the command is kept by none."""
    ended: float | None = None


class Jobs:
    """Of one cluster, in this server: a bounded number, the ended ones for a while."""

    def __init__(self, cluster: Cluster) -> None:
        self._clock = cluster.clock
        self._known: dict[str, Known] = cluster.background  # shared by all who see this cluster, veiled or not

    def ensure_room(self) -> None:
        self._tidy()
        if sum(one.ended is None for one in self._known.values()) >= MOST_JOBS:
            raise Refused(
                f"{MOST_JOBS} commands go on in the background already",
                next_step="guest_job or host_job lists them; stop some or wait for their end",
            )

    def remember(
        self, job: Job, *, machine: str, line: str, way: str, begun: float, cluster: str | None = None
    ) -> None:
        self._known[job.handle] = Known(job, machine, line, way, begun, cluster)

    def find(self, handle: str) -> Known | None:
        self._tidy()
        return self._known.get(handle)

    def listed(self) -> list[Known]:
        self._tidy()
        return list(self._known.values())

    def lose(self, known: Known) -> None:
        """Nothing more is to be learned of it now: it takes no room any longer."""
        if known.job.over:  # it can still be asked how it ended
            self._tidy()
        else:
            self._known.pop(known.job.handle, None)

    def _tidy(self) -> None:
        now = self._clock.time()
        for handle, one in list(self._known.items()):
            if one.ended is None and one.job.over:
                one.ended = now
            forgotten = one.ended is not None and now - one.ended > KEPT_SECONDS
            unheard = one.ended is None and handle.startswith("agent:") and now - one.begun > AGENT_SECONDS
            if forgotten or unheard:
                del self._known[handle]


def jobs_of(cluster: Cluster) -> Jobs:
    return Jobs(cluster)


def agent_place(handle: str) -> tuple[str, int, int]:
    """Node, vmid and process of a command that an agent has started, by any server."""
    kind, *rest = handle.split(":")
    if kind == "agent" and len(rest) == 3 and all(one.isascii() and one.isdecimal() for one in rest[1:]):
        return rest[0], int(rest[1]), int(rest[2])
    raise NotFound(
        f"There is no job {handle!r}",
        why="Jobs over SSH live in the server that has started them, and are forgotten some time after their end",
        next_step="guest_job action=list shows the jobs of this server",
    )
