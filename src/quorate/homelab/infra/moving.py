"""Moving a workload to another machine, with what is in its volumes where that is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quorate.homelab.workloads.engine import Deployed, Engine
from quorate.homelab.workloads.model import Mount, Spec, Workload
from quorate.problems import Conflict, Problem
from quorate.pve.tasks import Report

MOST_DATA = 128 * 1024 * 1024
"""Of one volume: it is held in memory on its way."""


@dataclass(frozen=True, slots=True)
class Move:
    source: Engine
    target: Engine
    workload: Workload
    spec: Spec

    @property
    def volumes(self) -> tuple[Mount, ...]:
        return self.workload.mounts

    async def make_ready(self, report: Report | None) -> bool:
        """Fetch the image over there, so that it need not be waited for while nothing runs; whether that was needed."""
        if await self.target.has_image(self.spec.image):
            return False
        await self.target.pull(self.spec.image, report)
        return True

    async def carry(self, report: Report | None, *, data: bool) -> Deployed:
        """Stop, copy, start there, see that it stays up, then remove here. If it fails, it runs here as before."""
        name = self.workload.name
        if self.workload.running:
            await self.source.power(name, "stop")
        try:
            tars = [(one.path, await self.source.read_folder(name, one.path, MOST_DATA)) for one in self._copied(data)]

            async def fill() -> None:
                for path, tar in tars:
                    await self.target.write_folder(name, path, tar)

            done = await self.target.deploy(self.spec, report, fill=fill)
        except BaseException as error:
            if self.workload.running:
                await self.source.power(name, "start")
            if isinstance(error, Problem):
                error.next_step = f"{error.next_step or ''} {name} runs where it was.".strip()
            raise
        if not self.workload.running:
            await self.target.power(name, "stop")
        await self.source.remove(name)
        return done

    def _copied(self, data: bool) -> Iterable[Mount]:
        return self.volumes if data else ()


async def prepared(source: Engine, target: Engine, name: str) -> Move:
    """The move, if nothing stands against it over there."""
    workload = await source.get(name)
    spec = await source.spec_of(name)
    if await target.find(name) is not None:
        raise Conflict(f"There is a {target.name} {name} over there already", next_step="Rename or remove one of them")
    if workload.fleeting:
        raise Conflict(f"{workload} goes when it stops and cannot be moved")
    wanted = {(port.outside, port.protocol) for port in workload.ports if port.outside}
    for one in await target.list() if wanted else ():
        taken = [port for port in one.ports if one.running and (port.outside, port.protocol) in wanted]
        if taken:
            raise Conflict(f"Port {taken[0].outside}/{taken[0].protocol} over there belongs to {one}")
    if objection := target.objection(spec):
        raise Conflict(f"{target.name} over there cannot take {name}", why=objection)
    return Move(source, target, workload, spec)
