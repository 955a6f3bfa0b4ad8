"""A service in a guest of its own: create the guest, wait until it can be entered, install."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import msgspec

from quorate.homelab.home import Homelab
from quorate.homelab.machines import Machine, machine
from quorate.homelab.services.choosing import Chosen, choose
from quorate.homelab.services.compose import DOCKER, Former, Project, compose_of, project_line
from quorate.homelab.services.installed import Installed
from quorate.homelab.services.template import Method, Template, bytes_of
from quorate.inside.way import Command
from quorate.operations.plan import Action, Call, Performed, Plan
from quorate.operations.provision.create_container import container_create
from quorate.operations.provision.create_vm import vm_create
from quorate.operations.provision.new_guests import MEBIBYTE
from quorate.operations.registry import operations
from quorate.operations.services.by_compose import INSTALLS_DOCKER, described, working
from quorate.operations.services.parameters import lasting, noted
from quorate.problems import BadArgument, NotFound, Problem, TaskFailed
from quorate.pve.cluster import Cluster
from quorate.pve.tasks import Report

Place = dict[str, Any]
CREATE_SECONDS = 1800.0
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
        _Journey(home, cluster, template, chosen, plan).steps(),
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


class _Journey:
    """Guest and service: begun once, it goes on if nobody waits for it. Each step of the plan waits for its part."""

    def __init__(self, home: Homelab, cluster: Cluster, template: Template, chosen: Chosen, plan: Plan) -> None:
        self._home, self._cluster, self._template, self._chosen, self._plan = home, cluster, template, chosen, plan
        self._vmid = int(plan.facts["vmid"])
        self._where = f"{cluster.name}/{self._vmid}"
        self._made = asyncio.Event()
        self._report: Report | None = None
        self._whole: asyncio.Task[Performed] | None = None

    def steps(self) -> tuple[Action, Action]:
        calls = tuple(step for step in self._plan.calls if isinstance(step, Call))
        making = "; ".join(f"{one.method} {one.path} {_shown(one)}" for one in calls)
        up = project_line(DOCKER, self._home.settings.services_folder, self._template.id, "up", "--detach")
        line = INSTALLS_DOCKER + described(up, self._template, self._chosen)
        install = f"Install {self._template.title} in guest {self._vmid}"
        return (
            Action(self._plan.summary, making, self._first, needs=calls, where=self._cluster),
            Action(install, line, self._second, where=self._cluster),
        )

    async def _first(self, wait: float, report: Report | None) -> Performed:
        self._report = report
        hidden = tuple(self._chosen.values[name] for name in self._chosen.secret)
        perform = lasting(self._home, self._where, self._template.id, self._work, hidden)
        whole = self._whole = asyncio.ensure_future(perform(wait, self._tell))
        made = asyncio.ensure_future(self._made.wait())
        try:
            await asyncio.wait({whole, made}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            whole.cancel()  # only the waiting for it
            raise
        finally:
            made.cancel()
        if self._made.is_set():
            return Performed({"vmid": self._vmid})
        performed = await whole
        step = f"Guest {self._vmid} is still being made; the service follows by itself. {performed.next_step}"
        return replace(performed, next_step=step)

    async def _second(self, wait: float, report: Report | None) -> Performed:
        del wait  # it counts from the first step on
        assert self._whole is not None
        self._report = report
        return await self._whole

    async def _tell(self, done: float, whole: float | None, line: str) -> None:
        if self._report is not None:
            await self._report(done, whole, line)

    async def _work(self, report: Report) -> dict[str, Any]:
        again = f"service_install service={self._template.id} host={self._where} docker=true"
        remove = f"or take it away with guest_delete guest={self._vmid}"
        try:
            await self._home.carry_out(self._cluster, self._plan, CREATE_SECONDS, report)
        except Problem as problem:
            step = f"{problem.next_step or ''} If guest {self._vmid} is there in the end, go on with {again}, {remove}"
            problem.next_step = step.strip()
            raise
        self._made.set()
        chosen = self._chosen
        entry = Installed(self._template.id, self._where, "compose", "installing", chosen.version, chosen.shown)
        try:
            return await noted(self._home, entry, self._install)(report)
        except Problem as problem:
            problem.next_step = f"Guest {self._vmid} is there: go on with {again}, {remove}"
            raise

    async def _install(self, report: Report) -> dict[str, Any]:
        guest = await _entered(self._home, self._cluster, self._vmid, report)
        command = await compose_of(guest)
        project = Project(guest, command or DOCKER, self._home.settings.services_folder, self._template.id)
        needs = command is None
        work = working(self._home, guest, self._template, project, self._chosen, Former(), needs_docker=needs)
        return await work(report)


def _shown(call: Call) -> str:
    return json.dumps({name: value for name, value in call.params.items() if name not in ("password", "cipassword")})


async def _entered(home: Homelab, cluster: Cluster, vmid: int, report: Report) -> Machine:
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
        await report(0.0, 100.0, f"Waiting until guest {vmid} takes commands")
        await home.clock.sleep(EVERY)


def _cluster(home: Homelab, name: object) -> Cluster:
    names = [one.name for one in home.clusters]
    found = [one for one in home.clusters if name in (None, one.name)]
    if len(found) == 1:
        return found[0]
    if not names:
        raise NotFound("There is no cluster to make a guest in")
    raise BadArgument(f"place does not say which cluster: {name!r}", next_step=f"There are {', '.join(names)}")
