"""The operator's rules, each written as an attempt to get around it."""

import asyncio
import datetime
import tomllib
from typing import Any

import pytest

from quorate.config import Access
from quorate.config.policy import read_policy
from quorate.config.sources import Rank, Source
from tests.rigs.mcp_session import rig, second_server, text_of
from tests.rigs.several_clusters import several_clusters

pytestmark = pytest.mark.anyio

PROTECTED = """
[[rules]]
name = "production stays"
deny = "destroy"
tags = ["prod"]
"""
LAB_ONLY = """
[[rules]]
name = "lab only"
allow = "destroy"
vmids = ["9100-9199", 108]
"""
HIDDEN = """
[[rules]]
name = "not for you"
deny = "read"
names = ["postgres", "legacy-*"]
"""


def policy(text):
    return read_policy(tomllib.loads(text), Source(Rank.TOML))


def ruled(tmp_path, text, **more):
    return rig(tmp_path, more={"policy": policy(text)}, **more)


async def raw(quorate, method, path, /, **params):
    return text_of(await quorate.call("api_call", method=method, path=path, params=params))


# -- tools and toolsets ------------------------------------------------------------------------------------------------


async def test_a_denied_tool_is_neither_listed_nor_run(tmp_path):
    text = '[[rules]]\nname = "no deleting"\ndeny = "destroy"\ntools = ["*_delete", "guest_stop"]\n'
    async with ruled(tmp_path, text) as quorate:
        listed = {tool.name for tool in (await quorate.client.list_tools()).tools}
        assert "guest_stop" not in listed
        assert "guest_delete" not in listed
        assert "snapshot_rollback" in listed
        assert "refused by the rule 'no deleting'" in await quorate.refusal("guest_stop", guest="test-vm")
        assert quorate.audit()[-1]["rule"] == "no deleting"
        for spelling in ("Guest_Stop", " guest_stop", "guest_stop ", "\uff47uest_stop"):
            assert "no tool" in await quorate.refusal(spelling, guest="test-vm")
        assert quorate.writes == []


async def test_a_denied_tool_is_not_named_to_callers_of_others(tmp_path):
    rules = policy('[[rules]]\nname = "no cuts"\ndeny = "destroy"\ntools = ["guest_stop"]\n')
    stop = {"guest": "docker01", "action": "stop"}
    operate: dict[str, Any] = {"access": Access.OPERATE, "policy": rules}
    async with rig(tmp_path) as free:
        async with second_server(free, tmp_path / "native.jsonl", **operate) as quorate:
            assert "guest_stop" not in await quorate.refusal("guest_power", **stop)
        async with second_server(free, tmp_path / "lean.jsonl", **operate, surfaces=("lean",)) as quorate:
            assert "guest_stop" not in await quorate.refusal("pve_change", operation="guest_power", arguments=stop)
            text = await quorate.refusal("guest_stop")
            assert text.endswith("There is no tool 'guest_stop'. Available: pve_find, pve_read, pve_change.")


async def test_a_denied_toolset_is_gone_for_reads_as_well_when_reading_is_denied(tmp_path):
    text = '[[rules]]\nname = "no users"\ndeny = "read"\ntoolsets = ["Access"]\n'
    async with ruled(tmp_path, text) as quorate:
        listed = {tool.name for tool in (await quorate.client.list_tools()).tools}
        assert not listed & {"access_list", "user_set", "acl_set", "token_create"}
        assert "'no users'" in await quorate.refusal("access_list", kind="users")


async def test_changes_that_no_rule_allows_are_neither_listed_nor_run(tmp_path):
    text = '[[rules]]\nname = "snapshots"\nallow = "change"\ntoolsets = ["snapshots"]\n'
    async with ruled(tmp_path, text) as quorate:
        listed = {tool.name for tool in (await quorate.client.list_tools()).tools}
        assert "snapshot_create" in listed
        assert not listed & {"snapshot_delete", "guest_power", "guest_stop", "guest_screenshot"}
        assert "guest_list" in listed
        assert "no rule allows" in await quorate.refusal("guest_power", guest="test-vm", action="start")
        assert "no rule allows" in await quorate.refusal("snapshot_delete", guest="test-vm", snapshot="x")
        assert "no rule allows" in await raw(quorate, "POST", "/nodes/pve1/qemu/108/status/start")
        await quorate.facts("snapshot_create", guest="test-vm", snapshot="fine")
        assert "fine" in quorate.sim.world.guests[108].snapshots


