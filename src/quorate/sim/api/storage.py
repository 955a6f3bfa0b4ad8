"""Storages: their configuration, how full they are on a node, and what they hold."""

from __future__ import annotations

import re
from typing import Any

from quorate.sim import archives, storage_plugins, volume_names
from quorate.sim.refusals import bad_parameters, failure
from quorate.sim.routing import Call, route
from quorate.sim.storages import Storage, Volume
from quorate.sim.world import World

_LIST_SEPARATOR = re.compile(r"[,;\s]+")
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
    return _configuration(call.world, _existing(call))


def _configuration(world: World, storage: Storage) -> dict[str, Any]:
    return {**storage_plugins.configuration(storage), "digest": storage_plugins.digest(world)}


@route("GET /nodes/{node}/storage")
def list_on_node(call: Call) -> list[dict[str, Any]]:
    only = call.params.get("storage")
    if only is not None and only not in call.world.storages:
        raise bad_parameters({"storage": "No such storage."})
    wanted = {part for part in _LIST_SEPARATOR.split(call.params.get("content", "")) if part}
    return [
        _with_fraction({"storage": storage.id, **_status(storage, call.node)})
        for storage in call.world.storages.values()
        if only in (None, storage.id)
        and storage.on_node(call.node)
        and not (call.params.get("enabled") and storage.disabled)
        and (not wanted or wanted & set(storage.content))
        and _reaches_target(call, storage)
        and call.allowed(f"/storage/{storage.id}", *_READERS)
    ]


def _reaches_target(call: Call, storage: Storage) -> bool:
    """With `target`, only what the other node has as well."""
    target = call.params.get("target")
    return target is None or target == call.node or (storage.shared and storage.on_node(target))


@route("GET /nodes/{node}/storage/{storage}/status")
def storage_status(call: Call) -> dict[str, Any]:
    storage = call.world.storages.get(call.values["storage"])
    if storage is None or not storage.on_node(call.node):
        raise bad_parameters({"storage": "No such storage."})
    return _status(storage, call.node)


def _status(storage: Storage, node: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "type": storage.type,
        "content": ",".join(storage.content),
        "shared": int(storage.shared),
        "enabled": int(not storage.disabled),
        "active": int(not storage.disabled),
    }
    if storage.disabled:
        return row | {"total": 0, "used": 0, "avail": 0}
    place = storage.place(node)
    row["active"] = int(place.total > 0)  # what stands behind it may not be there, such as a volume group
    return row | {"total": place.total, "used": place.used, "avail": place.available}


def _with_fraction(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"used_fraction": row["used"] / row["total"]} if row["total"] else row


@route("GET /nodes/{node}/storage/{storage}/content")
def content(call: Call) -> list[dict[str, Any]]:
    storage = volume_names.storage_of_path(call)
    kind, vmid = call.params.get("content"), call.params.get("vmid")
    volumes = [
        volume
        for volume in storage.volumes(call.node)
        if kind in (None, volume.content) and vmid in (None, volume.vmid) and volume_names.may_read(call, volume.volid)
    ]
    return [_volume_row(storage, volume) for volume in sorted(volumes, key=lambda volume: volume.volid)]


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
        row |= {"notes": volume.notes} if volume.notes else {}
        row |= {"protected": 1} if volume.protected else {}
        if volume.verified is not None:
            row["verification"] = {"state": "ok" if volume.verified else "failed"}
    return row


def _existing(call: Call) -> Storage:
    storage = call.world.storages.get(call.values["storage"])
    if storage is None:
        raise failure(f"storage '{call.values['storage']}' does not exist")
    return storage
