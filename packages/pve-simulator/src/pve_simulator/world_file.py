"""Worlds as documents: read from YAML or JSON, checked against a schema, and dumped again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from pve_simulator.access.directory import ROOT, Pool, Token, User
from pve_simulator.builder import DAY, Builder
from pve_simulator.guests.guest import GIB, Address, Guest, OperatingSystem, Snapshot
from pve_simulator.guests.options import option_exists
from pve_simulator.guests.status import SAVED_STATE
from pve_simulator.storage.storages import Storage, StorageFull, Volume
from pve_simulator.world import HaResource, World

_WORLDS = Path(__file__).parent / "worlds"

Options = dict[str, str | int]
Vmid = Annotated[int, msgspec.Meta(ge=100, le=999_999_999)]
Positive = Annotated[int, msgspec.Meta(gt=0)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class _Entry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, rename={"kind": "type"}):
    """Refuses fields that do not exist; a dump leaves out what is as by default."""


class NodeEntry(_Entry):
    """A node; memory in GiB."""

    name: Name
    cpus: Positive = 16
    memory: Positive = 64
    up_days: float = 21.0
    bridges: list[str] = msgspec.field(default_factory=lambda: ["vmbr0"])


class VolumeEntry(_Entry):
    """A file or disk of a storage, by its name after the storage's id; sizes in bytes."""

    name: str
    content: Literal["images", "rootdir", "iso", "vztmpl", "backup", "snippets", "import"]
    format: str
    size: int
    used: int | None = None
    node: str | None = None
    vmid: int | None = None
    parent: str | None = None
    notes: str | None = None
    protected: bool = False


class StorageEntry(_Entry):
    """A storage; space in GiB. Without `nodes` it is on all of them."""

    id: Name
    kind: str
    content: list[str]
    total: float = 100.0
    used: float = 0.0
    shared: bool = False
    disabled: bool = False
    nodes: list[str] | None = None
    options: Options = {}
    volumes: list[VolumeEntry] = []


class SnapshotEntry(_Entry):
    """A snapshot of a guest, with its configuration then."""

    name: str
    time: int
    config: Options
    description: str = ""
    parent: str | None = None
    vmstate: bool = False


class AddressEntry(_Entry):
    """An address that the agent reports."""

    interface: str
    mac: str
    ip: str
    prefix: int = 24


class SystemEntry(_Entry):
    """The operating system inside."""

    id: str = "debian"
    name: str = "Debian GNU/Linux"
    version: str = "13 (trixie)"
    version_id: str = "13"
    kernel: str = "6.12.57+deb13-amd64"
    systemd: int = 257
    agent_installed: bool = True
    agent_version: str = "10.0.2"
    obeys_shutdown: bool = True


class GuestEntry(_Entry):
    """A guest: described in short, with one disk (GiB) and `options`; or by its whole `config`, as a dump does."""

    vmid: Vmid
    kind: Literal["qemu", "lxc"]
    node: str
    name: str = ""
    running: bool = False
    template: bool = False
    cores: Positive = 2
    memory: Positive = 2048
    disk: Positive = 16
    storage: str = "local-lvm"
    ip: str | None = None
    options: Options = {}
    config: Options | None = None
    up_days: float = 9.0
    system: SystemEntry = msgspec.field(default_factory=SystemEntry)
    addresses: list[AddressEntry] = []
    snapshots: list[SnapshotEntry] = []


class TokenEntry(_Entry):
    """An API token of a user."""

    name: str
    secret: str
    privsep: bool = True
    comment: str | None = None


class UserEntry(_Entry):
    """A user, as name@realm."""

    id: str
    password: str | None = None
    enable: bool = True
    email: str | None = None
    comment: str | None = None
    groups: list[str] = []
    tokens: list[TokenEntry] = []


class PoolEntry(_Entry):
    """A pool with its members."""

    id: str
    comment: str = ""
    vms: list[int] = []
    storages: list[str] = []


class AclEntry(_Entry):
    """A role on a path; the subject is a user, a token (user@realm!name) or a group (@name)."""

    path: str
    role: str
    subject: str
    propagate: bool = True


class HaEntry(_Entry):
    """A guest under HA."""

    sid: Annotated[str, msgspec.Meta(pattern="^(vm|ct):[0-9]+$")]
    state: Literal["started", "stopped", "disabled", "ignored"] = "started"
    comment: str | None = None


