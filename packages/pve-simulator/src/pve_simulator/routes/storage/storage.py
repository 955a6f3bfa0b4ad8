"""Storages: configuration, status, scans for new ones, and pruning of backups."""

from __future__ import annotations

from typing import Any

from pve_simulator.cluster.config_files import changing, check_digest
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, existing, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.nodes.tasks import TaskContext
from pve_simulator.storage import backup_server, plugins, retention, volume_access, volumes
from pve_simulator.storage.storages import Storage
from pve_simulator.world import ListOrder, World

# Options that are fields of Storage.
_FIELDS = frozenset({"content", "nodes", "shared", "disable"})


@route("POST /storage")
def create(call: Call) -> dict[str, Any]:
    options = dict(call.params)
    storage_id, kind = options.pop("storage"), options.pop("type")
    if not options.get("nodes"):
        options.pop("nodes", None)
    plugins.check_new(kind, options)
    content = plugins.content_of(kind, _requested_content(options))
    with changing("create storage failed"):
        _add(call, storage_id, kind, content, options)
        plugins.write_config(call.world)
    return {"storage": storage_id, "type": kind, **_generated_key(options)}


def _add(call: Call, storage_id: str, kind: str, content: tuple[str, ...], options: dict[str, Any]) -> None:
    world = call.world
    if storage_id in world.storages:
        raise failure(f"storage ID '{storage_id}' already defined")
    shared = plugins.PLUGINS[kind].shared or bool(options.get("shared"))
    storage = Storage(storage_id, kind, content, shared, defined_at=world.clock.now())
    if kind in ("nfs", "cifs") and "path" not in options:
        options["path"] = f"/mnt/pve/{storage_id}"
    _set(storage, options)
    if not storage.disabled and storage.on_node(call.local_node.name):
        _activate(call, storage, str(options.get("password", "")))
    plugins.allocate_space(world, storage)
    world.storages[storage_id] = storage


def _activate(call: Call, storage: Storage, password: str) -> None:
    is_simulated = storage.type == "pbs" and backup_server.attach(call.world, storage, password)
    if not is_simulated:
        plugins.activate(call.world, call.local_node.name, storage)


def _requested_content(options: dict[str, Any]) -> list[str] | None:
    return split_list(options["content"]) if "content" in options else None


@route("PUT /storage/{storage}")
def update(call: Call) -> dict[str, Any]:
    options = dict(call.params)
    storage_id = options.pop("storage")
    given_digest, deleted = options.pop("digest", None), split_list(options.pop("delete", ""))
    with changing("update storage failed"):
        check_digest(plugins.digest(call.world), given_digest)
        storage = call.world.storage(storage_id)
        plugins.PLUGINS[storage.type].options.check_change(options, deleted)
        _change(call.world, storage, options, deleted)
        plugins.write_config(call.world)
    return {"storage": storage_id, "type": storage.type, **_generated_key(options)}


def _change(world: World, storage: Storage, options: dict[str, Any], deleted: list[str]) -> None:
    if "content" in options:
        storage.content = plugins.content_of(storage.type, _requested_content(options))
    elif "content" in deleted:
        storage.content = plugins.content_of(storage.type, None)
    for name in deleted:
        storage.config.pop(name, None)
    if "nodes" in deleted:
        storage.nodes = None
    if "disable" in deleted:
        storage.disabled = False
    wants_sharing = options.get("shared", storage.shared and "shared" not in deleted)
    if wants_sharing:
        plugins.share(storage)
    elif storage.shared and not plugins.PLUGINS[storage.type].shared:
        plugins.unshare(storage, list(world.nodes))
    _set(storage, options)


def _set(storage: Storage, options: dict[str, Any]) -> None:
    if "nodes" in options:
        storage.nodes = frozenset(split_list(options["nodes"])) or None
    if "disable" in options:
        storage.disabled = bool(options["disable"])
    for name, value in options.items():
        if name not in _FIELDS and name not in plugins.SENSITIVE:
            storage.config[name] = int(value) if isinstance(value, bool) else value


@route("DELETE /storage/{storage}")
def delete(call: Call) -> None:
    world, storage_id = call.world, call.values["storage"]
    with changing("delete storage failed"):
        world.storage(storage_id)
        if any(str(other.config.get("base", "")).startswith(f"{storage_id}:") for other in world.storages.values()):
            raise failure("can't remove storage - storage is used as base of another storage")
    del world.storages[storage_id]
    plugins.write_config(world)
    _forget_privileges(world, storage_id)


