"""`safely`: a snapshot of every guest that a change is about, before anything changes, or no change at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quorate.operations.registry import operations
from tests.rigs.homelab import house
from tests.rigs.mcp_session import Rig, rig
from tests.rigs.simulated_guests import files

pytestmark = pytest.mark.anyio


def writes(quorate: Rig, begun: int = 0) -> list[str]:
    """What PVE was asked to change, without the node and the guest."""
    return [path.split("/", 5)[-1] for method, path in quorate.sim.requests[begun:] if method != "GET"]


def last_change(quorate: Rig) -> str:
    return str(next(entry["change"] for entry in reversed(quorate.audit()) if "change" in entry))


def test_every_change_that_may_be_about_a_guest_takes_it_and_no_read_does() -> None:
    for name, operation in operations().items():
        beside = name.startswith("run_") or operation.toolset in NOT_ABOUT_GUESTS
        assert ("safely" in operation.schema()["properties"]) == (operation.changes and not beside), name


NOT_ABOUT_GUESTS = ("access", "ha", "network", "nodes", "storage", "images", "tasks", "scripts", "pbs", "watch")


CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("guest_configure", {"guest": 104, "cores": 3}),
    ("guest_configure", {"guest": 201, "cores": 3}),
    ("disk_add", {"guest": 104, "size": 2}),
    ("disk_change", {"guest": 104, "action": "detach", "disk": "scsi1"}),
    ("disk_change", {"guest": 104, "action": "attach", "disk": "unused0"}),
    ("disk_change", {"guest": 104, "action": "resize", "size": "+1G"}),
    (
        "disk_change",
        {"guest": 104, "action": "move", "disk": "scsi1", "storage": "nas", "format": "qcow2", "delete": False},
    ),
    ("nic_set", {"guest": 104, "nic": "net0", "vlan": 7}),
    ("nic_remove", {"guest": 104, "nic": "net0"}),
    ("cloudinit_set", {"guest": 107, "user": "admin"}),
    ("guest_exec", {"guest": 104, "command": "touch /root/risky"}),
    ("guest_file_write", {"guest": 104, "path": "/root/risky", "content": "x"}),
    ("guest_service_control", {"guest": 104, "service": "ssh", "action": "restart"}),
    ("api_call", {"method": "PUT", "path": "/nodes/pve2/qemu/104/config", "params": {"cores": 4}}),
    ("api_call", {"method": "POST", "path": "/nodes/pve2/qemu/104/status/reset"}),
    ("guest_power", {"guest": 104, "action": "reboot"}),
    ("guest_stop", {"guest": 104}),
)
OF_THE_MOMENT = ("parent", "lock", "digest")


def options(config: dict[str, Any]) -> dict[str, Any]:
    """What a snapshot holds of a configuration."""
    return {key: config[key] for key in config if key not in OF_THE_MOMENT and not key.startswith("unused")}


async def test_the_snapshot_exists_before_the_change(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        for tool, arguments in CHANGES:
            vmid, begun = int(arguments.get("guest", 104)), len(quorate.sim.requests)
            guest = quorate.sim.world.guests[vmid]
            before = options(guest.config)
            inside = files(quorate, vmid).find("/root/risky")
            facts = await quorate.facts(tool, **arguments, safely=True)
            assert facts["result"].startswith("done"), (tool, facts)
            kept = guest.snapshots[facts["snapshots"][str(vmid)]]
            assert options(kept.config) == before, tool
            assert writes(quorate, begun)[0] == "snapshot", tool
            if "/root/risky" in str(arguments):
                assert files(quorate, vmid).find("/root/risky") is not None
                assert kept.files is not None
                assert ("risky" in kept.files.children["root"].children) == (inside is not None)


async def test_a_snapshot_that_fails_leaves_everything_as_it_is(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        quorate.sim.faults.add("task-fails:qmsnapshot:out of space")
        before = dict(quorate.sim.world.guests[104].config)
        refused = await quorate.refusal("guest_configure", guest=104, description="risky", safely=True)
        assert "out of space" in refused
        assert quorate.sim.world.guests[104].config == before
        assert writes(quorate) == ["snapshot"]


async def test_where_snapshots_are_impossible_it_says_so_and_names_the_backup(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        quorate.sim.world.storages["local-lvm"].type = "lvm"
        for tool, arguments in CHANGES:
            if 104 in arguments.values() and tool != "disk_change":
                refused = await quorate.refusal(tool, **arguments, safely=True)
                assert "cannot take snapshots" in refused, tool
                assert "backup_create guest=104" in refused, tool
        assert writes(quorate) == []


REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("guest_delete", {"guest": 108}, "deleted with it"),
    ("guest_delete", {"guest": 104, "stop": True}, "deleted with it"),
    ("guest_migrate", {"guest": 201, "node": "pve3"}, "no snapshot is needed"),
    ("guest_clone", {"guest": 108, "name": "copy"}, "no snapshot is needed"),
    ("guest_template", {"guest": 206}, "cannot become a template"),
    ("snapshot_create", {"guest": 108}, "itself manages snapshots"),
    ("firewall_rule_set", {"scope": "guest", "of": 108, "type": "in", "action": "ACCEPT"}, "not firewall rules"),
    ("disk_destroy", {"guest": 106, "disk": "scsi0", "force": True}, "cannot be destroyed"),
    ("disk_change", {"guest": 104, "action": "move", "disk": "scsi0", "storage": "nas", "delete": True}, "its source"),
    ("pool_set", {"pool": "new"}, "changes no disk or option of a guest"),
    ("user_set", {"user": "new@pve", "password": "long-enough-secret"}, "changes no disk or option of a guest"),
    ("run_evacuate", {"node": "pve3"}, "plans each of its steps later"),
)


INSTEAD_A_BACKUP = ("guest_delete", "guest_template", "firewall_rule_set", "disk_destroy", "disk_change")


async def test_what_a_snapshot_cannot_undo_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        newest = next(row["backup"] for row in await quorate.rows("backup_list") if "/vm/" in row["backup"])
        over = ("backup_restore", {"backup": newest, "vmid": 108, "overwrite": True}, "replaces the guest")
        for tool, arguments, why in (*REFUSED, over):
            refused = await quorate.refusal(tool, **arguments, safely=True)
            assert why in refused, (tool, refused)
            assert "all again without `safely`" in refused, (tool, refused)
            assert ("backup_create guest=" in refused) == (tool in INSTEAD_A_BACKUP), (tool, refused)
        assert writes(quorate) == []


async def test_what_someone_else_changes_during_the_snapshot_is_not_overwritten(tmp_path: Path) -> None:
    class Meddled(dict[str, Any]):
        def __setitem__(self, name: str, snapshot: Any) -> None:
            super().__setitem__(name, snapshot)
            guest.config["net0"] = f"{guest.config['net0']},firewall=1"

    async with rig(tmp_path, in_memory=True) as quorate:
        guest = quorate.sim.world.guests[104]
        guest.snapshots = Meddled(guest.snapshots)
        refused = await quorate.refusal("nic_set", guest=104, nic="net0", vlan=7, safely=True)
        assert "was changed by someone else in the meantime" in refused
        assert str(guest.config["net0"]).endswith(",firewall=1")
        assert writes(quorate) == ["snapshot"]


async def test_the_result_says_how_to_delete_the_snapshots(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        facts = await quorate.facts("guest_configure", guest=108, cores=3, safely=True)
        call = f"snapshot_delete guest=108 snapshot={facts['snapshots']['108']}"
        assert facts["afterwards"] == f"Delete the snapshot once you have verified the change: {call}"
        await quorate.facts("snapshot_delete", guest=108, snapshot=facts["snapshots"]["108"])
        assert facts["snapshots"]["108"] not in quorate.sim.world.guests[108].snapshots
        several = await quorate.facts("guest_bulk", guests=[104, 108], action="tag", tags=["risky"], safely=True)
        assert "Delete each of the snapshots" in several["afterwards"]
        assert f"snapshot_delete guest=104 snapshot={several['snapshots']['104']}" in several["afterwards"]
        pending = await quorate.facts("guest_configure", guest=103, memory=6144, safely=True)
        assert "guest_power guest=103 action=reboot" in pending["next"]  # not instead of the other
        assert "snapshot_delete guest=103" in pending["afterwards"]


async def test_a_rollback_can_be_taken_back_itself_but_not_on_zfs(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        guest = quorate.sim.world.guests[108]
        await quorate.facts("snapshot_create", guest=108, snapshot="old")
        await quorate.facts("guest_configure", guest=108, cores=7)
        assert "is lost" in str(await quorate.facts("snapshot_rollback", guest=108, snapshot="old", dry_run=True))
        facts = await quorate.facts("snapshot_rollback", guest=108, snapshot="old", safely=True)
        assert f"is kept only in snapshot {facts['snapshots']['108']}" in facts["warnings"][0]
        assert "is lost" not in str(facts)
        assert guest.snapshots[facts["snapshots"]["108"]].config["cores"] == 7
        quorate.sim.world.storages["local-lvm"].type = "zfspool"
        assert "newest snapshot" in await quorate.refusal("snapshot_rollback", guest=108, snapshot="old", safely=True)


async def test_several_guests_are_snapshotted_before_any_of_them_changes(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        facts = await quorate.facts("guest_bulk", guests=[104, 108], action="tag", tags=["risky"], safely=True)
        assert set(facts["snapshots"]) == {"104", "108"}
        assert writes(quorate) == ["snapshot", "snapshot", "config", "config"]


async def test_a_change_that_does_nothing_takes_no_snapshot(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        facts = await quorate.facts("guest_power", guest=104, action="start", safely=True)
        assert facts["result"] == "nothing to do"
        assert writes(quorate) == []


async def test_two_changes_within_a_second_get_two_snapshots(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        names = set()
        for cores in (3, 4):
            facts = await quorate.facts("guest_configure", guest=108, cores=cores, safely=True)
            names.add(facts["snapshots"]["108"])
        assert len(names) == 2


async def test_a_dry_run_shows_the_snapshot_and_takes_none(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        facts = await quorate.facts("guest_configure", guest=108, cores=3, safely=True, dry_run=True)
        assert "snapshot" in facts["steps"][0]["call"]
        assert writes(quorate) == []


async def test_what_was_changed_safely_can_be_undone_and_its_undo_is_safe_as_well(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        guest = quorate.sim.world.guests[108]
        await quorate.facts("guest_configure", guest=108, cores=7, safely=True)
        facts = await quorate.facts("change_undo", change=last_change(quorate), safely=True)
        assert guest.config.get("cores") != 7
        assert guest.snapshots[facts["snapshots"]["108"]].config["cores"] == 7


async def test_a_host_that_is_a_guest_is_snapshotted_and_a_plain_host_is_refused(tmp_path: Path) -> None:
    async with house(tmp_path, {"nas": {}}) as home:
        quorate = home.quorate
        guest = quorate.sim.world.guests[104]
        facts = await quorate.facts("host_exec", host="demo/104", command="touch /root/risky", safely=True)
        assert facts["exit_code"] == 0
        assert set(facts["snapshots"]) == {"104"}
        assert facts["snapshots"]["104"] in guest.snapshots
        assert files(quorate, 104).find("/root/risky") is not None
        several = await quorate.facts("host_exec", host=["demo/104", "demo/102"], command="true", safely=True)
        assert set(several["snapshots"]) == {"102", "104"}
        assert len(several["hosts"]["rows"]) == 2
        for hosts in ("nas", ["nas", "demo/104"]):
            assert "host nas is not a guest" in await quorate.refusal(
                "host_exec", host=hosts, command="touch owned", safely=True
            )
