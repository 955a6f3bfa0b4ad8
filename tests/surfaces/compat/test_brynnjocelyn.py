"""brynnjocelyn's 29 tools."""

import base64

import pytest

from quorate.config import Access, Approval
from tests.coverage import brynnjocelyn as coverage
from tests.coverage import checks, tasks
from tests.coverage.rows import Done
from tests.rigs.compat_session import Try, as_documented, as_tries, attempt, documented, refused, surface

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
    node = done.world.nodes[done.given["node"]]
    assert done.facts["cpuinfo"]["cpus"] == node.cpus
    assert node.kernel in done.facts["kversion"]


def version_is_told(done: Done) -> None:
    assert done.facts["version"] == done.world.version


def guests_are_listed(kind: str) -> checks.Check:
    def look(done: Done) -> None:
        expected = {
            guest.vmid: (guest.name, guest.status, int(guest.config["memory"]) * 1024**2)
            for guest in done.world.guests_on(done.given["node"])
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
    assert rows == {one.id: one.on_node(done.given["node"]) for one in done.world.storages.values()}


def definitions_are_listed(done: Done) -> None:
    assert {row["storage"]: row["type"] for row in done.facts["result"]} == {
        one.id: one.type for one in done.world.storages.values()
    }


def content_is_listed(done: Done) -> None:
    held = done.world.storages[done.given["storage"]].volumes(done.given["node"])
    expected = {volume.volid: volume.size for volume in held if volume.content == done.given["content"]}
    assert {row["volid"]: row["size"] for row in done.facts["result"]} == expected
    assert expected


def backups_are_listed(done: Done) -> None:
    held = done.world.storages[done.given["storage"]].volumes(done.given["node"])
    expected = {
        volume.volid for volume in held if volume.content == "backup" and done.given.get("vmid") in (None, volume.vmid)
    }
    assert {row["volid"] for row in done.facts["result"]} == expected
    assert expected


async def task_is_told(done: Done) -> None:
    path = f"/nodes/pve1/tasks/{done.given['upid']}"
    assert done.facts.items() >= (await done.get(f"{path}/status")).items()
    log = [line["t"] for line in await done.get(f"{path}/log", limit=500)]
    assert done.facts["log"] == log[-50:]
    assert log


async def tasks_are_listed(done: Done) -> None:
    asked = {key: value for key, value in done.given.items() if key in ("vmid", "limit")}
    expected = await done.get(f"/nodes/{done.given['node']}/tasks", source="all", **asked)
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
    assert (guest.kind, guest.node) == ("lxc", done.given["node"])
    assert guest.vmid not in done.runs_before


CHANGES = [
    Try(one.tool, one.given, and_its_task(one.check), one.prepare)
    for one in as_tries(coverage.ROWS)
    if one.tool not in READS
]
FURTHER = [
    Try("get_cluster_status", {}, cluster_is_told),
    Try("list_nodes", {}, nodes_are_listed),
    Try("get_node_status", {"node": "pve2"}, node_is_told),
    Try("get_version", {}, version_is_told),
    Try("list_vms", {"node": "pve1"}, guests_are_listed("qemu")),
    Try("get_vm_status", {"node": "pve2", "vmid": 104}, state_is_told),
    Try("get_vm_config", {"node": "pve1", "vmid": 102}, config_is_told),
    Try("list_containers", {"node": "pve3"}, guests_are_listed("lxc")),
    Try("get_container_status", {"node": "pve3", "vmid": 204}, state_is_told),
    Try("get_container_config", {"node": "pve2", "vmid": 202}, config_is_told),
    Try("list_storage", {"node": "pve3"}, storages_are_listed),
    Try("list_storage", {}, definitions_are_listed),
    Try("get_storage_content", {"node": "pve1", "storage": "nas", "content": "iso"}, content_is_listed),
    Try("list_backups", {"node": "pve1", "storage": "pbs"}, backups_are_listed),
    Try("list_backups", {"node": "pve1", "storage": "pbs", "vmid": 203}, backups_are_listed),
    Try("get_task_status", {"node": "pve1", "upid": tasks.PAST_TASK}, task_is_told),
    Try("list_tasks", {"node": "pve1", "vmid": 102, "limit": 2}, tasks_are_listed),
    Try("list_tasks", {"node": "pve1"}, tasks_are_listed),
    Try(
        "start_vm",
        {"node": "pve2", "vmid": 107, "timeout": 30},
        and_its_task(checks.is_running),
    ),
    Try(
        "shutdown_vm",
        {"node": "pve3", "vmid": 105, "timeout": 60, "forceStop": True},
        and_its_task(checks.is_stopped),
    ),
    Try(
        "create_vm",
        {"node": "pve2", "name": "small"},
        and_its_task(
            checks.is_made("qemu", name="small", memory="2048", cores=1, sockets=1, scsi0=checks.holds("size=32G"))
        ),
    ),
    Try(
        "restore_backup",
        {"node": "pve3", "storage": "nas", "volid": coverage.OLD_BACKUP.removeprefix("nas:"), "vmid": 320},
        and_its_task(checks.is_restored("qemu")),
    ),
    Try(
        "restore_backup",
        {"node": "pve2", "storage": "tank", "volid": coverage.OLD_BACKUP, "vmid": 322},
        and_its_task(checks.both(checks.is_restored("qemu"), checks.disk_is("scsi0", storage="tank"))),
    ),
    Try(
        "restore_backup",
        {"node": "pve2", "storage": "pbs", "volid": "backup/ct/203/2026-01-14T01:00:05Z", "vmid": 321},
        and_its_task(container_is_back),
    ),
    Try(
        "upload_file",
        {
            "node": "pve2", "storage": "local", "filename": "plain.iso", "content": "not base64 at all!",
            "contentType": "iso",
        },
        and_its_task(checks.is_uploaded("local:iso/plain.iso", 18)),
    ),
]  # fmt: skip
TRIES = [*CHANGES, *FURTHER]


async def test_the_tools_are_listed_exactly_as_documented(tmp_path):
    async with surface(tmp_path, "brynnjocelyn") as quorate:
        listed = {tool.name: as_documented(tool.input_schema) for tool in (await quorate.client.list_tools()).tools}
    assert len(listed) == 29
    assert listed == documented("brynnjocelyn")


def test_every_tool_is_tried():
    assert {one.tool for one in TRIES} == set(documented("brynnjocelyn"))


@pytest.mark.parametrize("tried", TRIES, ids=lambda one: one.tool)
async def test_a_tool_does_what_it_promises(tmp_path, tried):
    async with surface(tmp_path, "brynnjocelyn") as quorate:
        await attempt(quorate, tried)


# -- gates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tried", [one for one in TRIES if one.tool not in READS], ids=lambda one: one.tool)
async def test_at_access_read_a_change_is_refused_and_says_what_the_operator_has_to_set(tmp_path, tried):
    async with surface(tmp_path, "brynnjocelyn", access=Access.READ) as quorate:
        text = await refused(quorate, tried.tool, **tried.given)
    assert tried.tool in text
    assert "--access" in text


async def test_what_destroys_names_the_access_it_needs(tmp_path):
    async with surface(tmp_path, "brynnjocelyn", access=Access.OPERATE) as quorate:
        text = await refused(quorate, "delete_vm", node="pve2", vmid=107)
    assert "by starting Quorate with --access admin." in text


async def test_at_access_operate_a_shutdown_is_done_and_one_by_force_is_not(tmp_path):
    async with surface(tmp_path, "brynnjocelyn", access=Access.OPERATE) as quorate:
        await refused(quorate, "shutdown_vm", node="pve3", vmid=105, forceStop=True)
        assert quorate.sim.world.guests[105].running
        await quorate.facts("shutdown_vm", node="pve3", vmid=105)
        assert not quorate.sim.world.guests[105].running


async def test_at_access_operate_a_backup_is_restored_beside_and_not_over_a_guest(tmp_path):
    given = {"node": "pve1", "storage": "nas", "volid": coverage.OLD_BACKUP}
    async with surface(tmp_path, "brynnjocelyn", access=Access.OPERATE) as quorate:
        await refused(quorate, "restore_backup", vmid=108, force=True, **given)
        await quorate.facts("restore_backup", vmid=322, **given)
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


async def test_a_container_is_no_vm(tmp_path):
    async with surface(tmp_path, "brynnjocelyn") as quorate:
        assert "204 is a container" in await refused(quorate, "stop_vm", node="pve3", vmid=204)
        assert "104 is a VM" in await refused(quorate, "stop_container", node="pve2", vmid=104)


async def test_a_vmid_that_is_no_number_is_refused(tmp_path):
    async with surface(tmp_path, "brynnjocelyn") as quorate:
        assert "whole number" in await refused(quorate, "get_vm_status", node="pve2", vmid=104.5)


async def test_a_backup_that_cannot_be_uploaded_says_how_it_gets_there(tmp_path):
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
    given = {"node": "pve2", "storage": "local", "filename": "a.iso", "content": "aGk=", "contentType": "iso"}
    async with surface(tmp_path, "brynnjocelyn") as quorate:
        await quorate.facts("upload_file", **given)
        text = await refused(quorate, "upload_file", **given)
    assert "overwrite" not in text
