"""Datastores of a Proxmox Backup Server: namespaces, groups and snapshots with their files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pve_simulator.pbs.archives import Tree
from pve_simulator.pbs.refusals import Refusal, no_such_file

TYPES = ("vm", "ct", "host")
MANIFEST = "index.json.blob"
CATALOG = "catalog.pcat1.didx"
CHUNK = 4 * 1024 * 1024
DEEPEST = 7
_BLOB_HEADER = 12
_COMPRESSED = 0.55

Key = tuple[str, str]
"""Type and id of a group."""


@dataclass(slots=True)
class StoredFile:
    """One file of a snapshot. `content` is what a client gets decoded; images and archives have none."""

    name: str
    size: int
    crypt_mode: str = "none"
    content: bytes | None = None

    def as_row(self) -> dict[str, Any]:
        return {"filename": self.name, "crypt-mode": self.crypt_mode, "size": self.size}


@dataclass(slots=True)
class Snapshot:
    """One backup."""

    type: str
    id: str
    time: int
    files: list[StoredFile] = field(default_factory=list)
    trees: dict[str, Tree] = field(default_factory=dict)
    """The content of each archive, by the name of the file that is browsed."""
    notes: str = ""
    protected: bool = False
    fingerprint: str = ""
    """Of the key that encrypted or signed it."""
    verification: dict[str, str] | None = None
    damaged: frozenset[str] = frozenset()
    """Files with chunks that are missing or wrong; nobody knows before a verification."""
    running: bool = False
    unique_bytes: int = 0
    """What only this snapshot uses on disk."""

    @property
    def name(self) -> str:
        return f"{self.type}/{self.id}/{iso(self.time)}"

    @property
    def size(self) -> int:
        return sum(file.size for file in self.all_files())

    @property
    def crypt_mode(self) -> str:
        modes = {file.crypt_mode for file in self.files}
        return "encrypt" if "encrypt" in modes else "sign-only" if "sign-only" in modes else "none"

    def all_files(self) -> list[StoredFile]:
        """The files with the manifest, which changes with notes and verification."""
        if self.running:
            return []
        manifest = json.dumps(self.manifest()).encode()
        mode = "sign-only" if self.fingerprint else "none"
        return [*self.files, StoredFile(MANIFEST, _BLOB_HEADER + int(len(manifest) * _COMPRESSED), mode, manifest)]

    def manifest(self) -> dict[str, Any]:
        described = [
            {
                "crypt-mode": file.crypt_mode,
                "csum": f"{hash_of(file.name, file.size):064x}",
                "filename": file.name,
                "size": file.size,
            }
            for file in self.files
            if file.name != "client.log.blob"
        ]
        data = sum(file.size for file in self.files if file.name.endswith("idx"))
        count, stored = -(-data // CHUNK), data // 6
        stats = {"compressed_size": stored, "count": count, "duplicates": count // 2, "size": data}
        unprotected: dict[str, Any] = {"chunk_upload_stats": stats}
        if self.notes:
            unprotected["notes"] = self.notes
        if self.verification is not None:
            unprotected["verify_state"] = self.verification
        return {
            "backup-id": self.id,
            "backup-time": self.time,
            "backup-type": self.type,
            "files": described,
            "signature": None,
            "unprotected": unprotected,
        }

    def find(self, name: str) -> StoredFile | None:
        return next((file for file in self.all_files() if file.name == name), None)


@dataclass(slots=True)
class Group:
    """The backups of one guest or host, which have one owner."""

    type: str
    id: str
    owner: str
    notes: str = ""
    snapshots: dict[int, Snapshot] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.type}/{self.id}"

    def newest(self) -> Snapshot | None:
        return self.snapshots[max(self.snapshots)] if self.snapshots else None

    def in_order(self) -> list[Snapshot]:
        return [self.snapshots[time] for time in sorted(self.snapshots)]


@dataclass(slots=True)
class GcStatus:
    """What the last garbage collection found."""

    upid: str | None = None
    index_files: int = 0
    index_bytes: int = 0
    disk_bytes: int = 0
    pending_bytes: int = 0
    removed_bytes: int = 0
    last_end: float | None = None
    last_state: str = ""
    seconds: int = 0

    def as_row(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "disk-bytes": self.disk_bytes,
            "disk-chunks": -(-self.disk_bytes // CHUNK),
            "index-data-bytes": self.index_bytes,
            "index-file-count": self.index_files,
            "pending-bytes": self.pending_bytes,
            "pending-chunks": -(-self.pending_bytes // CHUNK),
            "removed-bad": 0,
            "removed-bytes": self.removed_bytes,
            "removed-chunks": -(-self.removed_bytes // CHUNK),
            "still-bad": 0,
            "upid": self.upid,
        }
        if self.upid is not None:
            row["cache-stats"] = {"hits": self.index_files * 3, "misses": self.index_files}
        return row


@dataclass(slots=True)
class Datastore:
    """One datastore: its configuration and what it contains, by namespace ("" is the root)."""

    name: str
    config: dict[str, Any]
    namespaces: dict[str, dict[Key, Group]] = field(default_factory=lambda: {"": {}})
    gc: GcStatus = field(default_factory=GcStatus)
    garbage: list[tuple[float, int]] = field(default_factory=list)
    """When chunks lost their last use, and their bytes: garbage collection removes them a day later."""
    history: list[float | None] = field(default_factory=list)
    """The used share of the file system, every half hour."""
    full_at: float | None = None
    broken: str = ""
    """What the server says while the chunk store cannot be opened."""

    @property
    def path(self) -> str:
        return str(self.config["path"])

    @property
    def maintenance(self) -> str:
        """The mode: "", read-only or offline."""
        return str(self.config.get("maintenance-mode", "")).partition(",")[0].removeprefix("type=")

    def refuse_maintenance(self, *, write: bool) -> None:
        """Refuse what the maintenance mode or a broken disk does not allow."""
        if self.broken:
            raise Refusal(self.broken)
        if self.maintenance == "offline" or (write and self.maintenance == "read-only"):
            text = str(self.config["maintenance-mode"]).partition("message=")[2].strip('"')
            raise Refusal(f"datastore '{self.name}' is unavailable: {self.maintenance} maintenance mode: {text}")

    def groups(self, namespace: str) -> dict[Key, Group]:
        if namespace not in self.namespaces:
            raise no_such_file()
        return self.namespaces[namespace]

    def group(self, namespace: str, kind: str, backup_id: str) -> Group:
        group = self.groups(namespace).get((kind, backup_id))
        if group is None:
            raise no_such_file()
        return group

    def snapshot(self, namespace: str, kind: str, backup_id: str, time: int) -> Snapshot | None:
        group = self.namespaces.get(namespace, {}).get((kind, backup_id))
        return None if group is None else group.snapshots.get(time)

    def folder(self, namespace: str) -> str:
        """Where the groups of a namespace are on disk."""
        return self.path + "".join(f"/ns/{part}" for part in namespace.split("/") if part)

    def below(self, namespace: str, max_depth: int | None = None) -> list[str]:
        """This namespace and those below it, parents first."""
        deepest = DEEPEST if max_depth is None else max_depth
        prefix = f"{namespace}/" if namespace else ""
        names = [name for name in self.namespaces if name == namespace or name.startswith(prefix)]
        return sorted(name for name in names if depth_of(name) - depth_of(namespace) <= deepest)

    def everything(self) -> Iterator[tuple[str, Group]]:
        for namespace in sorted(self.namespaces):
            for group in self.namespaces[namespace].values():
                yield namespace, group

    def add(self, snapshot: Snapshot, *, owner: str, namespace: str = "") -> Snapshot:
        for count in range(depth_of(namespace)):
            self.namespaces.setdefault("/".join(namespace.split("/")[: count + 1]), {})
        groups = self.namespaces[namespace]
        group = groups.setdefault((snapshot.type, snapshot.id), Group(snapshot.type, snapshot.id, owner))
        group.snapshots[snapshot.time] = snapshot
        return snapshot

    def remove(self, namespace: str, group: Group, snapshot: Snapshot, now: float) -> None:
        del group.snapshots[snapshot.time]
        freed = snapshot.unique_bytes
        if not group.snapshots:
            freed = max(freed, snapshot.size // 6)
            del self.namespaces[namespace][group.type, group.id]
        if freed:
            self.garbage.append((now, freed))

    def data_bytes(self) -> int:
        """The logical size of all indexed data."""
        return sum(
            file.size
            for _, group in self.everything()
            for snapshot in group.snapshots.values()
            for file in snapshot.files
            if file.name.endswith(("idx",))
        )


def depth_of(namespace: str) -> int:
    return namespace.count("/") + 1 if namespace else 0


def iso(time: float) -> str:
    """A time as snapshots are called: 2025-01-01T00:00:00Z."""
    return datetime.fromtimestamp(int(time), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def hash_of(*parts: object) -> int:
    """A stable number for a checksum that nothing computes."""
    number = 1469598103934665603
    for char in "\0".join(map(str, parts)):
        number = (number ^ ord(char)) * 1099511628211 % 2**256
    return number


def vm_snapshot(vmid: str, time: int, config: str, disks: Mapping[str, int], **more: Any) -> Snapshot:
    """A VM's backup: its configuration and an image of each disk, such as {"drive-scsi0": 64 << 20}."""
    files = [_blob("qemu-server.conf.blob", config)]
    files += [StoredFile(f"{name}.img.fidx", size) for name, size in disks.items()]
    return Snapshot("vm", vmid, time, files, **more)


