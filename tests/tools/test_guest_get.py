"""What guest_get shows about the inside of a guest, its locks and its tasks, and how many requests that takes."""

import pytest

from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio

VM, CT, NO_AGENT = 102, 202, 109


def guest(quorate, vmid):
    return quorate.sim.world.guests[vmid]


@pytest.mark.parametrize("vmid", [VM, CT])
async def test_addresses_come_with_the_interface_that_has_them(tmp_path, vmid):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_get", guest=vmid, detail=True)
        assert facts["addresses"] == {address.interface: address.ip for address in guest(quorate, vmid).addresses}


async def test_without_an_agent_the_configured_addresses_are_shown_by_option(tmp_path):
    async with rig(tmp_path) as quorate:
        guest(quorate, NO_AGENT).config["ipconfig0"] = "ip=10.0.0.7/24,gw=10.0.0.1,ip6=dhcp"
        assert (await quorate.facts("guest_get", guest=NO_AGENT))["addresses"] == {"ipconfig0": "10.0.0.7"}


async def test_detail_shows_the_os_and_file_systems_that_the_agent_knows(tmp_path):
    async with rig(tmp_path) as quorate:
        plain = await quorate.facts("guest_get", guest=VM)
        assert "os" not in plain
        facts = await quorate.facts("guest_get", guest=VM, detail=True)
        system = guest(quorate, VM).system
        assert system.name in facts["os"]
        assert system.kernel in facts["os"]
        assert 0 < facts["filesystems"]["/"]["used"] < facts["filesystems"]["/"]["total"]
        assert len(facts["digest"]) == 40


async def test_detail_of_a_vm_without_agent_is_not_an_error(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_get", guest=NO_AGENT, detail=True)
        assert "os" not in facts
        assert "filesystems" not in facts


async def test_a_container_shows_how_full_its_root_is(tmp_path):
    async with rig(tmp_path) as quorate:
        assert (await quorate.facts("guest_get", guest=CT))["rootfs"]["total"] == 40 * 1024**3


async def test_detached_disks_are_shown(tmp_path):
    async with rig(tmp_path) as quorate:
        guest(quorate, VM).config["unused0"] = "tank:vm-102-disk-7"
        assert (await quorate.facts("guest_get", guest=VM))["detached"] == {"unused0": "tank:vm-102-disk-7"}


async def test_a_lock_names_the_task_that_holds_it(tmp_path):
    async with rig(tmp_path) as quorate:
        moving = await quorate.facts("guest_power", guest=VM, action="shutdown", wait=0)
        guest(quorate, VM).config["lock"] = "backup"
        guest(quorate, VM).touch()
        mark = len(quorate.sim.requests)
        facts = await quorate.facts("guest_get", guest=VM)
        assert facts["lock"] == "backup"
        assert moving["task"] in facts["next"]
        assert facts["tasks"][0].startswith("qmshutdown since ")
        asked = [path for _, path in quorate.requests_since(mark) if path != "/cluster/resources"]
        assert len(asked) <= 4


async def test_a_lock_left_behind_comes_with_the_command_that_removes_it(tmp_path):
    async with rig(tmp_path) as quorate:
        for vmid, command in ((108, "qm unlock 108"), (206, "pct unlock 206")):
            guest(quorate, vmid).config["lock"] = "snapshot"
            guest(quorate, vmid).touch()
            await quorate.clock.advance(5)
            facts = await quorate.facts("guest_get", guest=vmid)
            assert f"`{command}` on" in facts["next"]


async def test_a_suspended_vm_is_to_be_resumed(tmp_path):
    async with rig(tmp_path) as quorate:
        guest(quorate, 108).config["lock"] = "suspended"
        assert "action=resume" in (await quorate.facts("guest_get", guest=108))["next"]


async def test_a_lock_that_came_a_moment_ago_points_to_the_task_list(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("guest_list")
        guest(quorate, 108).config["lock"] = "backup"
        assert "task_list guest=108" in (await quorate.facts("guest_get", guest=108))["next"]


async def test_pending_changes_come_with_the_two_ways_on(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("guest_get", guest=104)
        assert facts["pending"] == {"memory": "8192"}
        assert "action=reboot" in facts["next"]
        assert "revert" in facts["next"]


@pytest.mark.parametrize("vmid", [VM, CT, NO_AGENT, 108])
async def test_the_plain_answer_costs_at_most_four_requests_beyond_the_inventory(tmp_path, vmid):
    async with rig(tmp_path) as quorate:
        await quorate.facts("guest_get", guest=vmid)
        asked = [path for _, path in quorate.sim.requests if path != "/cluster/resources"]
        assert len(asked) <= 4
