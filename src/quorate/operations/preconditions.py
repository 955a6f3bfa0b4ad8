"""What prevents a change to a guest, found before PVE is asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quorate.hints import Advice, ArgumentHint, Sentence, tools
from quorate.problems import (
    BadArgument,
    NotFound,
    PermissionMissing,
    Problem,
)
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource
from quorate.units import parse_size

ROOT = "root@pam"

_VM_OPTIONS = frozenset(
    [
        "affinity",
        "amd-sev",
        "arch",
        "args",
        "hookscript",
        "hugepages",
        "intel-tdx",
        "ivshmem",
        "keephugepages",
        "lock",
        "spice_enhancements",
        "vmgenid",
    ]
)
_NUMBERED = re.compile(r"(?P<stem>[a-z]+)\d+")


def refuse_root_only(
    pve: Cluster, settings: Mapping[str, Any], *, is_vm: bool, way_out: str, before: Mapping[str, Any] | None = None
) -> None:
    """`settings` are the options with the values they get, or had if they are removed; `before` is a container's
    configuration, as PVE looks at what changes in its features."""
    if pve.client.identity == ROOT:
        return
    needs = _of_vm(settings) if is_vm else _of_container(settings, before or {})
    for name, what in needs:
        raise PermissionMissing(
            f"{pve.client.identity} may not set {name}{what}",
            why="PVE lets only root@pam logged in with a password do that; no token can, whatever its privileges",
            next_step=way_out.format(option=name),
        )


def _of_vm(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        stem, text = _stem(name), str(value)
        parts = values.parse(text, "host")
        if name in _VM_OPTIONS or stem == "parallel":
            yield name, ""
        elif stem == "serial" and text != "socket":
            yield name, f" to a device of the node ({text}); any user may use socket"
        elif stem in ("usb", "hostpci") and "mapping" not in parts and parts.get("host", "").lower() != "spice":
            yield name, " to a device of the node; for one with a resource mapping, use mapping=NAME"
        elif values.bus_of(name) in values.DISKS and values.volume_of(text).startswith("/"):
            yield name, " to a path of the node"


def _of_container(settings: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        text = str(value)
        if name == "hookscript" or _stem(name) == "dev":
            yield name, ""
        elif values.bus_of(name) in values.DISKS and values.volume_of(text).startswith("/"):
            yield name, " to a path of the node"
        elif name == "features" and not values.is_on(before.get("unprivileged", 0)):
            yield name, " of a privileged container"
        elif name == "features" and _without_nesting(text) != _without_nesting(str(before.get("features", ""))):
            yield name, " other than nesting"


def _stem(name: str) -> str:
    numbered = _NUMBERED.fullmatch(name)
    return numbered["stem"] if numbered else ""


def _without_nesting(features: str) -> dict[str, str]:
    return {name: value for name, value in values.parse(features).items() if name != "nesting" and value != "0"}


_DRIVE_SIZE = re.compile(r"\d+(?:\.\d+)?[KMGT]?")


@dataclass(frozen=True, slots=True)
class AttachedVolume:
    """A volume in a guest's configuration, with its slot."""

    key: str
    volid: str
    size: int
    cdrom: bool
    shared: bool
    """Marked by the user as reachable from every node (shared=1)."""

    @property
    def storage(self) -> str:
        return self.volid.partition(":")[0]

    @property
    def on_storage(self) -> bool:
        return ":" in self.volid

    @property
    def is_cloudinit(self) -> bool:
        return "cloudinit" in self.volid

    def __str__(self) -> str:
        return f"{self.key} ({self.volid})"


_CD_DRIVE = "cdrom"


def passes_on_cd_drive(key: str, value: Any) -> bool:
    """Whether an option gives the guest the CD drive of its node."""
    if values.bus_of(key) not in values.DISKS:
        return False
    parts = values.parse(str(value), "volume")
    return _CD_DRIVE in (parts.get("volume"), parts.get("file"))


def volumes(config: Mapping[str, Any]) -> list[AttachedVolume]:
    """Everything that the configuration attaches: disks, mount points, CD images; empty drives are left out."""
    drives = []
    for key, value in sorted(config.items()):
        if values.bus_of(key) in values.DISKS:
            parts = values.parse(str(value), "volume")
            volid = parts.get("volume") or parts.get("file") or ""
            size = parts.get("size", "")
            if volid not in ("", "none", _CD_DRIVE):
                drives.append(
                    AttachedVolume(
                        key,
                        volid,
                        parse_size(size, unit="") if _DRIVE_SIZE.fullmatch(size) else 0,
                        parts.get("media") == "cdrom",
                        values.is_on(parts.get("shared", "0")),
                    )
                )
    return drives