class WorldFile(_Entry):
    """A cluster."""

    nodes: Annotated[list[NodeEntry], msgspec.Meta(min_length=1)]
    storages: list[StorageEntry] = []
    guests: list[GuestEntry] = []
    users: list[UserEntry] = []
    groups: dict[str, str | None] = {}
    roles: dict[str, list[str]] = {}
    pools: list[PoolEntry] = []
    acl: list[AclEntry] = []
    ha: list[HaEntry] = []

    def build(self, world: World) -> None:
        """Fill an empty world; ValueError says which entry does not fit the others."""
        builder = Builder(world)
        for node in self.nodes:
            built = builder.node(node.name, memory=node.memory, cpus=node.cpus, up_days=node.up_days)
            built.bridges = tuple(node.bridges)
        for storage in self.storages:
            _add_storage(builder, storage)
        for guest in self.guests:
            _add_guest(builder, guest)
        for storage in self.storages:
            _add_volumes(world, storage)
        self._add_access(world)
        for resource in self.ha:
            guest_id = int(resource.sid.partition(":")[2])
            if guest_id not in world.guests or world.guests[guest_id].sid != resource.sid:
                raise ValueError(f"ha: there is no guest {resource.sid}")
            options: Options = {} if resource.state == "started" else {"state": resource.state}
            world.ha[resource.sid] = HaResource(resource.sid, resource.state, resource.comment, options=options)

    def _add_access(self, world: World) -> None:
        access = world.access
        access.groups |= self.groups
        access.custom_roles |= {name: frozenset(privileges) for name, privileges in self.roles.items()}
        for user in self.users:
            tokens = {each.name: Token(each.secret, each.privsep, comment=each.comment) for each in user.tokens}
            access.users[user.id] = User(
                user.id, password=user.password, enable=user.enable, email=user.email, comment=user.comment,
                groups=set(user.groups), tokens=tokens,
            )  # fmt: skip
        for pool in self.pools:
            for vmid in pool.vms:
                if vmid not in world.guests:
                    raise ValueError(f"pool {pool.id}: there is no guest {vmid}")
            access.pools[pool.id] = Pool(pool.id, pool.comment, set(pool.vms), set(pool.storages))
        for entry in self.acl:
            if access.role(entry.role) is None:
                raise ValueError(f"acl of {entry.subject}: there is no role {entry.role}")
            access.grant(entry.path, entry.role, entry.subject, propagate=entry.propagate)
        access.invalidate_cache()


def parse(text: str) -> WorldFile:
    """A document in YAML or JSON; ValueError names the field that is wrong."""
    try:
        return msgspec.yaml.decode(text, type=WorldFile)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the world is not valid: {error}") from error


def load(name: str) -> WorldFile:
    """The document in a file, or a world that comes with the package, such as `stock`."""
    bundled = _WORLDS / f"{name}.yaml"
    path = bundled if bundled.exists() else Path(name)
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in _WORLDS.glob("*.yaml")))
        raise ValueError(f"there is neither a file {name} nor a world of this name; the package has: {known}")
    return parse(path.read_text())


def schema() -> dict[str, Any]:
    """The JSON Schema of a document."""
    return msgspec.json.schema(WorldFile)


def _require_node(world: World, name: str, what: str) -> None:
    if name not in world.nodes:
        raise ValueError(f"{what}: there is no node {name}, only {', '.join(world.nodes)}")


def _add_storage(builder: Builder, entry: StorageEntry) -> None:
    for node in entry.nodes or ():
        _require_node(builder.world, node, f"storage {entry.id}")
    storage = builder.storage(
        entry.id, entry.kind, ",".join(entry.content), total=0, shared=entry.shared, nodes=entry.nodes
    )
    storage.config = dict(entry.options)
    storage.disabled = entry.disabled
    for space in storage.spaces.values():
        space.total, space.base_used = round(entry.total * GIB), round(entry.used * GIB)


def _add_volumes(world: World, entry: StorageEntry) -> None:
    """Last, because a volume that a guest entry has created takes precedence."""
    storage = world.storages[entry.id]
    for volume in entry.volumes:
        node = volume.node or next(iter(world.nodes))
        _require_node(world, node, f"volume {volume.name}")
        volid = f"{entry.id}:{volume.name}"
        if storage.volume(node, volid) is None:
            used = volume.size if volume.used is None else volume.used
            created = int(world.clock.now() - 30 * DAY)
            stored = Volume(volid, volume.content, volume.format, volume.size, used, created, volume.vmid)
            stored.parent, stored.notes, stored.protected = volume.parent, volume.notes, volume.protected
            try:
                storage.add(node, stored)
            except StorageFull as error:
                raise ValueError(f"storage {entry.id} is too small for {volume.name}: {error}") from error


