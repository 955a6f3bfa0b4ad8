"""Plain hosts: do they answer, are their disks full, do the installed services run?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from quorate.hints import HOST_DISCOVER, HOST_SERVICE, HOST_VERIFY, SERVICE_STATUS
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import Host
from quorate.homelab.machines import find_machine, resolve_host
from quorate.homelab.services.installations import Installations
from quorate.operations.reports.findings import Finding, Severity
from quorate.operations.services.queries import services_on
from quorate.problems import Problem
from quorate.pve.tasks import gather_bounded
from quorate.state.findings import Observation
from quorate.watch.checks import to_observation

AT_ONCE = 8
PER_CYCLE = 16
"""Hosts that are asked in one cycle."""
CONNECT_SECONDS = 5.0
LOOK_SECONDS = 30.0
LOOK_PERIOD = 15 * 60.0
DISK_PERCENT = 90
CRITICAL_PERCENT = 97
MOST_UNITS = 5
"""Findings about failed units of one host: a broken machine is one problem, not five hundred."""


@dataclass(slots=True)
class HostState:
    """What is known about one host."""

    reached: bool | None = None
    why: str = ""
    at: float = float("-inf")
    disks: list[tuple[str, int]] | None = None
    """Mount point and percent used; None if it is not known."""
    units: Sequence[str] = ()
    """Those of its own services that have failed."""
    services: Mapping[str, str] | None = None
    """Installed service -> what is wrong with it; empty if nothing is."""
    problem: str = ""


@dataclass(slots=True)
class HostFacts:
    homelab: Homelab
    states: dict[str, HostState] = field(default_factory=dict)

    async def read(self) -> None:
        """Every host by its port, and those that were asked longest ago over SSH."""
        everyone = await self.homelab.hosts.everyone()
        hosts = {one.name: one for one in everyone if one.active}
        away = {one.name for one in everyone if not one.active}
        records = await Installations(self.homelab.store).everything()
        served = {entry.host for entry in records if entry.state == "installed"} - away
        self.states = {name: self.states.get(name, HostState()) for name in (*hosts, *(served - hosts.keys()))}
        for guest in served - hosts.keys():  # whether it runs is checked with its cluster
            self.states[guest].reached = True
        now = self.homelab.clock.time()
        await gather_bounded(AT_ONCE, [partial(self._reach, host) for host in hosts.values()])
        due = [name for name, look in self.states.items() if look.reached and now - look.at >= LOOK_PERIOD]
        due = sorted(due, key=lambda name: self.states[name].at)[:PER_CYCLE]
        await gather_bounded(AT_ONCE, [partial(self._look, name, hosts.get(name), name in served) for name in due])

    async def _reach(self, host: Host) -> None:
        look = self.states[host.name]
        if host.jump:
            look.reached = True  # only a login through its jump host can tell
            return
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(host.address, host.port)
            writer.close()
            look.reached, look.why = True, ""
        except (OSError, TimeoutError) as error:
            look.reached = False
            look.why = getattr(error, "strerror", None) or "no answer"

    async def _look(self, name: str, host: Host | None, has_services: bool) -> None:
        look = self.states[name]
        look.at = self.homelab.clock.time()
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._facts(look, host)
                look.services = await self._broken_services(name) if has_services else {}
            look.problem = ""
        except TimeoutError:
            look.problem = "it did not answer in time"
        except Problem as problem:
            look.problem = problem.what

    async def _broken_services(self, name: str) -> dict[str, str]:
        found, _ = await services_on(self.homelab, await find_machine(self.homelab, name))
        return _broken(found)

    async def _facts(self, look: HostState, host: Host | None) -> None:
        """Its disks and failed units. Sections without an answer keep their previous value."""
        if host is None:
            look.disks = []
            return
        one = await resolve_host(self.homelab, host)
        facts = await one.collect_facts(sections=("filesystems", "services"), seconds=LOOK_SECONDS - 5)
        if facts.filesystems is not None:
            look.disks = [(one.mount, round(100 * one.share)) for one in facts.filesystems if one.share is not None]
        if facts.services is not None:
            look.units = facts.services.failed


def judge(looked: Mapping[str, HostState]) -> Iterator[Observation]:
    for name, look in sorted(looked.items()):
        source = f"host {name}"
        if look.reached is False:
            what = f"Host {name} does not answer: {look.why}"
            yield to_observation(
                Finding("critical", "hosts", what, HOST_VERIFY(host=name), "host-unreachable", source), ""
            )
            continue
        if look.problem:
            what = f"Could not look inside host {name}: {look.problem}"
            yield to_observation(Finding("unchecked", "hosts", what, HOST_VERIFY(host=name), "unchecked", source), "")
        for mount, used in look.disks or ():
            if used >= DISK_PERCENT:
                severity: Severity = "critical" if used >= CRITICAL_PERCENT else "warning"
                what = f"{mount} of host {name} is {used}% full"
                next_call = HOST_DISCOVER(host=name)
                target = f"{source}:{mount}"
                yield to_observation(Finding(severity, "hosts", what, next_call, "host-disk-full", target), source)
        others = f", and {len(look.units) - MOST_UNITS} others" if len(look.units) > MOST_UNITS else ""
        for unit in look.units[:MOST_UNITS]:
            what = f"The unit {unit} of host {name} has failed{others}"
            next_call = HOST_SERVICE(host=name, service=unit)
            found = Finding("warning", "services", what, next_call, "service-down", f"{source}:unit {unit}")
            yield to_observation(found, source)
        for service, why in sorted((look.services or {}).items()):
            what = f"Service {service} on host {name} is not healthy: {why}"
            next_call = SERVICE_STATUS(host=name, service=service)
            yield to_observation(
                Finding("critical", "services", what, next_call, "service-down", f"{source}:{service}"), source
            )


def covers(looked: Mapping[str, HostState], source: str) -> bool:
    """Whether a host was asked successfully, or is no longer registered."""
    name = source.removeprefix("host ")
    if not source or name not in looked:
        return True
    look = looked[name]
    return look.reached is True and not look.problem and look.disks is not None


def _broken(services: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    found = {}
    for one in services:
        if one.get("kept") != "installed":
            continue
        health, state = str(one.get("health", "ok")), str(one.get("state", "running"))
        if health not in ("ok", "healthy", "starting"):
            found[str(one["service"])] = health
        elif state not in ("running", "installed", "not known"):
            found[str(one["service"])] = state
    return found
