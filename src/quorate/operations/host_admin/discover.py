"""What a host is made of and what runs on it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import machine
from quorate.operations.hosts.parameters import HostRef, Key, Password, Port, User, given_login
from quorate.operations.machine import machine_label
from quorate.operations.registry import Risk, operation

Section = Literal[
    "hardware", "system", "cpu", "memory", "disks", "filesystems", "network", "usb", "pci", "gpus", "containers", "vms",
    "ports", "services", "uptime", "users", "time",
]  # fmt: skip


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
    home: Homelab,
    host: HostRef,
    sections: Annotated[list[Section], Meta(description="Default: all")] | None = None,
    detail: Annotated[bool, Meta(description="Everything, with exact numbers")] = False,
    sudo: Annotated[bool, Meta(description="As root: shows who owns ports and containers")] = False,
    user: User | None = None,
    key: Key | None = None,
    password: Password | None = None,
    port: Port | None = None,
    seconds: Annotated[float, Meta(ge=5, le=50, description="Longest time it may take")] = 30,
) -> dict[str, Any]:
    """Find out hardware, system, disks, network, containers, ports and services of a host, node or guest."""
    from quorate.operations.host_admin.summary import summary

    found = await machine(home, host, given_login(user, key, password, port))
    facts = await found.collect_facts(seconds=seconds, sections=sections, sudo=sudo)
    told = facts.to_builtins() if detail else summary(facts)
    return {"host": machine_label(found), "way": found.transport.description, **told}
