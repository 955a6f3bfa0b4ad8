"""What a host is made of and what runs on it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from quorate.homelab.home import Homelab
from quorate.homelab.machines import machine
from quorate.operations.hosts.parameters import HostRef, Key, Password, Port, User, given_login, machine_label
from quorate.operations.registry import Risk, operation

Section = Literal[
    "hardware", "system", "cpu", "memory", "disks", "filesystems", "network", "usb", "pci", "gpus", "containers", "vms",
    "ports", "services", "uptime", "users", "time",
]  # fmt: skip


@operation(risk=Risk.LOOK_INSIDE)
async def host_discover(
    home: Homelab,
    host: HostRef,
    sections: Annotated[list[Section], Meta(description="Default: all")] | None = None,
    detail: Annotated[bool, Meta(description="Everything, with exact numbers")] = False,
    sudo: Annotated[bool, Meta(description="As root: tells whose ports and containers they are")] = False,
    user: User | None = None,
    key: Key | None = None,
    password: Password | None = None,
    port: Port | None = None,
    seconds: Annotated[float, Meta(ge=5, le=50, description="Longest time it may take")] = 30,
) -> dict[str, Any]:
    """Find out hardware, system, disks, network, containers, ports and services of a host, node or guest."""
    from quorate.homelab.discovery.discover import discover  # its parsers are not needed to list the tools
    from quorate.operations.hosts.summary import summary

    found = await machine(home, host, given_login(user, key, password, port))
    facts = await discover(found, seconds=seconds, sections=sections or get_args(Section), sudo=sudo)
    told = facts.to_builtins() if detail else summary(facts)
    return {"host": machine_label(found), "way": found.way.description, **told}
