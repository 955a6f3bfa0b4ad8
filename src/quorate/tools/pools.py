"""Pools: named sets of guests and storages that roles can be granted on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import Advice, either, tools
from quorate.operations.plan import Call, Plan, Target, create_or_change
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.lookup import Resource, View
from quorate.tools.directory import acl, forget_own_privileges, holder, unknown

MEMBERS_AT_ONCE = 100

_POOL_ID = re.compile(r"[A-Za-z0-9.\-_]+(/[A-Za-z0-9.\-_]+){0,2}")

Refs = list[int | str]


async def summaries(pve: Cluster) -> list[list[Any]]:
    """Every pool with the number of its guests and its comment."""
    counts = Counter(row.pool for row in await pve.inventory.guests())
    return [[name, counts[name], pool.get("comment", "")] for name, pool in (await _pools(pve)).items()]


async def members(pve: Cluster, pool: str, *, limit: int, offset: int) -> Table:
    """The guests and storages in a pool, and who holds which role on all of them."""
    stored = await _existing(pve, pool)
    guests = (await pve.inventory.complete_view()).by_vmid
    table = page(
        ("type", "id", "name", "node", "status"),
        [_member_row(member, guests) for member in stored.get("members", [])],
        limit=limit,
        offset=offset,
    )
    roles = await _roles_on(pve, pool)
    table.facts = {"comment": stored.get("comment", ""), "rights": roles} if roles or stored.get("comment") else {}
    return table


def _member_row(member: Mapping[str, Any], guests: Mapping[int, Resource]) -> list[Any]:
    if member["type"] == "storage":
        return ["storage", member["storage"], "", member.get("node", ""), member.get("status", "")]
    kind = "vm" if member["type"] == "qemu" else "ct"
    if known := guests.get(int(member["vmid"])):  # a new member has no name in PVE's answer
        return [kind, known.vmid, known.name, known.node, known.status]
    return [kind, member["vmid"], member.get("name", ""), member.get("node", ""), member.get("status", "")]


def _risk_of(arguments: Mapping[str, Any]) -> Risk:
    """A role on a pool covers every member, so adding a member is a grant and removing one a
    revocation. An empty pool and a comment give nobody anything."""
    moves = ("add_guests", "remove_guests", "add_storages", "remove_storages")
    return Risk.DESTROY if any(arguments.get(name) for name in moves) else Risk.CHANGE


@operation(
    toolset="access",
    risk=Risk.DESTROY,
    risk_of=_risk_of,
    least=Risk.CHANGE,
    search_words="group machines pool guests resource create add members",
    example="pool=lab add_guests=test-vm",
)
async def pool_set(
    pve: Cluster,
    pool: Annotated[str, Meta(description="Created if missing")],
    comment: str | None = None,
    add_guests: Refs | None = None,
    remove_guests: Refs | None = None,
    add_storages: list[str] | None = None,
    remove_storages: list[str] | None = None,
    move: Annotated[bool, Meta(description="Also take guests out of their current pool")] = False,
) -> Plan:
    """Create a pool, change its comment or members. Members need access admin, as roles on the pool apply to them."""
    if not _POOL_ID.fullmatch(pool):
        raise BadArgument(f"{pool!r} is not a pool name", next_step="Use letters, digits, dot, dash and underscore")
    if (
        sum(len(members or []) for members in (add_guests, remove_guests, add_storages, remove_storages))
        > MEMBERS_AT_ONCE
    ):
        raise BadArgument("Too many members for one call", next_step=f"Give at most {MEMBERS_AT_ONCE}")
    known = await _pools(pve)
    present = await _existing(pve, pool) if pool in known else None
    if present is None:
        parent = pool.rpartition("/")[0]
        if parent and parent not in known:
            raise BadArgument(f"Pool {pool} needs the pool {parent} around it", next_step=f"Create {parent} first")
    joining = await _find_joining_guests(pve, pool, add_guests or [], move)
    leaving = await pve.guests(remove_guests or [])
    storages = await _check_storages(pve, add_storages or [])
    now = _members(present or {})
    add = {
        "vms": _absent_from([str(guest.vmid) for guest in joining], now[0]),
        "storage": _absent_from(storages, now[1]),
    }
    take = {
        "vms": [str(guest.vmid) for guest in leaving if str(guest.vmid) in now[0]],
        "storage": [name for name in remove_storages or [] if name in now[1]],
    }
    params = {"poolid": pool, **({} if comment is None else {"comment": comment})}
    edit = await create_or_change(
        pve,
        present,
        Call(f"Create pool {pool}", "POST", "/pools", params, _target(pool)),
        Call(f"Change the comment of pool {pool}", "PUT", "/pools", params, _target(pool)),
        whole=True,
    )
    calls = [edit.call] if edit.call else []
    calls += _membership_call(pool, add, joins=True, move=move) + _membership_call(pool, take, joins=False)
    unchanged = _unchanged_members(pool, now, joining, leaving, storages, remove_storages or [])
    if not calls and not unchanged:
        unchanged = (f"pool {pool} already has these settings",)
    roles = await _roles_on(pve, pool) if any(add.values()) or any(take.values()) else []
    facts = {"rights_on_pool": roles} if roles else {}
    return Plan(f"Set pool {pool}", tuple(calls), unchanged, facts=facts, after=forget_own_privileges(pve))


async def plan_pool_deletion(pve: Cluster, pool: str, *, remove_members: bool) -> Plan:
    """Delete a pool and the roles granted on it. Guests and storages stay."""
    stored = await _existing(pve, pool)
    nested = sorted(name for name in await _pools(pve) if name.startswith(f"{pool}/"))
    if nested:
        raise Conflict(f"Pool {pool} holds other pools: {', '.join(nested)}", next_step="Delete those first")
    vms, storages = _members(stored)
    if (vms or storages) and not remove_members:
        listed = ", ".join([*vms[:10], *storages[:5]])
        raise Conflict(
            f"Pool {pool} is not empty: guests {len(vms)}, storages {len(storages)}",
            why=f"Among them {listed}",
            next_step=either(
                Advice("Give {remove_members}", remove_members=True),
                Advice("take them out first", tools.pool_set(pool=pool)),
            ),
        )
    roles = await _roles_on(pve, pool)

    calls = _membership_call(pool, {"vms": vms, "storage": storages}, joins=False)
    calls.append(Call(f"Delete pool {pool}", "DELETE", "/pools", {"poolid": pool}, _target(pool)))
    return Plan(f"Delete pool {pool}", tuple(calls), facts={"roles_lost": roles} if roles else {})


async def _pools(pve: Cluster) -> dict[str, dict[str, Any]]:
    return {row["poolid"]: row for row in sorted(await pve.get("/pools"), key=lambda row: str(row["poolid"]))}


async def _existing(pve: Cluster, pool: str) -> dict[str, Any]:
    known = await _pools(pve)
    if pool not in known:
        raise unknown("pool", pool, known)
    # Nested pools have a slash in their name, which only the parameter can carry.
    answer: list[dict[str, Any]] = await pve.get("/pools", poolid=pool)
    return answer[0]


def _members(pool: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    members = pool.get("members", [])
    return (
        [str(member["vmid"]) for member in members if member["type"] in ("qemu", "lxc")],
        sorted({str(member["storage"]) for member in members if member["type"] == "storage"}),
    )


async def _roles_on(pve: Cluster, pool: str) -> list[str]:
    return [
        f"{holder(entry)} {entry['roleid']}"
        for entry in await acl(pve)
        if entry["path"] == f"/pool/{pool}" or (entry["path"] == "/pool" and entry.get("propagate", 1))
    ]


async def _find_joining_guests(pve: Cluster, pool: str, refs: Refs, move: bool) -> list[Guest]:
    pve.inventory.forget()  # membership may have changed a moment ago
    guests = await pve.guests(refs)
    for guest in guests:
        if guest.row.pool not in ("", pool) and not move:
            raise Conflict(
                f"{guest} is in pool {guest.row.pool}",
                why="A guest is in one pool at most",
                next_step=Advice("Give {move} to take it out of there", move=True),
            )
    return guests


async def _check_storages(pve: Cluster, names: list[str]) -> list[str]:
    def existing(view: View) -> list[str]:
        known = {row.storage for row in view.of_type("storage")}
        for name in names:
            if name not in known:
                raise unknown("storage", name, known)
        return names

    return await pve.inventory.decide_on_fresh_view(existing) if names else []


def _absent_from(requested: list[str], present: list[str]) -> list[str]:
    return [name for name in dict.fromkeys(requested) if name not in present]


def _membership_call(pool: str, members: Mapping[str, list[str]], *, joins: bool, move: bool = False) -> list[Call]:
    """One call for all members that join, one for all that leave; none if there are none."""
    listed_members = {name: ",".join(ids) for name, ids in members.items() if ids}
    if not listed_members:
        return []

    params: dict[str, Any] = {"poolid": pool, **listed_members}
    params |= ({"allow-move": 1} if move and members["vms"] else {}) if joins else {"delete": 1}
    listed = ", ".join([*members["vms"], *members["storage"]])
    summary = f"Add {listed} to pool {pool}" if joins else f"Take {listed} out of pool {pool}"
    return [Call(summary, "PUT", "/pools", params, _target(pool))]


def _unchanged_members(
    pool: str,
    now: tuple[list[str], list[str]],
    joining: list[Guest],
    leaving: list[Guest],
    storages: list[str],
    leaving_storages: list[str],
) -> tuple[str, ...]:
    return (
        *(f"{guest} is already in {pool}" for guest in joining if str(guest.vmid) in now[0]),
        *(f"{guest} is not in {pool}" for guest in leaving if str(guest.vmid) not in now[0]),
        *(f"storage {name} is already in {pool}" for name in storages if name in now[1]),
        *(f"storage {name} is not in {pool}" for name in leaving_storages if name not in now[1]),
    )


def _target(pool: str) -> Target:
    return Target("pool", pool)
