"""PVE's storage plugins: options and content of every type, and the space of new storages."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pve_simulator.cluster.config_files import SectionType, section_type
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import existing, failure
from pve_simulator.nodes.disks import Disks
from pve_simulator.storage.storages import Storage, StorageSpace
from pve_simulator.world import World

UNREACHABLE = "500 Can't connect to {server}:{port} (No route to host)"
_TRUE, _FALSE = ("1", "yes", "on", "true", "True"), ("0", "no", "off", "false", "False")

# Passwords and keys of a storage are stored in separate files, not in its configuration.
SENSITIVE = frozenset({"password", "encryption-key", "master-pubkey", "keyring"})

_COMMON = "nodes disable content bwlimit"
_FILES = f"{_COMMON} content-dirs prune-backups max-protected-backups format mkdir create-base-path create-subdirs"
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Plugin:
    """One storage type: its options (required ones are fixed) and its possible content."""

    options: SectionType
    contents: list[str]
    default: tuple[str, ...]
    shared: bool = False
    reachable: bool = True


def _plugin(required: str, optional: str, contents: str, default: str, about: str = "", fixed: str = "") -> Plugin:
    options = section_type(required, optional, f"{required} {fixed}")
    flags = ("shared" in about, "unreachable" not in about)
    return Plugin(options, contents.split(), tuple(default.split()), *flags)


_NETWORK_FILES = "images rootdir vztmpl iso backup snippets import"
_ANY_FILE = f"{_NETWORK_FILES} none"
_DISKS = "images rootdir"
_MOUNTED = re.compile(r"/mnt/(?!pve)[^/]+")  # a disk unknown to the simulator may be mounted here
_PATH = re.compile(r"/[-/a-zA-Z0-9_.@]+")
# Directories that every node has.
_SYSTEM_DIRECTORIES = frozenset(
    split_list(
        "/ /boot /dev /etc /home /media /mnt /mnt/pve /opt /proc /root /run /srv /sys /tmp /usr /var /var/lib"
        " /var/lib/vz /var/log /var/tmp"
    )
)

_NETWORK = f"{_FILES} path preallocation snapshot-as-volume-chain options"
_SMB = "subdir username password domain smbversion"
_VMWARE = "password skip-cert-verification port"
_BLOCKS = f"{_COMMON} blocksize sparse"
_UNCHECKED_TYPES = ("iscsidirect", "rbd", "zfs")  # PVE does not check their servers when they are defined

PLUGINS: Mapping[str, Plugin] = {
    "dir": _plugin("path", f"{_FILES} shared is_mountpoint preallocation snapshot-as-volume-chain", _ANY_FILE, _DISKS),
    "btrfs": _plugin("path", f"{_FILES} shared is_mountpoint nocow preallocation", _ANY_FILE, _DISKS),
    "nfs": _plugin("server export", _NETWORK, _NETWORK_FILES, "images", "shared", fixed="path"),
    "cifs": _plugin("server share", f"{_NETWORK} {_SMB}", _NETWORK_FILES, "images", "shared", fixed="path"),
    "lvm": _plugin(
        "vgname",
        f"{_COMMON} shared base saferemove saferemove-stepsize saferemove_throughput tagged_only"
        " snapshot-as-volume-chain",
        _DISKS,
        _DISKS,
        fixed="base",
    ),
    "lvmthin": _plugin("thinpool vgname", _COMMON, _DISKS, _DISKS),
    "zfspool": _plugin("pool", f"{_BLOCKS} mountpoint", _DISKS, _DISKS),
    "pbs": _plugin(
        "server datastore",
        f"{_COMMON} namespace port username password fingerprint encryption-key master-pubkey prune-backups"
        " max-protected-backups",
        "backup none",
        "backup",
        "shared",
    ),
    "cephfs": _plugin(
        "",
        f"{_FILES} path monhost username keyring fuse subdir fs-name options",
        "vztmpl iso backup snippets import",
        "backup",
        "shared unreachable",
    ),
    "rbd": _plugin(
        "", f"{_COMMON} monhost pool data-pool namespace username keyring krbd", _DISKS, "images", "shared unreachable"
    ),
    "iscsi": _plugin("portal target", _COMMON, "images none", "images", "shared unreachable"),
    "iscsidirect": _plugin("portal target", _COMMON, "images", "images", "shared unreachable"),
    "zfs": _plugin(
        "iscsiprovider pool portal target",
        f"{_BLOCKS} nowritecache comstar_hg comstar_tg lio_tpg zfs-base-path",
        "images",
        "images",
        "shared unreachable",
    ),
    "esxi": _plugin("server username", f"{_COMMON} {_VMWARE}", "import", "import", "shared unreachable"),
}


def check_new(kind: str, options: Mapping[str, Any]) -> None:
    """Refuse unknown and missing options, and an invalid path."""
    PLUGINS[kind].options.check_new(options)
    if kind in ("dir", "btrfs") and _PATH.fullmatch(options["path"]) is None:
        raise failure(f"illegal path for directory storage: {options['path']}")


def content_of(kind: str, requested: list[str] | None) -> tuple[str, ...]:
    """The content types of a new storage; PVE drops unsupported ones."""
    plugin = PLUGINS[kind]
    if requested is None:
        return plugin.default
    kept = tuple(dict.fromkeys(name for name in requested if name in plugin.contents))
    if "none" in kept and len(kept) > 1:
        raise failure("unable to combine 'none' with other content types")
    if not kept and "none" not in plugin.contents:
        raise failure("storage does not support content type 'none'")
    return kept or ("none",)


def directory_exists(world: World, path: str) -> bool:
    """Whether nodes have this directory: a system one, or that of a storage."""
    known = {str(other.config.get("path")) for other in world.storages.values()} | _SYSTEM_DIRECTORIES
    return (path.rstrip("/") or "/") in known


def activate(world: World, node: str, storage: Storage) -> None:
    """Activate a new storage on the answering node, or fail as PVE does."""
    failed = f"unable to activate storage '{storage.id}' - "
    if storage.type in ("dir", "btrfs"):
        path = str(storage.config["path"])
        setting = str(storage.config.get("is_mountpoint", "no"))
        mount = path if setting in _TRUE else setting if setting not in _FALSE else None
        assumed = storage.type == "btrfs" and _MOUNTED.fullmatch(path) is not None
        mounted = assumed or str(mount).removeprefix("/mnt/pve/") in world.part(Disks).of(node).directories
        if mount is not None and not mounted:
            expected = "directory is expected to be a mount point but is not mounted"
            raise failure(f"{failed}{expected}: '{mount}'")
        may_create = all(str(storage.config.get(name, 1)) in _TRUE for name in ("mkdir", "create-base-path"))
        if not may_create and not directory_exists(world, path):
            raise failure(f"{failed}directory '{path}' does not exist or is unreachable")
        formatted = {other.config.get("path") for other in world.storages.values() if other.type == "btrfs"}
        if storage.type == "btrfs" and not assumed and path not in formatted:
            raise failure(f"'{path}' is not a btrfs file system")
    if "base" in storage.config:
        name = str(storage.config["base"]).partition(":")[0]
        base = existing(world.storages.get(name), f"base storage ID '{name}' does not exist")
        if base.type != "iscsi":
            raise failure(f"unsupported base type '{base.type}' at /usr/share/perl5/PVE/Storage/LVMPlugin.pm line 411.")
    if storage.type == "lvmthin":
        group, pool = storage.config["vgname"], storage.config["thinpool"]
        there = any(
            other.config.get("vgname") == group and other.config.get("thinpool") == pool
            for other in world.storages.values()
        )
        if not there:
            raise failure(f"no such logical volume {group}/{pool}")
    _require_backing(world, storage)


def _require_backing(world: World, storage: Storage) -> None:
    """Fail unless the server answers and the pool exists."""
    if storage.type not in _UNCHECKED_TYPES and not _is_reachable(world, storage):
        if storage.type == "pbs":
            server, port = storage.config["server"], storage.config.get("port", 8007)
            raise failure(f"{storage.id}: error fetching datastores - {UNREACHABLE.format(server=server, port=port)}")
        raise failure(f"storage '{storage.id}' is not online")
    if storage.type == "zfspool" and _same_backing(world, storage) is None:
        pool = str(storage.config["pool"]).partition("/")[0]
        raise failure(
            f"could not activate storage '{storage.id}', zfs error: cannot import '{pool}': no such pool available\n"
        )


def _is_reachable(world: World, storage: Storage) -> bool:
    """Whether a server answers: only those of other storages do."""
    known = {
        other.config.get("server")
        for other in world.storages.values()
        if any(space.total for space in other.spaces.values())
    }
    return PLUGINS[storage.type].reachable and storage.config.get("server") in known | {None}


def allocate_space(world: World, storage: Storage) -> None:
    for node in [""] if storage.shared else list(world.nodes):
        storage.spaces[node] = _new_space(world, storage, node)


def _new_space(world: World, storage: Storage, node: str) -> StorageSpace:
    if storage.type in ("dir", "btrfs") and node:
        return StorageSpace(world.nodes[node].disk, world.nodes[node].disk_used)
    if storage.type in ("lvm", "lvmthin", "zfspool"):
        sibling = _same_backing(world, storage)
        total = sibling.spaces[node].total if sibling and node in sibling.spaces else 0
        return StorageSpace(total, 0)
    return StorageSpace(4000 * _GIB, 400 * _GIB) if _is_reachable(world, storage) else StorageSpace(0, 0)


def _same_backing(world: World, storage: Storage) -> Storage | None:
    """Another storage on the same volume group or pool, which proves that it exists."""
    key = "pool" if storage.type == "zfspool" else "vgname"
    backing = str(storage.config.get(key, "")).partition("/")[0]
    for other in world.storages.values():
        if other.id != storage.id and str(other.config.get(key, "")).partition("/")[0] == backing:
            return other
    return None


def share(storage: Storage) -> None:
    """Merge the spaces of all nodes into one shared space."""
    if storage.shared:
        return
    old = list(storage.spaces.values())
    whole = StorageSpace(max(space.total for space in old), max(space.base_used for space in old))
    for space in old:
        whole.volumes |= space.volumes
    whole.volumes_used = sum(volume.used for volume in whole.volumes.values())
    storage.spaces, storage.shared = {"": whole}, True


def unshare(storage: Storage, nodes: list[str]) -> None:
    """Split a shared space: the volumes stay on the first node."""
    whole = storage.spaces.pop("")
    storage.shared = False
    for node in nodes:
        storage.spaces[node] = whole if node == nodes[0] else StorageSpace(whole.total, whole.base_used)


def configuration(storage: Storage) -> dict[str, Any]:
    """The entry of storage.cfg, without the digest."""
    row: dict[str, Any] = {"storage": storage.id, "type": storage.type, "content": ",".join(storage.content)}
    row |= storage.config
    if storage.shared:
        row["shared"] = 1
    if storage.nodes is not None:
        row["nodes"] = ",".join(sorted(storage.nodes))
    if storage.disabled:
        row["disable"] = 1
    return row


def digest(world: World) -> str:
    """The digest of storage.cfg, the same for all entries."""
    lines = [
        f"{key}: {value}"
        for storage in world.storages.values()
        for key, value in sorted(configuration(storage).items())
    ]
    return hashlib.sha1("\n".join(lines).encode(), usedforsecurity=False).hexdigest()


def write_config(world: World) -> None:
    """Write storage.cfg; `local` is then in the file and loses its priority."""
    for storage in world.storages.values():
        storage.config.pop("priority", None)
