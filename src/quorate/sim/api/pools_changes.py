"""Changing pools, addressed by path or (the only way for nested ones) by parameter."""

from __future__ import annotations

from quorate.sim.access import Pool
from quorate.sim.config_files import changing, split_list
from quorate.sim.permission_check import require_modify
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route


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
    call.world.access.changed()


@route("PUT /pools", "PUT /pools/{poolid}")
def update_pool(call: Call) -> None:
    with changing("update pools failed"):
        pool = _existing(call)
        vms = [int(vmid) for vmid in split_list(call.params.get("vms"))]
        storages = split_list(call.params.get("storage"))
        # Look at everything before anything is changed: PVE writes the file once, at the end.
        for vmid in vms:
            _check_guest(call, pool, vmid)
        for storage in storages:
            _check_storage(call, pool, storage)
        if "comment" in call.params:
            pool.comment = call.params["comment"] or None
        _move(call, pool, vms, storages)
    call.world.access.changed()


@route("DELETE /pools", "DELETE /pools/{poolid}")
def delete_pool(call: Call) -> None:
    world = call.world
    with changing("delete pool failed"):
        pool = _existing(call)
        for name in sorted(world.access.pools):
            if name.startswith(f"{pool.id}/"):
                raise failure(f"pool '{pool.id}' is not empty (contains pool '{name}')")
        for vmid in sorted(pool.vms & world.guests.keys()):
            raise failure(f"pool '{pool.id}' is not empty (contains VM {vmid})")
        for storage in sorted(pool.storages & world.storages.keys()):
            raise failure(f"pool '{pool.id}' is not empty (contains storage '{storage}')")
    del world.access.pools[pool.id]
    world.access.forget(lambda entry: entry.path == f"/pool/{pool.id}")


def _existing(call: Call) -> Pool:
    name = call.params["poolid"]
    pool = call.world.access.pools.get(name)
    if pool is None:
        raise failure(f"pool '{name}' does not exist")
    return pool


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
