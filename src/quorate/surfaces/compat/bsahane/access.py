"""Pools, users and permissions."""

from __future__ import annotations

from typing import Any

from quorate.operations.registry import Risk
from quorate.pve.errors import BadArgument
from quorate.surfaces.compat.bsahane.shapes import GUEST, SURE, act, chosen, making, read, told
from quorate.surfaces.compat.declaring import Recipe, may, need
from quorate.surfaces.compat.recipes import reading
from quorate.surfaces.compat.running import Run

POOL = need("poolid", "string")
TYPE = may("type_", "string", "qemu", "Accepted; the guest tells its type")


def member(argument: str) -> Recipe:
    async def recipe(run: Run) -> dict[str, Any]:
        members: dict[str, Any] = {argument: [(await chosen(run)).vmid]}
        return await told(run, await run.change("pool_set", pool=run["poolid"], **members))

    return recipe


async def assign(run: Run) -> dict[str, Any]:
    holders = [*_words(run["users"]), *(f"@{group}" for group in _words(run["groups"]))]
    if not holders:
        raise BadArgument(f"{run.tool} needs somebody to give the roles to", next_step="Give users, groups or both")
    done = await run.change(
        "acl_set",
        action="grant",
        path=run["path"],
        roles=_words(run["roles"]),
        holders=holders,
        propagate=run["propagate"],
    )
    return await told(run, done)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


TOOLS = (
    read("proxmox-list-pools", "Pools.", "access_list kind=pools", reading("/pools")),
    act(
        "proxmox-create-pool",
        "Make a pool.",
        "pool_set",
        making("pool_set", {"pool": "poolid", "comment": "comment"}),
        POOL,
        may("comment", "string"),
        *SURE,
    ),
    act(
        "proxmox-delete-pool",
        "Delete an empty pool.",
        "access_delete kind=pool",
        making("access_delete", {"name": "poolid"}, kind="pool"),
        POOL,
        *SURE,
        risk=Risk.DESTROY,
    ),
    act(
        "proxmox-pool-add",
        "Put a guest into a pool; rights on the pool then hold for it.",
        "pool_set",
        member("add_guests"),
        POOL,
        *GUEST,
        TYPE,
        *SURE,
        risk=Risk.DESTROY,
    ),
    act(
        "proxmox-pool-remove",
        "Take a guest out of a pool.",
        "pool_set",
        member("remove_guests"),
        POOL,
        *GUEST,
        TYPE,
        *SURE,
        risk=Risk.DESTROY,
    ),
    read("proxmox-list-users", "Users.", "access_list kind=users", reading("/access/users")),
    read("proxmox-list-roles", "Roles with their privileges.", "access_list kind=roles", reading("/access/roles")),
    act(
        "proxmox-assign-permission",
        "Give users or groups roles on a path.",
        "acl_set action=grant",
        assign,
        need("path", "string", "Such as /vms/100"),
        need("roles", "string", "With commas between them"),
        may("users", "string", about="With commas between them"),
        may("groups", "string", about="With commas between them"),
        may("propagate", "boolean", True, "Also below the path"),
        *SURE,
        risk=Risk.DESTROY,
    ),
)