def _forget_privileges(world: World, storage_id: str) -> None:
    """Remove a deleted storage from ACLs and pools."""
    for entry in list(world.access.acl()):
        if entry.path == f"/storage/{storage_id}":
            world.access.revoke(entry.path, entry.role, entry.kind, entry.subject)
    for pool in world.access.pools.values():
        pool.storages.discard(storage_id)
    world.access.invalidate_cache()


def _generated_key(options: dict[str, Any]) -> dict[str, Any]:
    """The key of a backup server is the one secret that PVE returns."""
    key = options.get("encryption-key")
    if key is None:
        return {}
    generated = '{"kdf":null,"created":"1970-01-01T00:00:00Z","data":"c2ltdWxhdGVk"}'
    return {"config": {"encryption-key": generated if key == "autogen" else key}}


_READERS = ("Datastore.Audit", "Datastore.AllocateSpace")


@route("GET /storage")
def list_configurations(call: Call) -> list[dict[str, Any]]:
    only = call.params.get("type")
    rows = [
        _configuration(call.world, storage)
        for storage in call.world.storages.values()
        if only in (None, storage.type) and call.allowed(f"/storage/{storage.id}", *_READERS)
    ]
    return call.world.part(ListOrder).shuffle(rows)


@route("GET /storage/{storage}")
def configuration(call: Call) -> dict[str, Any]:
    return _configuration(call.world, call.world.storage(call.values["storage"]))


def _configuration(world: World, storage: Storage) -> dict[str, Any]:
    content = ",".join(world.part(ListOrder).shuffle(storage.content))
    return {**plugins.configuration(storage), "content": content, "digest": plugins.digest(world)}


@route("GET /nodes/{node}/storage")
def list_on_node(call: Call) -> list[dict[str, Any]]:
    only = call.params.get("storage")
    if only is not None and only not in call.world.storages:
        raise bad_parameters({"storage": "No such storage."})
    content = set(split_list(call.params.get("content")))
    return [
        _with_fraction({"storage": storage.id, **_status(call.world, storage, call.node), **_formats(call, storage)})
        for storage in call.world.storages.values()
        if only in (None, storage.id)
        and (_is_enabled(storage, call.node) or not (call.params.get("enabled") or content))
        and (not content or content & set(storage.content))
        and _reaches_target(call, storage)
        and call.allowed(f"/storage/{storage.id}", *_READERS)
    ]


def _reaches_target(call: Call, storage: Storage) -> bool:
    """Whether the storage is also available on the `target` node."""
    target = call.params.get("target")
    return target is None or target == call.node or (storage.shared and storage.on_node(target))


@route("GET /nodes/{node}/storage/{storage}/status")
def storage_status(call: Call) -> dict[str, Any]:
    storage = existing(call.world.storages.get(call.values["storage"]), bad_parameters({"storage": "No such storage."}))
    return _status(call.world, storage, call.node)


def _status(world: World, storage: Storage, node: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "type": storage.type,
        "content": ",".join(world.part(ListOrder).shuffle(storage.content)),
        "shared": int(storage.shared),
        "enabled": int(_is_enabled(storage, node)),
        "active": int(_is_enabled(storage, node)),
    }
    if not row["enabled"]:
        return row | {"total": 0, "used": 0, "avail": 0}
    space = storage.space(node)
    row["active"] = int(space.total > 0)  # its backend, such as a volume group, may be missing
    return row | {"total": space.total, "used": space.used, "avail": space.available}


def _is_enabled(storage: Storage, node: str) -> bool:
    """Whether the storage is enabled on this node."""
    return not storage.disabled and storage.on_node(node)


def _formats(call: Call, storage: Storage) -> dict[str, Any]:
    """With `format`, the disk formats, in the old and the new form."""
    if not call.params.get("format"):
        return {}
    possible = list(dict.fromkeys([*volumes.formats(storage, "qemu"), *volumes.formats(storage, "lxc")]))
    default = "raw" if "raw" in possible else possible[0]
    supported = {"supported": sorted(possible), "default": default}
    return {"format": [dict.fromkeys(possible, 1), default], "formats": supported}


def _with_fraction(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"used_fraction": row["used"] / row["total"]} if row["total"] else row


