"""Pools: the list, and one with its members."""

from __future__ import annotations

from typing import Any

import msgspec

from quorate.sim.access import Pool
from quorate.sim.guests import Guest
from quorate.sim.refusals import failure
from quorate.sim.resources import rows_of, storage_row
from quorate.sim.routing import Call, route
from quorate.sim.storages import Storage
from quorate.sim.world import Node, World

_ONLY_IN_RESOURCES = frozenset({"pool", "tags", "lock", "hastate"})


@route("GET /pools")
def list_pools(call: Call) -> list[dict[str, Any]]:
    wanted = call.params.get("poolid")
    if wanted is not None:
        call.require(f"/pool/{wanted}", "Pool.Audit")
        return [_with_members(call, _existing(call, wanted))]
    return [
        _summary(pool)
        for pool in sorted(call.world.access.pools.values(), key=lambda pool: pool.id)
        if call.allowed(f"/pool/{pool.id}", "Pool.Audit")
    ]


@route("GET /pools/{poolid}")
def one_pool(call: Call) -> dict[str, Any]:
    return _with_members(call, _existing(call, call.values["poolid"]))


def _existing(call: Call, poolid: str) -> Pool:
    pool = call.world.access.pools.get(poolid)
    if pool is None:
        raise failure(f"pool '{poolid}' does not exist")
    return pool


def _summary(pool: Pool) -> dict[str, Any]:
    return {"poolid": pool.id} | ({"comment": pool.comment} if pool.comment else {})


def _with_members(call: Call, pool: Pool) -> dict[str, Any]:
    wanted = call.params.get("type")
    world = call.world
    guests = [world.guests[vmid] for vmid in sorted(pool.vms & world.guests.keys())]
    members: list[Any] = _guest_rows(world, [guest for guest in guests if wanted in (None, guest.kind)])
    if wanted in (None, "storage"):
        for name in sorted(pool.storages & world.storages.keys()):
            storage = world.storages[name]
            members.append(storage_row(storage, _seen_from(call, storage)))
    return {**_summary(pool), "members": members}


def _guest_rows(world: World, guests: list[Guest]) -> list[dict[str, Any]]:
    """The guests with the numbers of /cluster/resources, but without what is looked up for that list alone."""
    rows = (msgspec.json.decode(row, type=dict[str, Any]) for row in rows_of(world).guests(guests))
    return [{key: value for key, value in row.items() if key not in _ONLY_IN_RESOURCES} for row in rows]


def _seen_from(call: Call, storage: Storage) -> Node:
    """A member storage is shown once: from the node that was asked, or from the first that has it."""
    if storage.nodes is None or call.local_node.name in storage.nodes:
        return call.local_node
    return next(node for name, node in sorted(call.world.nodes.items()) if name in storage.nodes)
