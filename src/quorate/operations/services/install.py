"""Services on hosts: install, upgrade, uninstall."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import OMITTED, SERVICE_INSTALL, Advice
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.selection import SECONDS, Limits
from quorate.homelab.services.installations import Installations, machine_ref
from quorate.homelab.services.template import Method, Template
from quorate.operations.hosts.parameters import HostRefs
from quorate.operations.hosts.several import plan_each
from quorate.operations.plan import Plan
from quorate.operations.registry import Risk, operation
from quorate.operations.services import ansible, compose, terraform
from quorate.operations.services.parameters import ServiceName, ServiceSettings, template_of
from quorate.operations.services.placement import GuestPlace, plan_in_new_guest
from quorate.problems import BadArgument, NotFound

INSTALLED = ("health", "version", "changed", "done", "made_up")


@operation(
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
    given = settings or {}
    if (host is None) == (place is None):
        raise BadArgument("It is not clear where to install it", next_step="Give either host or place")
    if place is not None:
        return await plan_in_new_guest(homelab, template, how, given, place)
    assert host is not None

    async def prepare(machine: Machine) -> Plan:
        if how == "compose":
            return await compose.install(homelab, machine, template, given, docker=docker)
        if how == "ansible":
            return await ansible.install(homelab, machine, template, given)
        return await terraform.install(homelab, machine, template, given)

    return await plan_each(
        homelab, host, f"Install {template.title} on", prepare, INSTALLED, limits=_planning_limits(template)
    )


@operation(
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
            return await compose.upgrade(homelab, machine, template, to)
        if await Installations(homelab.store).find(machine_ref(machine), template.id) is None:
            raise NotFound(
                f"{template.title} was not installed on {machine} by this server",
                next_step=Advice("Install it", SERVICE_INSTALL),
            )
        given: dict[str, Any] = {"version": to or template.version} if to or template.version else {}
        if how == "ansible":
            return await ansible.install(homelab, machine, template, given)
        return await terraform.install(homelab, machine, template, given)

    return await plan_each(
        homelab, host, f"Upgrade {template.title} on", prepare, INSTALLED, limits=_planning_limits(template)
    )


@operation(
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
            return await compose.uninstall(homelab, machine, template, data=data)
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
