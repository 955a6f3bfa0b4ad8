"""brynnjocelyn's 29 tools."""

import base64
from dataclasses import replace

import pytest

from quorate.config import Access, Approval
from tests.rigs.compat_session import Done, Row, attempt, refused, surface
from tests.surfaces.compat.rows import brynnjocelyn as coverage
from tests.surfaces.compat.rows import checks, setups

pytestmark = pytest.mark.anyio

READS = {
    "get_cluster_status", "list_nodes", "get_node_status", "get_version", "list_vms", "get_vm_status", "get_vm_config",
    "list_containers", "get_container_status", "get_container_config", "list_storage", "get_storage_content",
    "list_backups", "get_task_status", "list_tasks",
}  # fmt: skip


# -- looks at what the reads tell --------------------------------------------------------------------------------------


def cluster_is_told(done: Done) -> None:
    assert done.facts["quorum"] is done.world.quorate
    assert done.facts["health"] == "ok"
    assert {node["name"]: node["status"] for node in done.facts["nodes"]} == dict.fromkeys(done.world.nodes, "online")
    assert all(node["type"] == "node" and node["ip"] for node in done.facts["nodes"])


def nodes_are_listed(done: Done) -> None:
    assert {row["node"]: row["maxcpu"] for row in done.facts["result"]} == {
        node.name: node.cpus for node in done.world.nodes.values()
    }


def node_is_told(done: Done) -> None:
    node = done.world.nodes[done.arguments["node"]]
    assert done.facts["cpuinfo"]["cpus"] == node.cpus
    assert node.kernel in done.facts["kversion"]


def version_is_told(done: Done) -> None:
    assert done.facts["version"] == done.world.version


def guests_are_listed(kind: str) -> checks.Check:
    def look(done: Done) -> None:
        expected = {
            guest.vmid: (guest.name, guest.status, int(guest.config["memory"]) * 1024**2)
            for guest in done.world.guests_on(done.arguments["node"])
            if guest.kind == kind
        }
        rows = done.facts["result"]
        assert {row["vmid"]: (row["name"], row["status"], row["maxmem"]) for row in rows} == expected
        assert expected

    return look


def state_is_told(done: Done) -> None:
    guest = done.guest()
    assert (done.facts["vmid"], done.facts["name"], done.facts["status"]) == (guest.vmid, guest.name, guest.status)


def config_is_told(done: Done) -> None:
    config = done.guest().config
    assert {key: str(done.facts[key]) for key in config} == {key: str(value) for key, value in config.items()}


def storages_are_listed(done: Done) -> None:
    """PVE lists all storages; those that are not for this node are not enabled there."""
    rows = {row["storage"]: bool(row["enabled"]) for row in done.facts["result"]}
    assert rows == {storage.id: storage.on_node(done.arguments["node"]) for storage in done.world.storages.values()}


def definitions_are_listed(done: Done) -> None:
    assert {row["storage"]: row["type"] for row in done.facts["result"]} == {
        storage.id: storage.type for storage in done.world.storages.values()
    }


def content_is_listed(done: Done) -> None:
    held = done.world.storages[done.arguments["storage"]].volumes(done.arguments["node"])
    expected = {volume.volid: volume.size for volume in held if volume.content == done.arguments["content"]}
    assert {row["volid"]: row["size"] for row in done.facts["result"]} == expected
    assert expected


def backups_are_listed(done: Done) -> None:
    held = done.world.storages[done.arguments["storage"]].volumes(done.arguments["node"])
    expected = {
        volume.volid
        for volume in held
        if volume.content == "backup" and done.arguments.get("vmid") in (None, volume.vmid)
    }
    assert {row["volid"] for row in done.facts["result"]} == expected
    assert expected


async def task_is_told(done: Done) -> None:
    path = f"/nodes/pve1/tasks/{done.arguments['upid']}"
    assert done.facts.items() >= (await done.get(f"{path}/status")).items()
    log = [line["t"] for line in await done.get(f"{path}/log", limit=500)]
    assert done.facts["log"] == log[-50:]
    assert log


async def tasks_are_listed(done: Done) -> None:
    asked = {key: value for key, value in done.arguments.items() if key in ("vmid", "limit")}
    expected = await done.get(f"/nodes/{done.arguments['node']}/tasks", source="all", **asked)
    assert [row["upid"] for row in done.facts["result"]] == [row["upid"] for row in expected]
    assert expected


