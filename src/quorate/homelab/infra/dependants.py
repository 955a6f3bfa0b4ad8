"""What depends on a machine: what runs there, what is reached through it, documents that mention it, its clients."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from dataclasses import dataclass, field

from quorate.homelab.homelab import Homelab
from quorate.homelab.infra.document import read_document
from quorate.homelab.infra.plan_store import PlanStore
from quorate.homelab.machines import Machine
from quorate.homelab.services.installations import Installations, machine_ref
from quorate.homelab.workloads.engine import Engine
from quorate.homelab.workloads.engines import detect_engines
from quorate.homelab.workloads.model import Workload
from quorate.inside.facts.model import Facts
from quorate.inside.posix_script import shell_script
from quorate.problems import NotFound, Problem
from quorate.ssh.target import SSH_PORT

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
        ours = [f"{one} ({one.state}, {one.image}) runs there" for _, one in self.workloads]
        return [*ours, *self.others, *([f"What runs there is unknown: {self.unknown}"] if self.unknown else [])]


async def find_dependants(homelab: Homelab, ref: str, machine: Machine) -> Dependants:
    found = Dependants()
    services = [one for one in await Installations(homelab.store).everything() if one.host == machine_ref(machine)]
    kept = [one for one in services if one.state != "removed"]
    found.others += [f"the service {one.service} is installed there; uninstall it first" for one in kept]
    found.others += [
        f"host {one.name} is reached through it" for one in await homelab.hosts.everyone() if one.jump == ref
    ]
    for name, entry in (await PlanStore(homelab.store).entries()).items():
        items = [item for item in read_document(entry.document).items.values() if ref in (item.place, item.name)]
        if items:
            found.others.append(f"the infrastructure document {name} mentions it: {', '.join(map(str, items[:5]))}")
    try:
        await _look(homelab, machine, found)
    except Problem as problem:
        found.unknown = str(problem)
    return found


async def _look(homelab: Homelab, machine: Machine, found: Dependants) -> None:
    try:
        engines, silent = await detect_engines(machine, homelab.clock)
    except NotFound:
        engines, silent = [], {}
    found.unknown = "; ".join(f"{name}: {why}" for name, why in silent.items())
    for engine in engines:
        for one in await engine.list():
            project = one.labels.get(COMPOSE)
            if project is None:
                found.workloads.append((engine, one))
            elif not project.startswith("quorate-"):
                found.others.append(f"{one} of the Compose project {project} runs there")
    output = await machine.transport.run(shell_script(_CONNECTED))
    found.others += parse_connections(output.stdout.decode("utf-8", "replace"))
    with contextlib.suppress(Problem):  # without root, some program names are unknown
        facts = await machine.collect_facts(sections=("ports", "services"), seconds=FACTS_SECONDS, sudo=True)
        found.running = describe_running(facts)


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