def data_volumes(config: Mapping[str, Any]) -> list[AttachedVolume]:
    """The volumes that the guest owns: no ISO images, nothing outside the storages."""
    return [volume for volume in volumes(config) if volume.on_storage and (not volume.cdrom or volume.is_cloudinit)]


def refuse_locked(guest: Guest, status: Mapping[str, Any], *tolerated: str) -> None:
    """A lock in the configuration: a task is working on the guest, or left it behind."""
    lock = status.get("lock")
    if not lock or lock in tolerated:
        return
    unlock = f"`{'qm' if guest.is_vm else 'pct'} unlock {guest.vmid}` on {guest.row.node}"
    way_out = (
        Advice("Resume it, then shut it down", tools.guest_power(guest=guest.vmid, action="resume"))
        if lock == "suspended"
        else Advice(
            f"Wait for the task that holds it; if none is running, {unlock} removes a lock that was left behind",
            tools.task_list(guest=guest.vmid),
            tools.task_wait,
        )
    )
    guest.cluster.obstruct(f"{guest} is locked ({lock})", next_step=way_out)


NEWEST_ONLY = ("zfspool", "zfs")
"""Types of storage that can only roll back to the newest snapshot of a disk."""


async def storages_on(pve: Cluster, node: str, needed: Iterable[str] = ()) -> dict[str, Resource]:
    """The storages of a node that can be used, by name. Where one that is needed seems to be missing, it is asked."""
    rows = [row for row in await pve.inventory.of_type("storage") if row.node == node]
    known = {row.storage: row for row in rows if row.status == "available"}
    if known.keys() >= set(needed):
        return known
    return {row.storage: row for row in await pve.inventory.fresh_storages(node) if row.status == "available"}


async def snapshots_of(guest: Guest) -> list[dict[str, Any]]:
    """The guest's snapshots, oldest first, without the row for how it is now."""
    rows = [row for row in await guest.get("snapshot") if row.get("name") != "current"]
    return sorted(rows, key=lambda row: (row.get("snaptime", 0), row["name"]))


def existing_snapshot(guest: Guest, snapshots: Iterable[dict[str, Any]], name: str) -> dict[str, Any]:
    rows = {row["name"]: row for row in snapshots}
    if name not in rows:
        known = (
            Advice(f"It has {', '.join(rows)}")
            if rows
            else Advice("It has none; take one", tools.snapshot_create(guest=guest.vmid))
        )
        raise NotFound(f"{guest} has no snapshot {name!r}", next_step=known)
    return rows[name]


async def has_feature(guest: Guest, feature: str, snapshot: str | None = None) -> bool:
    """Whether the guest's storages can do this (snapshot, clone, copy) with all of its disks."""
    about = {} if snapshot is None else {"snapname": snapshot}
    return bool((await guest.get("feature", feature=feature, **about)).get("hasFeature"))


async def replication_jobs(pve: Cluster, guest: Guest) -> list[dict[str, Any]]:
    """The jobs that copy this guest to other nodes; none if these credentials may not see them."""
    try:
        jobs = await pve.get("/cluster/replication")
    except PermissionMissing:
        return []
    return [job for job in jobs or [] if int(job.get("guest", 0)) == guest.vmid]


def only_for_vms(guest: Guest, name: str, value: object, instead: str) -> None:
    """An argument that means nothing to a container."""
    if value and not guest.is_vm:
        raise BadArgument(
            Sentence(f"{{name}} does not apply to containers, and {guest} is one", name=ArgumentHint(name)),
            next_step=instead,
        )


_CHECKED = frozenset({"cores", "sockets", "vcpus", "numa", "memory", "machine", "cpu", "kvm"})
_MAPPED = re.compile(r"(?:hostpci|usb)\d+")
_NUMA_NODE = re.compile(r"numa[0-7]")
_VERSION = re.compile(r"-(\d+)\.(\d+)")
_REMOVED = ((10, 1), (2, 6))
"""Since the first version, QEMU has no machine type older than the second. PVE still lists them."""


def affects_start(changed: Mapping[str, Any]) -> bool:
    return any(key in _CHECKED or _NUMA_NODE.fullmatch(key) or _MAPPED.fullmatch(key) for key in changed)


async def start_objections(pve: Cluster, node: str, config: Mapping[str, Any]) -> list[str]:
    """Why this node will refuse to start a VM of this configuration, each reason with PVE's own words."""
    cpus = int((await pve.inventory.node(node)).maxcpu)
    reasons = [
        _processors(node, cpus, config),
        _vcpu_problem(config),
        _cpu_model_problem(config),
        _numa(config),
        await _machine(pve, node, config),
        *await _mapping_problems(pve, node, config),
    ]
    return [f"PVE will refuse to start the VM: {reason}" for reason in reasons if reason]