# -- protected guests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ref", [103, "103", " 103 ", "docker02", "pve2/103", "qemu/docker02"])
async def test_a_protected_guest_is_not_destroyed_however_it_is_named(tmp_path, ref):
    async with ruled(tmp_path, PROTECTED) as quorate:
        text = await quorate.refusal("guest_stop", guest=ref)
        assert "refused by the rule 'production stays'" in text
        assert "docker02" in text
        entry = quorate.audit()[-1]
        assert (entry["decision"], entry["outcome"], entry["rule"]) == ("refused", "refused", "production stays")
        assert quorate.writes == []


@pytest.mark.parametrize(
    "ref",
    ["DOCKER02", "\uff44ocker02", "docker02\u200b", "d\u043ecker02", "\uff11\uff10\uff13", "0x67", "103/..", "../103"],
)
async def test_names_that_only_look_like_a_guest_lead_nowhere(tmp_path, ref):
    async with ruled(tmp_path, PROTECTED) as quorate:
        assert "no guest" in await quorate.refusal("guest_stop", guest=ref)
        assert quorate.writes == []


async def test_one_protected_guest_among_many_stops_the_whole_call(tmp_path):
    async with ruled(tmp_path, PROTECTED) as quorate:
        assert "'production stays'" in await quorate.refusal("guest_stop", guest=["k3s-server", 105, "postgres"])
        assert quorate.writes == []
        await quorate.facts("guest_stop", guest=["k3s-server", 105])
        assert not quorate.sim.world.guests[104].running


REACHING_103: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("POST", "/nodes/pve2/qemu/103/status/stop", {}),
    ("DELETE", "/nodes/pve2/qemu/103", {}),
    ("POST", "/nodes/pve2/qemu/103/template", {}),
    ("PUT", "/nodes/pve2/qemu/103/unlink", {"idlist": "scsi0", "force": 1}),
    ("PUT", "/nodes/pve2/qemu/103/config", {"delete": "scsi0"}),
    ("POST", "/nodes/pve2/stopall", {}),
    ("POST", "/nodes/pve2/stopall", {"vms": "105,103"}),
    ("POST", "/cluster/bulk-action/guest/shutdown", {"vms": [103]}),
    ("POST", "/cluster/bulk-action/guest/shutdown", {}),
    ("PUT", "/access/acl", {"path": "/vms/103", "roles": "PVEVMAdmin", "users": "eve@pve"}),
    ("PUT", "/access/acl", {"path": "//vms//0103/", "roles": "PVEVMAdmin", "users": "eve@pve"}),
    ("PUT", "/access/acl", {"path": "/vms", "roles": "PVEVMAdmin", "users": "eve@pve"}),
    ("PUT", "/pools", {"poolid": "home", "vms": "103", "allow-move": 1}),
    ("POST", "/nodes/pve1/qemu", {"vmid": 103, "force": 1, "archive": "pbs:backup/vm/108/2026-01-01T00:00:00Z"}),
    ("DELETE", "/nodes/pve1/storage/nas/prunebackups", {}),
    ("DELETE", "/nodes/pve1/storage/nas/prunebackups", {"vmid": 103}),
    ("DELETE", "/nodes/pve2/storage/tank/content/tank:vm-103-disk-0", {}),
    ("DELETE", "/nodes/pve2/storage/tank/content/vm-103-disk-0", {}),
    ("DELETE", "/nodes/pve2/storage/nas/content/nas:103/renamed.qcow2", {}),
    ("DELETE", "/nodes/pve2/storage/nas/content/103/renamed.qcow2", {}),
    ("POST", "/nodes/pve2/stopall", {"vms": " 0103 ;105"}),
    ("DELETE", "/cluster/ha/resources/vm:103", {}),
    ("DELETE", "/nodes/pve1/storage/nas/content/nas:backup/vzdump-qemu-103-2026_01_01-00_00_00.vma.zst", {}),
    ("PUT", "/nodes/pve1/qemu/108/config", {"scsi3": "tank:vm-103-disk-0"}),
    ("POST", "/nodes/pve2/qemu/104/move_disk", {"disk": "scsi0", "target-vmid": 103}),
)


