"""A service in its own guest: create the guest, wait until it accepts commands, install."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from quorate.hints import (
    CONTAINER_CREATE,
    GUEST_DELETE,
    HOST_REGISTER,
    SERVICE_INSTALL,
    VM_CREATE,
    Advice,
    either,
)
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine, find_machine
from quorate.homelab.services.compose import DOCKER, PreviousInstallation, Project, find_compose, project_line
from quorate.homelab.services.installations import Installation
from quorate.homelab.services.settings import ChosenSettings, choose
from quorate.homelab.services.template import Method, Template, bytes_of
from quorate.inside.transport import Command
from quorate.operations.argument_checks import convert_arguments, known_names
from quorate.operations.plan import Action, ActionResult, Call, Plan, StepContext
from quorate.operations.provision.container_create import container_create
from quorate.operations.provision.new_guests import MEBIBYTE
from quorate.operations.provision.vm_create import vm_create
from quorate.operations.services.compose import INSTALLS_DOCKER, Rollout, describe_command
from quorate.operations.services.parameters import bind_secrets, with_record, work_exclusively
from quorate.problems import BadArgument, NotFound, Problem, TaskFailed
from quorate.pve.cluster import Cluster
from quorate.pve.tasks import Report

GuestPlace = dict[str, Any]
CREATE_SECONDS = 1800.0
ENTER_SECONDS = 180.0
EVERY = 3.0
_OWN = ("cluster", "type")


async def plan_in_new_guest(
    homelab: Homelab, template: Template, method: Method, given: Mapping[str, Any], place: GuestPlace
) -> Plan:
    if method != "compose":
        raise BadArgument(
            f"New guests are created only for services that run with Compose; {template.title} is installed with "
            f"{method}",
            next_step=Advice(
                "Create the guest, register it, then give it as host", CONTAINER_CREATE, VM_CREATE, HOST_REGISTER
            ),
        )
    cluster = _cluster(homelab, place.get("cluster"))
    kind: Literal["ct", "vm"] = place.get("type", "ct")
    if kind not in ("ct", "vm"):
        raise BadArgument(f"{kind!r} is not a type of guest", next_step="Use ct or vm")
    chosen = await choose(template, given, {}, homelab.secret_store)
    plan = await _guest_plan(cluster, kind, template, place)
    vmid = int(plan.facts["vmid"])
    whole = Plan(
        f"Install {template.title} in a new {'container' if kind == 'ct' else 'VM'} {vmid} of {cluster.name}",
        _Journey(homelab, cluster, template, chosen, plan).steps(),
        facts={**plan.facts, "settings": chosen.without_secrets},
        warnings=plan.warnings,
    )
    return bind_secrets(whole, chosen.references, "a new guest")


async def _guest_plan(cluster: Cluster, kind: str, template: Template, place: GuestPlace) -> Plan:
    create = container_create if kind == "ct" else vm_create
    wanted = known_names(create.__name__, {name: value for name, value in place.items() if name not in _OWN})
    wanted = {**_default_settings(kind, template), **wanted, "start": True}
    plan: Plan = await create(cluster, **convert_arguments(create.__name__, wanted, "place"))
    return plan


def _default_settings(kind: str, template: Template) -> dict[str, Any]:
    """What the service needs, plus a reserve for the system."""
    memory = bytes_of(template.needs.memory) // MEBIBYTE
    if kind == "vm":
        return {"name": template.id, "agent": True, "memory": max(2048, memory + 512)}
    disk = math.ceil(bytes_of(template.needs.disk) / 1024**3) + 4
    return {"name": template.id, "memory": max(512, memory + 256), "rootfs": f"{disk}G"}


class _Journey:
    """Guest and service: once started, the work continues if nobody waits. Each step of the plan waits for its part."""

    def __init__(
        self, homelab: Homelab, cluster: Cluster, template: Template, chosen: ChosenSettings, plan: Plan
    ) -> None:
        self._homelab, self._cluster, self._template, self._chosen, self._plan = (
            homelab,
            cluster,
            template,
            chosen,
            plan,
        )
        self._vmid = int(plan.facts["vmid"])
        self._where = f"{cluster.name}/{self._vmid}"
        self._made = asyncio.Event()
        self._context: StepContext | None = None
        self._report: Report | None = None
        self._whole: asyncio.Task[ActionResult] | None = None

    def steps(self) -> tuple[Action, Action]:
        calls = tuple(step for step in self._plan.calls if isinstance(step, Call))
        making = "; ".join(f"{one.method} {one.path} {_describe(one)}" for one in calls)
        up = project_line(DOCKER, self._homelab.settings.services_folder, self._template.id, "up", "--detach")
        line = INSTALLS_DOCKER + describe_command(up, self._template, self._chosen)
        install = f"Install {self._template.title} in guest {self._vmid}"
        return (
            Action(self._plan.summary, making, self._create_guest, needs=calls, where=self._cluster),
            Action(install, line, self._await_install, where=self._cluster),
        )

    async def _create_guest(self, context: StepContext) -> ActionResult:
        self._context, self._report = context, context.report
        hidden = tuple(self._chosen.values[name] for name in self._chosen.secret)
        perform = work_exclusively(self._homelab, self._where, self._template.id, self._work, hidden)
        whole = self._whole = asyncio.ensure_future(perform(replace(context, report=self._forward_report)))
        made = asyncio.ensure_future(self._made.wait())
        try:
            await asyncio.wait({whole, made}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            whole.cancel()  # cancels only the waiting
            raise
        finally:
            made.cancel()
        if self._made.is_set():
            return ActionResult({"vmid": self._vmid})
        performed = await whole
        step = f"Guest {self._vmid} is still being created; the service follows automatically. {performed.next_step}"
        return replace(performed, next_step=step)

    async def _await_install(self, context: StepContext) -> ActionResult:
        """The time to wait counts from the first step on."""
        assert self._whole is not None
        self._report = context.report
        return await self._whole

    async def _forward_report(self, done: float, whole: float | None, line: str) -> None:
        if self._report is not None:
            await self._report(done, whole, line)

    async def _work(self, report: Report) -> dict[str, Any]:
        context = self._context
        assert context is not None
        install = SERVICE_INSTALL(service=self._template.id, host=self._where, docker=True)
        delete = Advice("delete the guest", GUEST_DELETE(guest=self._vmid))
        try:
            await context.carry_out(self._cluster, self._plan, CREATE_SECONDS, report)
        except Problem as problem:
            install_there = Advice(f"If guest {self._vmid} exists afterwards, install the service there", install)
            then = either(install_there, delete)
            problem.advice = problem.advice.then(then) if problem.advice else then
            raise
        self._made.set()
        chosen = self._chosen
        entry = Installation(
            self._template.id, self._where, "compose", "installing", chosen.version, chosen.without_secrets
        )
        try:
            await context.permit()
            return await with_record(self._homelab, entry, self._install)(report)
        except Problem as problem:
            problem.advice = either(Advice(f"Guest {self._vmid} exists: install the service there", install), delete)
            raise

    async def _install(self, report: Report) -> dict[str, Any]:
        guest = await _wait_until_reachable(self._homelab, self._cluster, self._vmid, report)
        command = await find_compose(guest)
        project = Project(guest, command or DOCKER, self._homelab.settings.services_folder, self._template.id)
        rollout = Rollout(
            self._homelab, project, self._template, self._chosen, PreviousInstallation(), needs_docker=command is None
        )
        return await rollout.work(report)


def _describe(call: Call) -> str:
    return json.dumps({name: value for name, value in call.params.items() if name not in ("password", "cipassword")})


async def _wait_until_reachable(homelab: Homelab, cluster: Cluster, vmid: int, report: Report) -> Machine:
    """Wait until the guest accepts commands."""
    end = homelab.clock.monotonic() + ENTER_SECONDS
    while True:
        cluster.inventory.forget()
        try:
            guest = await find_machine(homelab, f"{cluster.name}/{vmid}")
            await guest.transport.run(Command(("true",)), seconds=20)
            return guest
        except Problem as problem:
            if homelab.clock.monotonic() >= end:
                raise TaskFailed(f"Guest {vmid} was created, but does not accept commands", why=str(problem)) from None
        await report(0.0, 100.0, f"Waiting until guest {vmid} takes commands")
        await homelab.clock.sleep(EVERY)


def _cluster(homelab: Homelab, name: object) -> Cluster:
    names = [one.name for one in homelab.clusters]
    found = [one for one in homelab.clusters if name in (None, one.name)]
    if len(found) == 1:
        return found[0]
    if not names:
        raise NotFound("There is no cluster to create a guest in")
    raise BadArgument(f"place does not name an existing cluster: {name!r}", next_step=f"Available: {', '.join(names)}")
