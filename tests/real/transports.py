"""Quorate in front of the laboratory: MCP client -> server -> simulated cluster -> real nodes, containers and VM.

A guest is reached through every transport, and inspected independently of the product to check the effect.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from pve_simulator.guest_os.agent_socket import SocketAgent
from quorate.app import build, simulated_cluster
from quorate.config import Access, Approval, Settings
from quorate.ssh.settings import Login, SshAccess, SshSettings
from quorate.ssh.target import SshTarget
from tests.real.lab import Lab
from tests.real.machine import Machine
from tests.rigs.mcp_session import Rig

TRANSPORTS = {
    "pct": "pct exec 101 on pve1 as root",
    "openrc": "pct exec 102 on pve2 as root",
    "ssh": "ssh to root@10.77.11.101",
    "jump": "ssh to root@10.77.21.101 through root@10.77.1.2",
    "agent": "guest agent of vm 100 vm",
}
"""Transports and their description in results: the container of the other node has OpenRC and BusyBox."""

EVERY_TRANSPORT = pytest.mark.parametrize("way", TRANSPORTS)
ALL_BUT_JUMP = pytest.mark.parametrize("way", [way for way in TRANSPORTS if way != "jump"])
CONTAINERS = pytest.mark.parametrize("way", ["pct", "openrc"])


@dataclass(frozen=True)
class Inside:
    """One guest through one transport: all calls are about it."""

    quorate: Rig
    lab: Lab
    way: str
    vmid: int

    @property
    def is_busybox(self) -> bool:
        return self.way == "openrc"

    async def facts(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        return await self.quorate.facts(tool, guest=self.vmid, **arguments)

    async def exec(self, command: str | list[str], /, **arguments: Any) -> dict[str, Any]:
        return await self.facts("guest_exec", command=command, **arguments)

    async def refusal(self, tool: str, /, **arguments: Any) -> str:
        return await self.quorate.refusal(tool, guest=self.vmid, **arguments)

    async def look(self, *argv: str) -> str:
        """What a command prints inside, past everything that is tested."""
        if self.way == "agent":
            return await _by_agent(self.lab.vm, argv)
        container = self.lab.openrc if self.vmid == self.lab.openrc.vmid else self.lab.debian
        return (await asyncio.to_thread(container.run, *argv, check=False)).stdout

    async def running(self, text: str) -> list[str]:
        """The command lines inside that hold the text."""
        listed = await self.look("ps", "-o" if self.is_busybox else "-eo", "args")
        return [line for line in listed.splitlines() if text in line]

    async def gone(self, pattern: str) -> None:
        async with asyncio.timeout(30):
            while await self.running(pattern):
                await asyncio.sleep(0.05)

    async def there(self, pattern: str) -> None:
        async with asyncio.timeout(30):
            while not await self.running(pattern):
                await asyncio.sleep(0.05)


@asynccontextmanager
async def reached(lab: Lab, way: str, folder: Path, **changes: Any) -> AsyncIterator[Inside]:
    vmid = {"openrc": 102, "agent": 100}.get(way, 101)
    async with serving(lab, folder, guests=logins(lab, way), vm=way == "agent", **changes) as quorate:
        yield Inside(quorate, lab, way, vmid)


def logins(lab: Lab, way: str) -> dict[int, Login]:
    node = lab.nodes["pve1"]
    match way:
        case "ssh":
            return {101: Login(lab.debian.address)}
        case "jump":
            return {101: Login(lab.debian.inner_address, jump=SshTarget(node.host, node.port, key=lab.key))}
    return {}


@asynccontextmanager
async def serving(
    lab: Lab,
    folder: Path,
    *,
    guests: Mapping[int, Login] | None = None,
    vm: bool = False,
    ssh: Mapping[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Rig]:
    """A server on the laboratory's cluster and a client of it. `ssh` are changes of what it knows about SSH."""
    async with lab.cluster(vm=vm) as sim:
        other = lab.nodes["pve2"]
        access = SshSettings(
            nodes=Login(user="root", key=lab.key),
            node_hosts={other.name: f"{other.host}:{other.port}"},  # the cluster tells the other's; this port it cannot
            single_guests=guests or {},
            known_hosts=(lab.known_hosts(folder),),
            pins=folder / "pins",
        )
        target = replace(simulated_cluster(sim), ssh=replace(access, **(ssh or {})))
        usual = {
            "clusters": (target,),
            "access": Access.OPERATE,
            "toolsets": ("all",),
            "approval": Approval.NONE,
            "audit_file": folder / "audit.jsonl",
            "state": str(folder / "state.sqlite"),
        }
        app = build(Settings(**{**usual, **settings}))
        try:
            async with Client(app.server()) as client:
                yield Rig(sim, app, client, folder / "audit.jsonl")
        finally:
            await app.close()


def ssh_of(quorate: Rig) -> SshAccess:
    assert quorate.app.cluster is not None
    return quorate.app.cluster.ssh


async def _by_agent(vm: Machine, argv: tuple[str, ...]) -> str:
    agent = SocketAgent(vm.agent_socket)
    begun = await agent.ask("guest-exec", {"path": argv[0], "arg": list(argv[1:]), "capture-output": True})
    while True:
        told = await agent.ask("guest-exec-status", begun)
        if told["exited"]:
            return base64.b64decode(told.get("out-data", "")).decode(errors="replace")
        await asyncio.sleep(0.05)
