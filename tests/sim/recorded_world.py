"""The cluster that the recordings were taken from, and what happened to it between the recorded sections."""

from __future__ import annotations

from collections.abc import Callable

from quorate.sim.access import Pool, Token
from quorate.sim.clock import ManualClock
from quorate.sim.cluster import SimulatedCluster
from quorate.sim.guests import GIB, MIB, Guest, OperatingSystem, Snapshot
from quorate.sim.networks import Interface, Networks
from quorate.sim.node_disks import Disks
from quorate.sim.storages import Place, Storage, Volume
from quorate.sim.world import Node, World

# The recorded machine's clock when the first request came in, and how long it had been up.
STARTED_AT = 1794773880.0
_UP_SECONDS = 3500.0

NODE = "pve1"
ROOT_PASSWORD = "rigpass1234"
TOKEN_SECRET = "11111111-2222-4333-8444-555555555555"

_TOTAL = 270553174016
_USED = 38536368128
_FILES_AT = 1794773868

_BARE = OperatingSystem(agent_installed=False, obeys_shutdown=False)
"""A disk with nothing on it: no agent answers and nobody reacts to the power button."""

_LIVE_SYSTEM = OperatingSystem("debian", "Debian rig guest", "12", "12", "6.1.0-42-amd64")


def recorded_cluster(clock: ManualClock) -> SimulatedCluster:
    """The one-node cluster as it was before the first recorded request."""
    cluster = SimulatedCluster(clock=clock, auth_delay=0.0, build=_build)
    del cluster.world.access.users["root@pam"].tokens["quorate"]
    return cluster


def _build(world: World) -> None:
    now = world.clock.now()
    node = Node(NODE, 1, "10.99.0.10", now - _UP_SECONDS)
    node.cpus, node.memory, node.swap = 2, 25274793984, 0
    node.disk, node.disk_used = _TOTAL, _USED
    world.nodes[NODE] = node
    local = Storage(
        "local",
        "dir",
        ("vztmpl", "backup", "iso", "rootdir", "images", "snippets"),
        config={"path": "/var/lib/vz", "prune-backups": "keep-all=1", "priority": 0},
    )
    local.places = {NODE: Place(_TOTAL, _USED)}
    for name, content, form, size in (
        ("iso/rig-guest.iso", "iso", "iso", 18794496),
        ("iso/tiny.iso", "iso", "iso", 1404928),
        ("vztmpl/debian-12-standard_12.11-1_amd64.tar.zst", "vztmpl", "tzst", 47285736),
    ):
        local.add(NODE, Volume(f"local:{name}", content, form, size, size, _FILES_AT))
    world.storages["local"] = local
    root = world.access.users["root@pam"]
    root.password = ROOT_PASSWORD
    root.tokens["rig"] = Token(TOKEN_SECRET, privsep=False)
    world.access.changed()
    world.part(Disks).of(NODE).disks.clear()
    world.part(Networks).of(NODE)._active = _interfaces()


def _interfaces() -> dict[str, Interface]:
    """A bridge to nowhere, without a gateway."""
    card: Interface = {"type": "unknown", "method": "manual", "method6": "manual", "families": ["inet"]}
    bridge: Interface = {
        "type": "bridge", "method": "static", "method6": "manual", "families": ["inet"], "autostart": 1,
        "address": "10.99.0.10", "netmask": "24", "bridge_ports": "dummy0", "bridge_stp": "off", "bridge_fd": "0",
    }  # fmt: skip
    return {"dummy0": card, "vmbr0": bridge}


Interlude = Callable[[World], dict[str, str]]
"""Something that happened unrecorded; gives the recorded UPIDs of its tasks with the simulator's own."""


def _empty_disk_in_100(world: World) -> dict[str, str]:
    guest = world.guests.get(100)
    if guest is not None:
        guest.system = _BARE
    return {}


def _live_system_in_150(world: World) -> dict[str, str]:
    guest = world.guests.get(150)
    if guest is not None:
        guest.system = _LIVE_SYSTEM
    return {}