@pytest.mark.parametrize(("method", "path", "params"), REACHING_103, ids=lambda value: str(value)[:60])
async def test_every_path_of_the_raw_api_to_a_protected_guest_meets_the_same_rule(tmp_path, method, path, params):
    async with ruled(tmp_path, PROTECTED) as quorate:
        assert "refused by the rule 'production stays'" in await raw(quorate, method, path, **params)
        assert quorate.writes == []


@pytest.mark.parametrize(
    "path",
    [
        "/nodes/pve2/qemu/%31%30%33/status/stop",
        "/nodes/pve2/qemu/103/%2e%2e/103/status/stop",
        "/nodes/pve2//qemu/103/status/stop",
        "/extjs/nodes/pve2/qemu/103/status/stop",
        "/api2/json/nodes/pve2/qemu/103/status/stop",
        "/nodes/pve2/qemu/0103/status/stop",
        "/nodes/pve2/qemu/103 /status/stop",
        "/nodes/PVE2/qemu/103/status/stop",
        "/nodes/pve1/qemu/103/status/stop",
        "/nodes/pve2/lxc/103/status/stop",
        "/nodes/pve2/qemu/103/status/stop?skiplock=1",
        "/nodes/pve2/qemu/\uff11\uff10\uff13/status/stop",
    ],
)
async def test_no_spelling_of_a_path_gets_around_the_rule(tmp_path, path):
    async with ruled(tmp_path, PROTECTED) as quorate:
        answer = await quorate.call("api_call", method="POST", path=path)
        assert answer.is_error, text_of(answer)
        assert quorate.sim.world.guests[103].running
        assert quorate.writes == []


SECOND_TOOLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("guest_delete", {"guest": 202, "stop": True}),
    ("guest_delete", {"guest": "win11"}),
    ("guest_template", {"guest": "win11"}),
    ("snapshot_rollback", {"guest": 102, "snapshot": "before-upgrade"}),
    ("snapshot_delete", {"guest": 102, "snapshot": "before-upgrade"}),
    ("pool_set", {"pool": "home", "add_guests": [103], "move": True}),
    ("acl_set", {"action": "grant", "path": "/vms/103", "roles": ["PVEVMAdmin"], "holders": ["alice@pve"]}),
)


@pytest.mark.parametrize(("tool", "arguments"), SECOND_TOOLS, ids=lambda value: str(value)[:40])
async def test_no_other_tool_destroys_a_protected_guest(tmp_path, tool, arguments):
    async with ruled(tmp_path, PROTECTED) as quorate:
        quorate.sim.world.guests[107].config["tags"] = "prod"
        quorate.sim.world.guests[107].touch()
        assert "refused by the rule 'production stays'" in await quorate.refusal(tool, **arguments)
        assert quorate.writes == []


async def test_a_node_is_not_switched_off_under_guests_that_must_not_change(tmp_path):
    text = '[[rules]]\nname = "hands off"\ndeny = "change"\ntags = ["critical"]\n'
    async with ruled(tmp_path, text) as quorate:
        assert "'hands off'" in await quorate.refusal("node_power", node="pve1", action="reboot")
        assert "'hands off'" in await raw(quorate, "POST", "/nodes/pve1/status", command="shutdown")
        disarmed = await raw(quorate, "POST", "/cluster/ha/status/disarm-ha", **{"resource-mode": "ignore"})
        assert "'hands off'" in disarmed
        assert "'hands off'" in await quorate.refusal("guest_power", guest="router", action="reboot")
        assert quorate.writes == []