NOTHING_TO_BOOT = "It has neither a disk nor an inserted ISO to boot from"


def has_nothing_to_boot(config: Mapping[str, Any]) -> bool:
    """A VM without any volume that its firmware could start from; network cards do not count."""
    return not any(values.bus_of(drive.key) in values.BOOTABLE and not drive.is_cloudinit for drive in volumes(config))


def _processors(node: str, cpus: int, config: Mapping[str, Any]) -> str | None:
    count = _count(config)
    if not cpus or count <= cpus:
        return None
    return f"it would have {count} CPUs, and {node} has {cpus} (MAX {cpus} vcpus allowed per vm on this node)"


def _vcpu_problem(config: Mapping[str, Any]) -> str | None:
    vcpus, count = int(config.get("vcpus") or 0), _count(config)
    if vcpus <= count:
        return None
    return f"vcpus={vcpus} is more than cores times sockets, which is {count} (Invalid SMP CPUs)"


def _cpu_model_problem(config: Mapping[str, Any]) -> str | None:
    model = values.parse(str(config.get("cpu", "")), "cputype").get("cputype")
    if model != "host" or values.is_on(config.get("kvm", 1)):
        return None
    return "kvm is off (CPU model 'host' requires KVM)"


async def _mapping_problems(pve: Cluster, node: str, config: Mapping[str, Any]) -> list[str]:
    """Mapped devices that are not on this node, or not what their mapping says."""
    objections = []
    for key in sorted(config):
        name = values.parse(str(config[key]), "host").get("mapping") if _MAPPED.fullmatch(key) else None
        if name is None:
            continue
        kind = "pci" if key.startswith("hostpci") else "usb"
        try:
            rows = await pve.get(f"/cluster/mapping/{kind}", **{"check-node": node})
        except Problem:
            continue  # the start will show it
        row = next((mapping for mapping in rows if mapping["id"] == name), None)
        problems = row.get("checks", []) if row is not None else [{"message": "no such mapping"}]
        reasons = "; ".join(str(problem["message"]).strip().rstrip(".") for problem in problems)
        if reasons:
            objections.append(f"{key} is mapped to {name}, which {node} cannot use ({reasons})")
    return objections


def _count(config: Mapping[str, Any]) -> int:
    return int(config.get("cores", 1)) * int(config.get("sockets", 1))


def _numa(config: Mapping[str, Any]) -> str | None:
    """NUMA nodes that are described one by one must add up to the memory of the VM."""
    if not values.is_on(config.get("numa", 0)):
        return None
    nodes = {key: values.parse(str(config[key]), "cpus") for key in sorted(config) if _NUMA_NODE.fullmatch(key)}
    for key, parts in nodes.items():
        if not float(parts.get("memory") or 0):
            return f"{key} has no memory (missing NUMA node{key[4:]} memory value)"
        if "hostnodes" in parts and "policy" not in parts:
            return f"{key} has hostnodes without policy (you need to define a policy for hostnode {parts['hostnodes']})"
    total = sum(int(float(parts["memory"])) for parts in nodes.values())
    memory = int(values.parse(str(config.get("memory", 512)), "current").get("current", 512))
    if not nodes or total == memory:
        return None
    return (
        f"the NUMA nodes have {total} MiB and the VM {memory} MiB "
        "(total memory for NUMA nodes must be equal to vm static memory)"
    )


async def _machine(pve: Cluster, node: str, config: Mapping[str, Any]) -> str | None:
    """A versioned machine type must be one that the node's QEMU has."""
    machine = values.parse(str(config.get("machine", "")), "type").get("type", "")
    version = _VERSION.search(machine)
    if version is None:
        return None
    try:
        rows = await pve.get(f"/nodes/{node}/capabilities/qemu/machines")
    except Problem:
        return None  # the start will show it
    known = [tuple(map(int, match.groups())) for row in rows if (match := _VERSION.search(str(row["id"])))]
    requested = (int(version[1]), int(version[2]))
    newest = max(known, default=requested)
    if requested > newest:
        return f"{node} has QEMU {newest[0]}.{newest[1]}, which is too old to run machine type '{machine}'"
    if newest >= _REMOVED[0] and requested < _REMOVED[1]:
        return f"QEMU {newest[0]}.{newest[1]} on {node} no longer has it (unsupported machine type '{machine}')"
    return None
