"""What users of other servers really type: spellings of the documentation and of the code, and more than is read."""

import json
import re

import pytest

from quorate.surfaces.compat import SYSTEMS, system
from tests import paths
from tests.rigs.compat_session import documented, refused, surface
from tests.rigs.mcp_session import text_of
from tests.surfaces.compat.test_gilby125 import ELEVATED

pytestmark = pytest.mark.anyio

PAGE = paths.DOCS / "spellings.md"
OPT_INS = (ELEVATED, "PROXMOX_ENABLE_DESTRUCTIVE")


def first_text(answer):
    return text_of(answer.model_copy(update={"content": answer.content[:1]}))


def last_text(answer):
    return text_of(answer.model_copy(update={"content": answer.content[-1:]}))


def gilby125(tmp_path):
    return surface(tmp_path, "gilby125", opt_ins=[ELEVATED])


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_documented_argument_is_taken_under_its_name(name):
    for tool, parameters in documented(name).items():
        assert set(parameters) <= set(system(name).tools[tool].spellings), tool


def test_the_page_shows_every_tool_with_every_spelling():
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.M | re.S))
    assert set(sections) == set(SYSTEMS)
    rows = {
        (name, row.split("`")[1]): set(re.findall(r"`([^`]+)`", row))
        for name, text in sections.items()
        for row in text.splitlines()
        if row.startswith("| `")
    }
    assert len(rows) == 228
    for (name, tool), shown in rows.items():
        assert shown == {tool, *system(name).tools[tool].spellings}


# -- two names for one thing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["name", "hostname"])
async def test_the_clone_of_a_container_is_named_as_documented_or_as_the_code_says(tmp_path, spelling):
    async with gilby125(tmp_path) as quorate:
        arguments = {"node": "pve1", "vmid": "9001", "newid": "411", spelling: "twin"}
        await quorate.facts("proxmox_clone_lxc", **arguments)
        assert quorate.sim.world.guests[411].config["hostname"] == "twin"


async def test_the_documented_name_wins_over_the_one_in_the_code_with_a_remark(tmp_path):
    async with gilby125(tmp_path) as quorate:
        arguments = {"node": "pve1", "vmid": "9001", "newid": "411", "hostname": "code", "name": "documented"}
        answer = await quorate.call("proxmox_clone_lxc", **arguments)
        assert not answer.is_error
        assert quorate.sim.world.guests[411].config["hostname"] == "documented"
        remark = "hostname was ignored: name was given as well and wins."
        assert last_text(answer) == remark
        assert answer.structured_content["remarks"] == [remark]
        same = await quorate.call("proxmox_clone_lxc", **{**arguments, "newid": "412", "hostname": "documented"})
        assert "remarks" not in same.structured_content


@pytest.mark.parametrize(("full", "mode"), [(True, "full"), (False, "linked"), (None, "linked")])
@pytest.mark.parametrize(("tool", "node", "template"), [("vm", "pve1", 9000), ("lxc", "pve1", 9001)])
async def test_full_decides_how_a_template_is_cloned(tmp_path, tool, node, template, full, mode):
    async with gilby125(tmp_path) as quorate:
        assert quorate.sim.world.guests[template].node == node
        answer = await quorate.call(
            f"proxmox_clone_{tool}", node=node, vmid=template, newid=411, name="twin", full=full
        )
        assert f"**Clone Type**: {mode}" in first_text(answer)


async def test_a_guest_that_is_not_a_template_is_always_cloned_in_full(tmp_path):
    async with gilby125(tmp_path) as quorate:
        answer = await quorate.call(
            "proxmox_clone_vm", node=quorate.sim.world.guests[108].node, vmid=108, newid=411, full=False
        )
        assert not answer.is_error, first_text(answer)
        assert "**Clone Type**: full" in first_text(answer)