def and_its_task(check: checks.Check) -> checks.Check:
    """Every change answers with its task, which has ended well."""

    async def look(done: Done) -> None:
        assert done.facts["result"] == "done"
        upid = done.facts["upid"]
        status = await done.get(f"/nodes/{upid.split(':')[1]}/tasks/{upid}/status")
        assert status["exitstatus"] == "OK"
        check(done)

    return look


def container_is_back(done: Done) -> None:
    guest = done.guest()
    assert (guest.kind, guest.node) == ("lxc", done.arguments["node"])
    assert guest.vmid not in done.runs_before


ROWS = [
    *(replace(row, check=and_its_task(row.check)) for row in coverage.ROWS),
    Row("get_cluster_status", {}, cluster_is_told),
    Row("list_nodes", {}, nodes_are_listed),
    Row("get_node_status", {"node": "pve2"}, node_is_told),
    Row("get_version", {}, version_is_told),
    Row("list_vms", {"node": "pve1"}, guests_are_listed("qemu")),
    Row("get_vm_status", {"node": "pve2", "vmid": 104}, state_is_told),
    Row("get_vm_config", {"node": "pve1", "vmid": 102}, config_is_told),
    Row("list_containers", {"node": "pve3"}, guests_are_listed("lxc")),
    Row("get_container_status", {"node": "pve3", "vmid": 204}, state_is_told),
    Row("get_container_config", {"node": "pve2", "vmid": 202}, config_is_told),
    Row("list_storage", {"node": "pve3"}, storages_are_listed),
    Row("list_storage", {}, definitions_are_listed),
    Row("get_storage_content", {"node": "pve1", "storage": "nas", "content": "iso"}, content_is_listed),
    Row("list_backups", {"node": "pve1", "storage": "pbs"}, backups_are_listed),
    Row("list_backups", {"node": "pve1", "storage": "pbs", "vmid": 203}, backups_are_listed),
    Row("get_task_status", {"node": "pve1", "upid": setups.PAST_TASK}, task_is_told),
    Row("list_tasks", {"node": "pve1", "vmid": 102, "limit": 2}, tasks_are_listed),
    Row("list_tasks", {"node": "pve1"}, tasks_are_listed),
    Row(
        "start_vm",
        {"node": "pve2", "vmid": 107, "timeout": 30},
        and_its_task(checks.is_running),
    ),
    Row(
        "shutdown_vm",
        {"node": "pve3", "vmid": 105, "timeout": 60, "forceStop": True},
        and_its_task(checks.is_stopped),
    ),
    Row(
        "create_vm",
        {"node": "pve2", "name": "small"},
        and_its_task(
            checks.is_made("qemu", name="small", memory="2048", cores=1, sockets=1, scsi0=checks.holds("size=32G"))
        ),
    ),
    Row(
        "restore_backup",
        {"node": "pve3", "storage": "nas", "volid": coverage.OLD_BACKUP.removeprefix("nas:"), "vmid": 320},
        and_its_task(checks.is_restored("qemu")),
    ),
    Row(
        "restore_backup",
        {"node": "pve2", "storage": "tank", "volid": coverage.OLD_BACKUP, "vmid": 322},
        and_its_task(checks.both(checks.is_restored("qemu"), checks.disk_is("scsi0", storage="tank"))),
    ),
    Row(
        "restore_backup",
        {"node": "pve2", "storage": "pbs", "volid": "backup/ct/203/2026-01-14T01:00:05Z", "vmid": 321},
        and_its_task(container_is_back),
    ),
    Row(
        "upload_file",
        {
            "node": "pve2", "storage": "local", "filename": "plain.iso", "content": "not base64 at all!",
            "contentType": "iso",
        },
        and_its_task(checks.is_uploaded("local:iso/plain.iso", 18)),
    ),
]  # fmt: skip
CHANGES = [row for row in ROWS if row.tool not in READS]


async def test_every_read_shows_what_the_cluster_has(tmp_path):
    async with surface(tmp_path, "brynnjocelyn", access=Access.READ) as quorate:
        for row in ROWS:
            if row.tool in READS:
                await attempt(quorate, row)


@pytest.mark.parametrize("row", CHANGES, ids=lambda row: row.tool)
async def test_every_change_has_its_effect_and_its_dry_run_has_none(tmp_path, row):
    async with surface(tmp_path, "brynnjocelyn") as quorate:
        await attempt(quorate, row, dry_run=True)


# -- gates -------------------------------------------------------------------------------------------------------------


async def test_at_access_read_a_change_is_refused_and_says_what_the_operator_has_to_set(tmp_path):
    async with surface(tmp_path, "brynnjocelyn", access=Access.READ) as quorate:
        for row in CHANGES:
            text = await refused(quorate, row.tool, **row.arguments)
            assert row.tool in text
            assert "--access" in text


