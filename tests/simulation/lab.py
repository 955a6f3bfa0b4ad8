"""A small cluster, quickly built: what an episode needs and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

from pve_schema.schema import Facts, facts
from pve_simulator.access.directory import ROOT, Access, Token
from pve_simulator.builder import Builder
from pve_simulator.faults import Faults
from pve_simulator.guests import remote_migration
from pve_simulator.guests.guest import Guest
from pve_simulator.http.server import ApiServer
from pve_simulator.world import World
from tests.simulation.loop import LoopClock

TOKEN = (f"{ROOT}!sim", "0b5e55ed-0000-4000-8000-00000000cafe")
VERSION = "9.1.8"
HOST = "127.0.0.1"
SSH_PORT = 2200


@cache
def _facts() -> Facts:
    return facts(VERSION)


class Requests(list[tuple[str, str]]):
    """What the cluster received. `observe` sees each request before it is handled."""

    observe: Callable[[str, str], None] = staticmethod(lambda *_: None)

    def append(self, request: tuple[str, str]) -> None:
        super().append(request)
        self.observe(*request)


class Lab:
    """Three nodes with a storage each and one that they share; a kind of run adds its guests."""

    def __init__(self, chance: random.Random, name: str = "lab", port: int = 8006) -> None:
        self.name, self.port = name, port
        self.world = World(
            clock=LoopClock(),
            access=Access(_facts().roles),
            name=name,
            seed=chance.randrange(1 << 30),
            version=VERSION,
        )
        self.builder = builder = Builder(self.world)
        for number in range(1, 4):
            builder.node(f"pve{number}", memory=32, cpus=8)
        builder.storage("local", "dir", "iso,vztmpl,backup,snippets", total=90, path="/var/lib/vz")
        builder.storage("local-lvm", "lvmthin", "images,rootdir", total=500, thinpool="data", vgname="pve")
        builder.storage(
            "nas", "nfs", "images,rootdir,backup", total=4000, shared=True, server="192.168.10.5", export="/x",
            path="/mnt/pve/nas",
        )  # fmt: skip
        self.world.access.users[ROOT].tokens["sim"] = Token(TOKEN[1], privsep=False)
        self.faults = Faults(self.world, chance.randrange(1 << 30))
        self.requests = Requests()
        server = ApiServer(self.world, _facts(), self.faults, auth_delay=0.0, requests=self.requests)
        self.handler = server.for_node(self.world.nodes["pve1"])
        remote_migration.reachable(HOST, port, self.world, self.world.nodes["pve1"])

    def guests(self, chance: random.Random, least: int, most: int, *, running: float = 0.8) -> list[Guest]:
        """Some guests, more of them on the first node."""
        return [
            self.builder.guest(
                chance.choice(("qemu", "qemu", "lxc")),
                vmid,
                f"guest{vmid}",
                chance.choice(("pve1", "pve1", "pve2", "pve3")),
                memory=1024,
                disk=4,
                storage=chance.choice(("nas", "nas", "local-lvm")),
                running=chance.random() < running,
            )
            for vmid in range(100, 100 + chance.randint(least, most))
        ]

    @property
    def ssh_hosts(self) -> dict[str, str]:
        return {node: f"{HOST}:{SSH_PORT + number}" for number, node in enumerate(self.world.nodes)}

    async def close(self) -> None:
        remote_migration.unreachable(self.world)
        await self.world.tasks.close()
