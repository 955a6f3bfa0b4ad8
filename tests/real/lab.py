"""The laboratory: two nodes, two containers, one VM; all real, all in namespaces that end with it.

    lab.nodes["pve1"], lab.nodes["pve2"]   SSH servers (nodes.Node)
    lab.debian     container 101 on pve1: Debian, systemd, an SSH server inside (containers.Container)
    lab.openrc     container 102 on pve2: BusyBox and OpenRC, no SSH server
    lab.vm         VM 100 on pve1: Debian, systemd, the real guest agent (machine.Machine); booted at its first use
    lab.key        the private key (a path) that opens everything; lab.strange_key opens nothing
    lab.known_hosts(folder)   a known_hosts file with what is true now, for nodes and containers
    lab.cluster()  a simulated cluster on the real clock with these guests; VM 100's agent endpoints are served by
                   the real agent, the nodes have their real addresses (async context manager). Next to it is
                   VM 110, whose agent is simulated, to compare the two. With `vm=False` both are, and none boots

`backups.Backups` adds a storage with backups of VM 100 to such a cluster: they are really unpacked, and what is
restored from them is booted by QEMU, with its own agent and screen.

A node: `.name .host .port .user .key .known_hosts`; pve1 listens on port 22, pve2 on 2222; OpenSSH's default limits
hold, 10 sessions on one connection for one. `.log`, `.connections()`, `.processes(text)` look at it. To break it:
`.drop_connections()` (all at once, with what runs in them), `with .unplugged():` (packets get lost, nobody says so),
`with .stopped():` (refused), `with .without_key():` (the key is refused), `.new_host_key()` (and `.known_hosts`
follows). On its PATH is `pct` with list, status, config, exec, push and pull (pct.py).

A container: `.vmid .name .node .init .address .inner_address .known_hosts`; `.run(*argv)` looks inside past
everything tested; `.rootfs` are its files; `with .stopped():`, `.stop()`, `.start()`. Container 101's SSH server lets
root and worker in with the key: at `.address:22` directly, at `.inner_address:22` only through its node as jump host;
`.new_host_key()` changes its host key. Inside both: a user `worker` (1000), the services `napping` (stopped),
`failing` (cannot start), and `cron` (systemd) or `crond` (OpenRC), which runs and is enabled.

The VM: `.vmid .name .agent_socket`; `with .agent_stopped():` (no agent), `with .frozen():` (nothing answers),
`.outside(command)` (a shell without the agent), `.stop()`, `.start()` (about 10 s, from its image). It has eth0 with
10.0.2.15/24 and no way out.

What breaks something puts it back, so that tests do not care for their order. Tests run in one process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path

from pve_simulator.builder import Builder
from pve_simulator.guest_os.agent_socket import SocketAgent
from pve_simulator.guest_os.agents import Agents
from pve_simulator.simulator import SimulatedCluster
from pve_simulator.world import World
from tests.real.containers import Container
from tests.real.images import VM_ADDRESS
from tests.real.keys import make_key
from tests.real.machine import Machine
from tests.real.nodes import Node


class Lab:
    """See the module's docstring."""

    def __init__(self, folder: Path, images: Path) -> None:
        self._folder = folder
        self.images = images
        self._booted: list[Machine] = []
        self.key = make_key(folder / "key")
        self.strange_key = make_key(folder / "strange_key")
        self.nodes = {
            "pve1": Node("pve1", 1, 22, folder, self.key),
            "pve2": Node("pve2", 2, 2222, folder, self.key),
        }
        self.debian = Container(101, "web", self.nodes["pve1"], "systemd", images / "debian")
        self.openrc = Container(102, "small", self.nodes["pve2"], "openrc", images / "openrc")

    @property
    def containers(self) -> tuple[Container, ...]:
        return (self.debian, self.openrc)

    def set_up(self) -> None:
        for node in self.nodes.values():
            node.set_up()
        for container in self.containers:
            container.set_up()

    @cached_property
    def vm(self) -> Machine:
        machine = Machine(100, "vm", self._folder, self.images)
        self._booted.append(machine)
        machine.set_up()
        return machine

    def known_hosts(self, folder: Path) -> Path:
        path = folder / "known_hosts"
        path.write_text("".join(node.known_hosts for node in self.nodes.values()) + self.debian.known_hosts)
        return path

    @asynccontextmanager
    async def cluster(self, *, vm: bool = True) -> AsyncIterator[SimulatedCluster]:
        agent = SocketAgent(self.vm.agent_socket) if vm else None
        async with SimulatedCluster(build=self._build) as sim:
            if agent is not None:
                sim.world.part(Agents).attach(self.vm.vmid, agent)
            yield sim

    def close(self) -> None:
        for machine in self._booted:
            machine.close()
        for container in self.containers:
            container.close()
        for node in self.nodes.values():
            node.close()

    def _build(self, world: World) -> None:
        builder = Builder(world)
        for node in self.nodes.values():
            builder.node(node.name, cpus=2, memory=4).ip = node.host
        builder.storage("local-lvm", "lvmthin", "images,rootdir", total=100)
        builder.guest("qemu", 100, "vm", "pve1", cores=2, memory=512, disk=1, ip=VM_ADDRESS)
        builder.guest("qemu", 110, "simulated", "pve1", cores=2, memory=512, disk=1)
        for each in self.containers:
            builder.guest("lxc", each.vmid, each.name, each.node.name, memory=512, disk=8, ip=each.address)