@pytest.mark.parametrize("spelling", ["mp", "disk"])
async def test_a_mount_point_is_removed_as_disk_or_as_mp(tmp_path, spelling):
    async with gilby125(tmp_path) as quorate:
        guest = quorate.sim.world.guests[202]
        assert "mp0" in guest.config
        await quorate.facts("proxmox_remove_mountpoint_lxc", node=guest.node, vmid=202, **{spelling: "mp0"})
        assert "mp0" not in quorate.sim.world.guests[202].effective_config()


# -- what nobody reads -------------------------------------------------------------------------------------------------


async def test_an_argument_that_makes_no_difference_is_remarked(tmp_path):
    async with surface(tmp_path, "bsahane") as quorate:
        answer = await quorate.call("proxmox-stop-vm", vmid=104, hard=True, poll_interval=1)
        assert not answer.is_error
        assert json.loads(first_text(answer))["upid"], "the answer itself stays as it is"
        assert answer.structured_content["remarks"] == [
            "hard was ignored: a stop always cuts the power.",
            "poll_interval was ignored: tasks are polled at growing intervals.",
        ]


@pytest.mark.parametrize(
    ("name", "tool", "arguments"),
    [
        ("brynnjocelyn", "list_nodes", {"verbose": True}),
        ("bsahane", "proxmox-list-nodes", {"node": "pve1"}),
        ("gilby125", "proxmox_get_vms", {"verbose": "yes"}),
        ("solomonneas", "proxmox_list_vms", {"node": "pve1"}),
        ("washyu", "list_proxmox_resources", {"verbose": 1}),
    ],
)
async def test_a_read_ignores_what_it_does_not_know_and_says_so(tmp_path, name, tool, arguments):
    async with surface(tmp_path, name) as quorate:
        plain = await quorate.call(tool)
        answer = await quorate.call(tool, **arguments)
        assert not answer.is_error
        assert first_text(answer).split("uptime")[0] == first_text(plain).split("uptime")[0]
        (remark,) = answer.structured_content["remarks"]
        assert remark.startswith(f"{next(iter(arguments))!r} was ignored: {tool} ")


async def test_a_misspelled_filter_gets_the_closest_name(tmp_path):
    async with surface(tmp_path, "bsahane") as quorate:
        answer = await quorate.call("proxmox-list-vms", stauts="running")
        assert "Did you mean 'status'?" in last_text(answer)


@pytest.mark.parametrize(
    ("name", "tool", "arguments"),
    [
        ("brynnjocelyn", "delete_vm", {"node": "pve2", "vmid": 108, "keepDisks": True}),
        ("gilby125", "proxmox_delete_vm", {"node": "pve2", "vmid": "108", "keep_disks": True}),
        ("washyu", "delete_proxmox_vm", {"node": "pve2", "vmid": 108, "keep_disks": True}),
    ],
)
async def test_a_change_with_an_unknown_argument_is_refused(tmp_path, name, tool, arguments):
    async with surface(tmp_path, name, opt_ins=OPT_INS) as quorate:
        assert "has no argument" in await refused(quorate, tool, **arguments)


async def test_lists_and_objects_may_come_as_json_text(tmp_path):
    async with surface(tmp_path, "bsahane") as quorate:
        await quorate.facts("proxmox-configure-vm", vmid=108, params='{"memory": 4096}', confirm=True)
        assert int(quorate.sim.world.guests[108].effective_config()["memory"]) == 4096
        text = await refused(quorate, "proxmox-configure-vm", vmid=108, params="memory=4096", confirm=True)
        assert "cannot take params" in text


# -- what the documentation promises for all of them -------------------------------------------------------------------


async def test_a_reboot_can_be_waited_for_as_documented(tmp_path):
    async with surface(tmp_path, "bsahane") as quorate:
        answer = await quorate.facts("proxmox-reboot-vm", name="homeassistant", wait=True)
        assert answer["status"]["exitstatus"] == "OK"
        begun = await quorate.facts("proxmox-reboot-vm", name="homeassistant", wait=False)
        assert "status" not in begun
