"""Commands that run in the background on guests and hosts, so that the caller who started them can find them again.

A command that the machine keeps, or a guest agent, is recorded in the shared state: any server can follow it, also
after a restart. One that only this server follows over its connection is known to this server alone.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from quorate.command_rules import CommandRules
from quorate.hints import GUEST_JOB, HOST_JOB, Advice, see
from quorate.inside.transport import Job
from quorate.problems import NotFound, Problem, Refused
from quorate.pve.clock import Clock
from quorate.ssh.access import SshAccess

MAX_JOBS = 32
KEPT_SECONDS = 900.0
"""How long an ended job can still be polled."""
ABANDONED_SECONDS = 7 * 86_400.0
"""How long a job stays listed if its end is never seen."""


class JobRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job as it is stored."""

    handle: str
    site: str
    """The cluster, or `homelab`, whose tool started it."""
    machine: str
    """`vm 102 docker01`, `host nas`"""
    line: str
    transport: str
    begun: float
    owner: str = ""
    """The subject of the caller's credentials; empty for the operator at this machine."""
    ref: str = ""
    """How to find the machine again."""
    cluster: str | None = None
    """The cluster of the machine, for a command of the homelab."""
    user: str | None = None
    """As whom it runs, if not as the login."""
    keep: int = 0
    kept: bool = False
    """Its machine keeps it, so any server can follow it."""
    back: dict[str, Any] = {}
    """Arguments of the snapshot_rollback that undoes it, if it was begun with a snapshot."""
    ended: float | None = None
    transport_name: str = ""
    """agent, pct or ssh"""
    target_kind: str = ""
    """vm, ct, node or host"""
    target_id: str = ""
    """The vmid, or the name of the host or node."""
    target_name: str = ""
    """The name of the guest."""
    timeout: float | None = None
    """Its time limit in seconds."""

    def __post_init__(self) -> None:
        """Records of older versions have these only in words."""
        if self.transport_name:
            return
        kind, key, name, *_ = (*self.machine.split(" "), "", "")
        by_pct = self.transport.startswith("pct")
        transport = "agent" if self.handle.startswith("agent:") else "pct" if by_pct else "ssh"
        found = {"transport_name": transport, "target_kind": kind, "target_id": key, "target_name": name}
        for attribute, value in found.items():
            msgspec.structs.force_setattr(self, attribute, value)


class JobStore(Protocol):
    """The jobs in the state that all servers share."""

    async def all(self) -> dict[str, JobRecord]: ...

    async def find(self, name: str) -> JobRecord | None: ...

    async def keep(self, name: str, entry: JobRecord) -> None: ...

    async def forget(self, name: str) -> None: ...


@dataclass(slots=True)
class BackgroundJob:
    record: JobRecord
    job: Job | None = None
    """Where this server itself follows it."""


@dataclass(frozen=True, slots=True)
class JobBook:
    """Where the jobs of one cluster or the homelab are noted, shared by every view of it, filtered or not."""

    store: JobStore
    """Those that any server can follow."""
    here: dict[str, BackgroundJob] = field(default_factory=dict)
    """Those that this server has started, by handle."""


class JobKeeper(Protocol):
    """Where commands continue in the background: a cluster or the homelab."""

    @property
    def name(self) -> str: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def ssh(self) -> SshAccess: ...

    @property
    def command_rules(self) -> CommandRules: ...


class JobRegistry:
    """The jobs of one cluster or the homelab: a bounded number, ended ones for a while. A caller sees its own.

    `owner` is the subject of the caller's credentials; empty for the operator at this machine, who sees all.
    """

    def __init__(self, keeper: JobKeeper, book: JobBook, owner: str) -> None:
        self.keeper = keeper
        self._owner = owner
        self._site = keeper.name
        self._clock = keeper.clock
        self._here, self._store = book.here, book.store

    async def ensure_room(self) -> None:
        if sum(one.record.ended is None for one in await self._everything()) < MAX_JOBS:
            return
        for one in await self._everything():  # some may have ended since anyone asked
            with contextlib.suppress(Problem):
                if one.job is not None and one.record.ended is None and await one.job.wait(0) is not None:
                    await self.note_end(one)
        if sum(one.record.ended is None for one in await self._everything()) >= MAX_JOBS:
            raise Refused(
                f"{MAX_JOBS} commands already run in the background",
                next_step=Advice("Stop some of them or wait until they end", GUEST_JOB, HOST_JOB),
            )

    def new(self, handle: str, **fields: Any) -> JobRecord:
        return JobRecord(handle, self._site, begun=self._clock.time(), owner=self._owner, **fields)

    async def remember(self, record: JobRecord, job: Job) -> None:
        self._here[record.handle] = BackgroundJob(record, job)
        if record.kept:
            await self._store.keep(record.handle, record)

    async def forget(self, handle: str) -> None:
        """Nothing more can be learned about it, or the caller has its result."""
        self._here.pop(handle, None)
        await self._store.forget(handle)

    async def find(self, handle: str) -> BackgroundJob | None:
        """None if there is none, or if it belongs to someone else."""
        return next((one for one in await self.list_jobs() if one.record.handle == handle), None)

    async def is_taken(self, handle: str) -> bool:
        """Whether it belongs to someone else."""
        return any(one.record.handle == handle and not self._is_own(one.record) for one in await self._everything())

    async def list_jobs(self) -> list[BackgroundJob]:
        return [one for one in await self._everything() if self._is_own(one.record)]

    async def note_end(self, known: BackgroundJob) -> None:
        if known.record.ended is not None:
            return
        known.record = msgspec.structs.replace(known.record, ended=self._clock.time())
        if known.record.kept:
            await self._store.keep(known.record.handle, known.record)

    async def _everything(self) -> list[BackgroundJob]:
        for known in list(self._here.values()):
            if known.job is not None and known.job.ended:
                await self.note_end(known)
        stored = await self._store.all()
        others = (one for one in stored.values() if one.site == self._site and one.handle not in self._here)
        found = [*self._here.values(), *(BackgroundJob(one) for one in others)]
        for one in [one for one in found if self._is_old(one.record)]:
            await self.forget(one.record.handle)
            found.remove(one)
        return found

    def _is_old(self, one: JobRecord) -> bool:
        now = self._clock.time()
        return now - one.ended > KEPT_SECONDS if one.ended is not None else now - one.begun > ABANDONED_SECONDS

    def _is_own(self, record: JobRecord) -> bool:
        return self._owner in ("", record.owner)


def parse_agent_handle(handle: str) -> tuple[str, int, int]:
    """Node, vmid and process id of a command that an agent started for any server."""
    kind, *rest = handle.split(":")
    if kind == "agent" and len(rest) == 3 and all(one.isascii() and one.isdecimal() for one in rest[1:]):
        return rest[0], int(rest[1]), int(rest[2])
    raise no_job(handle)


def no_job(handle: str) -> NotFound:
    return NotFound(
        f"There is no job {handle!r}",
        why="A job belongs to the caller who started it, and is forgotten some time after it ends; one that its "
        "machine could not keep ended with the server that started it",
        next_step=see("List the jobs of hosts or of guests", HOST_JOB(action="list"), GUEST_JOB(action="list")),
    )