@route("GET /nodes/{node}/scan/lvm")
def volume_groups(call: Call) -> list[dict[str, str]]:
    return [{"vg": name} for name in _names(call, "vgname")]


@route("GET /nodes/{node}/scan/lvmthin")
def thin_pools(call: Call) -> list[dict[str, str]]:
    group = call.params["vg"]
    pools = [
        str(storage.config["thinpool"])
        for storage in _here(call)
        if storage.type == "lvmthin" and storage.config.get("vgname") == group
    ]
    return [{"lv": name} for name in dict.fromkeys(pools)]


@route("GET /nodes/{node}/scan/zfs")
def pools(call: Call) -> list[dict[str, str]]:
    """Pools and their datasets, as the zfs tool lists them."""
    names: dict[str, None] = {}
    for name in _names(call, "pool"):
        parts = name.split("/")
        names.update(dict.fromkeys("/".join(parts[: depth + 1]) for depth in range(len(parts))))
    return [{"pool": name} for name in names]


# Scans of servers: the field of the answer, the storage option behind it, and PVE's error if no server answers.
_SCANS = {
    "nfs": ("path", "export", "command '/sbin/showmount --no-headers --exports {server}' failed: exit code 1"),
    "cifs": ("share", "share", "do_connect: Connection to {server} failed (Error NT_STATUS_HOST_UNREACHABLE)"),
    "pbs": ("store", "datastore", f"error fetching datastores - {plugins.UNREACHABLE}"),
}
_EXTRA_FIELDS = {"nfs": {"options": "192.168.10.0/24"}, "cifs": {"description": ""}, "pbs": {}}


@route(*(f"GET /nodes/{{node}}/scan/{kind}" for kind in _SCANS))
def shares(call: Call) -> list[dict[str, Any]]:
    server, kind = call.params["server"], call.endpoint.template.rpartition("/")[2]
    if kind == "pbs":
        servers = call.world.part(backup_server.BackupServers)
        datastores = servers.list_datastores(call.params, str(call.params["password"]))
        if datastores is not None:
            return datastores
    key, option, unreachable = _SCANS[kind]
    rows = [
        {key: str(storage.config[option]), **_EXTRA_FIELDS[kind]}
        for storage in call.world.storages.values()
        if storage.type == kind and storage.config.get("server") == server
    ]
    if not rows:
        raise failure(unreachable.format(server=server, port=call.params.get("port", 8007)))
    return rows


def _here(call: Call) -> list[Storage]:
    return [storage for storage in call.world.storages.values() if storage.on_node(call.node)]


def _names(call: Call, option: str) -> list[str]:
    """The distinct values of an option among storages of this node."""
    return list(
        dict.fromkeys(
            str(storage.config[option])
            for storage in _here(call)
            if option in storage.config and not storage.shared and storage.space(call.node).total
        )
    )


_PRUNE = "/nodes/{node}/storage/{storage}/prunebackups"


@route(f"GET {_PRUNE}")
def preview(call: Call) -> list[dict[str, Any]]:
    storage = volume_access.storage_of_path(call)
    keep = retention.of_storage(storage, call.params.get("prune-backups"))
    marked = retention.mark_backups(
        storage, call.node, keep, vmid=call.params.get("vmid"), kind=call.params.get("type")
    )
    return [retention.row(volume, mark) for volume, mark in marked]


@route(f"DELETE {_PRUNE}")
def prune(call: Call) -> str:
    storage_id, vmid = call.values["storage"], call.params.get("vmid")
    if vmid is None:
        call.require(f"/storage/{storage_id}", "Datastore.Allocate")
    else:
        call.require(f"/storage/{storage_id}", "Datastore.AllocateSpace")
        call.require(f"/vms/{vmid}", "VM.Backup")

    async def work(context: TaskContext) -> None:
        storage = volume_access.storage_of_path(call)
        keep = retention.of_storage(storage, call.params.get("prune-backups"))
        marked = retention.mark_backups(storage, call.node, keep, vmid=vmid, kind=call.params.get("type"))
        for volume, mark in marked:
            if mark == "remove":
                context.log(f"removing backup '{volume.volid}'")
                await context.sleep(0.2)
                storage.remove(call.node, volume.volid)

    return call.start_task("prunebackups", storage_id if vmid is None else f"{vmid}@{storage_id}", work)
