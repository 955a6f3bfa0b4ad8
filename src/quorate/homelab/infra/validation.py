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
from quorate.homelab.services.catalogue import bytes_of, load_catalogue
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


async def references(homelab: Homelab, document: Document, findings: Findings) -> None:
    """Secrets that a document refers to must exist, and services must be in the catalog."""
    known = load_catalogue(homelab.settings.catalogue)
    for item in document.items.values():
        requested = item.desired
        secrets = [*getattr(requested, "secrets", {}).values()]
        secrets += [
            reference
            for reference in (getattr(requested, "password", None), getattr(requested, "sudo_password", None))
            if reference
        ]
        for reference in secrets:
            try:
                await homelab.secret_store.fetch(reference)
            except Problem as problem:
                findings.errors.append(Fault(item.path, str(problem)))
        if item.kind == "service" and not requested.unit:
            try:
                known.find(requested.service or item.name)
            except NotFound as problem:
                findings.errors.append(Fault(item.path, str(problem)))


async def measure(homelab: Homelab, document: Document, differences: list[Difference], findings: Findings) -> None:
    """Reachability, capacity and ports of every host, and free memory in the clusters."""
    hosts = list(dict.fromkeys([*(item.name for item in document.items.values() if item.kind == "host"),
                                 *(item.place for item in document.items.values() if item.place)]))  # fmt: skip
    work = [lambda host=host: _look(homelab, document, host) for host in hosts]
    for host, facts in zip(hosts, await gather_bounded(AT_ONCE, work), strict=True):
        if isinstance(facts, Problem):
            findings.errors.append(Fault(_path(document, host), str(facts)))
        elif facts is not None:
            _capacity(homelab, host, facts, differences, findings)
    for difference in differences:
        if difference.act == "unknown" and not any(difference.why == fault.message for fault in findings.errors):
            findings.errors.append(Fault(difference.item.path, difference.why))
    await _clusters(homelab, differences, findings)


async def _look(homelab: Homelab, document: Document, host: str) -> Facts | Problem | None:
    """None for a guest that does not exist yet."""
    maker = document.items.get(host)
    try:
        async with asyncio.timeout(SECONDS):
            if maker is not None and maker.kind == "host":
                there = await resolve_host(homelab, await homelab.hosts.find(host) or maker.desired.host(host))
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


def _capacity(homelab: Homelab, host: str, facts: Facts, differences: list[Difference], findings: Findings) -> None:
    new = [difference for difference in differences if difference.place == host and difference.act == "create"]
    known = load_catalogue(homelab.settings.catalogue).services
    needed = sum(_memory(difference, known) for difference in new)
    free = facts.memory.available if facts.memory else None
    findings.measured[host] = {
        "memory_free": free,
        "memory_needed": needed,
        "disk_free": max((filesystem.available or 0 for filesystem in facts.filesystems or ()), default=None),
        "not_known": sorted(facts.not_known),
    }
    if free is not None and needed > free:
        message = f"{host} has {free // MEBIBYTE} MiB of memory free, but {needed // MEBIBYTE} MiB are requested"
        findings.errors.append(Fault(new[0].item.path if len(new) == 1 else f"hosts.{host}", message))
    in_use: dict[tuple[int, str], str] = defaultdict(str)
    for port in facts.ports or ():
        in_use[port.port, port.protocol] = port.process or "something"
    for difference in new:
        for port_number, protocol in _ports(difference):
            if (port_number, protocol) in in_use:
                by = in_use[port_number, protocol]
                findings.errors.append(
                    Fault(difference.item.path, f"port {port_number}/{protocol} of {host} is used by {by}")
                )


def _memory(difference: Difference, services: Any) -> int:
    if difference.item.kind == "workload":
        return mebibytes(difference.item.desired.memory) * MEBIBYTE if difference.item.desired.memory else 0
    template = services.get(difference.name)
    return bytes_of(template.needs.memory) if template and template.needs.memory else 0


def _ports(difference: Difference) -> Iterable[tuple[int, str]]:
    if difference.item.kind == "workload":
        yield from (
            (port.outside, port.protocol)
            for port in spread_ports(difference.item.desired, difference.number)
            if port.outside
        )


async def _clusters(homelab: Homelab, differences: list[Difference], findings: Findings) -> None:
    """The memory of new guests, compared with what the nodes of their cluster have left."""
    needed: dict[str, int] = defaultdict(int)
    for difference in differences:
        if difference.item.kind == "guest" and difference.act == "create":
            guest: WantedGuest = difference.item.desired
            needed[difference.place] += mebibytes(guest.memory) * MEBIBYTE if guest.memory else 0
    for name, memory in needed.items():
        try:
            nodes = await find_cluster(homelab, name).inventory.of_type("node")
        except Problem as problem:
            findings.errors.append(Fault(f"cluster {name}", str(problem)))
            continue
        free = sum(max(0, row.maxmem - row.mem) for row in nodes if row.status == "online")
        findings.measured[name] = {"memory_free": free, "memory_needed": memory}
        if memory > free:
            message = (
                f"its nodes have {free // MEBIBYTE} MiB of memory free, but {memory // MEBIBYTE} MiB are requested"
            )
            findings.errors.append(Fault(f"cluster {name}", message))


def _path(document: Document, host: str) -> str:
    maker: Item | None = document.items.get(host)
    return maker.path if maker else f"host {host}"
