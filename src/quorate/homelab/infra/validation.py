"""Checks of a document beyond its syntax: what is measured on the hosts."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from quorate.homelab.homelab import Homelab
from quorate.homelab.infra.diff import MEBIBYTE, Difference, find_cluster, mebibytes
from quorate.homelab.infra.document import Document, Fault, Item, WantedGuest, spread_ports
from quorate.homelab.machines import find_machine, resolve_host
from quorate.homelab.services.catalogue import load_catalogue
from quorate.homelab.services.template import bytes_of
from quorate.inside.facts.model import Facts
from quorate.problems import NotFound, Problem
from quorate.pve.tasks import gather_bounded

SECTIONS = ("memory", "filesystems", "ports", "cpu")
AT_ONCE = 16
SECONDS = 20.0


@dataclass
class Findings:
    errors: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)
    measured: dict[str, dict[str, Any]] = field(default_factory=dict)


async def references(homelab: Homelab, document: Document, found: Findings) -> None:
    """Secrets that a document refers to must exist, and services must be in the catalog."""
    known = load_catalogue(homelab.settings.catalogue)
    for item in document.items.values():
        wanted = item.wanted
        secrets = [*getattr(wanted, "secrets", {}).values()]
        secrets += [one for one in (getattr(wanted, "password", None), getattr(wanted, "sudo_password", None)) if one]
        for reference in secrets:
            try:
                await homelab.secret_store.fetch(reference)
            except Problem as problem:
                found.errors.append(Fault(item.path, str(problem)))
        if item.kind == "service" and not wanted.unit:
            try:
                known.find(wanted.service or item.name)
            except NotFound as problem:
                found.errors.append(Fault(item.path, str(problem)))


async def measure(homelab: Homelab, document: Document, differences: list[Difference], found: Findings) -> None:
    """Reachability, capacity and ports of every host, and free memory in the clusters."""
    hosts = list(dict.fromkeys([*(one.name for one in document.items.values() if one.kind == "host"),
                                 *(one.place for one in document.items.values() if one.place)]))  # fmt: skip
    work = [lambda host=host: _look(homelab, document, host) for host in hosts]
    for host, facts in zip(hosts, await gather_bounded(AT_ONCE, work), strict=True):
        if isinstance(facts, Problem):
            found.errors.append(Fault(_path(document, host), str(facts)))
        elif facts is not None:
            _capacity(homelab, host, facts, differences, found)
    for one in differences:
        if one.act == "unknown" and not any(one.why == fault.message for fault in found.errors):
            found.errors.append(Fault(one.item.path, one.why))
    await _clusters(homelab, differences, found)


async def _look(homelab: Homelab, document: Document, host: str) -> Facts | Problem | None:
    """None for a guest that does not exist yet."""
    maker = document.items.get(host)
    try:
        async with asyncio.timeout(SECONDS):
            if maker is not None and maker.kind == "host":
                there = await resolve_host(homelab, await homelab.hosts.find(host) or maker.wanted.host(host))
            elif maker is not None:
                try:
                    there = await find_machine(homelab, host)
                except NotFound:
                    return None
            else:
                there = await find_machine(homelab, host)
            return await there.collect_facts(seconds=SECONDS - 5, sections=SECTIONS)
    except TimeoutError:
        return Problem(f"{host} did not answer within {SECONDS:g} s")
    except Problem as problem:
        return problem


def _capacity(homelab: Homelab, host: str, facts: Facts, differences: list[Difference], found: Findings) -> None:
    new = [one for one in differences if one.place == host and one.act == "create"]
    known = load_catalogue(homelab.settings.catalogue).services
    needed = sum(_memory(one, known) for one in new)
    free = facts.memory.available if facts.memory else None
    found.measured[host] = {
        "memory_free": free,
        "memory_needed": needed,
        "disk_free": max((one.available or 0 for one in facts.filesystems or ()), default=None),
        "not_known": sorted(facts.not_known),
    }
    if free is not None and needed > free:
        message = f"{host} has {free // MEBIBYTE} MiB of memory free, but {needed // MEBIBYTE} MiB are requested"
        found.errors.append(Fault(new[0].item.path if len(new) == 1 else f"hosts.{host}", message))
    taken: dict[tuple[int, str], str] = defaultdict(str)
    for port in facts.ports or ():
        taken[port.port, port.protocol] = port.process or "something"
    for one in new:
        for port_number, protocol in _ports(one):
            if (port_number, protocol) in taken:
                by = taken[port_number, protocol]
                found.errors.append(Fault(one.item.path, f"port {port_number}/{protocol} of {host} is used by {by}"))


def _memory(one: Difference, services: Any) -> int:
    if one.item.kind == "workload":
        return mebibytes(one.item.wanted.memory) * MEBIBYTE if one.item.wanted.memory else 0
    template = services.get(one.name)
    return bytes_of(template.needs.memory) if template and template.needs.memory else 0


def _ports(one: Difference) -> Iterable[tuple[int, str]]:
    if one.item.kind == "workload":
        yield from ((port.outside, port.protocol) for port in spread_ports(one.item.wanted, one.number) if port.outside)


async def _clusters(homelab: Homelab, differences: list[Difference], found: Findings) -> None:
    """The memory of new guests, compared with what the nodes of their cluster have left."""
    wanted: dict[str, int] = defaultdict(int)
    for one in differences:
        if one.item.kind == "guest" and one.act == "create":
            guest: WantedGuest = one.item.wanted
            wanted[one.place] += mebibytes(guest.memory) * MEBIBYTE if guest.memory else 0
    for name, memory in wanted.items():
        try:
            nodes = await find_cluster(homelab, name).inventory.of_type("node")
        except Problem as problem:
            found.errors.append(Fault(f"cluster {name}", str(problem)))
            continue
        free = sum(max(0, row.maxmem - row.mem) for row in nodes if row.status == "online")
        found.measured[name] = {"memory_free": free, "memory_needed": memory}
        if memory > free:
            message = (
                f"its nodes have {free // MEBIBYTE} MiB of memory free, but {memory // MEBIBYTE} MiB are requested"
            )
            found.errors.append(Fault(f"cluster {name}", message))


def _path(document: Document, host: str) -> str:
    maker: Item | None = document.items.get(host)
    return maker.path if maker else f"host {host}"