_HISTORY = (
    # type, id, started, lasted, exit status, the recorded UPID if a later request names it
    ("qmstop", "100", 1794773957, 1, "OK", ""),
    ("qmsnapshot", "100", 1794773961, 1, "OK", ""),
    ("qmsnapshot", "100", 1794773962, 0, "snapshot name 'live1' already used", ""),
    ("qmsnapshot", "100", 1794773965, 2, "OK", ""),
    ("qmsnapshot", "100", 1794773969, 1, "OK", ""),
    ("qmrollback", "100", 1794773971, 0, "OK", ""),
    ("qmrollback", "100", 1794773971, 0, "snapshot 'nope' does not exist", ""),
    ("qmdelsnapshot", "100", 1794773972, 0, "OK", ""),
    ("qmdelsnapshot", "100", 1794773972, 0, "snapshot 'nope' does not exist", ""),
    ("qmclone", "100", 1794773973, 0, "OK", "UPID:pve1:00007C53:00057C14:6AFA13D5:qmclone:100:root@pam!rig:"),
    ("qmtemplate", "110", 1794773974, 0, "OK", ""),
    ("qmstart", "110", 1794773974, 1, "you can't start a vm if it's a template", ""),
    ("qmclone", "110", 1794773975, 0, "OK", ""),
    (
        "qmdestroy",
        "110",
        1794773975,
        1,
        "base volume 'local:110/base-110-disk-0.qcow2' is still in use by linked cloned",
        "",
    ),
    ("qmdestroy", "111", 1794773976, 0, "OK", ""),
)


def _snapshots_and_clones(world: World) -> dict[str, str]:
    """Two sections that were left out of the recordings: snapshots of 100, then its clone, which became a template."""
    guest = world.guests.get(100)
    if guest is None:
        return {}
    guest.stop_running()
    _add_snapshots(world, guest)
    _add_template(world, guest)
    known = {}
    for kind, target, started, lasted, status, upid in _HISTORY:
        task = world.tasks.add_finished(
            NODE, kind, target, "root@pam!rig", started=started, lasted=lasted, exitstatus=status
        )
        if upid:
            known[upid] = str(task.upid)
    return known


def _add_snapshots(world: World, guest: Guest) -> None:
    plain = dict(guest.config)
    plain.pop("parent", None)
    state = Volume("local:100/vm-100-state-ram1.raw", "images", "raw", 3725312, 3727360, 1794773965, vmid=100)
    world.storages["local"].add(NODE, state)
    with_memory = {**plain, "vmstate": state.volid, "runningmachine": "pc-i440fx-7.2"}
    guest.snapshots = {
        "live1": Snapshot("live1", 1794773961, dict(plain), "live disk only"),
        "ram1": Snapshot("ram1", 1794773965, with_memory, "", parent="live1", vmstate=True),
        "snap1": Snapshot("snap1", 1794773969, dict(plain), "new", parent="ram1"),
    }
    guest.config["parent"] = "snap1"
    guest.touch()


def _add_template(world: World, original: Guest) -> None:
    config = {**original.config, "name": "clone1", "template": 1}
    config.pop("parent", None)
    local = world.storages["local"]
    for number, (key, size) in enumerate((("scsi0", 2176 * MIB), ("scsi2", GIB))):
        volume = Volume(
            f"local:110/base-110-disk-{number}.qcow2", "images", "qcow2", size, 598016, 1794773974, vmid=110
        )
        local.add(NODE, volume)
        config[key] = f"{volume.volid},size={size // MIB}M"
    world.guests[110] = Guest(110, "qemu", NODE, config)


def _pool_of_the_sweep(world: World) -> dict[str, str]:
    world.access.pools["qs"] = Pool("qs")
    world.access.changed()
    return {}


INTERLUDES: dict[tuple[str, str], Interlude] = {
    ("power", "start 100"): _empty_disk_in_100,
    ("tasks", "tasks"): _snapshots_and_clones,
    ("get-sweep", "sweep /cluster"): _pool_of_the_sweep,
    ("guest-agent", "start"): _live_system_in_150,
}
"""By section and label: what to do right before that request."""
