"""Plain hosts: do they answer, are their disks full, do the installed services run?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from quorate.hints import tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.host import Host
from quorate.homelab.machines import find_machine, resolve_host
from quorate.homelab.services.installations import Installations
from quorate.problems import Problem
from quorate.pve.tasks import gather_bounded
from quorate.tools.health_findings import Severity
from quorate.tools.services import services_on
from quorate.watch.checks import observe
from quorate.watch.finding_store import Observation

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
    units: Sequence[str] | None = None
    """Units of the host that have failed; None if it is not known."""
    services: Mapping[str, str] | None = None
    """What is wrong with each installed service that is not healthy; None if unknown."""
    problem: str = ""


@dataclass(slots=True)
class HostFacts:
    homelab: Homelab
    states: dict[str, HostState] = field(default_factory=dict)

    async def read(self) -> None:
        """Check the port of every host, and look over SSH into those that were asked longest ago."""
        everyone = await self.homelab.hosts.everyone()
        hosts = {host.name: host for host in everyone if host.active}
        away = {host.name for host in everyone if not host.active}
        records = await Installations(self.homelab.store).everything()
        served = {entry.host for entry in records if entry.state == "installed"} - away
        self.states = {name: self.states.get(name, HostState()) for name in (*hosts, *(served - hosts.keys()))}
        for guest in served - hosts.keys():  # whether it runs is checked with its cluster
            self.states[guest].reached = True
        now = self.homelab.clock.time()
        await gather_bounded(AT_ONCE, [partial(self._reach, host) for host in hosts.values()])
        due = [name for name, state in self.states.items() if state.reached and now - state.at >= LOOK_PERIOD]
        due = sorted(due, key=lambda name: self.states[name].at)[:PER_CYCLE]
        await gather_bounded(AT_ONCE, [partial(self._look, name, hosts.get(name), name in served) for name in due])

    async def _reach(self, host: Host) -> None:
        state = self.states[host.name]
        if host.jump:
            state.reached = True  # only a login through its jump host can tell
            return
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(host.address, host.port)
            writer.close()
            state.reached, state.why = True, ""
        except (OSError, TimeoutError) as error:
            state.reached = False
            state.why = getattr(error, "strerror", None) or "no answer"

    async def _look(self, name: str, host: Host | None, has_services: bool) -> None:
        state = self.states[name]
        state.at = self.homelab.clock.time()
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self._facts(state, host)
                state.services = await self._broken_services(name) if has_services else {}
            state.problem = ""
        except TimeoutError:
            state.problem = "it did not answer in time"
        except Problem as problem:
            state.problem = problem.what

    async def _broken_services(self, name: str) -> dict[str, str]:
        services, _ = await services_on(self.homelab, await find_machine(self.homelab, name))
        return _broken(services)

    async def _facts(self, state: HostState, host: Host | None) -> None:
        """Update disks and failed units. Sections without an answer keep their previous value."""
        if host is None:
            state.disks = []
            return
        machine = await resolve_host(self.homelab, host)
        facts = await machine.collect_facts(sections=("filesystems", "services"), seconds=LOOK_SECONDS - 5)
        if facts.filesystems is not None:
            state.disks = [
                (filesystem.mount, round(100 * filesystem.share))
                for filesystem in facts.filesystems
                if filesystem.share is not None
            ]
        if facts.services is not None:
            state.units = facts.services.failed


def judge(states: Mapping[str, HostState]) -> Iterator[Observation]:
    for name, state in sorted(states.items()):
        source = f"host {name}"
        if state.reached is False:
            what = f"Host {name} does not answer: {state.why}"
            yield observe("host-unreachable", source, "critical", what, tools.host_verify(host=name), "")
            continue
        if state.problem:
            what = f"Could not look inside host {name}: {state.problem}"
            yield observe("unchecked", source, "unchecked", what, tools.host_verify(host=name), source)
        for mount, used in state.disks or ():
            if used >= DISK_PERCENT:
                severity: Severity = "critical" if used >= CRITICAL_PERCENT else "warning"
                what = f"{mount} of host {name} is {used}% full"
                next_call = tools.host_discover(host=name)
                target = f"{source}:{mount}"
                yield observe("host-disk-full", target, severity, what, next_call, source)
        units = state.units or ()
        others = f", and {len(units) - MOST_UNITS} others" if len(units) > MOST_UNITS else ""
        for unit in units[:MOST_UNITS]:
            what = f"The unit {unit} of host {name} has failed{others}"
            next_call = tools.host_service(host=name, service=unit)
            yield observe("service-down", f"{source}:unit {unit}", "warning", what, next_call, f"{source} units")
        for service, why in sorted((state.services or {}).items()):
            what = f"Service {service} on host {name} is not healthy: {why}"
            next_call = tools.service_status(host=name, service=service)
            yield observe("service-down", f"{source}:{service}", "critical", what, next_call, f"{source} services")


def covers(states: Mapping[str, HostState], source: str) -> bool:
    """Whether a host answered this question, or is no longer registered."""
    name, _, question = source.removeprefix("host ").partition(" ")
    if not source or name not in states:
        return True
    state = states[name]
    answer = {"units": state.units, "services": state.services}.get(question, state.disks)
    return state.reached is True and not state.problem and answer is not None


def _broken(services: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    broken = {}
    for service in services:
        if service.get("kept") != "installed":
            continue
        health, state = str(service.get("health", "ok")), str(service.get("state", "running"))
        if health not in ("ok", "healthy", "starting"):
            broken[str(service["service"])] = health
        elif state not in ("running", "installed", "not known"):
            broken[str(service["service"])] = state
    return broken
