"""Pools and their members."""

import pytest

from quorate.config import Access
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio


async def test_pools_and_their_members_are_listed(tmp_path):
    async with rig(tmp_path) as quorate:
        pools = quorate.sim.world.access.pools
        rows = await quorate.rows("access_list", kind="pools")
        assert {row["pool"]: row["guests"] for row in rows} == {name: len(pool.vms) for name, pool in pools.items()}
        facts = await quorate.facts("access_list", kind="pools", name="lab")
        rows = [dict(zip(facts["columns"], row, strict=True)) for row in facts["rows"]]
        assert {row["id"] for row in rows if row["type"] != "storage"} == pools["lab"].vms
        assert [row["id"] for row in rows if row["type"] == "storage"] == ["local-lvm"]
        assert "alice@pve PVEVMAdmin" in facts["rights"]
        assert "There is no pool 'labs'. Did you mean 'lab'?" in await quorate.refusal(
            "access_list", kind="pools", name="labs"
        )


async def test_a_pool_is_created_filled_and_emptied(tmp_path):
    async with rig(tmp_path) as quorate:
        pools = quorate.sim.world.access.pools
        await quorate.facts(
            "pool_set", pool="media", comment="films", add_guests=["jellyfin", 204], add_storages=["nas"]
        )
        assert (pools["media"].comment, pools["media"].vms, pools["media"].storages) == ("films", {204, 205}, {"nas"})
        facts = await quorate.facts(
            "pool_set", pool="media", remove_guests=[204, 100], remove_storages=["nas"], add_guests=[205]
        )
        assert (pools["media"].vms, pools["media"].storages) == ({205}, set())
        assert len(facts["unchanged"]) == 2
        await quorate.facts("pool_set", pool="media", comment="")
        assert pools["media"].comment is None


async def test_nested_pools_work(tmp_path):
    async with rig(tmp_path) as quorate:
        pools = quorate.sim.world.access.pools
        assert "needs the pool deep around it" in await quorate.refusal("pool_set", pool="deep/er")
        await quorate.facts("pool_set", pool="lab/inner", add_guests=[207])
        assert pools["lab/inner"].vms == {207}
        assert "holds other pools: lab/inner" in await quorate.refusal("access_delete", kind="pool", name="lab")
        await quorate.facts("access_delete", kind="pool", name="lab/inner", remove_members=True)
        assert "lab/inner" not in pools


async def test_a_guest_of_another_pool_moves_only_when_asked(tmp_path):
    async with rig(tmp_path) as quorate:
        pools = quorate.sim.world.access.pools
        text = await quorate.refusal("pool_set", pool="lab", add_guests=[101])
        assert "is in pool production" in text
        assert "move=true" in text
        facts = await quorate.facts("pool_set", pool="lab", add_guests=[101], move=True)
        assert 101 in pools["lab"].vms
        assert 101 not in pools["production"].vms
        assert "alice@pve PVEVMAdmin" in facts["rights_on_pool"]


async def test_members_bring_rights_so_they_need_admin_while_a_new_pool_does_not(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        await quorate.facts("pool_set", pool="empty", comment="nobody yet")
        assert "empty" in quorate.sim.world.access.pools
        assert "needs admin" in await quorate.refusal("pool_set", pool="empty", add_guests=[108])
    async with rig(tmp_path, access=Access.READ) as quorate:
        assert "pool_set" not in {tool.name for tool in (await quorate.client.list_tools()).tools}


async def test_a_pool_with_members_is_deleted_only_when_they_may_be_taken_out(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("access_delete", kind="pool", name="lab")
        assert "is not empty: guests 5, storages 1" in text
        facts = await quorate.facts("access_delete", kind="pool", name="lab", remove_members=True)
        assert "lab" not in quorate.sim.world.access.pools
        assert 108 in quorate.sim.world.guests
        assert "alice@pve PVEVMAdmin" in facts["roles_lost"]


async def test_what_a_pool_cannot_have_is_explained(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "is not a pool name" in await quorate.refusal("pool_set", pool="my pool")
        assert "There is no storage 'nass'" in await quorate.refusal("pool_set", pool="lab", add_storages=["nass"])
        assert "There is no guest" in await quorate.refusal("pool_set", pool="lab", add_guests=["nothere"])
        text = await quorate.refusal("access_delete", kind="user", name="bob@pve", remove_members=True)
        assert "It is for pools" in text
        same = await quorate.facts("pool_set", pool="lab", comment="play here")
        assert same["result"] == "nothing to do"
