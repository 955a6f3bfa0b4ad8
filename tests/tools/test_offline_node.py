"""With a node offline, lists say what they could not see instead of silently omitting it."""

import pytest

from tests.rigs.mcp_session import rig, text_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("tool", ["network_list", "volume_list", "template_list", "backup_list", "backup_coverage"])
async def test_a_list_names_the_node_that_could_not_be_asked(tmp_path, tool):
    async with rig(tmp_path) as quorate:
        assert "not_read" not in await quorate.facts(tool)
        quorate.sim.faults.add("node-offline:pve3")
        await quorate.clock.advance(120)
        answer = await quorate.call(tool)
        assert not answer.is_error
        not_read = answer.structured_content["not_read"]
        assert any("pve3" in line and "offline" in line for line in not_read)
        assert not any("nas" in line for line in not_read), "a shared storage is read from another node"
        assert "offline" in text_of(answer)


async def test_storages_of_the_node_are_named_and_only_those_asked_for(tmp_path):
    async with rig(tmp_path, faults=["node-offline:pve3"]) as quorate:
        facts = await quorate.facts("volume_list", storage="local-lvm")
        assert facts["not_read"] == ["local-lvm on pve3: pve3 is offline"]
        assert "not_read" not in await quorate.facts("volume_list", storage="nas")
        assert "not_read" not in await quorate.facts("volume_list", node="pve1")
        assert (await quorate.facts("volume_list", node="pve3", content="iso"))["not_read"]


async def test_no_guest_is_said_to_have_no_backup_while_a_storage_could_not_be_read(tmp_path):
    async with rig(tmp_path) as quorate:
        before = {row["vmid"]: row["trouble"] for row in await quorate.rows("backup_coverage")}
        assert any("no backup" in trouble for trouble in before.values())
    async with rig(tmp_path, faults=["node-offline:pve3"]) as quorate:
        rows = await quorate.rows("backup_coverage")
        troubles = [row["trouble"] for row in rows if "no backup" in row["trouble"]]
        assert troubles
        assert all("no backup seen" in trouble for trouble in troubles)
