"""Docker and Podman every day: update the images of a project, see what uses disk space, remove what nothing uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import WORKLOAD_LIST, Advice
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine, machine
from quorate.homelab.services.installations import place_of
from quorate.homelab.workloads import cleanup
from quorate.homelab.workloads.cleanup import Kind, Waste, engine_on, project_on
from quorate.homelab.workloads.deployments import Deployment
from quorate.homelab.workloads.project_update import compose_command, require_files, update
from quorate.operations.hosts.parameters import HostRef, HostRefs
from quorate.operations.hosts.several import answer_each, plan_each
from quorate.operations.machine import machine_action, machine_label
from quorate.operations.plan import Action, Performed, Plan, StepContext
from quorate.operations.registry import Risk, Table, operation
from quorate.operations.units import shortlist
from quorate.problems import BadArgument, Conflict
from quorate.pve.tasks import Report

IMAGES_SHOWN = 5
WASTE_SHOWN = 40
DEFAULT: tuple[Kind, ...] = ("dangling", "cache")


@operation(
    risk=Risk.CHANGE,
    idempotent=False,
    shown_by=("workload_list", "host"),
    search_words="update images of compose project pull newer container images docker stack upgrade recreate rollback",
    example="host=docker01 project=web dry_run=true",
)
async def project_update(
    home: Homelab,
    host: HostRef,
    project: Annotated[str, Meta(description="Compose project, as workload_list shows it")],
    services: Annotated[list[str], Meta(description="Only these")] | None = None,
) -> Plan:
    """Pull the images of a Compose project and restart what changed. If it does not become healthy, the former images
    run again."""
    place = await machine(home, host)
    engine = await engine_on(place)
    found = await project_on(engine, project)
    wanted = tuple(services or ())
    if unknown := [one for one in wanted if one not in {part.service for part in found.parts}]:
        known = ", ".join(sorted({part.service for part in found.parts}))
        raise BadArgument(f"{project} has no service {', '.join(unknown)}", next_step=f"Those there: {known}")
    await require_files(found)
    compose = await compose_command(engine)

    async def perform(context: StepContext) -> Performed:
        async def work(report: Report) -> dict[str, Any]:
            now = await project_on(engine, project)
            if {part.id for part in now.parts} != {part.id for part in found.parts}:
                raise Conflict(f"{project} has changed since it was planned", next_step="Nothing was done; look again")
            return await update(now, compose, wanted, home.clock, report)

        done = await Deployment(home.store, place_of(place), f"project {project}").followed(
            work, context.wait, context.report, home.ssh.pool
        )
        if done is None:
            return Performed(running=True, next_step=Advice("See its containers", WORKLOAD_LIST(host=host)))
        return Performed(done)

    does = f"Update the images of {project} on {place}"
    line = f"{found.command_line(compose, 'pull', *wanted)} && {found.command_line(compose, 'up', '--detach', *wanted)}"
    images = sorted({f"{part.image} ({part.image_id.removeprefix('sha256:')[:12]})" for part in found.parts})
    return Plan(
        does,
        (machine_action(place, does, line, perform),),
        facts={"host": machine_label(place), "images": images},
        warnings=("If it fails, the former images run again, but what the new ones did to data stays",),
    )


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="docker disk space usage images volumes build cache reclaimable system df what fills the disk",
    example="host=docker01",
)
async def workload_usage(home: Homelab, host: HostRefs) -> Table:
    """What Docker or Podman uses disk space for on hosts, how much of it nothing uses, and the largest images."""
    largest: dict[str, list[str]] = {}

    async def ask(one: Machine) -> list[list[Any]]:
        engine = await engine_on(one)
        largest[machine_label(one)] = await cleanup.largest_images(engine, IMAGES_SHOWN)
        return [list(row) for row in await cleanup.usage(engine)]

    table = await answer_each(home, host, ask, ("what", "count", "in_use", "size", "reclaimable"))
    table.facts |= {"largest_images": largest} if largest else {}
    return table


@operation(
    risk=Risk.DESTROY,
    shown_by=("workload_usage", "host"),
    search_words="docker prune clean up free disk space remove unused images dangling stopped containers volumes cache",
    example="host=docker01 dry_run=true",
)
async def workload_prune(
    home: Homelab,
    host: HostRefs,
    what: Annotated[
        list[Kind],
        Meta(description="Default: dangling (untagged images) and cache. images: all unused ones"),
    ]
    | None = None,
) -> Plan:
    """Remove what nothing uses, each by its id as the plan lists it; dry_run=true shows the list."""

    async def prepare(one: Machine) -> Action:
        engine = await engine_on(one)
        found = await cleanup.waste(engine, what or DEFAULT)
        label = machine_label(one)
        if not found:
            return machine_action(
                one, f"Remove nothing from {label}: all is in use", "nothing", _nothing, only_reads=True
            )

        async def perform(context: StepContext) -> Performed:
            left: dict[str, str] = {}
            for each in found:
                await context.permit()
                if why := await cleanup.remove(engine, each):
                    left[each.about] = why
            kept = {"kept": "; ".join(f"{name}: {why}" for name, why in left.items())} if left else {}
            return Performed({"removed": len(found) - len(left), **kept})

        says = f"Remove from {label}: {shortlist([each.about for each in found], WASTE_SHOWN)}"
        return machine_action(one, says, f"{engine.name} remove {_ids(found)}", perform)

    return await plan_each(home, host, "Remove what nothing uses from", prepare, ("removed", "kept"))


async def _nothing(_: StepContext) -> Performed:
    return Performed({"removed": 0})


def _ids(found: list[Waste]) -> str:
    by_kind: Mapping[str, list[str]] = {
        kind: [one.id for one in found if one.kind == kind] for kind in {f.kind for f in found}
    }
    return "; ".join(f"{kind} {' '.join(sorted(ids))}" for kind, ids in sorted(by_kind.items()))
