"""Stored infrastructure plans, and what depends on a machine."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from quorate.hints import Advice, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.infra.document import Document, read_document
from quorate.homelab.machines import Machine
from quorate.homelab.services.installations import Installations, machine_ref
from quorate.homelab.workloads.engine import Engine
from quorate.homelab.workloads.engines import detect_engines
from quorate.homelab.workloads.workload import Workload
from quorate.inside.facts.model import Facts
from quorate.inside.posix_files import shell_script
from quorate.problems import NotFound, Problem
from quorate.ssh.target import SSH_PORT
from quorate.state.store import Records, Store

PLANS_KEPT = 200
STEPS_KEPT = 200


class ManagedObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """An object that a document created and may therefore remove."""

    kind: str
    name: str
    """The name of the copy."""
    item: str
    place: str = ""
    """Its host, or the cluster of a guest."""
    engine: str = ""
    vmid: int = 0
    """Set for guests only."""

    @property
    def key(self) -> str:
        return f"{self.kind} {self.place} {self.name}"


class StepRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a run. If `begun` is the last state, the server ended and the outcome is unknown."""

    step: str
    state: str
    time: float
    why: str = ""


class Entry(msgspec.Struct, omit_defaults=True):
    document: dict[str, Any]
    made: dict[str, ManagedObject] = {}
    run: str = ""
    steps: list[StepRecord] = []


class PlanStore:
    def __init__(self, store: Store) -> None:
        self._clock = store.clock
        self._entries = Records(store, "infra", dict[str, Any])
        self._plans = Records(store, "infra plan", dict[str, Any])

    async def plan(self, document: Document) -> str:
        """Store it under an id that is identical for identical documents."""
        await self._plans.keep(document.id, document.to_builtins())
        await self._plans.keep_newest(PLANS_KEPT)
        return document.id

    async def load_plan(self, name: str) -> Document:
        """The document of a plan id, or the one last applied under a name."""
        if stored := await self._plans.find(name):
            return read_document(stored)
        if entry := await self.entry(name):
            return read_document(entry.document)
        raise NotFound(
            f"There is no plan {name!r}", next_step=Advice("Make one, or give the document", tools.infra_plan)
        )

    async def entry(self, name: str) -> Entry | None:
        stored = await self._entries.find(name)
        return None if stored is None else msgspec.convert(stored, Entry)

    async def entries(self) -> dict[str, Entry]:
        return {name: msgspec.convert(stored, Entry) for name, stored in (await self._entries.all()).items()}

    async def store_applied(self, document: Document) -> None:
        """Keep a document that everything matches already as the one last applied."""
        entry = await self.entry(document.name) or Entry(document.to_builtins())
        entry.document = document.to_builtins()
        await self._entries.keep(document.name, msgspec.to_builtins(entry))

    async def begin(self, document: Document, run: str, step: str, managed: ManagedObject | None) -> None:
        """From now on the object counts as created: it may appear after the caller has disconnected."""
        entry = await self.entry(document.name) or Entry(document.to_builtins())
        if entry.run != run:
            entry.run, entry.steps = run, []
        entry.document = document.to_builtins()
        if managed is not None:
            entry.made[managed.key] = managed
        await self._note(document.name, entry, StepRecord(step, "begun", self._clock.time()))

    async def end(self, document: Document, step: str, *, managed: ManagedObject, gone: bool) -> None:
        entry = await self.entry(document.name) or Entry(document.to_builtins())
        if gone:
            entry.made.pop(managed.key, None)
        await self._note(document.name, entry, StepRecord(step, "done", self._clock.time()))

    async def fail(self, document: Document, step: str, why: str, state: str = "failed") -> None:
        entry = await self.entry(document.name) or Entry(document.to_builtins())
        await self._note(document.name, entry, StepRecord(step, state, self._clock.time(), why))

    async def _note(self, name: str, entry: Entry, done: StepRecord) -> None:
        """Replaces the previous state of the step."""
        entry.steps = [*(step for step in entry.steps if step.step != done.step), done][-STEPS_KEPT:]
        await self._entries.keep(name, msgspec.to_builtins(entry))


