"""A service in a guest of its own: create the guest, wait until it can be entered, install."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from quorate.homelab.home import Homelab
from quorate.homelab.machines import Machine, machine
from quorate.homelab.services.choosing import Chosen, choose
from quorate.homelab.services.compose import DOCKER, Former, Project, compose_of, project_line
from quorate.homelab.services.installed import Installed, place_of
from quorate.homelab.services.template import Method, Template, bytes_of
from quorate.inside.way import Command
from quorate.operations.plan import Action, Call, Performed, Plan
from quorate.operations.provision.create_container import container_create
from quorate.operations.provision.create_vm import vm_create
from quorate.operations.provision.new_guests import MEBIBYTE
from quorate.operations.registry import operations
from quorate.operations.services.by_compose import INSTALLS_DOCKER, described, working
from quorate.operations.services.parameters import recorded
from quorate.problems import BadArgument, NotFound, Problem, TaskFailed
from quorate.pve.cluster import Cluster
from quorate.pve.tasks import Report

Place = dict[str, Any]
ENTER_SECONDS = 180.0
EVERY = 3.0
_OWN = ("cluster", "type")


async def placed(home: Homelab, template: Template, method: Method, given: Mapping[str, Any], place: Place) -> Plan:
    if method != "compose":
        raise BadArgument(
            f"A new guest is made for services that Compose runs; {template.title} goes by {method}",
            next_step="Make the guest with container_create or vm_create, register it, then give it as host",
        )
    cluster = _cluster(home, place.get("cluster"))
    kind: Literal["ct", "vm"] = place.get("type", "ct")
    if kind not in ("ct", "vm"):
        raise BadArgument(f"{kind!r} is no type of guest", next_step="It is ct or vm")
    chosen = await choose(template, given, {}, home.secret_store)
    plan = await _guest_plan(cluster, kind, template, place)
    vmid = int(plan.facts["vmid"])
    return Plan(
        f"Install {template.title} in a new {'container' if kind == 'ct' else 'VM'} {vmid} of {cluster.name}",
        (_creating(home, cluster, plan, vmid), _installing(home, cluster, template, chosen, vmid)),
        facts={**plan.facts, "settings": chosen.shown},
        warnings=plan.warnings,
    )


async def _guest_plan(cluster: Cluster, kind: str, template: Template, place: Place) -> Plan:
    create = container_create if kind == "ct" else vm_create
    known = operations(("provision",))[create.__name__].arguments
    wanted = {name: value for name, value in place.items() if name not in _OWN}
    wanted = {**_usual(kind, template), **wanted, "start": True}
    try:
        checked = msgspec.to_builtins(msgspec.convert(wanted, known, strict=False))
    except msgspec.ValidationError as error:
        raise BadArgument(
            f"place cannot be used: {error}", next_step=f"It takes what {create.__name__} takes"
        ) from None
    if unknown := [name for name in wanted if name not in checked]:
        raise BadArgument(f"place has no {unknown[0]!r}", next_step=f"It takes what {create.__name__} takes")
    plan: Plan = await create(cluster, **{name: checked[name] for name in wanted})
    return plan


def _usual(kind: str, template: Template) -> dict[str, Any]:
    """What the service needs, and something for the system around it."""
    memory = bytes_of(template.needs.memory) // MEBIBYTE
    if kind == "vm":
        return {"name": template.id, "agent": True, "memory": max(2048, memory + 512)}
    disk = math.ceil(bytes_of(template.needs.disk) / 1024**3) + 4
    return {"hostname": template.id, "memory": max(512, memory + 256), "rootfs": f"{disk}G"}


def _creating(home: Homelab, cluster: Cluster, plan: Plan, vmid: int) -> Action:
    async def perform(wait: float, report: Report | None) -> Performed:
        try:
            await home.carry_out(cluster, plan, wait, report)
        except Problem as problem:
            problem.next_step = (
                f"{problem.next_step or ''} If guest {vmid} is there in the end, go on with service_install "
                f"host={cluster.name}/{vmid} docker=true, or take it away with guest_delete"
            ).strip()
            raise
        return Performed({"vmid": vmid})

    calls = tuple(step for step in plan.calls if isinstance(step, Call))
    line = "; ".join(f"{one.method} {one.path} {_shown(one)}" for one in calls)
    return Action(plan.summary, line, perform, needs=calls, where=cluster)


def _shown(call: Call) -> str:
    return json.dumps({name: value for name, value in call.params.items() if name not in ("password", "cipassword")})


def _installing(home: Homelab, cluster: Cluster, template: Template, chosen: Chosen, vmid: int) -> Action:
    base = home.settings.services_folder

    async def perform(wait: float, report: Report | None) -> Performed:
        try:
            return await install(wait, report)
        except Problem as problem:
            problem.next_step = (
                f"Guest {vmid} is there: go on with service_install service={template.id} "
                f"host={cluster.name}/{vmid} docker=true, or take it away with guest_delete guest={vmid}"
            )
            raise

    async def install(wait: float, report: Report | None) -> Performed:
        guest = await _entered(home, cluster, vmid)
        command = await compose_of(guest)
        project = Project(guest, command or DOCKER, base, template.id)
        work = working(home, guest, template, project, chosen, Former(), needs_docker=command is None)
        entry = Installed(template.id, place_of(guest), "compose", "installing", chosen.version, chosen.shown)
        hidden = tuple(chosen.values[name] for name in chosen.secret)
        return await recorded(home, guest, entry, work, hidden)(wait, report)

    line = INSTALLS_DOCKER + described(project_line(DOCKER, base, template.id, "up", "--detach"), template, chosen)
    return Action(f"Install {template.title} in guest {vmid}", line, perform, where=cluster)


async def _entered(home: Homelab, cluster: Cluster, vmid: int) -> Machine:
    """Once it takes commands."""
    end = home.clock.monotonic() + ENTER_SECONDS
    while True:
        cluster.inventory.forget()
        try:
            guest = await machine(home, f"{cluster.name}/{vmid}")
            await guest.way.run(Command(("true",)), seconds=20)
            return guest
        except Problem as problem:
            if home.clock.monotonic() >= end:
                raise TaskFailed(f"Guest {vmid} was made, but takes no commands", why=str(problem)) from None
        await home.clock.sleep(EVERY)


def _cluster(home: Homelab, name: object) -> Cluster:
    names = [one.name for one in home.clusters]
    found = [one for one in home.clusters if name in (None, one.name)]
    if len(found) == 1:
        return found[0]
    if not names:
        raise NotFound("There is no cluster to make a guest in")
    raise BadArgument(f"place does not say which cluster: {name!r}", next_step=f"There are {', '.join(names)}")
