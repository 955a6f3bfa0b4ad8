"""The system inside a guest: facts, network, services."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import tools
from quorate.inside.facts.model import Interface
from quorate.inside.guest_addresses import is_usable, read_interfaces, usable_addresses
from quorate.inside.guest_facts import NetworkFacts, SystemFacts, agent_facts, network_facts, system_facts
from quorate.operations.plan import Plan
from quorate.operations.registry import GuestRef, Risk, Table, operation, page
from quorate.problems import Problem, catch_problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.tools.commands import WayName, look_inside
from quorate.tools.machines import (
    SERVICE_COLUMNS,
    ServiceAction,
    ServiceState,
    control_action,
    describe_service,
    guest_machine,
    list_services,
    machine_label,
)
from quorate.units import Quantity, duration, moment, percent, used_of


@operation(
    toolset="inside",
    risk=Risk.LOOK_INSIDE,
    search_words=(
        "linux windows how long up distro operating system installed kernel distribution version inside guest "
        "filesystem full users agent alive"
    ),
    example="guest=pihole",
)
async def guest_info(pve: Cluster, guest: GuestRef, way: WayName | None = None) -> dict[str, Any]:
    """The system inside a guest: OS, kernel, uptime, load, memory, file systems, users logged in."""
    target = await pve.guest(guest)
    reported, (description, inside) = await asyncio.gather(
        catch_problem(_facts_from_agent(target)), look_inside(pve, target, way, system_facts)
    )
    if isinstance(inside, Problem) and (reported is None or isinstance(reported, Problem)):
        raise inside
    facts = inside if isinstance(inside, SystemFacts) else SystemFacts()
    if isinstance(reported, SystemFacts):
        # The agent names Windows, users and file systems better than the commands do, Linux no worse.
        facts = reported.filled_from(facts)
    memory = facts.memory_total
    return {
        "guest": target.label,
        "way": description or "agent, without running a command",
        "os": facts.os,
        "kernel": facts.kernel,
        "hostname": facts.hostname,
        "uptime": "" if facts.uptime is None else duration(facts.uptime),
        "load": facts.load,
        "cpus": facts.cpus,
        "memory": "" if memory is None or facts.memory_used is None else _share(facts.memory_used, memory),
        "timezone": facts.timezone,
        "clock": "" if facts.clock is None else moment(facts.clock),
        "filesystems": {
            system.mount: _share(system.used or 0, system.size or 1, system.type or "") for system in facts.filesystems
        },
        "users": facts.users or "nobody is logged in",
        "not_known": {"uptime, load, memory": str(inside)} if isinstance(inside, Problem) else {},
    }


async def _facts_from_agent(guest: Guest) -> SystemFacts | None:
    """The facts that the agent knows; None for a container, which has no agent."""
    return await agent_facts(guest) if guest.is_vm else None


def _share(used: float, total: float, kind: str = "") -> str:
    text = f"{used_of(used, total)} ({percent(used / total)}) {kind}".rstrip()
    return Quantity(text, {"used": int(used), "total": int(total), **({"type": kind} if kind else {})})


@operation(
    toolset="inside",
    risk=Risk.LOOK_INSIDE,
    search_words="ip interfaces mac inside guest routes dns network sees",
    example="guest=pihole",
)
async def guest_network(pve: Cluster, guest: GuestRef, way: WayName | None = None) -> dict[str, Any]:
    """A guest's interfaces, the addresses others can use (best first), gateways and name servers."""
    target = await pve.guest(guest)
    config, reported, (description, network) = await asyncio.gather(
        target.get("config"), catch_problem(read_interfaces(target)), look_inside(pve, target, way, network_facts)
    )
    inside = network if isinstance(network, NetworkFacts) else NetworkFacts()
    interfaces = reported if isinstance(reported, list) else inside.interfaces
    addresses = usable_addresses(interfaces, config)
    planned = [] if interfaces else [ip for own in values.addresses_in_config(config).values() for ip in own]
    parts = {"interfaces": reported, "gateways, dns": network}
    return {
        "guest": target.label,
        "way": description,
        "usable": addresses,
        "configured": planned,
        "interfaces": {interface.name: _describe_interface(interface, config) for interface in interfaces},
        "gateways": inside.gateways,
        "dns": inside.dns,
        "search": inside.search,
        "not_known": {name: str(part) for name, part in parts.items() if isinstance(part, Problem)},
    }


def _describe_interface(interface: Interface, config: Mapping[str, Any]) -> str:
    card = next((key for key, value in config.items() if _is_card(key, str(value), interface.mac)), "")
    addresses = (
        ", ".join(address if is_usable(address) else f"{address} (local)" for address in interface.addresses)
        or "no address"
    )
    return f"{addresses}; {interface.mac or 'no MAC reported'}" + (f"; {card}" if card else "")


def _is_card(key: str, card: str, mac: str | None) -> bool:
    return values.bus_of(key) == "net" and mac is not None and mac.lower() in card.lower()


@operation(
    toolset="inside",
    risk=Risk.LOOK_INSIDE,
    search_words=(
        "postgres up alive server start service daemon running active failed enabled inside guest systemd unit "
        "status nginx docker"
    ),
    example="guest=pihole",
)
async def guest_service(
    pve: Cluster,
    guest: GuestRef,
    service: Annotated[str, Meta(description="One service; default: list them")] | None = None,
    log_lines: Annotated[int, Meta(ge=0, le=200, description="Lines of that service's log")] = 5,
    state: Annotated[ServiceState, Meta(description="Which to list")] = "all",
    limit: Annotated[int, Meta(ge=1, le=500)] = 100,
    offset: Annotated[int, Meta(ge=0)] = 0,
    way: WayName | None = None,
) -> dict[str, Any] | Table:
    """The state of a service inside a guest, or a list of its services."""
    machine = await guest_machine(pve, guest, way)
    origin = {"guest": machine_label(machine), "way": machine.transport.description}
    if service is not None:
        return origin | await describe_service(machine.transport, service, log_lines)
    table = page(SERVICE_COLUMNS, await list_services(machine.transport, state), limit=limit, offset=offset)
    table.facts = origin
    return table


@operation(
    toolset="inside",
    risk=Risk.CHANGE,
    shown_by=("guest_service", "guest", "service", "way"),
    search_words=(
        "restart start stop enable disable reload service daemon web server inside guest systemd unit nginx docker"
    ),
    example="guest=nginx-proxy service=nginx action=restart",
)
async def guest_service_control(
    pve: Cluster,
    guest: GuestRef,
    service: str,
    action: ServiceAction,
    way: WayName | None = None,
) -> Plan:
    """Control a service inside a guest and check the result; enable: start it with the system."""
    machine = await guest_machine(pve, guest, way)
    shown = tools.guest_service(guest=machine.guest.vmid if machine.guest else guest)
    step = control_action(pve.command_rules, pve.clock, machine, service, action, shown)
    facts = {"guest": machine_label(machine), "way": machine.transport.description}
    return Plan(f"{action.capitalize()} {service} in {machine.guest}", (step,), facts=facts)
