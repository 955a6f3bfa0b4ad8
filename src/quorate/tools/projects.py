"""Newer images for a Compose project, with a rollback to the former ones."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import see, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.services.installations import machine_ref
from quorate.homelab.workloads.housekeeping import compose_command, engine_on, project_on, require_files, update
from quorate.homelab.workloads.workload import Deployment
from quorate.operations.plan import ActionResult, Plan, StepContext
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve.tasks import Report
from quorate.tools.hosts import HostRefs
from quorate.tools.machines import machine_action, machine_label
from quorate.tools.several_hosts import plan_each


@operation(
    toolset="workloads",
    risk=Risk.CHANGE,
    idempotent=False,
    shown_by=("workload_list", "host"),
    search_words="update images of compose project pull newer container images docker stack upgrade recreate rollback",
    example="host=docker01 project=web dry_run=true",
)
async def project_update(
    homelab: Homelab,
    host: HostRefs,
    project: Annotated[str, Meta(description="Compose project, as workload_list shows it")],
    services: Annotated[list[str], Meta(description="Only these")] | None = None,
) -> Plan:
    """Pull the images of a Compose project and restart what changed. If it does not become healthy, the former images
    run again."""
    prepare = partial(_project_plan, homelab, project=project, services=tuple(services or ()))
    return await plan_each(
        homelab, host, f"Update the images of {project} on", prepare, ("updated", "restarted", "health")
    )


async def _project_plan(homelab: Homelab, machine: Machine, project: str, services: tuple[str, ...]) -> Plan:
    engine = await engine_on(machine)
    running = await project_on(engine, project)
    if unknown := [service for service in services if service not in {part.service for part in running.parts}]:
        known = ", ".join(sorted({part.service for part in running.parts}))
        raise BadArgument(f"{project} has no service {', '.join(unknown)}", next_step=f"Available: {known}")
    await require_files(running)
    compose = await compose_command(engine)

    async def perform(context: StepContext) -> ActionResult:
        async def work(report: Report) -> dict[str, Any]:
            now = await project_on(engine, project)
            if {part.id for part in now.parts} != {part.id for part in running.parts}:
                raise Conflict(f"{project} has changed since it was planned", next_step="Nothing was done; look again")
            return await update(now, compose, services, homelab.clock, report)

        done = await Deployment(homelab.store, machine_ref(machine), f"project {project}").follow(
            work, context.wait, context.report, homelab.ssh.pool
        )
        if done is None:
            return ActionResult(
                running=True, next_step=see("See its containers", tools.workload_list(host=machine.ref))
            )
        return ActionResult(done)

    does = f"Update the images of {project} on {machine}"
    commands = (("pull", *services), ("up", "--detach", *services))
    line = " && ".join(running.command_line(compose, *words) for words in commands)
    images = sorted({f"{part.image} ({part.image_id.removeprefix('sha256:')[:12]})" for part in running.parts})
    return Plan(
        does,
        (machine_action(machine, does, line, perform),),
        facts={"host": machine_label(machine), "images": images},
        warnings=("If it fails, the former images run again, but changes that the new ones made to data stay",),
    )
