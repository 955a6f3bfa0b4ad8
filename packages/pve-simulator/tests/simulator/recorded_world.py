"""The cluster of the recordings, and unrecorded events between their sections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pve_simulator.access.directory import Pool, Token
from pve_simulator.clock import ManualClock
from pve_simulator.guests.guest import OperatingSystem
from pve_simulator.nodes.disks import Disks
from pve_simulator.nodes.status_daemon import StatusDaemon
from pve_simulator.routes.nodes.network import Interface, Networks
from pve_simulator.simulator import SimulatedCluster
from pve_simulator.storage.storages import Storage, StorageSpace, Volume
from pve_simulator.world import Node, World

# Clock and uptime of the recorded machine at the first request.
STARTED_AT = 1794773880.0
_UP_SECONDS = 3500.0
# The time of pvestatd's reports: the node's uptime in /cluster/resources is 3527 in one answer and 3557 in another.
_REPORTS_AT = 7.0

NODE = "pve1"
ROOT_PASSWORD = "rigpass1234"
TOKEN_SECRET = "11111111-2222-4333-8444-555555555555"

_TOTAL = 270553174016
_USED = 38536368128
_FILES_AT = 1794773868

_BARE = OperatingSystem(agent_installed=False, obeys_shutdown=False)
"""An empty disk: no agent answers, and ACPI shutdown has no effect."""

_LIVE_SYSTEM = OperatingSystem("debian", "Debian rig guest", "12", "12", "6.1.0-42-amd64", agent_version="7.2.22")


def recorded_cluster(clock: ManualClock) -> SimulatedCluster:
    """The one-node cluster as it was before the first recorded request."""
    cluster = SimulatedCluster(clock=clock, auth_delay=0.0, build=_build)
    del cluster.world.access.users["root@pam"].tokens["simulator"]
    return cluster


def _build(world: World) -> None:
    now = world.clock.now()
    node = Node(NODE, 1, "10.99.0.10", now - _UP_SECONDS)
    node.has_skopeo = False
    node.cpus, node.memory, node.swap = 2, 25274793984, 0
    node.disk, node.disk_used = _TOTAL, _USED
    world.nodes[NODE] = node
    local = Storage(
        "local",
        "dir",
        ("vztmpl", "backup", "iso", "rootdir", "images", "snippets"),
        config={"path": "/var/lib/vz", "prune-backups": "keep-all=1", "priority": 0},
    )
    local.spaces = {NODE: StorageSpace(_TOTAL, _USED)}
    for name, content, form, size in (
        ("iso/rig-guest.iso", "iso", "iso", 18794496),
        ("iso/tiny.iso", "iso", "iso", 1404928),
        ("vztmpl/debian-12-standard_12.11-1_amd64.tar.zst", "vztmpl", "tzst", 47285736),
    ):
        local.add(NODE, Volume(f"local:{name}", content, form, size, size, _FILES_AT, has_systemd=False))
    world.storages["local"] = local
    root = world.access.users["root@pam"]
    root.password = ROOT_PASSWORD
    root.tokens["rig"] = Token(TOKEN_SECRET, privsep=False)
    world.access.invalidate_cache()
    world.part(Disks).of(NODE).disks.clear()
    world.part(Networks).of(NODE)._active = interfaces()
    world.part(StatusDaemon).first = now + _REPORTS_AT


def interfaces() -> dict[str, Interface]:
    """A bridge to nowhere, without a gateway."""
    card: Interface = {"type": "unknown", "method": "manual", "method6": "manual", "families": ["inet"]}
    bridge: Interface = {
        "type": "bridge", "method": "static", "method6": "manual", "families": ["inet"], "autostart": 1,
        "address": "10.99.0.10", "netmask": "24", "bridge_ports": "dummy0", "bridge_stp": "off", "bridge_fd": "0",
    }  # fmt: skip
    return {"dummy0": card, "vmbr0": bridge}


Ask = Callable[[str, str, dict[str, Any]], Awaitable[Any]]
"""Sends one request with root's token, waits for its task if any, and returns the data."""

Interlude = Callable[[World, Ask], Awaitable[dict[str, str]]]
"""An unrecorded event; returns the recorded UPIDs of its tasks with the simulator's."""


async def _empty_disk_in_100(world: World, _ask: Ask) -> dict[str, str]:
    world.guests[100].system = _BARE
    return {}


async def _live_system_in_150(world: World, _ask: Ask) -> dict[str, str]:
    world.guests[150].system = _LIVE_SYSTEM
    return {}


_VM = f"/nodes/{NODE}/qemu/100"
_CLONE = f"/nodes/{NODE}/qemu/110"
_CLONED = "UPID:pve1:00007C53:00057C14:6AFA13D5:qmclone:100:root@pam!rig:"

# Snapshots and clones were not recorded, but later answers show their tasks and outcomes.
_UNRECORDED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("POST", f"{_VM}/snapshot", {"snapname": "live1", "description": "live disk only"}),
    ("POST", f"{_VM}/snapshot", {"snapname": "ram1", "vmstate": 1}),
    ("POST", f"{_VM}/status/stop", {}),
    ("POST", f"{_VM}/snapshot", {"snapname": "snap1", "description": "first"}),
    ("POST", f"{_VM}/snapshot", {"snapname": "snap2"}),
    ("POST", f"{_VM}/snapshot", {"snapname": "snap1"}),
    ("PUT", f"{_VM}/snapshot/snap1/config", {"description": "new"}),
    ("POST", f"{_VM}/snapshot/snap1/rollback", {}),
    ("POST", f"{_VM}/snapshot/nope/rollback", {}),
    ("DELETE", f"{_VM}/snapshot/snap2", {}),
    ("DELETE", f"{_VM}/snapshot/nope", {}),
    ("POST", f"{_VM}/clone", {"newid": 110, "name": "clone1", "full": 1}),
    ("POST", f"{_CLONE}/template", {}),
    ("POST", f"{_CLONE}/status/start", {}),
    ("POST", f"{_CLONE}/clone", {"newid": 111}),
    ("DELETE", _CLONE, {}),
    ("DELETE", f"/nodes/{NODE}/qemu/111", {}),
)


async def _snapshots_and_clones(_world: World, ask: Ask) -> dict[str, str]:
    known = {}
    for method, path, params in _UNRECORDED:
        started = await ask(method, path, params)
        if path == f"{_VM}/clone":
            known[_CLONED] = str(started)
    return known


async def _pool_of_the_sweep(world: World, _ask: Ask) -> dict[str, str]:
    world.access.pools["qs"] = Pool("qs")
    world.access.invalidate_cache()
    return {}


INTERLUDES: dict[tuple[str, str], Interlude] = {
    ("power", "start 100"): _empty_disk_in_100,
    ("tasks", "tasks"): _snapshots_and_clones,
    ("get-sweep", "sweep /cluster"): _pool_of_the_sweep,
    ("guest-agent", "start"): _live_system_in_150,
}
"""By section and label: events right before that request."""
