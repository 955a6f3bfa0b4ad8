"""The storages of a node: status, load, scans for new ones, and pruning of backups."""

from __future__ import annotations

from typing import Any

from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, existing, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.nodes.tasks import TaskContext
from pve_simulator.storage import archives, plugins, retention, volume_access, volumes
from pve_simulator.storage.storages import Storage, Volume
from pve_simulator.world import World

_READERS = ("Datastore.Audit", "Datastore.AllocateSpace")


@route("GET /storage")
def list_configurations(call: Call) -> list[dict[str, Any]]:
    wanted = call.params.get("type")
    return [
        _configuration(call.world, storage)
        for storage in call.world.storages.values()
        if wanted in (None, storage.type) and call.allowed(f"/storage/{storage.id}", *_READERS)
    ]


@route("GET /storage/{storage}")
def configuration(call: Call) -> dict[str, Any]:
    return _configuration(call.world, call.world.storage(call.values["storage"]))


def _configuration(world: World, storage: Storage) -> dict[str, Any]:
    return {**plugins.configuration(storage), "digest": plugins.digest(world)}


@route("GET /nodes/{node}/storage")
def list_on_node(call: Call) -> list[dict[str, Any]]:
    only = call.params.get("storage")
    if only is not None and only not in call.world.storages:
        raise bad_parameters({"storage": "No such storage."})
    wanted = set(split_list(call.params.get("content")))
    return [
        _with_fraction({"storage": storage.id, **_status(storage, call.node), **_formats(call, storage)})
        for storage in call.world.storages.values()
        if only in (None, storage.id)
        and (_is_enabled(storage, call.node) or not (call.params.get("enabled") or wanted))
        and (not wanted or wanted & set(storage.content))
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
    return _status(storage, call.node)


def _status(storage: Storage, node: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "type": storage.type,
        "content": ",".join(storage.content),
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


@route("GET /nodes/{node}/storage/{storage}/content")
def content(call: Call) -> list[dict[str, Any]]:
    storage = volume_access.storage_of_path(call)
    kind, vmid = call.params.get("content"), call.params.get("vmid")
    found = [
        volume
        for volume in storage.volumes(call.node)
        if kind in (None, volume.content) and vmid in (None, volume.vmid) and volume_access.may_read(call, volume.volid)
    ]
    return [_volume_row(storage, volume) for volume in sorted(found, key=lambda volume: volume.volid)]


def _volume_row(storage: Storage, volume: Volume) -> dict[str, Any]:
    row: dict[str, Any] = {
        "volid": volume.volid,
        "content": volume.content,
        "format": volume.format,
        "size": volume.size,
        "ctime": archives.made_at(volume) if volume.content == "backup" else volume.ctime,
    }
    if volume.vmid is not None:
        row["vmid"] = volume.vmid
    if volume.content in ("images", "rootdir"):
        row["parent"] = volume.parent
        if storage.type != "lvmthin":
            row["used"] = volume.used
    if volume.content == "backup":
        row["subtype"] = "lxc" if "-lxc-" in volume.volid or "/ct/" in volume.volid else "qemu"
        row |= {"notes": volume.notes.split("\n")[0]} if volume.notes else {}  # lists show the first line
        row |= {"protected": 1} if volume.protected else {}
        if volume.verified is not None:
            row["verification"] = {"state": "ok" if volume.verified else "failed"}
    return row


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
    found: dict[str, None] = {}
    for name in _names(call, "pool"):
        parts = name.split("/")
        found.update(dict.fromkeys("/".join(parts[: depth + 1]) for depth in range(len(parts))))
    return [{"pool": name} for name in found]


# Scans of servers: the field of the answer, the storage option behind it, and PVE's error if no server answers.
_SCANS = {
    "nfs": ("path", "export", "command '/sbin/showmount --no-headers --exports {server}' failed: exit code 1"),
    "cifs": ("share", "share", "do_connect: Connection to {server} failed (Error NT_STATUS_HOST_UNREACHABLE)"),
    "pbs": ("store", "datastore", f"error fetching datastores - {plugins.UNREACHABLE}"),
}
_EXTRA_FIELDS = {"nfs": {"options": "192.168.10.0/24"}, "cifs": {"description": ""}, "pbs": {}}


@route(*(f"GET /nodes/{{node}}/scan/{kind}" for kind in _SCANS))
def shares(call: Call) -> list[dict[str, str]]:
    server, kind = call.params["server"], call.endpoint.template.rpartition("/")[2]
    key, option, unreachable = _SCANS[kind]
    found = [
        {key: str(storage.config[option]), **_EXTRA_FIELDS[kind]}
        for storage in call.world.storages.values()
        if storage.type == kind and storage.config.get("server") == server
    ]
    if not found:
        raise failure(unreachable.format(server=server, port=call.params.get("port", 8007)))
    return found


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
    found = retention.mark_backups(storage, call.node, keep, vmid=call.params.get("vmid"), kind=call.params.get("type"))
    return [retention.row(volume, mark) for volume, mark in found]


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
        found = retention.mark_backups(storage, call.node, keep, vmid=vmid, kind=call.params.get("type"))
        for volume, mark in found:
            if mark == "remove":
                context.log(f"removing backup '{volume.volid}'")
                await context.sleep(0.2)
                storage.remove(call.node, volume.volid)

    return call.start_task("prunebackups", storage_id if vmid is None else f"{vmid}@{storage_id}", work)
