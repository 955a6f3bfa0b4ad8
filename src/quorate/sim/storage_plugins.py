"""What PVE's storage plugins take: the options of every type, what it may hold, and its place in a new world."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quorate.sim.refusals import failure
from quorate.sim.storages import Place, Storage
from quorate.sim.world import World

# The passwords and keys of a storage go into files of their own, never into its configuration.
SENSITIVE = frozenset({"password", "encryption-key", "master-pubkey", "keyring"})

_COMMON = "nodes disable content bwlimit"
_FILES = f"{_COMMON} content-dirs prune-backups max-protected-backups format mkdir create-base-path create-subdirs"
_GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Plugin:
    """One type of storage: required options (all of them fixed once set), optional ones, possible content."""

    required: frozenset[str]
    optional: frozenset[str]
    fixed: frozenset[str]
    contents: tuple[str, ...]
    default: tuple[str, ...]
    shared: bool = False
    reachable: bool = True


def _plugin(
    required: str,
    optional: str,
    contents: str,
    default: str,
    *,
    fixed: str = "",
    shared: bool = False,
    reachable: bool = True,
) -> Plugin:
    needed = frozenset(required.split())
    return Plugin(
        needed,
        frozenset(optional.split()),
        needed | frozenset(fixed.split()),
        tuple(contents.split()),
        tuple(default.split()),
        shared,
        reachable,
    )


_ANY_FILE = "images rootdir vztmpl iso backup snippets import none"
_DISKS = "images rootdir none"

PLUGINS: Mapping[str, Plugin] = {
    "dir": _plugin(
        "path",
        f"{_FILES} shared is_mountpoint preallocation snapshot-as-volume-chain",
        _ANY_FILE,
        "images rootdir",
    ),
    "btrfs": _plugin("path", f"{_FILES} shared is_mountpoint nocow preallocation", _ANY_FILE, "images rootdir"),
    "nfs": _plugin(
        "server export",
        f"{_FILES} path options preallocation snapshot-as-volume-chain",
        _ANY_FILE,
        "images",
        fixed="path",
        shared=True,
    ),
    "cifs": _plugin(
        "server share",
        f"{_FILES} path subdir username password domain smbversion options preallocation snapshot-as-volume-chain",
        _ANY_FILE,
        "images",
        fixed="path",
        shared=True,
    ),
    "lvm": _plugin(
        "vgname",
        f"{_COMMON} shared base saferemove saferemove-stepsize saferemove_throughput tagged_only"
        " snapshot-as-volume-chain",
        _DISKS,
        "images rootdir",
        fixed="base",
    ),
    "lvmthin": _plugin("thinpool vgname", _COMMON, _DISKS, "images rootdir"),
    "zfspool": _plugin("pool", f"{_COMMON} blocksize sparse mountpoint", _DISKS, "images rootdir"),
    "pbs": _plugin(
        "server datastore",
        f"{_COMMON} namespace port username password fingerprint encryption-key master-pubkey prune-backups"
        " max-protected-backups",
        "backup none",
        "backup",
        shared=True,
    ),
    "cephfs": _plugin(
        "",
        f"{_FILES} path monhost username keyring fuse subdir fs-name options",
        "vztmpl iso backup snippets import none",
        "backup",
        shared=True,
        reachable=False,
    ),
    "rbd": _plugin(
        "",
        f"{_COMMON} monhost pool data-pool namespace username keyring krbd",
        _DISKS,
        "images",
        shared=True,
        reachable=False,
    ),
    "iscsi": _plugin("portal target", _COMMON, "images none", "images", shared=True, reachable=False),
    "iscsidirect": _plugin("portal target", _COMMON, "images", "images", shared=True, reachable=False),
    "zfs": _plugin(
        "iscsiprovider pool portal target",
        f"{_COMMON} blocksize sparse nowritecache comstar_hg comstar_tg lio_tpg zfs-base-path",
        "images none",
        "images",
        shared=True,
        reachable=False,
    ),
    "esxi": _plugin(
        "server username",
        f"{_COMMON} password skip-cert-verification port",
        "import none",
        "import",
        shared=True,
        reachable=False,
    ),
}


def check_options(kind: str, options: Mapping[str, Any], *, create: bool) -> None:
    """Refuse what this type does not know, what must not change any more, and what is missing."""
    plugin = PLUGINS[kind]
    for name in options:
        if name not in plugin.required | plugin.optional:
            raise failure(f"unexpected property '{name}'")
        if not create and name in plugin.fixed:
            raise failure(f"can't change value of fixed parameter '{name}'")
    if create:
        for name in sorted(plugin.required):
            if name not in options:
                raise failure(f"missing value for required option '{name}'")


def check_deletions(kind: str, names: list[str], options: Mapping[str, Any]) -> None:
    """Refuse to delete what is unknown, needed, fixed, or set in the same call."""
    plugin = PLUGINS[kind]
    for name in names:
        if name not in plugin.required | plugin.optional:
            raise failure(f"no such option '{name}'")
        if name in plugin.required:
            raise failure(f"unable to delete required option '{name}'")
        if name in plugin.fixed:
            raise failure(f"unable to delete fixed option '{name}'")
        if name in options:
            raise failure(f"cannot set and delete property '{name}' at the same time!")


def content_of(kind: str, wanted: list[str]) -> tuple[str, ...]:
    """The content types that a storage of this type gets; PVE drops those it cannot have."""
    plugin = PLUGINS[kind]
    if not wanted:
        return plugin.default
    kept = tuple(dict.fromkeys(name for name in wanted if name in plugin.contents))
    if "none" in kept and len(kept) > 1:
        raise failure("unable to combine 'none' with other content types")
    if not kept and "none" not in plugin.contents:
        raise failure("storage does not support content type 'none'")
    return kept


def attach(world: World, storage: Storage) -> None:
    """Give a new storage its space, or say why it cannot be activated."""
    if not PLUGINS[storage.type].reachable:
        raise failure(f"storage '{storage.id}' is not online")
    if storage.type == "zfspool" and _same_backing(world, storage) is None:
        pool = str(storage.config["pool"]).partition("/")[0]
        raise failure(
            f"could not activate storage '{storage.id}', zfs error: cannot import '{pool}': no such pool available\n"
        )
    for place in [""] if storage.shared else list(world.nodes):
        storage.places[place] = _new_place(world, storage, place)


def _new_place(world: World, storage: Storage, place: str) -> Place:
    if storage.type in ("dir", "btrfs") and place:
        node = world.nodes[place]
        return Place(node.disk, node.disk_used)
    if storage.type in ("lvm", "lvmthin", "zfspool"):
        sibling = _same_backing(world, storage)
        total = sibling.places[place].total if sibling and place in sibling.places else 0
        return Place(total, 0)
    return Place(4000 * _GIB, 400 * _GIB)


def _same_backing(world: World, storage: Storage) -> Storage | None:
    """Another storage on the same volume group or pool, which shows that it is there."""
    key = "pool" if storage.type == "zfspool" else "vgname"
    wanted = str(storage.config.get(key, "")).partition("/")[0]
    for other in world.storages.values():
        if other.id != storage.id and str(other.config.get(key, "")).partition("/")[0] == wanted:
            return other
    return None


def share(storage: Storage) -> None:
    """What was on single nodes is now seen by all of them; nothing is lost on the way."""
    if storage.shared:
        return
    old = list(storage.places.values())
    whole = Place(max(place.total for place in old), max(place.base_used for place in old))
    for place in old:
        whole.volumes |= place.volumes
    whole.volumes_used = sum(volume.used for volume in whole.volumes.values())
    storage.places, storage.shared = {"": whole}, True


def unshare(storage: Storage, nodes: list[str]) -> None:
    """The volumes of a storage that is no longer shared stay with the first node."""
    whole = storage.places.pop("")
    storage.shared = False
    for node in nodes:
        storage.places[node] = whole if node == nodes[0] else Place(whole.total, whole.base_used)


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
    """The fingerprint of storage.cfg, the same for all its entries."""
    lines = [
        f"{key}: {value}"
        for storage in world.storages.values()
        for key, value in sorted(configuration(storage).items())
    ]
    return hashlib.sha1("\n".join(lines).encode(), usedforsecurity=False).hexdigest()


def write_down(world: World) -> None:
    """After the first change the storage `local` stands in the file, no longer only in PVE's mind with its priority."""
    for storage in world.storages.values():
        storage.config.pop("priority", None)
