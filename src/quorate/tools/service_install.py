"""Services on hosts and in guests of their own: install, upgrade, uninstall."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import OMITTED, Advice, either, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine, find_machine
from quorate.homelab.selection import SECONDS, Limits
from quorate.homelab.services.catalogue import Method, Template, bytes_of
from quorate.homelab.services.compose import DOCKER, PreviousInstallation, Project, find_compose, project_line
from quorate.homelab.services.installations import ChosenSettings, Installation, Installations, choose, machine_ref
from quorate.inside.transport import Command
from quorate.operations.arguments import convert_arguments, known_names
from quorate.operations.plan import Action, ActionResult, Call, Plan, StepContext
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, NotFound, Problem, TaskFailed
from quorate.pve.cluster import Cluster
from quorate.pve.tasks import Report
from quorate.tools import ansible, service_compose, terraform
from quorate.tools.containers import container_create
from quorate.tools.hosts import HostRefs
from quorate.tools.new_guests import MEBIBYTE
from quorate.tools.service_compose import (
    INSTALLS_DOCKER,
    Rollout,
    ServiceName,
    ServiceSettings,
    bind_secrets,
    describe_command,
    template_of,
    with_record,
    work_exclusively,
)
from quorate.tools.several_hosts import plan_each
from quorate.tools.vms import vm_create

INSTALLED = ("health", "version", "changed", "done", "made_up")
GuestPlace = dict[str, Any]
CREATE_SECONDS = 1800.0
ENTER_SECONDS = 180.0
EVERY = 3.0
_OWN = ("cluster", "type")


@operation(
    toolset="services",
    risk=Risk.CHANGE,
    idempotent=False,
    shown_by=("service_status", "host", "service"),
    search_words="install deploy put service app on host nas docker compose self-hosted set up in its own guest",
    example="service=uptime-kuma host=docker01 docker=true settings='{\"web_port\": 3005}'",
)
async def service_install(
    homelab: Homelab,
    service: ServiceName,
    host: HostRefs | None = None,
    settings: ServiceSettings | None = None,
    method: Annotated[Method, Meta(description="If the service has several")] | None = None,
    docker: Annotated[bool, Meta(description="Install Docker if there is none (Debian, Ubuntu)")] = False,
    place: Annotated[
        GuestPlace,
        Meta(description="Instead of host, a new guest: {cluster, type: ct|vm, …as container_create, vm_create}"),
    ]
    | None = None,
) -> Plan:
    """Install a service on hosts, or change its settings; done when it is healthy. Can create the guest for it."""
    template = template_of(homelab, service)
    how = template.method(method)
    requested = settings or {}
    if (host is None) == (place is None):
        raise BadArgument("It is not clear where to install it", next_step="Give either host or place")
    if place is not None:
        return await plan_in_new_guest(homelab, template, how, requested, place)
    assert host is not None

    async def prepare(machine: Machine) -> Plan:
        if how == "compose":
            return await service_compose.install(homelab, machine, template, requested, docker=docker)
        if how == "ansible":
            return await ansible.install(homelab, machine, template, requested)
        return await terraform.install(homelab, machine, template, requested)

    return await plan_each(
        homelab, host, f"Install {template.title} on", prepare, INSTALLED, limits=_planning_limits(template)
    )


@operation(
    toolset="services",
    risk=Risk.CHANGE,
    idempotent=False,
    shown_by=("service_status", "host", "service"),
    search_words="update upgrade service app on host newer image release pull",
    example="service=uptime-kuma host=docker01",
)
async def service_upgrade(
    homelab: Homelab,
    service: ServiceName,
    host: HostRefs,
    to: Annotated[str, Meta(description="Version; default: that of the catalog")] | None = None,
) -> Plan:
    """Upgrade a service to another version. If it stays unhealthy, the previous version is restored (Compose)."""
    template = template_of(homelab, service)
    if to is not None and not template.version:
        raise BadArgument(
            f"{template.title} has no version to choose", next_step=Advice("Leave `{to}` out", to=OMITTED)
        )

    async def prepare(machine: Machine) -> Plan:
        how = await _method(homelab, machine, template)
        if how == "compose":
            return await service_compose.upgrade(homelab, machine, template, to)
        if await Installations(homelab.store).find(machine_ref(machine), template.id) is None:
            raise NotFound(
                f"{template.title} was not installed on {machine} by this server",
                next_step=Advice("Install it", tools.service_install),
            )
        requested: dict[str, Any] = {"version": to or template.version} if to or template.version else {}
        if how == "ansible":
            return await ansible.install(homelab, machine, template, requested)
        return await terraform.install(homelab, machine, template, requested)

    return await plan_each(
        homelab, host, f"Upgrade {template.title} on", prepare, INSTALLED, limits=_planning_limits(template)
    )


@operation(
    toolset="services",
    risk=Risk.DESTROY,
    shown_by=("service_status", "host", "service"),
    search_words="remove uninstall service app from host delete data compose down",
    example="service=uptime-kuma host=docker01",
)
async def service_uninstall(
    homelab: Homelab,
    service: ServiceName,
    host: HostRefs,
    data: Annotated[bool, Meta(description="Delete its data and settings, too")] = False,
) -> Plan:
    """Uninstall a service from hosts. Its data stays unless data=true."""
    template = template_of(homelab, service)

    async def prepare(machine: Machine) -> Plan:
        how = await _method(homelab, machine, template)
        if how == "compose":
            return await service_compose.uninstall(homelab, machine, template, data=data)
        if how == "ansible":
            return await ansible.uninstall(homelab, machine, template, data=data)
        return await terraform.uninstall(homelab, machine, template, data=data)

    return await plan_each(
        homelab,
        host,
        f"Remove {template.title} from",
        prepare,
        ("removed", "data"),
        limits=_planning_limits(template),
    )


async def _method(homelab: Homelab, machine: Machine, template: Template) -> Method:
    """The method that it was installed with, else the default."""
    entry = await Installations(homelab.store).find(machine_ref(machine), template.id)
    return entry.method if entry else template.method()


def _planning_limits(template: Template) -> Limits:
    return Limits.same_for_each(terraform.PLAN_SECONDS if "terraform" in template.methods else SECONDS)


# -- in a new guest ---------------------------------------------------------------------------------------------------


async def plan_in_new_guest(
    homelab: Homelab, template: Template, method: Method, requested: Mapping[str, Any], place: GuestPlace
) -> Plan:
    if method != "compose":
        raise BadArgument(
            f"New guests are created only for services that run with Compose; {template.title} is installed with "
            f"{method}",
            next_step=Advice(
                "Create the guest, register it, then give it as host",
                tools.container_create,
                tools.vm_create,
                tools.host_register,
            ),
        )
    cluster = _find_cluster(homelab, place.get("cluster"))
    kind: Literal["ct", "vm"] = place.get("type", "ct")
    if kind not in ("ct", "vm"):
        raise BadArgument(f"{kind!r} is not a type of guest", next_step="Use ct or vm")
    chosen = await choose(template, requested, {}, homelab.secret_store)
    plan = await _plan_guest(cluster, kind, template, place)
    vmid = int(plan.facts["vmid"])
    whole = Plan(
        f"Install {template.title} in a new {'container' if kind == 'ct' else 'VM'} {vmid} of {cluster.name}",
        _PlacedInstallation(homelab, cluster, template, chosen, plan).steps(),
        facts={**plan.facts, "settings": chosen.without_secrets},
        warnings=plan.warnings,
    )
    return bind_secrets(whole, chosen.references, "a new guest")


async def _plan_guest(cluster: Cluster, kind: str, template: Template, place: GuestPlace) -> Plan:
    create = container_create if kind == "ct" else vm_create
    arguments = known_names(create.__name__, {name: value for name, value in place.items() if name not in _OWN})
    arguments = {**_default_settings(kind, template), **arguments, "start": True}
    plan: Plan = await create(cluster, **convert_arguments(create.__name__, arguments, "place"))
    return plan


def _default_settings(kind: str, template: Template) -> dict[str, Any]:
    """Enough for the service, plus a reserve for the system."""
    memory = bytes_of(template.needs.memory) // MEBIBYTE
    if kind == "vm":
        return {"name": template.id, "agent": True, "memory": max(2048, memory + 512)}
    disk = math.ceil(bytes_of(template.needs.disk) / 1024**3) + 4
    return {"name": template.id, "memory": max(512, memory + 256), "rootfs": f"{disk}G"}


class _PlacedInstallation:
    """Creates a guest and installs a service in it, as work that continues if nobody waits for it.

    Each step of the plan waits for its part.
    """

    def __init__(
        self, homelab: Homelab, cluster: Cluster, template: Template, chosen: ChosenSettings, plan: Plan
    ) -> None:
        self._homelab = homelab
        self._cluster = cluster
        self._template = template
        self._chosen = chosen
        self._plan = plan
        self._vmid = int(plan.facts["vmid"])
        self._where = f"{cluster.name}/{self._vmid}"
        self._created = asyncio.Event()
        self._context: StepContext | None = None
        self._report: Report | None = None
        self._whole: asyncio.Task[ActionResult] | None = None

    def steps(self) -> tuple[Action, Action]:
        calls = tuple(step for step in self._plan.calls if isinstance(step, Call))
        creation = "; ".join(f"{call.method} {call.path} {_without_passwords(call)}" for call in calls)
        up = project_line(DOCKER, self._homelab.settings.services_folder, self._template.id, "up", "--detach")
        line = INSTALLS_DOCKER + describe_command(up, self._template, self._chosen)
        install = f"Install {self._template.title} in guest {self._vmid}"
        return (
            Action(self._plan.summary, creation, self._create_guest, needs=calls, where=self._cluster),
            Action(install, line, self._await_install, where=self._cluster),
        )

    async def _create_guest(self, context: StepContext) -> ActionResult:
        self._context, self._report = context, context.report
        hidden = tuple(self._chosen.values[name] for name in self._chosen.secret)
        perform = work_exclusively(self._homelab, self._where, self._template.id, self._work, hidden)
        whole = self._whole = asyncio.ensure_future(perform(replace(context, report=self._forward_report)))
        created = asyncio.ensure_future(self._created.wait())
        try:
            await asyncio.wait({whole, created}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            whole.cancel()  # cancels only the waiting
            raise
        finally:
            created.cancel()
        if self._created.is_set():
            return ActionResult({"vmid": self._vmid})
        performed = await whole
        step = f"Guest {self._vmid} is still being created; the service follows automatically. {performed.next_step}"
        return replace(performed, next_step=step)

    async def _await_install(self, context: StepContext) -> ActionResult:
        """Wait for the installation; the time to wait counts from the first step on."""
        assert self._whole is not None
        self._report = context.report
        return await self._whole

    async def _forward_report(self, done: float, whole: float | None, line: str) -> None:
        if self._report is not None:
            await self._report(done, whole, line)

    async def _work(self, report: Report) -> dict[str, Any]:
        context = self._context
        assert context is not None
        install = tools.service_install(service=self._template.id, host=self._where, docker=True)
        delete = Advice("delete the guest", tools.guest_delete(guest=self._vmid))
        try:
            await context.carry_out(self._cluster, self._plan, CREATE_SECONDS, report)
        except Problem as problem:
            install_there = Advice(f"If guest {self._vmid} exists afterwards, install the service there", install)
            then = either(install_there, delete)
            problem.advice = problem.advice.then(then) if problem.advice else then
            raise
        self._created.set()
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


def _without_passwords(call: Call) -> str:
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


def _find_cluster(homelab: Homelab, name: object) -> Cluster:
    names = [cluster.name for cluster in homelab.clusters]
    matching = [cluster for cluster in homelab.clusters if name in (None, cluster.name)]
    if len(matching) == 1:
        return matching[0]
    if not names:
        raise NotFound("There is no cluster to create a guest in")
    raise BadArgument(f"place does not name an existing cluster: {name!r}", next_step=f"Available: {', '.join(names)}")
