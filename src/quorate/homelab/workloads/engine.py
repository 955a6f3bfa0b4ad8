"""What every engine can do, and deploying a workload: it runs, or the previous state is restored."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from quorate.hints import Advice
from quorate.homelab.workloads.workload import EngineName, Power, Spec, Workload
from quorate.problems import Conflict, NotConfigured, NotFound, Problem, TaskFailed
from quorate.pve.connection import Clock, SystemClock
from quorate.pve.tasks import Report
from quorate.suggestions import suggest

WATCHED_SECONDS = 3
"""A workload that runs this long counts as running."""
HEALTH_SECONDS = 30
"""How long a workload with a health check may take before it is reported as `starting`."""
LAST_WORDS = 20
PULL_SHARE = 80.0
"""The share of the progress bar that pulling takes, in percent."""

Fill = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class DeploymentResult:
    workload: Workload
    replaced: Workload | None = None
    warnings: tuple[str, ...] = ()
    """From the engine, such as a limit that it cannot enforce."""


@dataclass
class Engine(abc.ABC):
    name: EngineName
    how: str
    """How it is reached, for people: `API 1.41 on /run/docker.sock`."""
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
        """Create it without starting it; returns the engine's warnings."""

    @abc.abstractmethod
    async def power(self, name: str, action: Power) -> None:
        """Does nothing if it is already in that state."""

    @abc.abstractmethod
    async def rename(self, name: str, new: str) -> None: ...

    @abc.abstractmethod
    async def remove(self, name: str, *, volumes: bool = False) -> None:
        """Stop and remove it, with its anonymous volumes if `volumes`."""

    async def spec_of(self, name: str) -> Spec:
        """The request that recreates it, including values of its environment: for backups and moves."""
        raise self._not_by_api(f"all that makes {name}")

    async def save_image(self, image: str, limit: int) -> bytes:
        """The image as an archive for another engine."""
        del limit
        raise self._not_by_api(f"the image {image}")

    async def load_image(self, archive: bytes) -> None:
        del archive
        raise self._not_by_api("an image from an archive")

    async def read_folder(self, name: str, path: str, limit: int) -> bytes:
        """A tar of a folder inside a workload, running or not, with the folder's name at its top."""
        del path, limit
        raise self._not_by_api(f"the files of {name}")

    async def write_folder(self, name: str, path: str, tar: bytes) -> None:
        """Unpack such a tar at the folder's `path`."""
        del path, tar
        raise self._not_by_api(f"the files of {name}")

    def _not_by_api(self, what: str) -> Problem:
        return NotConfigured(
            f"{self.name} through {self.how} cannot provide {what}",
            next_step="Make the API of Docker or Podman reachable",
        )

    def objection(self, spec: Spec) -> str | None:
        """Why this engine cannot run the workload, if it cannot."""
        del spec
        return None

    async def get(self, name: str) -> Workload:
        if workload := await self.find(name):
            return workload
        names = [workload.name for workload in await self.list()]
        hint = suggest(name, names, f"Use {', '.join(names[:20])}" if names else "There is none")
        raise NotFound(f"{self.name} has no workload {name!r} there", next_step=hint)

    async def deploy(
        self, spec: Spec, report: Report | None = None, *, replace: bool = False, fill: Fill | None = None
    ) -> DeploymentResult:
        """Create and start it. If it does not stay up, it is removed, and the one it replaced runs again.

        `fill` is called after it is created and before it starts.
        """
        if spec.pull == "always" or (spec.pull == "missing" and not await self.has_image(spec.image)):
            await self.pull(spec.image, _share(report, 0.0, PULL_SHARE))
        old = await self.find(spec.name)
        if old is not None and not replace:
            raise Conflict(f"{old} already exists", next_step=Advice("Use {replace} to replace it", replace=True))
        rest = _share(report, PULL_SHARE, 100.0)
        if old is None:
            return await self._bring_up(spec, rest, fill)
        if old.fleeting:
            raise Conflict(
                f"{old} is removed when it stops and could not be restored", next_step="Remove it first, then deploy"
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
            left = f"The old one could not be removed and is kept as {kept}: {problem}"
            new = dataclasses.replace(new, warnings=(*new.warnings, left))
        return dataclasses.replace(new, replaced=old)

    async def _bring_up(self, spec: Spec, report: Report | None, fill: Fill | None) -> DeploymentResult:
        warnings = await self.create(spec, report)
        try:
            if fill is not None:
                await fill()
            await self.power(spec.name, "start")
            return DeploymentResult(await self._wait_until_stable(spec, report), warnings=warnings)
        except BaseException as error:
            try:
                await self.remove(spec.name, volumes=True)
            except Problem as problem:
                if isinstance(error, Problem):
                    error.next_step = f"What was created of {spec.name} could not be removed again: {problem}"
            raise

    async def _wait_until_stable(self, spec: Spec, report: Report | None) -> Workload:
        """Wait until it has proved to stay up, or has finished successfully."""
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
            log = await self.logs(now.name, LAST_WORDS)
        except Problem:
            log = ""
        code = f" with exit code {now.exit_code}" if now.exit_code is not None and not now.running else ""
        again = now.restarts or now.state == "restarting"
        state = "keeps restarting" if again else f"is {now.health or now.state}{code}"
        return TaskFailed(
            f"{now.name} did not stay up: it {state}",
            why=now.error or None,
            next_step="It was removed again; fix what its last log lines show",
            facts={"log": log.splitlines()} if log else {},
        )

    async def _put_back(self, kept: str, old: Workload, error: BaseException) -> None:
        try:
            await self.rename(kept, old.name)
            if old.running:
                await self.power(old.name, "start")
            outcome = f"The old {old.name} is restored."
        except Problem as problem:
            outcome = f"The old one could not be restored and is kept as {kept}: {problem}"
        if isinstance(error, Problem):
            error.next_step = outcome


def _share(report: Report | None, begin: float, end: float) -> Report | None:
    """Maps the progress of one stage into the whole."""
    if report is None:
        return None

    async def tell(done: float, whole: float | None, line: str) -> None:
        await report(begin + (end - begin) * done / (whole or 100.0), 100.0, line)

    return tell