def _add_guest(builder: Builder, entry: GuestEntry) -> None:
    world, what = builder.world, f"guest {entry.vmid}"
    _require_node(world, entry.node, what)
    if entry.vmid in world.guests:
        raise ValueError(f"{what} is specified twice")
    for key in (*entry.options, *(entry.config or {})):
        if not option_exists(world, entry.kind, key) and key not in SAVED_STATE:
            raise ValueError(f"{what}: a {entry.kind} guest has no option {key}")
    system = OperatingSystem(**msgspec.structs.asdict(entry.system))
    if entry.config is None:
        if entry.storage not in world.storages:
            raise ValueError(f"{what}: there is no storage {entry.storage}")
        guest = builder.guest(
            entry.kind, entry.vmid, entry.name or f"guest-{entry.vmid}", entry.node, cores=entry.cores,
            memory=entry.memory, disk=entry.disk, storage=entry.storage, ip=entry.ip, running=entry.running,
            up_days=entry.up_days, template=entry.template, system=system, **entry.options,
        )  # fmt: skip
    else:
        guest = Guest(entry.vmid, entry.kind, entry.node, dict(entry.config), running=entry.running, system=system)
        if guest.running:
            guest.started_at = world.clock.now() - entry.up_days * DAY
            guest.pid = world.nodes[entry.node].next_pid()
        world.guests[entry.vmid] = guest
    if entry.addresses:
        guest.addresses = [Address(each.interface, each.mac, each.ip, each.prefix) for each in entry.addresses]
    for snapshot in entry.snapshots:
        guest.snapshots[snapshot.name] = Snapshot(
            snapshot.name, snapshot.time, dict(snapshot.config), snapshot.description, snapshot.parent, snapshot.vmstate
        )


def dump(world: World) -> WorldFile:
    """The world as a document that builds it again: configuration and content, without running tasks and history."""
    now, access = world.clock.now(), world.access
    return WorldFile(
        nodes=[
            NodeEntry(node.name, node.cpus, node.memory // GIB, (now - node.booted_at) / DAY, list(node.bridges))
            for node in world.nodes.values()
        ],
        storages=[_dump_storage(storage) for storage in world.storages.values()],
        guests=[_dump_guest(guest, now) for guest in world.guests.values()],
        users=[_dump_user(user) for user in access.users.values() if user.userid != ROOT or user.password],
        groups=dict(access.groups),
        roles={name: sorted(privileges) for name, privileges in access.custom_roles.items()},
        pools=[
            PoolEntry(pool.id, pool.comment or "", sorted(pool.vms), sorted(pool.storages))
            for pool in access.pools.values()
        ],
        acl=[
            AclEntry(each.path, each.role, f"@{each.subject}" if each.kind == "group" else each.subject, each.propagate)
            for each in access.acl()
        ],
        ha=[HaEntry(each.sid, _HA_STATES[each.state], each.comment) for each in world.ha.values()],
    )


_HA_STATES: dict[str, Literal["started", "stopped", "disabled", "ignored"]] = {
    "started": "started", "stopped": "stopped", "disabled": "disabled", "ignored": "ignored",
}  # fmt: skip


def _dump_storage(storage: Storage) -> StorageEntry:
    first = next(iter(storage.spaces.values()))
    volumes = [
        VolumeEntry(
            volume.name, volume.content, volume.format, volume.size, volume.used, node or None, volume.vmid,  # type: ignore[arg-type]
            volume.parent, volume.notes, volume.protected,
        )
        for node, space in storage.spaces.items()
        for volume in space.volumes.values()
    ]  # fmt: skip
    nodes = None if storage.nodes is None else sorted(storage.nodes)
    return StorageEntry(
        storage.id, storage.type, list(storage.content), first.total / GIB, first.base_used / GIB, storage.shared,
        storage.disabled, nodes, dict(storage.config), volumes,
    )  # fmt: skip


def _dump_guest(guest: Guest, now: float) -> GuestEntry:
    return GuestEntry(
        guest.vmid, guest.kind, guest.node, running=guest.running, config=dict(guest.config),
        up_days=(now - guest.started_at) / DAY if guest.running else 0.0,
        system=SystemEntry(**asdict(guest.system)),
        addresses=[AddressEntry(each.interface, each.mac, each.ip, each.prefix) for each in guest.addresses],
        snapshots=[
            SnapshotEntry(each.name, each.snaptime, dict(each.config), each.description, each.parent, each.vmstate)
            for each in guest.snapshots.values()
        ],
    )  # fmt: skip


def _dump_user(user: User) -> UserEntry:
    tokens = [TokenEntry(name, each.secret, each.privsep, each.comment) for name, each in user.tokens.items()]
    return UserEntry(user.userid, user.password, user.enable, user.email, user.comment, sorted(user.groups), tokens)
