"""Plans for services that Compose runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from quorate.hints import SERVICE_CHECK, SERVICE_INSTALL, WORKLOAD_REMOVE, Advice
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.services.compose import (
    DOCKER,
    PreviousInstallation,
    Project,
    compose_missing,
    digest,
    find_compose,
    install_docker,
)
from quorate.homelab.services.health import find_health_problem
from quorate.homelab.services.installations import Installation, Installations, State, machine_address, machine_ref
from quorate.homelab.services.rollout import bring_up
from quorate.homelab.services.settings import ChosenSettings, choose
from quorate.homelab.services.template import VERSION, Template
from quorate.operations.machine import machine_action
from quorate.operations.plan import Plan
from quorate.operations.services.parameters import bind_secrets, install_exclusively, work_exclusively
from quorate.problems import Conflict, NotFound
from quorate.pve.tasks import Report

INSTALLS_DOCKER = "apt-get install docker.io docker-compose && "


async def install(
    homelab: Homelab, machine: Machine, template: Template, given: Mapping[str, Any], *, docker: bool
) -> Plan:
    from quorate.homelab.services.requirements import (
        Verdict,
        check_requirements,
        collect_requirements,
    )  # imported late: it needs many parsers

    command = await find_compose(machine)
    if command is None and not docker:
        raise compose_missing(machine)
    project = Project(machine, command or DOCKER, homelab.settings.services_folder, template.id)
    chosen = await choose(template, given, await project.environment(), homelab.secret_store)
    old = await Installations(homelab.store).find(machine_ref(machine), template.id)
    former = await project.read_previous(template) if command else PreviousInstallation()
    facts = await collect_requirements(machine)
    rows = check_requirements(template, chosen.values, facts, project.folder, former.values if former.images else {})
    lacking = [row for row in rows if row.verdict is Verdict.MISSING]
    if hard := [row for row in lacking if row.kind.is_hard]:
        lacks = "; ".join(f"{row.name}: {row.found}, not {row.needed}" for row in hard)
        raise Conflict(
            f"{machine} does not have what {template.title} needs",
            why=lacks,
            next_step=Advice("Choose other ports in settings, or another host", SERVICE_CHECK),
        )
    does = f"{'Change' if former.files else 'Install'} {template.title} on {machine}"
    warnings = [f"{row.name}: {row.needed} is required, {row.found} is available" for row in lacking]
    warnings += [f"{machine} has no Docker: it is installed with apt-get"] if command is None else []
    warnings += ["It was not installed by this server"] if former.files and old is None else []
    rollout = Rollout(homelab, project, template, chosen, former, needs_docker=command is None)
    return rollout.plan(does, "installing", tuple(warnings), old)


async def upgrade(homelab: Homelab, machine: Machine, template: Template, to: str | None) -> Plan:
    project = await _project(homelab, machine, template)
    former = await project.read_previous(template)
    if not former.files:
        raise NotFound(f"{template.title} is not on {machine}", next_step=Advice("Install it", SERVICE_INSTALL))
    environment = await project.environment()
    wanted = {VERSION: to or template.version} if to or template.version else {}
    chosen = await choose(template, wanted, environment, homelab.secret_store)
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
    containers = [one.name for one in await project.containers()]
    facts = {"host": machine.name, "folder": project.folder, "containers": containers}
    return Plan(
        does, (machine_action(machine, does, line, work_exclusively(homelab, where, template.id, work)),), facts=facts
    )


async def _require_gone(project: Project) -> None:
    if left := await project.containers():
        raise Conflict(
            f"{', '.join(one.name for one in left)} of {project.name} is still there",
            next_step=Advice("Remove them one by one, then call again", WORKLOAD_REMOVE),
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
    running = all(one.well for one in containers) and bool(containers)
    return {
        "state": "running" if running else "partly running" if containers else "stopped, its data is there",
        **({"health": wrong or "ok"} if containers and template.health else {}),
        **({"version": environment[VERSION]} if environment.get(VERSION) else {}),
        **({"catalogue_has": template.version} if newer else {}),
        "containers": [[one.name, one.state, one.status, one.image] for one in containers],
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