async def test_a_task_for_many_guests_is_not_stopped_under_one_that_must_not_change(tmp_path):
    """The task does not say for which guests it works; a backup that is stopped leaves one locked or shut down."""
    text = '[[rules]]\nname = "hands off"\ndeny = "change"\ntags = ["critical"]\n'
    async with rig(tmp_path) as free, second_server(free, tmp_path / "b.jsonl", policy=policy(text)) as quorate:
        running = []
        for guests in ([100, 102], [103, 104], 108):
            answer = await free.facts("backup_create", guest=guests, storage="nas", wait=0)
            running += [upid for upid in (answer.get("task"), *answer.get("tasks", ())) if upid]
        many = [upid for upid in running if ":vzdump::" in upid]
        assert {upid.split(":")[1] for upid in many} >= {"pve1", "pve2"}, running
        for task in (upid for upid in many if ":pve1:" in upid):
            assert "'hands off'" in await quorate.refusal("task_stop", task=task)
            assert "'hands off'" in await raw(quorate, "DELETE", f"/nodes/pve1/tasks/{task}")
        (harmless,) = [upid for upid in many if ":pve2:" in upid]  # no such guest is there
        await quorate.facts("task_stop", task=harmless)


@pytest.mark.parametrize(
    "path",
    ["disks/zfs/tank", "disks/lvmthin/data", "disks/lvm/pve", "disks/directory/old", "ceph/pool/rbd"],
)
async def test_what_holds_the_disks_of_protected_guests_is_not_destroyed(tmp_path, path):
    async with ruled(tmp_path, PROTECTED) as quorate:
        assert "'production stays'" in await raw(quorate, "DELETE", f"/nodes/pve2/{path}")
        assert quorate.writes == []


@pytest.mark.parametrize(
    "params",
    [{"prune-backups": "keep-last=1"}, {"encryption-key": "autogen"}, {"delete": "content,prune-backups"}],
)
async def test_a_storage_does_not_forget_the_backups_of_protected_guests(tmp_path, params):
    async with ruled(tmp_path, PROTECTED) as quorate:
        assert "'production stays'" in await raw(quorate, "PUT", "/storage/nas", **params)
        assert quorate.writes == []
        await quorate.facts("api_call", method="PUT", path="/storage/nas", params={"content": "backup,iso,images"})


async def test_a_guest_cannot_be_taken_out_of_a_rule_first(tmp_path):
    """Untagging is a change, and changes are allowed: but not this one."""
    async with ruled(tmp_path, PROTECTED) as quorate:
        for attempt in (
            quorate.refusal("guest_configure", guest=103, remove_tags=["prod"]),
            quorate.refusal("guest_configure", guest=103, tags=["lab"]),
            quorate.refusal("guest_bulk", action="untag", guests=[103], tags=["PROD"]),
            raw(quorate, "PUT", "/nodes/pve2/qemu/103/config", tags="docker"),
            raw(quorate, "PUT", "/nodes/pve2/qemu/103/config", delete="description,tags"),
        ):
            assert "no longer protect" in await attempt
        await quorate.facts("guest_configure", guest=103, add_tags=["more"])
        assert "prod" in quorate.sim.world.guests[103].config["tags"]


async def test_a_guest_cannot_be_brought_under_a_permission_first(tmp_path):
    text = (
        '[[rules]]\nname = "changes"\nallow = "change"\n'
        '[[rules]]\nname = "scratch guests"\nallow = "destroy"\nnames = ["test-*"]\n'
        '[[rules]]\nname = "scratch pool"\nallow = "destroy"\npools = ["scratch"]\n'
    )
    async with ruled(tmp_path, text) as quorate:
        assert "allow changes to" in await quorate.refusal("guest_configure", guest=104, name="test-104")
        assert "no rule allows it to destroy" in await quorate.refusal(
            "pool_set", pool="scratch", add_guests=[104], move=True
        )
        assert "no rule allows it to destroy" in await quorate.refusal("guest_stop", guest=104)
        await quorate.facts("guest_configure", guest=104, description="fine")
        assert quorate.sim.world.guests[104].running


