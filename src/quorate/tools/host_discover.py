"""Discovering hosts: their hardware, system, network and what runs on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import Sentence
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine
from quorate.homelab.selection import Limits, select
from quorate.operations.registry import Risk, Table, operation
from quorate.tools.hosts import HostRefs, Key, Password, Port, User, given_login
from quorate.tools.machines import machine_label
from quorate.tools.several_hosts import describe_each
from quorate.units import count_of, duration, percent, shortlist, size

if TYPE_CHECKING:
    from quorate.inside.facts import model as of

MOST_NAMES = 40
MOST_LINES = 60


def summary(facts: of.Facts) -> dict[str, Any]:
    """Each section in a line or a list of lines; unknown sections are listed."""
    sections = {}
    for section, words in _WORDS.items():
        value = getattr(facts, section)
        if value is not None:
            sections[section] = words(value)
    return {**sections, **({"not_known": facts.not_known} if facts.not_known else {})}


def _hardware(hardware: of.Hardware) -> str:
    virtual = {None: "", "none": "bare metal"}.get(hardware.virtualisation, f"virtual ({hardware.virtualisation})")
    return _join_words(" ".join(filter(None, (hardware.vendor, hardware.model))), virtual)


def _system(system: of.System) -> dict[str, str]:
    named = _join_words(
        system.name or system.id, f"{system.family or ''} {system.kernel or ''}".strip(), system.architecture
    )
    return {"name": named, **({"hostname": system.hostname} if system.hostname else {})}


def _cpu(cpu: of.Cpu) -> str:
    counts = (("sockets", cpu.sockets), ("cores", cpu.cores), ("threads", cpu.threads))
    return _join_words(cpu.model, *(f"{count} {noun if count > 1 else noun[:-1]}" for noun, count in counts if count))


def _memory(memory: of.Memory) -> str:
    free = f"{size(memory.available)} available" if memory.available is not None else ""
    swap = f"swap {size(memory.swap_total)}, {size(memory.swap_used or 0)} used" if memory.swap_total else ""
    return _join_words(size(memory.total) if memory.total is not None else "", free, swap)


def _disk(disk: of.Disk) -> str:
    kind = {True: "rotating", False: "solid state"}.get(disk.rotational, "") if disk.rotational is not None else ""
    return _join_words(disk.name, size(disk.size) if disk.size is not None else "", disk.model, kind)


def _filesystem(filesystem: of.Filesystem) -> str:
    share = f" {percent(filesystem.share)}" if filesystem.share is not None else ""
    full = (
        f"{size(filesystem.used)}/{size(filesystem.size)}{share}"
        if filesystem.size and filesystem.used is not None
        else ""
    )
    return _join_words(filesystem.mount, full, filesystem.type, filesystem.device)


def _network(network: of.Network) -> dict[str, Any]:
    cards = [
        _join_words(
            card.name, card.state, " ".join(card.addresses), card.mac, f"{card.speed} Mbit/s" if card.speed else ""
        )
        for card in network.interfaces
    ]
    return {"interfaces": _limit_lines(cards), "gateways": list(network.gateways), "dns": list(network.dns)}


def _port(port: of.Port) -> str:
    where = "" if port.address == "*" else f"{port.address} "
    return f"{port.protocol} {where}{port.port}" + (f" {port.process}" if port.process else "")


def _guests(guests: Sequence[of.Container] | Sequence[of.Vm]) -> dict[str, Any]:
    """The number of guests in each state, and their names."""
    states: dict[str, int] = {}
    for guest in guests:
        states[guest.state or "not known"] = states.get(guest.state or "not known", 0) + 1
    names = shortlist([guest.name for guest in guests], MOST_NAMES)
    return {"count": len(guests), **({"states": states, "names": names} if guests else {})}


def _services(services: of.Services) -> dict[str, Any]:
    return {
        "manager": services.manager,
        "running": f"{len(services.running)}: {shortlist(services.running, MOST_NAMES)}",
        "failed": list(services.failed[:MOST_NAMES]),
    }


def _uptime(uptime: of.Uptime) -> str:
    load = " ".join(f"{average:g}" for average in uptime.load)
    return _join_words(duration(uptime.seconds) if uptime.seconds is not None else "", f"load {load}" if load else "")


def _time(time: of.Time) -> str:
    state = {True: "synchronised", False: "not synchronised", None: ""}[time.synchronised]
    return _join_words(time.zone, state)


def _lines(words: Callable[[Any], str]) -> Callable[[Iterable[Any]], list[str | Sentence]]:
    return lambda items: _limit_lines([words(item) for item in items])


def _limit_lines(lines: list[str]) -> list[str | Sentence]:
    more = len(lines) - MOST_LINES
    if more <= 0:
        return [*lines]
    return [*lines[:MOST_LINES], Sentence(f"and {more} more; {{detail}} shows them", detail=True)]


def _join_words(*words: str | None) -> str:
    return ", ".join(word for word in words if word)


_WORDS: Mapping[str, Callable[[Any], Any]] = {
    "system": _system,
    "hardware": _hardware,
    "uptime": _uptime,
    "cpu": _cpu,
    "memory": _memory,
    "disks": _lines(_disk),
    "filesystems": _lines(_filesystem),
    "network": _network,
    "gpus": _lines(str),
    "usb": _lines(lambda device: device.name or device.id),
    "pci": lambda listed: f"{count_of(len(listed), 'device')}",
    "containers": _guests,
    "vms": _guests,
    "ports": _lines(_port),
    "services": _services,
    "users": _lines(lambda user: f"{user.name} from {user.origin}" if user.origin else user.name),
    "time": _time,
}


Section = Literal[
    "hardware", "system", "cpu", "memory", "disks", "filesystems", "network", "usb", "pci", "gpus", "containers", "vms",
    "ports", "services", "uptime", "users", "time",
]  # fmt: skip

SEVERAL: tuple[Section, ...] = ("system", "hardware", "cpu", "memory", "disks", "uptime")
SPARE_SECONDS = 5.0
"""Seconds for the login."""


@operation(
    toolset="host_admin",
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

    chosen = await select(homelab, host, given_login(user, key, password, port))
    chosen_sections = sections or (SEVERAL if chosen.several else None)

    async def describe(machine: Machine) -> dict[str, Any]:
        facts = await machine.collect_facts(seconds=seconds, sections=chosen_sections, sudo=sudo)
        shown = facts.to_builtins() if detail else summary(facts)
        return {"host": machine_label(machine), "way": machine.transport.description, **shown}

    columns = (*(chosen_sections or ()), "not_known")
    limits = Limits.same_for_each(seconds + SPARE_SECONDS)
    return await describe_each(chosen, describe, columns, limits=limits)