def container_snapshot(
    vmid: str, time: int, config: str, tree: Tree, *, metadata_mode: bool = False, **more: Any
) -> Snapshot:
    """A container's backup. In metadata mode the archive is split and there is no catalog."""
    blob = _blob("pct.conf.blob", config)
    files = [blob, *_archive("root", tree, metadata_mode)]
    return Snapshot("ct", vmid, time, files, _trees({"root": tree}, metadata_mode), **more)


def host_snapshot(name: str, time: int, trees: Mapping[str, Tree], **more: Any) -> Snapshot:
    """A host's backup with an archive for each folder."""
    files = [StoredFile(f"{archive}.pxar.didx", tree.size) for archive, tree in trees.items()]
    files.append(StoredFile(CATALOG, sum(tree.catalog_size for tree in trees.values())))
    return Snapshot("host", name, time, files, _trees(trees, metadata_mode=False), **more)


def with_key(snapshot: Snapshot, fingerprint: str, mode: str = "encrypt") -> Snapshot:
    """The same backup encrypted (or only signed) with a key."""
    snapshot.fingerprint = fingerprint
    for file in snapshot.files:
        file.crypt_mode = mode
    return snapshot


def _blob(name: str, text: str) -> StoredFile:
    content = text.encode()
    return StoredFile(name, _BLOB_HEADER + len(content), content=content)


def _archive(name: str, tree: Tree, metadata_mode: bool) -> Iterable[StoredFile]:
    if metadata_mode:
        return [StoredFile(f"{name}.ppxar.didx", tree.size), StoredFile(f"{name}.mpxar.didx", tree.catalog_size * 8)]
    return [StoredFile(f"{name}.pxar.didx", tree.size), StoredFile(CATALOG, tree.catalog_size)]


def _trees(trees: Mapping[str, Tree], metadata_mode: bool) -> dict[str, Tree]:
    ending = "mpxar.didx" if metadata_mode else "pxar.didx"
    return {f"{name}.{ending}": tree for name, tree in trees.items()}