async def test_rules_about_nodes_cannot_be_escaped_by_moving(tmp_path):
    text = '[[rules]]\nname = "pve2 keeps all"\ndeny = "destroy"\nnodes = ["PVE2 "]\n'
    async with ruled(tmp_path, text) as quorate:
        assert "'pve2 keeps all'" in await quorate.refusal("guest_stop", guest="k3s-server")
        assert "no longer protect" in await quorate.refusal("guest_migrate", guest=107, node="pve1")
        assert "'pve2 keeps all'" in await quorate.refusal("node_power", node="pve2", action="reboot")
        assert "'pve2 keeps all'" in await raw(quorate, "PUT", "/nodes/pve2/dns", search="example.net")
        assert quorate.writes == []


async def test_a_tag_that_was_set_a_moment_ago_counts(tmp_path):
    async with ruled(tmp_path, PROTECTED) as quorate:
        await quorate.facts("guest_get", guest=104)  # the inventory is known now
        quorate.sim.world.guests[104].config["tags"] = "prod"
        quorate.sim.world.guests[104].touch()
        assert "'production stays'" in await quorate.refusal("guest_stop", guest=104)
        assert quorate.writes == []


# -- only these --------------------------------------------------------------------------------------------------------


async def test_what_is_allowed_for_some_guests_is_refused_for_all_others(tmp_path):
    async with ruled(tmp_path, LAB_ONLY) as quorate:
        await quorate.facts("guest_power", guest="test-vm", action="start")
        await quorate.facts("guest_stop", guest=108)
        await quorate.facts("guest_list")  # reading stays free
        await quorate.facts("guest_get", guest=100)
        for tool, arguments in (
            ("guest_power", {"guest": 104, "action": "shutdown"}),
            ("guest_power", {"guest": [108, 107], "action": "start"}),
            ("guest_stop", {"guest": 104}),
            ("guest_screenshot", {"guest": 104}),
            ("node_power", {"node": "pve3", "action": "reboot"}),
            ("user_set", {"user": "eve@pve"}),
            ("pool_set", {"pool": "new"}),
            ("vm_create", {"name": "new"}),
            ("vm_create", {"name": "new", "vmid": 9200}),
        ):
            assert "no rule allows" in await quorate.refusal(tool, **arguments), tool
        assert {path for _, path in quorate.writes} == {
            "/nodes/pve1/qemu/108/status/start",
            "/nodes/pve1/qemu/108/status/stop",
        }
        await quorate.facts("vm_create", name="new", vmid=9100)
        assert 9100 in quorate.sim.world.guests


async def test_a_guest_outside_is_not_copied_inside(tmp_path):
    async with ruled(tmp_path, LAB_ONLY) as quorate:
        text = await quorate.refusal("guest_clone", guest=9000, vmid=9101, name="copy")
        assert "no rule allows it to look inside guest 9000" in text
    text = LAB_ONLY + '[[rules]]\nname = "templates"\nallow = "look_inside"\ntags = ["template"]\n'
    async with ruled(tmp_path, text) as quorate:
        await quorate.facts("guest_clone", guest=9000, vmid=9101, name="copy")
        assert "no rule allows it to" in await quorate.refusal("guest_clone", guest=9000, vmid=9201, name="copy")


# -- what is not seen --------------------------------------------------------------------------------------------------


