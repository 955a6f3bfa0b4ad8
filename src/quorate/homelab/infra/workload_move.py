"""Moves a workload to another machine, with the data in its volumes if requested."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quorate.homelab.workloads.engine import DeploymentResult, Engine
from quorate.homelab.workloads.model import Mount, Spec, Workload
from quorate.problems import Conflict, Problem
from quorate.pve.tasks import Report

MAX_DATA = 128 * 1024 * 1024
"""Of one volume, which is held in memory."""
MAX_IMAGE = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Move:
    source: Engine
    target: Engine
    workload: Workload
    spec: Spec

    @property
    def volumes(self) -> tuple[Mount, ...]:
        return self.workload.mounts

    async def prepare_image(self, report: Report | None) -> str:
        """Put the image on the target before the downtime; returns how.

        An image that no registry has (built locally, or gone) is copied from machine to machine.
        """
        image = self.spec.image
        if await self.target.has_image(image):
            return "already exists"
        try:
            await self.target.pull(image, report)
        except Problem as problem:
            if not await self.source.has_image(image):
                raise
            try:
                await self.target.load_image(await self.source.save_image(image, MAX_IMAGE))
            except Problem as other:
                other.why = f"{other.why or ''} No registry had it: {problem}".strip()
                raise
            if not await self.target.has_image(image):
                raise
            return "was copied: no registry has it"
        return "was fetched"

    async def execute(self, report: Report | None, *, data: bool) -> DeploymentResult:
        """Stop, copy, start on the target, wait until it stays up, remove the source. A failure restarts it here."""
        name = self.workload.name
        if self.workload.running:
            await self.source.power(name, "stop")
        try:
            tars = [
                (one.path, await self.source.read_folder(name, one.path, MAX_DATA))
                for one in self._volumes_to_copy(data)
            ]

            async def fill() -> None:
                for path, tar in tars:
                    await self.target.write_folder(name, path, tar)

            done = await self.target.deploy(self.spec, report, fill=fill)
        except BaseException as error:
            if self.workload.running:
                await self.source.power(name, "start")
            if isinstance(error, Problem):
                error.next_step = f"{error.next_step or ''} {name} runs on its old host again.".strip()
            raise
        if not self.workload.running:
            await self.target.power(name, "stop")
        await self.source.remove(name)
        return done

    def _volumes_to_copy(self, data: bool) -> Iterable[Mount]:
        return self.volumes if data else ()


async def prepare_move(source: Engine, target: Engine, name: str) -> Move:
    """The move. Raises Conflict if the target cannot take the workload."""
    workload = await source.get(name)
    spec = await source.spec_of(name)
    if await target.find(name) is not None:
        raise Conflict(f"{target.name} {name} already exists on the target", next_step="Rename or remove one of them")
    if workload.fleeting:
        raise Conflict(f"{workload} is removed when it stops and cannot be moved")
    wanted = {(port.outside, port.protocol) for port in workload.ports if port.outside}
    for one in await target.list() if wanted else ():
        taken = [port for port in one.ports if one.running and (port.outside, port.protocol) in wanted]
        if taken:
            raise Conflict(f"Port {taken[0].outside}/{taken[0].protocol} on the target belongs to {one}")
    if objection := target.objection(spec):
        raise Conflict(f"{target.name} on the target cannot run {name}", why=objection)
    return Move(source, target, workload, spec)
