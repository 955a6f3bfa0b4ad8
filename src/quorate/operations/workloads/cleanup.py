"""Disk space of Docker and Podman: what uses it, and the removal of unused objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.selection import select
from quorate.homelab.workloads import cleanup
from quorate.homelab.workloads.cleanup import Kind, UnusedObject, engine_on
from quorate.operations.hosts.parameters import HostRefs
from quorate.operations.hosts.several import answer_each, plan_each
from quorate.operations.machine import machine_action, machine_label, machine_read
from quorate.operations.plan import Action, ActionResult, Plan, StepContext
from quorate.operations.registry import Risk, Table, operation
from quorate.operations.units import shortlist

IMAGES_SHOWN = 5
WASTE_SHOWN = 40
DEFAULT: tuple[Kind, ...] = ("dangling", "cache")


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="docker disk space usage images volumes build cache reclaimable system df what fills the disk",
    example="host=docker01",
)
async def workload_usage(homelab: Homelab, host: HostRefs) -> Table:
    """What Docker or Podman uses disk space for on hosts, how much of it is unused, and the largest images."""
    largest: dict[str, list[str]] = {}

    async def ask(one: Machine) -> list[list[Any]]:
        engine = await engine_on(one)
        largest[machine_label(one)] = await cleanup.largest_images(engine, IMAGES_SHOWN)
        return [list(row) for row in await cleanup.usage(engine)]

    table = await answer_each(await select(homelab, host), ask, ("what", "count", "in_use", "size", "reclaimable"))
    table.facts |= {"largest_images": largest} if largest else {}
    return table


@operation(
    risk=Risk.DESTROY,
    shown_by=("workload_usage", "host"),
    search_words="docker prune clean up free disk space remove unused images dangling stopped containers volumes cache",
    example="host=docker01 dry_run=true",
)
async def workload_prune(
    homelab: Homelab,
    host: HostRefs,
    what: Annotated[
        list[Kind],
        Meta(description="Default: dangling (untagged images) and cache. images: all unused ones"),
    ]
    | None = None,
) -> Plan:
    """Remove unused objects, exactly those that the plan lists by id; dry_run=true shows the list."""

    async def prepare(one: Machine) -> Action:
        engine = await engine_on(one)
        found = await cleanup.find_unused(engine, what or DEFAULT)
        label = machine_label(one)
        if not found:
            return machine_read(one, f"Remove nothing from {label}: everything is in use", "nothing", _remove_nothing)

        async def perform(context: StepContext) -> ActionResult:
            left: dict[str, str] = {}
            for each in found:
                await context.permit()
                if why := await cleanup.remove(engine, each):
                    left[each.about] = why
            kept = {"kept": "; ".join(f"{name}: {why}" for name, why in left.items())} if left else {}
            return ActionResult({"removed": len(found) - len(left), **kept})

        summary = f"Remove from {label}: {shortlist([each.about for each in found], WASTE_SHOWN)}"
        return machine_action(one, summary, f"{engine.name} remove {_ids(found)}", perform)

    return await plan_each(homelab, host, "Remove unused items from", prepare, ("removed", "kept"))


async def _remove_nothing(_: StepContext) -> ActionResult:
    return ActionResult({"removed": 0})


def _ids(found: list[UnusedObject]) -> str:
    by_kind: Mapping[str, list[str]] = {
        kind: [one.id for one in found if one.kind == kind] for kind in {f.kind for f in found}
    }
    return "; ".join(f"{kind} {' '.join(sorted(ids))}" for kind, ids in sorted(by_kind.items()))
