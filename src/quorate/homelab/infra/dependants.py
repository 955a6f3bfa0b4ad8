"""Who needs a machine: what runs there, who goes through it, which documents speak of it, who is connected to it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from quorate.homelab.home import Homelab
from quorate.homelab.infra.document import read
from quorate.homelab.infra.kept import Kept
from quorate.homelab.machines import Machine
from quorate.homelab.services.installed import Ledger, place_of
from quorate.homelab.workloads.engine import Engine
from quorate.homelab.workloads.engines import survey
from quorate.homelab.workloads.model import Workload
from quorate.inside.posix_script import script
from quorate.problems import NotFound, Problem
from quorate.ssh.target import SSH_PORT

COMPOSE = "com.docker.compose.project"
PEERS = 50
# Port and peer of every connection that somebody else has to a port that is listened on here.
_CONNECTED = "command -v ss > /dev/null 2>&1 && ss -Htn state established && echo -- && ss -Htln"


@dataclass
class Dependants:
    workloads: list[tuple[Engine, Workload]] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """One sentence each: what nobody but a person can move."""
    unknown: str = ""
    """Why it could not be looked into, if so."""

    @property
    def told(self) -> list[str]:
        ours = [f"{one} ({one.state}, {one.image}) runs there" for _, one in self.workloads]
        return [*ours, *self.others, *([f"What runs there is not known: {self.unknown}"] if self.unknown else [])]


async def dependants(home: Homelab, ref: str, machine: Machine) -> Dependants:
    found = Dependants()
    services = [one for one in await Ledger(home.store).everything() if one.host == place_of(machine)]
    kept = [one for one in services if one.state != "removed"]
    found.others += [f"the service {one.service} is installed there: service_uninstall takes it away" for one in kept]
    found.others += [f"host {one.name} is reached through it" for one in await home.hosts.everyone() if one.jump == ref]
    for name, entry in (await Kept(home.store).entries()).items():
        items = [item for item in read(entry.document).items.values() if ref in (item.place, item.name)]
        if items:
            found.others.append(f"the infrastructure document {name} speaks of it: {', '.join(map(str, items[:5]))}")
    try:
        await _look(home, machine, found)
    except Problem as problem:
        found.unknown = str(problem)
    return found


async def _look(home: Homelab, machine: Machine, found: Dependants) -> None:
    try:
        engines, silent = await survey(machine, home.clock)
    except NotFound:
        engines, silent = [], {}
    found.unknown = "; ".join(f"{name}: {why}" for name, why in silent.items())
    for engine in engines:
        for one in await engine.list():
            project = one.labels.get(COMPOSE)
            if project is None:
                found.workloads.append((engine, one))
            elif not project.startswith("quorate-"):
                found.others.append(f"{one} of the Compose project {project} is there")
    output = await machine.way.run(script(_CONNECTED))
    found.others += connected(output.stdout.decode("utf-8", "replace"))


def connected(text: str) -> list[str]:
    """Who uses what listens there, by what `ss` tells; logins by SSH do not count."""
    established, _, listening = text.partition("--\n")
    ports = {cells[3].rpartition(":")[2] for line in listening.splitlines() if len(cells := line.split()) >= 5}
    users: dict[str, set[str]] = {}
    for line in established.splitlines():
        cells = line.split()
        if len(cells) < 4:
            continue
        port, peer = cells[-2].rpartition(":")[2], cells[-1].rpartition(":")[0].strip("[]").partition("%")[0]
        if port in ports and port != str(SSH_PORT) and not _is_own(peer):
            users.setdefault(port, set()).add(peer)
    return [f"port {port} is in use by {', '.join(sorted(peers)[:PEERS])}" for port, peers in sorted(users.items())]


def _is_own(peer: str) -> bool:
    try:
        address = ipaddress.ip_address(peer.removeprefix("::ffff:"))
    except ValueError:
        return True
    return address.is_loopback