async def test_a_refused_destruction_names_the_access_level_it_needs(tmp_path):
    async with surface(tmp_path, "brynnjocelyn", access=Access.OPERATE) as quorate:
        text = await refused(quorate, "delete_vm", node="pve2", vmid=107)
    assert "by starting Quorate with --access admin." in text


async def test_at_access_operate_only_a_forced_shutdown_is_refused(tmp_path):
    async with surface(tmp_path, "brynnjocelyn", access=Access.OPERATE) as quorate:
        await refused(quorate, "shutdown_vm", node="pve3", vmid=105, forceStop=True)
        assert quorate.sim.world.guests[105].running
        await quorate.facts("shutdown_vm", node="pve3", vmid=105)
        assert not quorate.sim.world.guests[105].running


async def test_at_access_operate_a_restore_may_not_overwrite_a_guest(tmp_path):
    arguments = {"node": "pve1", "storage": "nas", "volid": coverage.OLD_BACKUP}
    async with surface(tmp_path, "brynnjocelyn", access=Access.OPERATE) as quorate:
        await refused(quorate, "restore_backup", vmid=108, force=True, **arguments)
        await quorate.facts("restore_backup", vmid=322, **arguments)
        assert 322 in quorate.sim.world.guests


async def test_with_approval_ask_nothing_is_destroyed_on_the_models_word(tmp_path):
    async with surface(tmp_path, "brynnjocelyn", approval=Approval.ASK) as quorate:
        text = await refused(quorate, "delete_vm", node="pve2", vmid=107, purge=True)
        assert "waits for an operator's approval" in text
        assert 107 in quorate.sim.world.guests


async def test_with_approval_token_the_plan_is_shown_before_it_is_done(tmp_path):
    async with surface(tmp_path, "brynnjocelyn", approval=Approval.TOKEN) as quorate:
        await refused(quorate, "stop_vm", node="pve2", vmid=104)
        plan = await quorate.facts("stop_vm", node="pve2", vmid=104, dry_run=True)
        assert quorate.sim.world.guests[104].running
        await quorate.facts("stop_vm", node="pve2", vmid=104, plan_token=plan["plan_token"])
        assert not quorate.sim.world.guests[104].running


# -- mistakes ----------------------------------------------------------------------------------------------------------


async def test_a_guest_on_another_node_is_left_alone(tmp_path):
    async with surface(tmp_path, "brynnjocelyn") as quorate:
        text = await refused(quorate, "stop_vm", node="pve1", vmid=104)
    assert "is not on node pve1. It is on pve2" in text


async def test_vm_tools_refuse_containers_and_container_tools_refuse_vms(tmp_path):
    async with surface(tmp_path, "brynnjocelyn") as quorate:
        assert "204 is a container" in await refused(quorate, "stop_vm", node="pve3", vmid=204)
        assert "104 is a VM" in await refused(quorate, "stop_container", node="pve2", vmid=104)


async def test_a_vmid_must_be_a_whole_number(tmp_path):
    async with surface(tmp_path, "brynnjocelyn") as quorate:
        assert "whole number" in await refused(quorate, "get_vm_status", node="pve2", vmid=104.5)


async def test_a_refused_upload_of_a_backup_suggests_scp(tmp_path):
    async with surface(tmp_path, "brynnjocelyn") as quorate:
        text = await refused(
            quorate, "upload_file", node="pve1", storage="local", filename="vzdump-qemu-1.vma.zst",
            content=base64.b64encode(b"x").decode(), contentType="backup",
        )  # fmt: skip
    assert "scp" in text


async def test_a_start_that_outlasts_its_timeout_hands_the_task_back(tmp_path):
    async with surface(tmp_path, "brynnjocelyn") as quorate:
        begun = await quorate.facts("start_vm", node="pve2", vmid=107, timeout=0)
        assert begun["result"] == "running"
        told = await quorate.facts("get_task_status", node="pve2", upid=begun["upid"])
        assert told["status"] == "running"


async def test_a_second_upload_of_the_same_name_replaces_nothing(tmp_path):
    arguments = {"node": "pve2", "storage": "local", "filename": "a.iso", "content": "aGk=", "contentType": "iso"}
    async with surface(tmp_path, "brynnjocelyn") as quorate:
        await quorate.facts("upload_file", **arguments)
        text = await refused(quorate, "upload_file", **arguments)
    assert "overwrite" not in text
