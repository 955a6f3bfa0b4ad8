"""What every engine can do, and how a workload is brought up by any of them: it runs, or all is as it was before."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import difflib
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from quorate.homelab.workloads.model import EngineName, Power, Spec, Workload
from quorate.problems import Conflict, NotConfigured, NotFound, Problem, TaskFailed
from quorate.pve.clock import Clock, SystemClock
from quorate.pve.tasks import Report

WATCHED_SECONDS = 3
"""A workload that still runs after that is taken to run."""
HEALTH_SECONDS = 30
"""How long one with a health check may take to become healthy before it is told as `starting`."""
LAST_WORDS = 20
PULL_SHARE = 80.0
"""Of the progress, in percent."""

Fill = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Deployed:
    workload: Workload
    replaced: Workload | None = None
    warnings: tuple[str, ...] = ()
    """The engine's own, such as a limit that it cannot keep."""


@dataclass
class Engine(abc.ABC):
    """One engine on one machine."""

    name: EngineName
    how: str
    """The way to it, for people: `API 1.41 on /run/docker.sock`."""
    clock: Clock = field(default_factory=SystemClock)

    @abc.abstractmethod
    async def list(self) -> list[Workload]: ...

    @abc.abstractmethod
    async def find(self, name: str) -> Workload | None: ...

    @abc.abstractmethod
    async def logs(self, name: str, lines: int, since: float | None = None) -> str:
        """Its last lines; `since` is a time in seconds since 1970."""

    @abc.abstractmethod
    async def has_image(self, image: str) -> bool: ...

    @abc.abstractmethod
    async def pull(self, image: str, report: Report | None) -> None: ...

    @abc.abstractmethod
    async def create(self, spec: Spec, report: Report | None) -> tuple[str, ...]:
        """Make it, but do not start it. The engine may warn of what it cannot do for it."""

    @abc.abstractmethod
    async def power(self, name: str, action: Power) -> None:
        """Nothing happens to one that is so already."""

    @abc.abstractmethod
    async def rename(self, name: str, new: str) -> None: ...

    @abc.abstractmethod
    async def remove(self, name: str, *, volumes: bool = False) -> None:
        """Stop it and take it away; `volumes` are those that were made for it alone."""

    async def spec_of(self, name: str) -> Spec:
        """What makes the same workload again, values of its environment included: for backups and moves."""
        raise self._not_by_api(f"all that makes {name}")

    async def read_folder(self, name: str, path: str, most: int) -> bytes:
        """A tar of a folder inside a workload, running or not, with the folder's own name at its top."""
        del path, most
        raise self._not_by_api(f"the files of {name}")

    async def write_folder(self, name: str, path: str, tar: bytes) -> None:
        """Unpack such a tar where it came from: `path` is that of the folder."""
        del path, tar
        raise self._not_by_api(f"the files of {name}")

    def _not_by_api(self, what: str) -> Problem:
        return NotConfigured(
            f"{what[:1].upper()}{what[1:]} cannot be had from {self.name} by {self.how}",
            next_step="That works with the API of Docker and Podman",
        )

    def objection(self, spec: Spec) -> str | None:
        """Why this engine cannot do what is wanted, if it cannot."""
        del spec
        return None

    async def get(self, name: str) -> Workload:
        if found := await self.find(name):
            return found
        names = [one.name for one in await self.list()]
        near = difflib.get_close_matches(name, names, 1)
        hint = (
            f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(names[:20])}" if names else "There is none"
        )
        raise NotFound(f"{self.name} has no workload {name!r} there", next_step=hint)

    async def deploy(
        self, spec: Spec, report: Report | None = None, *, replace: bool = False, fill: Fill | None = None
    ) -> Deployed:
        """Bring it up. If it does not come up it is taken away again, and what it was to replace runs as before.

        `fill` is called when it is made and not yet started.
        """
        if spec.pull == "always" or (spec.pull == "missing" and not await self.has_image(spec.image)):
            await self.pull(spec.image, _share(report, 0.0, PULL_SHARE))
        old = await self.find(spec.name)
        if old is not None and not replace:
            raise Conflict(f"There is a {old} already", next_step="replace=true puts this in its place")
        rest = _share(report, PULL_SHARE, 100.0)
        if old is None:
            return await self._bring_up(spec, rest, fill)
        if old.fleeting:
            raise Conflict(
                f"{old} goes when it stops and could not be put back", next_step="Remove it first, then deploy"
            )
        kept = f"{spec.name[:40]}-before-{hashlib.sha256(old.id.encode()).hexdigest()[:8]}"
        try:
            if old.running:
                await self.power(spec.name, "stop")
            await self.rename(spec.name, kept)
        except Problem:
            if old.running:
                with contextlib.suppress(Problem):
                    await self.power(spec.name, "start")
            raise
        try:
            new = await self._bring_up(spec, rest, fill)
        except BaseException as error:
            await self._put_back(kept, old, error)
            raise
        try:
            await self.remove(kept)
        except Problem as problem:
            left = f"The old one could not be taken away and is there as {kept}: {problem}"
            new = dataclasses.replace(new, warnings=(*new.warnings, left))
        return dataclasses.replace(new, replaced=old)

    async def _bring_up(self, spec: Spec, report: Report | None, fill: Fill | None) -> Deployed:
        warnings = await self.create(spec, report)
        try:
            if fill is not None:
                await fill()
            await self.power(spec.name, "start")
            return Deployed(await self._watched(spec, report), warnings=warnings)
        except BaseException as error:
            try:
                await self.remove(spec.name, volumes=True)
            except Problem as problem:
                if isinstance(error, Problem):
                    error.next_step = f"What was made of {spec.name} could not be taken away again: {problem}"
            raise

    async def _watched(self, spec: Spec, report: Report | None) -> Workload:
        """See whether it stays up, or does what it was made for and ends well."""
        for second in range(HEALTH_SECONDS):
            now = await self.get(spec.name)
            if now.health == "unhealthy" or now.restarts or now.state == "restarting":
                raise await self._did_not_come_up(now)
            if not now.running:
                if now.exit_code == 0 and spec.restart in ("no", "on-failure"):
                    return now
                raise await self._did_not_come_up(now)
            if now.health == "healthy" or (not now.health and second >= WATCHED_SECONDS):
                return now
            if report is not None:
                await report(100.0 * second / HEALTH_SECONDS, 100.0, f"{spec.name} is {now.health or now.state}")
            await self.clock.sleep(1.0)
        return now

    async def _did_not_come_up(self, now: Workload) -> Problem:
        try:
            said = await self.logs(now.name, LAST_WORDS)
        except Problem:
            said = ""
        code = f" with exit code {now.exit_code}" if now.exit_code is not None and not now.running else ""
        again = now.restarts or now.state == "restarting"
        state = "ends again and again" if again else f"is {now.health or now.state}{code}"
        return TaskFailed(
            f"{now.name} did not stay up: it {state}",
            why=now.error or None,
            next_step="It was taken away again; mend what its last lines tell",
            facts={"log": said.splitlines()} if said else {},
        )

    async def _put_back(self, kept: str, old: Workload, error: BaseException) -> None:
        try:
            await self.rename(kept, old.name)
            if old.running:
                await self.power(old.name, "start")
            outcome = f"The old {old.name} is back as it was."
        except Problem as problem:
            outcome = f"The old one could not be put back and is kept as {kept}: {problem}"
        if isinstance(error, Problem):
            error.next_step = outcome


def _share(report: Report | None, begin: float, end: float) -> Report | None:
    """The part of the whole progress that one stage takes."""
    if report is None:
        return None

    async def tell(done: float, whole: float | None, line: str) -> None:
        await report(begin + (end - begin) * done / (whole or 100.0), 100.0, line)

    return tell
