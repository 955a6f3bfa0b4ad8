"""A storage of type pbs whose backups are on a simulated Proxmox Backup Server: the server's snapshots are the truth.

What clients change at the server, such as notes, protection, a verification or a prune, shows in the storage at the
next look, and what PVE stores or removes is on the server at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from pve_simulator.guests.guest import Value, size_of_drive
from pve_simulator.http.refusals import Refusal, failure
from pve_simulator.pbs.archives import Tree
from pve_simulator.pbs.datastores import Datastore, Snapshot, container_snapshot, vm_snapshot
from pve_simulator.pbs.routes.datastore import list_datastores as visible_datastores
from pve_simulator.pbs.routing import Call
from pve_simulator.pbs.server import BackupServer
from pve_simulator.storage.archives import Archive, made_at, open_archive
from pve_simulator.storage.storages import Storage, StorageSpace, Volume
from pve_simulator.world import World

PORT: Final = 8007
_CONTAINER_FILES = "root.pxar.didx"
_FORMATS = {"vm": "pbs-vm", "ct": "pbs-ct"}


@dataclass(frozen=True, slots=True)
class Snapshots:
    """The snapshots of one namespace of a datastore as the volumes of a storage."""

    world: World
    server: BackupServer
    datastore: Datastore
    storage: str
    namespace: str
    owner: str

    def refresh(self, space: StorageSpace) -> None:
        """Let the volumes of the storage be the snapshots of guests that the server has now."""
        sizes = self.server.sizes()
        space.total, space.base_used, space.volumes_used = sizes["total"], sizes["total"] - sizes["avail"], 0
        known, space.volumes = space.volumes, {}
        for snapshot in self._of_guests():
            volid = f"{self.storage}:backup/{snapshot.name}"
            volume = known.get(volid) or self._volume(volid, snapshot)
            volume.size = volume.used = snapshot.size
            volume.notes, volume.protected = snapshot.notes or None, snapshot.protected
            volume.verified = None if snapshot.verification is None else snapshot.verification["state"] == "ok"
            volume.verified_by = "" if snapshot.verification is None else str(snapshot.verification["upid"])
            volume.encrypted = snapshot.fingerprint if snapshot.crypt_mode == "encrypt" else ""
            space.volumes[volid] = volume

    def check_listing(self) -> None:
        """PVE accepts a storage in a namespace that does not exist, and fails to list it."""
        if self.namespace not in self.datastore.namespaces:
            raise failure("error listing snapshots - 400 Bad Request")

    def _of_guests(self) -> Iterator[Snapshot]:
        for group in self.datastore.namespaces.get(self.namespace, {}).values():
            if group.type in _FORMATS and group.id.isdecimal():
                yield from (snapshot for snapshot in group.in_order() if not snapshot.running)

    def _volume(self, volid: str, snapshot: Snapshot) -> Volume:
        """A backup that PVE did not make; its configuration and files are those that the client sent."""
        blob = snapshot.find("qemu-server.conf.blob" if snapshot.type == "vm" else "pct.conf.blob")
        lines = (blob.content or b"").decode().splitlines() if blob is not None else []
        pairs = (line.partition(": ") for line in lines if not line.startswith("#"))
        config: dict[str, Value] = {key: value for key, colon, value in pairs if colon}
        files = next((tree.root for tree in snapshot.trees.values()), None)
        archive = Archive("qemu" if snapshot.type == "vm" else "lxc", int(snapshot.id), config, files=files)
        volume = Volume(volid, "backup", _FORMATS[snapshot.type], 0, 0, snapshot.time, vmid=int(snapshot.id))
        volume.archive = archive
        return volume

    def store(self, volume: Volume) -> None:
        archive, time, vmid = open_archive(self.world, volume), made_at(volume), str(volume.vmid)
        if archive.kind == "lxc":
            tree = Tree() if archive.files is None else Tree(archive.files)
            snapshot = container_snapshot(vmid, time, archive.text, tree)
            packed = snapshot.find(_CONTAINER_FILES)
            if packed is not None:  # only a few of the files are simulated
                packed.size = max(packed.size, volume.size)
        else:
            disks = {f"drive-{drive.key}": size_of_drive(drive.text) for drive in archive.drives()}
            snapshot = vm_snapshot(vmid, time, archive.text, disks)
        snapshot.notes, snapshot.protected = volume.notes or "", volume.protected
        self.datastore.add(snapshot, owner=self.owner, namespace=self.namespace)
        task = self.server.tasks.record("backup", f"{self.datastore.name}:{snapshot.type}/{vmid}", self.owner, at=time)
        if volume.verified is not None:
            snapshot.verification = {"state": "ok" if volume.verified else "failed", "upid": task.upid}

    def remove(self, volume: Volume) -> None:
        snapshot = self._find(volume)
        if snapshot is not None:
            group = self.datastore.group(self.namespace, snapshot.type, snapshot.id)
            self.datastore.remove(self.namespace, group, snapshot, self.server.clock.now())

    def update(self, volume: Volume) -> None:
        """Notes and protection are set at the server."""
        snapshot = self._find(volume)
        if snapshot is not None:
            snapshot.notes, snapshot.protected = volume.notes or "", volume.protected

    def _find(self, volume: Volume) -> Snapshot | None:
        kind, vmid, _ = volume.name.removeprefix("backup/").split("/")
        return self.datastore.snapshot(self.namespace, kind, vmid, made_at(volume))


class BackupServers:
    """The simulated backup servers that the nodes of a cluster reach, by address."""

    def __init__(self, _: World) -> None:
        self.reachable: dict[tuple[str, int], BackupServer] = {}

    def list_datastores(self, options: Mapping[str, Any], password: str) -> list[dict[str, Any]] | None:
        """What the server at the address of a storage shows to its user or token; None if none is simulated there.

        Raises PVE's words for a port, a certificate or a login that is not accepted.
        """
        failed = "error fetching datastores -"
        host, port = _address(options)
        server = self.reachable.get((host, port))
        if server is None and any(host == other for other, _ in self.reachable):
            raise failure(f"{failed} 500 Can't connect to {host}:{port} (Connection refused)")
        if server is None:
            return None
        if str(options.get("fingerprint", "")).lower() != server.fingerprint.lower():
            raise failure(f"{failed} fingerprint '{server.fingerprint.upper()}' not verified, abort!")
        auth_id = str(options.get("username", ""))
        if not server.access.knows_secret(auth_id, password):
            raise failure(f"{failed} 401 Unauthorized")
        rows: list[dict[str, Any]] = visible_datastores(Call(server, auth_id, {}))
        return rows


def connect(world: World, server: BackupServer) -> list[Storage]:
    """Let the storages of type pbs keep their backups on this server; what they have now is moved there.

    From then on, the nodes reach it at its address and at those of these storages.
    """
    connected = [storage for storage in world.storages.values() if storage.type == "pbs" and storage.backups is None]
    reachable = world.part(BackupServers).reachable
    spaces = [storage.space(next(iter(world.nodes))) for storage in connected]
    total, used = sum(space.total for space in spaces), sum(space.used for space in spaces)
    for storage, space in zip(connected, spaces, strict=True):
        name = str(storage.config["datastore"])
        datastore = server.datastores.get(name) or server.add_datastore(name)
        storage.config["fingerprint"] = server.fingerprint
        reachable[_address(storage.config)] = server
        backups = _backups(world, server, datastore, storage)
        datastore.namespaces.setdefault(backups.namespace, {})
        for volume in sorted(space.volumes.values(), key=made_at):
            backups.store(volume)
        storage.backups = backups
    if total:
        server.resize_disk(total, used)
    url = urlsplit(server.url)
    reachable[str(url.hostname), int(url.port or PORT)] = server
    return connected


def attach(world: World, storage: Storage, password: str) -> bool:
    """Let a new storage use the simulated server at its address, if there is one, or refuse it in PVE's words."""
    servers, name = world.part(BackupServers), str(storage.config["datastore"])
    try:
        visible = servers.list_datastores(storage.config, password)
    except Refusal as refusal:
        raise failure(f"{storage.id}: {refusal.message.rstrip()}") from refusal
    if visible is None:
        return False
    if name not in {row["store"] for row in visible}:
        raise failure(f"{storage.id}: Cannot find datastore '{name}', check permissions and existence!")
    server = servers.reachable[_address(storage.config)]
    storage.backups = _backups(world, server, server.datastores[name], storage)
    return True


def _backups(world: World, server: BackupServer, datastore: Datastore, storage: Storage) -> Snapshots:
    namespace, owner = str(storage.config.get("namespace", "")), str(storage.config.get("username", "root@pam"))
    return Snapshots(world, server, datastore, storage.id, namespace, owner)


def _address(options: Mapping[str, Any]) -> tuple[str, int]:
    return str(options["server"]), int(options.get("port", PORT))
