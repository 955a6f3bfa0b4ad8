"""Scans: what a node finds behind it that could become a storage."""

from __future__ import annotations

from typing import Any

from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route
from quorate.sim.storages import Storage

_METHODS = ("cifs", "iscsi", "lvm", "nfs", "pbs", "zfs")


@route("GET /nodes/{node}/scan")
def index(_call: Call) -> list[dict[str, str]]:
    return [{"method": name} for name in _METHODS]


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
    """Pools and the datasets in them, the way the zfs tool lists them."""
    found: dict[str, None] = {}
    for name in _names(call, "pool"):
        parts = name.split("/")
        found.update(dict.fromkeys("/".join(parts[: depth + 1]) for depth in range(len(parts))))
    return [{"pool": name} for name in found]


@route("GET /nodes/{node}/scan/nfs")
def exports(call: Call) -> list[dict[str, str]]:
    server = call.params["server"]
    found = _at_server(call, "nfs", server)
    if not found:
        raise failure(f"command '/sbin/showmount --no-headers --exports {server}' failed: exit code 1")
    return [{"path": str(storage.config["export"]), "options": "192.168.10.0/24"} for storage in found]


@route("GET /nodes/{node}/scan/cifs")
def shares(call: Call) -> list[dict[str, str]]:
    server = call.params["server"]
    found = _at_server(call, "cifs", server)
    if not found:
        raise failure(f"do_connect: Connection to {server} failed (Error NT_STATUS_HOST_UNREACHABLE)")
    return [{"share": str(storage.config["share"]), "description": ""} for storage in found]


@route("GET /nodes/{node}/scan/pbs")
def datastores(call: Call) -> list[dict[str, Any]]:
    server, port = call.params["server"], call.params.get("port", 8007)
    found = _at_server(call, "pbs", server)
    if not found:
        raise failure(f"error fetching datastores - 500 Can't connect to {server}:{port} (No route to host)")
    return [{"store": str(storage.config["datastore"])} for storage in found]


@route("GET /nodes/{node}/scan/iscsi")
def targets(_call: Call) -> list[dict[str, str]]:
    """A portal that does not answer has no targets, and in a simulated network none answers."""
    return []


def _here(call: Call) -> list[Storage]:
    return [storage for storage in call.world.storages.values() if storage.on_node(call.node)]


def _names(call: Call, option: str) -> list[str]:
    """The different values of an option, of storages that really exist on this node."""
    return list(
        dict.fromkeys(
            str(storage.config[option])
            for storage in _here(call)
            if option in storage.config and not storage.shared and storage.place(call.node).total
        )
    )


def _at_server(call: Call, kind: str, server: str) -> list[Storage]:
    return [
        storage
        for storage in call.world.storages.values()
        if storage.type == kind and storage.config.get("server") == server
    ]