async def test_hidden_guests_are_in_no_list_and_no_report(tmp_path):
    async with ruled(tmp_path, HIDDEN) as quorate:
        for tool, arguments in (
            ("guest_list", {"limit": 200}),
            ("guest_list", {"name": "post"}),
            ("task_list", {"limit": 200}),
            ("backup_list", {"limit": 200}),
            ("backup_coverage", {"all": True}),
            ("volume_list", {"limit": 200}),
            ("metrics_top", {"limit": 100}),
            ("cluster_health", {}),
            ("network_list", {"of": "guests"}),
            ("api_call", {"method": "GET", "path": "/cluster/resources", "limit": 200}),
            ("api_call", {"method": "GET", "path": "/nodes/pve2/lxc"}),
            ("api_call", {"method": "GET", "path": "/nodes/pve2/storage/local-lvm/content"}),
        ):
            answer = await quorate.call(tool, **arguments)
            for word in ("postgres", "legacy-db", "vm-203-", "-203-", "qemu/109"):
                assert word not in text_of(answer), f"{tool} {arguments}"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("guest_get", {"guest": 203}),
        ("guest_get", {"guest": "pve2/postgres"}),
        ("snapshot_list", {"guest": "postgres"}),
        ("task_list", {"guest": 203}),
        ("metrics_get", {"guest": 203}),
        ("guest_power", {"guest": 203, "action": "reboot"}),
        ("guest_clone", {"guest": 203, "name": "copy"}),
        ("firewall_get", {"scope": "guest", "of": 203}),
        ("api_call", {"method": "GET", "path": "/nodes/pve2/lxc/203/config"}),
        ("api_call", {"method": "GET", "path": "/nodes/pve2/lxc/203/status/current"}),
        ("api_call", {"method": "POST", "path": "/nodes/pve2/lxc/203/snapshot", "params": {"snapname": "x"}}),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_hidden_guests_cannot_be_asked_for(tmp_path, tool, arguments):
    async with ruled(tmp_path, HIDDEN) as quorate:
        text = await quorate.refusal(tool, **arguments)
        assert "refused by the rule 'not for you'" in text
        assert quorate.writes == []


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("guest_screenshot", {"guest": 102}),
        ("guest_file_read", {"guest": "docker01", "path": "/etc/hostname"}),
        ("guest_exec", {"guest": 102, "command": ["id"]}),
        ("api_call", {"method": "GET", "path": "/nodes/pve1/qemu/102/agent/get-osinfo"}),
        ("api_call", {"method": "POST", "path": "/nodes/pve1/qemu/102/agent/exec", "params": {"command": ["id"]}}),
        ("guest_clone", {"guest": 102, "name": "copy"}),
        ("guest_power", {"guest": 102, "action": "reboot"}),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_a_guest_that_must_not_be_looked_into_is_neither_entered_copied_nor_changed(tmp_path, tool, arguments):
    text = '[[rules]]\nname = "sealed"\ndeny = "look_inside"\ntags = "prod"\n'
    async with ruled(tmp_path, text) as quorate:
        assert "refused by the rule 'sealed'" in await quorate.refusal(tool, **arguments)
        await quorate.facts("guest_get", guest=102)
        assert quorate.writes == []


async def test_without_rules_nothing_more_is_asked_of_the_cluster(tmp_path):
    counted = []
    for text in ("", HIDDEN):  # the second shows that the count would tell
        async with ruled(tmp_path, text) as quorate:
            await quorate.facts("guest_power", guest="test-vm", action="start", dry_run=True)
            mark = len(quorate.sim.requests)
            await quorate.facts("guest_power", guest="test-vm", action="start")
            counted.append(quorate.requests_since(mark))
    assert [path for _, path in counted[0]][:2] == [
        "/nodes/pve1/qemu/108/status/current",
        "/nodes/pve1/qemu/108/status/start",
    ]
    assert ("GET", "/cluster/resources") not in counted[0]
    assert ("GET", "/cluster/resources") in counted[1]


# -- hours -------------------------------------------------------------------------------------------------------------


NIGHT = """
[policy]
timezone = "Europe/Vienna"
[[rules]]
name = "quiet hours"
deny = "change"
hours = ["22:00-06:00", "Sat,Sun 00:00-24:00"]
"""


