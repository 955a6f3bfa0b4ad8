"""Pools and their members."""

from __future__ import annotations

from typing import Any

import msgspec

from pve_simulator.access.directory import Pool
from pve_simulator.cluster.config_files import changing
from pve_simulator.cluster.resources import rows_of
from pve_simulator.guests.guest import Guest
from pve_simulator.http.parameters import split_list
from pve_simulator.http.permission_check import require_modify
from pve_simulator.http.refusals import existing, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.storage.storages import Storage
from pve_simulator.world import Node, World

_ONLY_IN_RESOURCES = frozenset({"pool", "tags", "lock", "hastate"})


@route("GET /pools")
def list_pools(call: Call) -> list[dict[str, Any]]:
    poolid = call.params.get("poolid")
    if poolid is not None:
        call.require(f"/pool/{poolid}", "Pool.Audit")
        return [_with_members(call, _existing(call, poolid))]
    return [
        _summary(pool)
        for pool in sorted(call.world.access.pools.values(), key=lambda pool: pool.id)
        if call.allowed(f"/pool/{pool.id}", "Pool.Audit")
    ]


@route("GET /pools/{poolid}")
def one_pool(call: Call) -> dict[str, Any]:
    return _with_members(call, _existing(call, call.values["poolid"]))


def _existing(call: Call, poolid: str) -> Pool:
    return existing(call.world.access.pools.get(poolid), f"pool '{poolid}' does not exist")


def _summary(pool: Pool) -> dict[str, Any]:
    return {"poolid": pool.id} | ({"comment": pool.comment} if pool.comment else {})


def _with_members(call: Call, pool: Pool) -> dict[str, Any]:
    only = call.params.get("type")
    world = call.world
    guests = [world.guests[vmid] for vmid in sorted(pool.vms & world.guests.keys())]
    members: list[Any] = _guest_rows(world, [guest for guest in guests if only in (None, guest.kind)])
    if only in (None, "storage"):
        for name in sorted(pool.storages & world.storages.keys()):
            storage = world.storages[name]
            members.append(rows_of(world).storage(storage, _answering_node(call, storage)))
    return {**_summary(pool), "members": members}


def _guest_rows(world: World, guests: list[Guest]) -> list[dict[str, Any]]:
    """The guests as in /cluster/resources, without the fields that only that list has."""
    rows = (msgspec.json.decode(row, type=dict[str, Any]) for row in rows_of(world).guests(guests))
    return [{key: value for key, value in row.items() if key not in _ONLY_IN_RESOURCES} for row in rows]


def _answering_node(call: Call, storage: Storage) -> Node:
    """A member storage is shown once: from the node that answers, or from the first that has it."""
    if storage.nodes is None or call.local_node.name in storage.nodes:
        return call.local_node
    return next(node for name, node in sorted(call.world.nodes.items()) if name in storage.nodes)


@route("POST /pools")
def create_pool(call: Call) -> None:
    pools, name = call.world.access.pools, call.params["poolid"]
    with changing("create pool failed"):
        if name in pools:
            raise failure(f"pool '{name}' already exists")
        parent = name.rpartition("/")[0]
        if parent and parent not in pools:
            raise failure(f"parent '{parent}' of pool '{name}' does not exist")
        pools[name] = Pool(name, call.params.get("comment") or None)
    call.world.access.invalidate_cache()


@route("PUT /pools", "PUT /pools/{poolid}")
def update_pool(call: Call) -> None:
    with changing("update pools failed"):
        pool = _existing(call, call.params["poolid"])
        vms = [int(vmid) for vmid in split_list(call.params.get("vms"))]
        storages = split_list(call.params.get("storage"))
        # Check everything before changing anything: PVE writes the file once, at the end.
        for vmid in vms:
            _check_guest(call, pool, vmid)
        for storage in storages:
            _check_storage(call, pool, storage)
        if "comment" in call.params:
            pool.comment = call.params["comment"] or None
        _move(call, pool, vms, storages)
    call.world.access.invalidate_cache()


@route("DELETE /pools", "DELETE /pools/{poolid}")
def delete_pool(call: Call) -> None:
    world = call.world
    with changing("delete pool failed"):
        pool = _existing(call, call.params["poolid"])
        for name in sorted(world.access.pools):
            if name.startswith(f"{pool.id}/"):
                raise failure(f"pool '{pool.id}' is not empty (contains pool '{name}')")
        for vmid in sorted(pool.vms & world.guests.keys()):
            raise failure(f"pool '{pool.id}' is not empty (contains VM {vmid})")
        for storage in sorted(pool.storages & world.storages.keys()):
            raise failure(f"pool '{pool.id}' is not empty (contains storage '{storage}')")
    del world.access.pools[pool.id]
    world.access.forget(lambda entry: entry.path == f"/pool/{pool.id}")


def _check_guest(call: Call, pool: Pool, vmid: int) -> None:
    access = call.world.access
    require_modify(access, call.authid, f"/vms/{vmid}")
    if call.params.get("delete"):
        if vmid not in pool.vms:
            raise failure(f"VM {vmid} is not a pool member")
        return
    if vmid in pool.vms:
        raise failure(f"VM {vmid} is already a pool member")
    other = access.pool_of(vmid)
    if other is None:
        return
    if not call.params.get("allow-move"):
        raise failure(f"VM {vmid} belongs already to pool '{other}' and 'allow-move' is not set")
    call.require(f"/pool/{other}", "Pool.Allocate")


def _check_storage(call: Call, pool: Pool, storage: str) -> None:
    require_modify(call.world.access, call.authid, f"/storage/{storage}")
    if call.params.get("delete"):
        if storage not in pool.storages:
            raise failure(f"Storage '{storage}' is not a pool member")
    elif storage in pool.storages:
        raise failure(f"Storage '{storage}' is already a pool member")


def _move(call: Call, pool: Pool, vms: list[int], storages: list[str]) -> None:
    if call.params.get("delete"):
        pool.vms.difference_update(vms)
        pool.storages.difference_update(storages)
        return
    for other in call.world.access.pools.values():
        other.vms.difference_update(vms)  # a guest is in one pool only, a storage may be in several
    pool.vms.update(vms)
    pool.storages.update(storages)
