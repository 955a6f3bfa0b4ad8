"""What a host is made of and what runs on it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.selection import Limits, select
from quorate.operations.hosts.parameters import HostRefs, Key, Password, Port, User, given_login
from quorate.operations.hosts.several import describe_each
from quorate.operations.machine import machine_label
from quorate.operations.registry import Risk, Table, operation

Section = Literal[
    "hardware", "system", "cpu", "memory", "disks", "filesystems", "network", "usb", "pci", "gpus", "containers", "vms",
    "ports", "services", "uptime", "users", "time",
]  # fmt: skip

SEVERAL: tuple[Section, ...] = ("system", "hardware", "cpu", "memory", "disks", "uptime")
SPARE_SECONDS = 5.0
"""Seconds for the login."""


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words=(
        "find out what hardware is in the nas raspberry pi server tower host inventory discover specs cpu memory "
        "disks gpu gpus usb pci network which ports are open listening containers services uptime operating system"
        " kernel"
    ),
    example="host=pihole",
)
async def host_discover(
    homelab: Homelab,
    host: HostRefs,
    sections: Annotated[list[Section], Meta(description="Default: all")] | None = None,
    detail: Annotated[bool, Meta(description="Everything, with exact numbers")] = False,
    sudo: Annotated[bool, Meta(description="As root: shows who owns ports and containers")] = False,
    user: User | None = None,
    key: Key | None = None,
    password: Password | None = None,
    port: Port | None = None,
    seconds: Annotated[float, Meta(ge=5, le=50, description="Maximum seconds")] = 30,
) -> dict[str, Any] | Table:
    """Collect facts about hosts, nodes or guests: hardware, system, disks, network, containers, ports, services. For
    several hosts, only system, hardware, processor, memory, disks and uptime unless sections are given."""
    from quorate.operations.host_admin.summary import summary

    chosen = await select(homelab, host, given_login(user, key, password, port))
    wanted = sections or (SEVERAL if chosen.several else None)

    async def describe(one: Machine) -> dict[str, Any]:
        facts = await one.collect_facts(seconds=seconds, sections=wanted, sudo=sudo)
        shown = facts.to_builtins() if detail else summary(facts)
        return {"host": machine_label(one), "way": one.transport.description, **shown}

    columns = (*(wanted or ()), "not_known")
    limits = Limits.same_for_each(seconds + SPARE_SECONDS)
    return await describe_each(chosen, describe, columns, limits=limits)