def moment(text):
    return datetime.datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("when", "quiet"),
    [
        ("2026-06-03T21:59:00+02:00", False),
        ("2026-06-03T22:00:00+02:00", True),
        ("2026-06-04T03:00:00+02:00", True),
        ("2026-06-04T05:59:59+02:00", True),
        ("2026-06-04T06:00:00+02:00", False),
        ("2026-06-04T04:30:00+00:00", False),  # 06:30 in Vienna
        ("2026-06-03T20:30:00+00:00", True),  # 22:30 in Vienna
        ("2026-12-03T20:30:00+00:00", False),  # 21:30 in winter
        ("2026-06-06T12:00:00+02:00", True),  # a Saturday
        ("2026-06-08T00:30:00+02:00", True),  # the night after Sunday
        ("2026-06-08T12:00:00+02:00", False),
    ],
)
def test_hours_are_those_of_the_time_zone_also_over_midnight(when, quiet):
    (rule,) = policy(NIGHT).rules
    assert any(hours.cover(moment(when)) for hours in rule.hours) is quiet


async def test_in_quiet_hours_changes_are_refused_and_still_listed(tmp_path):
    text = NIGHT.replace("22:00-06:00", "Wed,Thu 08:30-10:00")  # it is Thursday, 09:00 in Vienna
    async with ruled(tmp_path, text) as quorate:
        assert "guest_power" in {tool.name for tool in (await quorate.client.list_tools()).tools}
        assert "'quiet hours'" in await quorate.refusal("guest_power", guest="test-vm", action="start")
        assert "'quiet hours'" in await raw(quorate, "POST", "/nodes/pve1/qemu/108/status/start")
        facts = await quorate.facts("guest_power", guest="test-vm", action="start", dry_run=True)
        assert "quiet hours" in facts["not_now"]
        await quorate.facts("guest_list")
        await quorate.clock.advance(3601)
        await quorate.facts("guest_power", guest="test-vm", action="start")


async def test_a_permission_with_hours_is_a_maintenance_window(tmp_path):
    text = '[policy]\ntimezone = "UTC"\n[[rules]]\nname = "window"\nallow = "destroy"\nhours = "Thu 09:00-11:00"\n'
    async with ruled(tmp_path, text) as quorate:
        assert "no rule allows" in await quorate.refusal("guest_power", guest="test-vm", action="start")
        await quorate.clock.advance(3601)
        await quorate.facts("guest_power", guest="test-vm", action="start")


# -- limits ------------------------------------------------------------------------------------------------------------


async def test_destroys_per_hour_are_limited(tmp_path):
    async with ruled(tmp_path, "[policy]\ndestroys_per_hour = 2\n") as quorate:
        await quorate.facts("guest_stop", guest=102)
        text = await quorate.refusal("guest_stop", guest=[103, 104])
        assert "limit destroys_per_hour" in text
        assert quorate.audit()[-1]["rule"] == "limit destroys_per_hour"
        await quorate.facts("guest_stop", guest=103)
        assert "limit destroys_per_hour" in await raw(quorate, "DELETE", "/nodes/pve1/qemu/108")
        assert "not_now" in await quorate.facts("guest_delete", guest=108, dry_run=True)
        await quorate.facts("guest_power", guest=108, action="start")
        await quorate.clock.advance(3601)
        await quorate.facts("guest_stop", guest=108)


async def test_the_number_of_guests_in_one_call_is_limited_however_they_are_chosen(tmp_path):
    async with ruled(tmp_path, "[policy]\nguests_per_call = 2\n") as quorate:
        for attempt in (
            quorate.refusal("guest_bulk", action="tag", type="ct", tags=["x"]),
            quorate.refusal("guest_power", guest=[100, 101, 102], action="reboot"),
            raw(quorate, "POST", "/nodes/pve1/stopall"),
            raw(quorate, "POST", "/cluster/bulk-action/guest/start", vms=[100, 101, 102]),
        ):
            assert "limit guests_per_call" in await attempt
        assert quorate.writes == []
        await quorate.facts("guest_bulk", action="tag", guests=[200, 201], tags=["x"])