COMPOSE = "com.docker.compose.project"
PEERS = 50
FACTS_SECONDS = 20.0
_SYSTEM_PROGRAMS = ("sshd", "systemd", "docker-proxy", "dhclient", "dhcpcd")
_SYSTEM_SERVICES = re.compile(
    r"(?:systemd-.*|getty@.*|serial-getty@.*|user@.*|dbus.*|sshd?|cron|crond|atd|acpid|rsyslog|syslog|klogd|"
    r"networking|NetworkManager.*|wpa_supplicant|polkit|udev|udev-.*|chronyd?|ntpd?|ntpsec|unattended-upgrades|"
    r"irqbalance|qemu-guest-agent|hwdrivers|modules|hostname|bootmisc|local|acpid|agetty.*|mdev|swap|sysctl)$"
)
# Connections from other machines to listening ports.
_CONNECTED = "command -v ss > /dev/null 2>&1 && ss -Htn state established && echo -- && ss -Htln"


@dataclass
class Dependants:
    workloads: list[tuple[Engine, Workload]] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """One sentence each: what only a person can move."""
    running: list[str] = field(default_factory=list)
    """One sentence each: what listens or runs there, whether or not anybody uses it."""
    unknown: str = ""
    """Why the machine could not be examined, if so."""

    @property
    def sentences(self) -> list[str]:
        ours = [f"{workload} ({workload.state}, {workload.image}) runs there" for _, workload in self.workloads]
        return [*ours, *self.others, *([f"What runs there is unknown: {self.unknown}"] if self.unknown else [])]


async def find_dependants(homelab: Homelab, ref: str, machine: Machine) -> Dependants:
    dependants = Dependants()
    services = [
        service for service in await Installations(homelab.store).everything() if service.host == machine_ref(machine)
    ]
    kept = [service for service in services if service.state != "removed"]
    dependants.others += [f"the service {service.service} is installed there; uninstall it first" for service in kept]
    dependants.others += [
        f"host {host.name} is reached through it" for host in await homelab.hosts.everyone() if host.jump == ref
    ]
    for name, entry in (await PlanStore(homelab.store).entries()).items():
        items = [item for item in read_document(entry.document).items.values() if ref in (item.place, item.name)]
        if items:
            dependants.others.append(
                f"the infrastructure document {name} mentions it: {', '.join(map(str, items[:5]))}"
            )
    try:
        await _look(homelab, machine, dependants)
    except Problem as problem:
        dependants.unknown = str(problem)
    return dependants


async def _look(homelab: Homelab, machine: Machine, dependants: Dependants) -> None:
    try:
        engines, silent = await detect_engines(machine, homelab.clock)
    except NotFound:
        engines, silent = [], {}
    dependants.unknown = "; ".join(f"{name}: {why}" for name, why in silent.items())
    for engine in engines:
        for workload in await engine.list():
            project = workload.labels.get(COMPOSE)
            if project is None:
                dependants.workloads.append((engine, workload))
            elif not project.startswith("quorate-"):
                dependants.others.append(f"{workload} of the Compose project {project} runs there")
    output = await machine.transport.run(shell_script(_CONNECTED))
    dependants.others += parse_connections(output.text)
    with contextlib.suppress(Problem):  # without root, some program names are unknown
        facts = await machine.collect_facts(sections=("ports", "services"), seconds=FACTS_SECONDS, sudo=True)
        dependants.running = describe_running(facts)


def describe_running(facts: Facts) -> list[str]:
    """Programs that listen for other machines, and services that run, without those of the system itself."""
    programs: dict[str, set[int]] = {}
    for port in facts.ports or ():
        name = port.process or "something"
        if not _is_loopback(port.address) and not name.startswith(_SYSTEM_PROGRAMS):
            programs.setdefault(name, set()).add(port.port)
    services = facts.services.running if facts.services else ()
    return [
        *(f"{name} listens on port {', '.join(map(str, sorted(ports)))}" for name, ports in sorted(programs.items())),
        *(f"the service {name} is running" for name in services if not _SYSTEM_SERVICES.match(name)),
    ]


def parse_connections(text: str) -> list[str]:
    """Who uses the listening ports, from the output of `ss`, without SSH."""
    established, _, listening = text.partition("--\n")
    ports = {cells[3].rpartition(":")[2] for line in listening.splitlines() if len(cells := line.split()) >= 5}
    users: dict[str, set[str]] = {}
    for line in established.splitlines():
        cells = line.split()
        if len(cells) < 4:
            continue
        port, peer = cells[-2].rpartition(":")[2], cells[-1].rpartition(":")[0].strip("[]").partition("%")[0]
        if port in ports and port != str(SSH_PORT) and not _is_loopback(peer):
            users.setdefault(port, set()).add(peer)
    return [f"port {port} is in use by {', '.join(sorted(peers)[:PEERS])}" for port, peers in sorted(users.items())]


def _is_loopback(address: str) -> bool:
    if address == "*":
        return False
    try:
        return ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback
    except ValueError:
        return True
