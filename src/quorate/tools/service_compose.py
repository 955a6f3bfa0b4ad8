"""Services as Compose projects on hosts: what is requested, their files, start and removal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quorate.hints import Advice, see, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.secrets import question_about
from quorate.homelab.services.catalogue import (
    VERSION,
    Template,
    Verdict,
    check_requirements,
    collect_requirements,
    load_catalogue,
)
from quorate.homelab.services.compose import (
    DOCKER,
    FORMER,
    RUNS_AGAIN,
    PreviousInstallation,
    Project,
    bring_up,
    compose_missing,
    digest,
    find_compose,
    find_health_problem,
    install_docker,
)
from quorate.homelab.services.installations import (
    RENEW_SECONDS,
    ChosenSettings,
    Installation,
    Installations,
    State,
    choose,
    machine_address,
    machine_ref,
)
from quorate.homelab.workloads.workload import Deployment
from quorate.operations.plan import Action, ActionResult, Perform, Plan, StepContext
from quorate.operations.registry import Risk
from quorate.problems import Conflict, NotFound, Problem
from quorate.pve.tasks import Report
from quorate.tools.machines import machine_action

Work = Callable[[Report], Awaitable[dict[str, Any]]]
ServiceName = Annotated[str, Meta(description="Name in the catalog")]
ServiceSettings = Annotated[
    dict[str, Any], Meta(description="As service_info lists them; secrets by reference: env:NAME, vault:NAME")
]


def template_of(homelab: Homelab, service: str) -> Template:
    return load_catalogue(homelab.settings.catalogue).find(service)


def bind_secrets(plan: Plan, references: Collection[str], host: str) -> Plan:
    """A stored secret is sent to a machine only after a person has approved it."""
    if not references:
        return plan
    because = question_about(references, host)
    steps = [
        replace(step, risk=Risk.DESTROY, risk_because=because) if isinstance(step, Action) else step
        for step in plan.calls
    ]
    return replace(plan, calls=tuple(steps))


def install_exclusively(
    homelab: Homelab, entry: Installation, work: Work, hidden: tuple[str, ...] = (), old: Installation | None = None
) -> Perform:
    """Install a service in place of `old`, as work that only one server does at a time."""
    return work_exclusively(homelab, entry.host, entry.service, with_record(homelab, entry, work, old), hidden)


def with_record(homelab: Homelab, entry: Installation, work: Work, old: Installation | None = None) -> Work:
    """Record in the ledger that the work has begun, then how it ended."""
    ledger = Installations(homelab.store)

    async def run_recorded(report: Report) -> dict[str, Any]:
        await ledger.keep(entry)
        try:
            facts = await work(report)
        except Problem as problem:
            left = old if old and problem.facts.get(FORMER) == RUNS_AGAIN else entry
            state = "failed" if left is entry else "installed"
            await ledger.keep(msgspec.structs.replace(left, state=state, why=problem.what))
            raise
        except BaseException:  # interrupted, or a defect: nothing stays `installing` forever
            await ledger.keep(msgspec.structs.replace(entry, state="failed", why="It was interrupted before its end."))
            raise
        await ledger.keep(msgspec.structs.replace(entry, state="installed"))
        return facts

    return run_recorded


def work_exclusively(homelab: Homelab, host: str, service: str, work: Work, hidden: tuple[str, ...] = ()) -> Perform:
    """Work on a service that may outlast the call and that only one server does at a time."""
    ledger = Installations(homelab.store)

    async def perform(context: StepContext) -> ActionResult:
        claim = await ledger.begin_work(host, service)
        facts = await Deployment(homelab.store, host, f"service {service}", hidden).follow(
            partial(_run_claimed, ledger, claim, work), context.wait, context.report, homelab.ssh.pool
        )
        if facts is None:
            step = see("See its progress", tools.service_status(host=host, service=service))
            return ActionResult(running=True, next_step=step)
        return ActionResult(facts)

    return perform


async def _run_claimed(ledger: Installations, claim: str, work: Work, report: Report) -> dict[str, Any]:
    renewing = asyncio.ensure_future(_keep_renewing(ledger, claim))
    try:
        return await work(report)
    finally:
        renewing.cancel()
        await ledger.end_work(claim)


async def _keep_renewing(ledger: Installations, claim: str) -> None:
    """Renew the claim, so that no other server takes over the work while this one runs."""
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        with contextlib.suppress(Problem):  # the database may be unavailable for a moment
            await ledger.renew_work(claim)


INSTALLS_DOCKER = "apt-get install docker.io docker-compose && "


async def install(
    homelab: Homelab, machine: Machine, template: Template, requested: Mapping[str, Any], *, docker: bool
) -> Plan:
    command = await find_compose(machine)
    if command is None and not docker:
        raise compose_missing(machine)
    project = Project(machine, command or DOCKER, homelab.settings.services_folder, template.id)
    chosen = await choose(template, requested, await project.environment(), homelab.secret_store)
    old = await Installations(homelab.store).find(machine_ref(machine), template.id)
    former = await project.read_previous(template) if command else PreviousInstallation()
    facts = await collect_requirements(machine)
    rows = check_requirements(template, chosen.values, facts, project.folder, former.values if former.images else {})
    lacking = [row for row in rows if row.verdict is Verdict.MISSING]
    if hard := [row for row in lacking if row.kind.is_hard]:
        lacks = "; ".join(f"{row.name}: {row.available}, not {row.needed}" for row in hard)
        raise Conflict(
            f"{machine} does not have what {template.title} needs",
            why=lacks,
            next_step=Advice("Choose other ports in settings, or another host", tools.service_check),
        )
    does = f"{'Change' if former.files else 'Install'} {template.title} on {machine}"
    warnings = [f"{row.name}: {row.needed} is required, {row.available} is available" for row in lacking]
    warnings += [f"{machine} has no Docker: it is installed with apt-get"] if command is None else []
    warnings += ["It was not installed by this server"] if former.files and old is None else []
    rollout = Rollout(homelab, project, template, chosen, former, needs_docker=command is None)
    return rollout.plan(does, "installing", tuple(warnings), old)


async def upgrade(homelab: Homelab, machine: Machine, template: Template, to: str | None) -> Plan:
    project = await _project(homelab, machine, template)
    former = await project.read_previous(template)
    if not former.files:
        raise NotFound(f"{template.title} is not on {machine}", next_step=Advice("Install it", tools.service_install))
    environment = await project.environment()
    version = {VERSION: to or template.version} if to or template.version else {}
    chosen = await choose(template, version, environment, homelab.secret_store)
    does = (
        f"Upgrade {template.title} on {machine} from {environment.get(VERSION) or 'what is there'} to {chosen.version}"
    )
    warnings = (
        "The previous version is restored if the new one does not become healthy, but the data keeps its changes",
    )
    old = await Installations(homelab.store).find(machine_ref(machine), template.id)
    return Rollout(homelab, project, template, chosen, former).plan(does, "upgrading", warnings, old)


async def uninstall(homelab: Homelab, machine: Machine, template: Template, *, data: bool) -> Plan:
    project = await _project(homelab, machine, template)
    former = await project.read_previous(template)
    ledger, where = Installations(homelab.store), machine_ref(machine)
    old = await ledger.find(where, template.id)
    if not former.files and old is None:
        raise NotFound(f"{template.title} is not on {machine}")

    async def work(report: Report) -> dict[str, Any]:
        del report
        if not former.files:
            await _require_gone(project)
            await ledger.forget(where, template.id)
            return {"removed": template.id, "data": f"{project.folder} had already been removed"}
        await project.down(volumes=data)
        await _require_gone(project)
        if data:
            await project.delete()
            await ledger.forget(where, template.id)
            return {"removed": template.id, "data": "deleted"}
        kept = old or Installation(template.id, where, "compose", "removed")
        await ledger.keep(msgspec.structs.replace(kept, state="removed", why=""))
        return {"removed": template.id, "data": f"kept in {project.folder}"}

    does = f"Remove {template.title} from {machine}" + (" with all of its data" if data else "; its data stays")
    line = " ".join(project.line("down", *(("--volumes",) if data else ())))
    line += f" && rm -rf {project.folder}" if data else ""
    containers = [container.name for container in await project.containers()]
    facts = {"host": machine.name, "folder": project.folder, "containers": containers}
    return Plan(
        does, (machine_action(machine, does, line, work_exclusively(homelab, where, template.id, work)),), facts=facts
    )


async def _require_gone(project: Project) -> None:
    if remaining := await project.containers():
        raise Conflict(
            f"{', '.join(container.name for container in remaining)} of {project.name} is still there",
            next_step=Advice("Remove them one by one, then call again", tools.workload_remove),
        )


async def status(homelab: Homelab, machine: Machine, template: Template) -> dict[str, Any]:
    project = await _project(homelab, machine, template)
    environment = await project.environment()
    containers = await project.containers()
    if not environment and not containers:
        return {"state": "not there"}
    drift = await project.drift(template)
    wrong = await find_health_problem(machine, template, environment) if containers else None
    newer = containers and template.version and environment.get(VERSION, "") != template.version
    running = all(container.well for container in containers) and bool(containers)
    return {
        "state": "running" if running else "partly running" if containers else "stopped, its data is there",
        **({"health": wrong or "ok"} if containers and template.health else {}),
        **({"version": environment[VERSION]} if environment.get(VERSION) else {}),
        **({"catalogue_has": template.version} if newer else {}),
        "containers": [
            [container.name, container.state, container.status, container.image] for container in containers
        ],
        "drift": drift or "none",
    }


async def _project(homelab: Homelab, machine: Machine, template: Template) -> Project:
    command = await find_compose(machine)
    if command is None:
        raise compose_missing(machine)
    return Project(machine, command, homelab.settings.services_folder, template.id)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A template brought up on a machine with the chosen settings, in place of what was there."""

    homelab: Homelab
    project: Project
    template: Template
    chosen: ChosenSettings
    former: PreviousInstallation
    needs_docker: bool = False

    def plan(self, does: str, state: State, warnings: tuple[str, ...], old: Installation | None) -> Plan:
        template, project, chosen, machine = self.template, self.project, self.chosen, self.project.machine
        entry = Installation(
            template.id,
            machine_ref(machine),
            "compose",
            state,
            chosen.version,
            chosen.without_secrets,
            at=machine_address(machine),
        )
        hidden = tuple(chosen.values[name] for name in chosen.secret)
        line = describe_command(project.line("up", "--detach"), template, chosen)
        line = INSTALLS_DOCKER + line if self.needs_docker else line
        action = machine_action(
            machine, does, line, install_exclusively(self.homelab, entry, self.work, hidden, old), writes=True
        )
        facts: dict[str, Any] = {"host": machine.name, "folder": project.folder, "settings": chosen.without_secrets}
        if chosen.generated:
            facts["made_up"] = f"{', '.join(chosen.generated)}: is in {project.folder}/.env, for root alone"
        plan = Plan(does, (action,), facts=facts, warnings=warnings)
        return bind_secrets(plan, chosen.references, str(machine))

    async def work(self, report: Report) -> dict[str, Any]:
        if self.needs_docker:
            self.project.command = await install_docker(self.project.machine, report)
        return await bring_up(self.project, self.template, self.chosen, self.former, self.homelab.clock, report)


def describe_command(line: tuple[str, ...], template: Template, chosen: ChosenSettings) -> str:
    """The step as a command line; settings that are not secret are part of what is approved."""
    settings = " ".join(f"{name}={value}" for name, value in chosen.without_secrets.items())
    return f"{' '.join(line)} (template {digest(template)}; {settings})"