async def test_concurrent_changes_are_limited(tmp_path):
    async with ruled(tmp_path, "[policy]\nconcurrent_changes = 2\n") as quorate:
        slow = quorate.sim.faults.add("latency:5:POST:*")
        under_way = [asyncio.ensure_future(quorate.call("guest_stop", guest=vmid, wait=50)) for vmid in (102, 103, 104)]
        while sum(method == "POST" for method, _ in quorate.sim.requests) < 2 or not any(
            call.done() for call in under_way
        ):
            await asyncio.sleep(0)
        refused = [call.result() for call in under_way if call.done()]
        assert ["limit concurrent_changes" in text_of(answer) for answer in refused] == [True]
        await quorate.clock.advance(10)
        answers = await asyncio.gather(*under_way)
        assert sum(answer.is_error for answer in answers) == 1
        quorate.sim.faults.remove(slow)
        await quorate.facts("guest_stop", guest=next(v for v in (102, 103, 104) if quorate.sim.world.guests[v].running))


# -- clusters ----------------------------------------------------------------------------------------------------------


async def test_rules_and_limits_of_one_cluster_hold_there_alone(tmp_path):
    text = '[[rules]]\nname = "prod is calm"\ndeny = "destroy"\nclusters = ["prod"]\n[policy]\ndestroys_per_hour = 1\n'
    own = {"lab": {"policy": policy('[[rules]]\nname = "no lxc here"\ndeny = "change"\nvmids = 301\n')}}
    async with several_clusters(tmp_path, own=own, more={"policy": policy(text)}) as quorate:
        assert "'prod is calm'" in await quorate.refusal("guest_stop", guest="prod/102")
        assert "'prod is calm'" in await quorate.refusal("guest_stop", guest=102, cluster=" prod ")
        assert "'no lxc here'" in await quorate.refusal("guest_power", guest="lab/grafana", action="shutdown")
        await quorate.facts("guest_power", guest="prod/grafana", action="shutdown")
        assert "guest_stop" in {tool.name for tool in (await quorate.client.list_tools()).tools}
        await quorate.facts("guest_stop", guest="lab/100")
        assert "limit destroys_per_hour" in await quorate.refusal("guest_delete", guest="lab/302")


TELLS = [
    ("/cluster/metrics/server/mine", {"type": "influxdb", "server": "198.51.100.7", "port": 8089}),
    ("/cluster/notifications/endpoints/gotify", {"name": "mine", "server": "https://198.51.100.7", "token": "t"}),
    ("/cluster/notifications/endpoints/sendmail", {"name": "mine", "mailto": "me@example.org"}),
]


@pytest.mark.parametrize(("path", "params"), TELLS)
async def test_nobody_outside_learns_about_hidden_guests(tmp_path, path, params):
    async with ruled(tmp_path, HIDDEN) as quorate:
        text = await quorate.refusal("api_call", method="POST", path=path, params=params)
        assert "hidden from you" in text
        assert quorate.writes == []
    async with ruled(tmp_path, "[policy]\nguests_per_call = 1\n") as quorate:  # no guest is acted on
        await quorate.facts("api_call", method="POST", path=path, params=params)


async def test_a_guest_hidden_in_one_cluster_is_missing_from_the_lists_of_all(tmp_path):
    own = {"lab": {"policy": policy('[[rules]]\nname = "secret"\ndeny = "read"\nnames = "play*"\n')}}
    async with several_clusters(tmp_path, own=own) as quorate:
        rows = await quorate.rows("guest_list", limit=200)
        assert ("lab", 100) not in {(row["cluster"], row["vmid"]) for row in rows}
        assert ("prod", 100) in {(row["cluster"], row["vmid"]) for row in rows}
        assert "'secret'" in await quorate.refusal("guest_get", guest="lab/100")


# -- the level comes first ---------------------------------------------------------------------------------------------


async def test_a_rule_never_gives_more_than_the_access_level(tmp_path):
    text = '[[rules]]\nname = "all"\nallow = "destroy"\n'
    async with ruled(tmp_path, text, access=Access.READ) as quorate:
        assert "access level read" in await quorate.refusal("guest_stop", guest=108)
        assert "guest_stop" not in {tool.name for tool in (await quorate.client.list_tools()).tools}
