"""solomonneas' 42 tools: listed as documented, each run, its three gates and ours tried."""

import json
from typing import Any

import pytest

from pve_simulator.guest_os.machine import Machines
from quorate.config import Access, Approval
from tests.rigs.compat_session import Done, Row, attempt, documented, refused, surface
from tests.rigs.mcp_session import text_of
from tests.surfaces.compat.rows import setups, solomonneas

pytestmark = pytest.mark.anyio

SYSTEM = "solomonneas"
DOCUMENTED = documented(SYSTEM)
OPT_IN = ("PROXMOX_ENABLE_DESTRUCTIVE",)
SURE = {"confirm": True, "destructive": True}


async def status_is_told(done: Done) -> None:
    assert done.facts["version"] == done.world.version
    assert done.facts["nodes"] == await done.get("/cluster/resources", type="node")


def listed(key: str, kind: str):
    def look(done: Done) -> None:
        expected = {guest.vmid for guest in done.world.guests.values() if guest.kind == kind}
        assert {row["vmid"] for row in done.facts[key]} == expected
        assert done.facts["count"] == len(expected) > 0

    return look


def told(key: str, path: str, **query: object):
    """Under that key is what PVE itself says, next to the guest's place."""

    async def look(done: Done) -> None:
        guest = done.guest()
        place = f"/nodes/{guest.node}/{guest.kind}/{guest.vmid}"
        assert done.facts[key] == await done.get(f"{place}/{path}", **query)
        assert done.facts[key]
        assert {"vmid": guest.vmid, "node": guest.node, "type": guest.kind}.items() <= done.facts.items()

    return look


async def backups_are_listed(done: Done) -> None:
    everything = [
        backup["volid"]
        for node, storage in (("pve1", "nas"), ("pve1", "pbs"), ("pve1", "local"), ("pve2", "local"), ("pve3", "local"))
        for backup in await done.get(f"/nodes/{node}/storage/{storage}/content", content="backup")
        if done.arguments.get("vmid") in (None, backup["vmid"])
    ]
    assert sorted(backup["volid"] for backup in done.facts["backups"]) == sorted(everything)
    assert done.facts["count"] == len(everything) > 0


async def storages_are_listed(done: Done) -> None:
    (node,) = done.facts["nodes"]
    assert node["node"] == "pve3"
    assert with_sorted_content(node["storage"]) == with_sorted_content(await done.get("/nodes/pve3/storage"))


def with_sorted_content(storages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """PVE lists content types in another order each time."""
    return [storage | {"content": sorted(storage["content"].split(","))} for storage in storages]


async def templates_are_listed(done: Done) -> None:
    content = "/nodes/pve1/storage/local/content"
    assert done.facts["container_templates"] == await done.get(content, content="vztmpl")
    assert done.facts["vm_isos"] == await done.get(content, content="iso")
    templates = {guest.vmid for guest in done.world.guests.values() if guest.template and guest.node == "pve1"}
    assert {row["vmid"] for row in done.facts["guest_templates"]} == templates


def addresses_are_told(done: Done) -> None:
    (address,) = [address for address in done.guest().addresses if ":" not in address.ip]
    (listed,) = done.facts["ipv4"]
    assert (listed["address"], listed["prefix"]) == (address.ip, 24)
    assert {interface["name"] for interface in done.facts["interfaces"]} >= {"lo", listed["interface"]}


def nothing_is_told_of_one_that_is_stopped(done: Done) -> None:
    assert not done.guest().running
    assert (done.facts["ipv4"], done.facts["interfaces"]) == ([], [])


def tasks_are_listed(done: Done) -> None:
    assert {row["id"] for row in done.facts["tasks"]} == {"102"}
    assert 0 < done.facts["count"] == len(done.facts["tasks"]) <= 3


async def task_is_told(done: Done) -> None:
    assert done.facts == await done.get(f"/nodes/pve1/tasks/{done.arguments['upid']}/status")


async def task_is_waited_for(done: Done) -> None:
    assert done.facts["done"] is True
    assert done.facts["status"] == await done.get(f"/nodes/pve1/tasks/{done.arguments['upid']}/status")


async def log_is_told(done: Done) -> None:
    lines = await done.get(f"/nodes/pve1/tasks/{done.arguments['upid']}/log")
    assert done.facts == {"lines": lines, "total": len(lines)}


def id_is_free(done: Done) -> None:
    assert done.facts == {"vmid": min(set(range(100, 1000)) - set(done.world.guests))}


async def rights_are_told(done: Done) -> None:
    paths = {entry["path"]: entry for entry in done.facts["paths"]}
    assert set(paths) == {"/", "/pool/mcp-smoke", "/storage/local", "/storage/tank", "/sdn", "/vms/108"}
    path = "/vms/108"
    held = (await done.get("/access/permissions", userid="alice@pve!ci", path=path))[path]
    assert paths[path]["privileges"] == held
    assert paths[path]["missing_required"] == ["VM.Clone"]
    assert paths[path]["has_all_required"] is False


def is_fit(done: Done) -> None:
    assert (done.facts["ok"], done.facts["blockers"]) == (True, [])
    assert done.facts["resource"]["disk_gb"] == 8


def pool_is_listed(done: Done) -> None:
    assert {row["vmid"] for row in done.facts["resources"]} == done.world.access.pools["lab"].vms
    assert done.facts["count"] == len(done.facts["resources"])


READS = [
    Row("proxmox_status", {}, status_is_told),
    Row("proxmox_list_containers", {}, listed("containers", "lxc")),
    Row("proxmox_list_vms", {}, listed("vms", "qemu")),
    Row("proxmox_get_resource", {"vmid": 203}, told("config", "config")),
    Row("proxmox_get_vm_config", {"vmid": 104}, told("config", "config")),
    Row("proxmox_get_container_config", {"vmid": 203}, told("config", "config")),
    Row("proxmox_validate_qemu_smoke_source", {"vmid": 108}, is_fit),
    Row(
        "proxmox_audit_permissions",
        {
            "userid": "alice@pve!ci",
            "root_storage": "tank",
            "source_vmid": 108,
            "required_privileges": ["VM.Clone", "VM.PowerMgmt"],
        },
        rights_are_told,
    ),
    Row("proxmox_recent_tasks", {"limit": 3, "vmid": 102}, tasks_are_listed),
    Row("proxmox_list_backups", {}, backups_are_listed),
    Row("proxmox_list_backups", {"vmid": 102}, backups_are_listed),
    Row(
        "proxmox_resource_usage",
        {"vmid": 104, "timeframe": "day"},
        told("samples", "rrddata", timeframe="day"),
    ),
    Row("proxmox_list_templates", {"node": "pve1"}, templates_are_listed),
    Row("proxmox_list_storage", {"node": "pve3"}, storages_are_listed),
    Row("proxmox_list_snapshots", {"vmid": 108}, told("snapshots", "snapshot")),
    Row("proxmox_wait_task", {"upid": setups.PAST_TASK}, task_is_waited_for),
    Row("proxmox_next_vmid", {}, id_is_free),
    Row("proxmox_list_pool_resources", {"pool": "lab"}, pool_is_listed),
    Row("proxmox_get_task_status", {"upid": setups.PAST_TASK}, task_is_told),
    Row("proxmox_get_task_log", {"upid": setups.PAST_TASK, "limit": 5}, log_is_told),
]


def machine(done: Done):
    return done.world.part(Machines).of(done.guest())


def file_is_read(done: Done) -> None:
    assert done.facts["content"] == machine(done).files.read("/etc/hostname").decode()
    assert done.facts["content"].strip() == done.guest().name


def path_is_told(done: Done) -> None:
    told = {"file_type": "regular file", "owner": "root", "mode": "644", "name": "/etc/hostname"}
    assert told.items() <= done.facts.items()
    assert done.facts["size"] == len(machine(done).files.read("/etc/hostname"))


def folder_is_listed(done: Done) -> None:
    entries = {entry["name"]: entry["kind"] for entry in done.facts["entries"]}
    assert {"hostname": "f", "ssh": "d"}.items() <= entries.items()
    assert done.facts["count"] == len(entries)


def service_is_told(done: Done) -> None:
    assert {"Id": "ssh.service", "ActiveState": "active", "SubState": "running"}.items() <= done.facts["status"].items()
    assert machine(done).services["ssh"].active


def command_was_run(done: Done) -> None:
    assert (done.facts["stdout"], done.facts["stderr"], done.facts["exit_code"]) == ("out\n", "err\n", 3)
    assert machine(done).files.read("/tmp/made") == b"by a command\n"


def file_is_written(done: Done) -> None:
    assert machine(done).files.read("/opt/a/b.txt").decode() == done.arguments["content"]
    assert done.facts["bytes_written"] == len(done.arguments["content"].encode())


def service_runs(done: Done) -> None:
    assert machine(done).services["ssh"].active
    assert (done.facts["action"], done.facts["status"]["ActiveState"]) == ("start", "active")


def service_is_down(done: Done) -> None:
    assert not machine(done).services["ssh"].active
    assert (done.facts["action"], done.facts["status"]["ActiveState"]) == ("stop", "inactive")


def service_was_restarted(done: Done) -> None:
    assert machine(done).services["ssh"].changed_at > done.guest().started_at
    assert (done.facts["action"], done.facts["status"]["ActiveState"]) == ("restart", "active")


def both_kinds(tool, arguments, check):
    """In a VM by its agent, in a container over SSH to its node."""
    return [Row(tool, {"vmid": vmid, **arguments, "confirm": True}, check) for vmid in (102, 203)]


LOOKS_INSIDE = [
    Row("proxmox_guest_network", {"vmid": 102}, addresses_are_told),
    Row("proxmox_guest_network", {"vmid": 203}, addresses_are_told),
    Row("proxmox_guest_network", {"vmid": 206}, nothing_is_told_of_one_that_is_stopped),
    *both_kinds("proxmox_read_file", {"path": "/etc/hostname"}, file_is_read),
    *both_kinds("proxmox_stat_path", {"path": "/etc/hostname"}, path_is_told),
    *both_kinds("proxmox_list_directory", {"path": "/etc"}, folder_is_listed),
    *both_kinds("proxmox_service_status", {"service": "ssh"}, service_is_told),
]
COMMAND = "echo by a command > /tmp/made; echo out; echo err >&2; exit 3"
CHANGES_INSIDE = [
    *both_kinds("proxmox_exec", {"command": COMMAND}, command_was_run),
    *both_kinds("proxmox_write_file", {"path": "/opt/a/b.txt", "content": "héllo\n$(reboot)\n"}, file_is_written),
    *both_kinds("proxmox_service_stop", {"service": "ssh.service"}, service_is_down),
    *both_kinds("proxmox_service_start", {"service": "ssh"}, service_runs),
    *both_kinds("proxmox_service_restart", {"service": "ssh"}, service_was_restarted),
]
TRIED = {row.tool for row in [*READS, *LOOKS_INSIDE, *CHANGES_INSIDE]}
WRITES = [row for row in solomonneas.ROWS if row.tool not in TRIED]


async def test_every_read_shows_what_the_cluster_has(tmp_path):
    async with surface(tmp_path, SYSTEM, access=Access.READ) as quorate:
        for read in READS:
            await attempt(quorate, read)


async def test_looks_inside_and_changes_inside_match_the_guest(tmp_path):
    async with surface(tmp_path, SYSTEM, access=Access.OPERATE, ssh=True) as quorate:
        for row in [*LOOKS_INSIDE, *CHANGES_INSIDE]:
            await attempt(quorate, row)


async def test_looking_inside_needs_confirm_and_more_than_access_read(tmp_path):
    async with surface(tmp_path, SYSTEM, access=Access.READ) as quorate:
        for row in [*LOOKS_INSIDE[3:], *CHANGES_INSIDE]:
            text = await refused(quorate, row.tool, **{**row.arguments, "confirm": False})
            assert f"{row.tool} does nothing without confirm=true" in text
            text = await refused(quorate, row.tool, **row.arguments)
            assert f"{row.tool} is refused at access level read" in text
            assert "starting Quorate with --access operate or admin, or with PROXMOX_ENABLE_DESTRUCTIVE" in text
            assert "and neither --access nor --approval." in text


@pytest.mark.parametrize("row", WRITES, ids=[row.tool for row in WRITES])
async def test_every_change_has_its_effect_and_its_dry_run_has_none(tmp_path, row):
    async with surface(tmp_path, SYSTEM, opt_ins=OPT_IN) as quorate:
        done = await attempt(quorate, row, dry_run=True)
        if "upid" in done.facts:
            assert done.facts["upid"].startswith("UPID:")
            assert done.facts["result"] == "done"


# -- its own words -----------------------------------------------------------------------------------------------------


async def test_addresses_are_shown_at_access_read(tmp_path):
    async with surface(tmp_path, SYSTEM, access=Access.READ) as quorate:
        network = await quorate.facts("proxmox_guest_network", vmid=102)
        assert network["ipv4"] == [{"interface": "ens18", "address": quorate.sim.world.guests[102].addresses[0].ip}]


async def test_an_unfit_smoke_source_lists_its_blockers(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        config = quorate.sim.world.guests[108].config
        config.update(agent="0", hostpci0="0000:01:00", args="-cpu host", ipconfig0="ip=10.0.0.5/24,gw=10.0.0.1")
        validation = await quorate.facts("proxmox_validate_qemu_smoke_source", vmid=108, max_disk_gb=4)
        assert validation["ok"] is False
        assert validation["blockers"] == [
            "Devices of the host are passed through: hostpci0",
            "It has raw QEMU arguments (args)",
            "The guest agent is not enabled",
            "A clone would have the same address: ipconfig0",
            "Its disks have 8.0 GiB, more than 4",
        ]
        running = await quorate.facts("proxmox_validate_qemu_smoke_source", vmid=104)
        assert running["blockers"] == ["The VM is running: stop it, or allow running sources"]
        assert (await quorate.facts("proxmox_validate_qemu_smoke_source", vmid=104, allow_running=True))["ok"]


async def test_cleaning_up_shows_first_and_leaves_running_guests_alone(tmp_path):
    async with surface(tmp_path, SYSTEM, opt_ins=OPT_IN) as quorate:
        world = quorate.sim.world
        solomonneas.two_smoke_guests(world)
        await quorate.facts("proxmox_start_resource", vmid=206, confirm=True)
        shown = await quorate.facts("proxmox_cleanup_smoke_resources", pool="lab")
        assert (shown["dry_run"], shown["matched"]) == (True, 2)
        assert [row["vmid"] for row in shown["targets"]] == [107, 206]
        assert [row["vmid"] for row in shown["skipped_running"]] == [206]
        assert {107, 206} <= set(world.guests)
        gone = await quorate.facts("proxmox_cleanup_smoke_resources", pool="lab", dry_run=False, **SURE)
        assert [(row["vmid"], row["done"]) for row in gone["destroyed"]] == [(107, True)]
        assert 206 in world.guests
        assert 107 not in world.guests


async def test_errors_carry_a_code_that_does_not_change(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        expected: dict[str, tuple[str, dict[str, Any]]] = {
            "VMID_NOT_FOUND": ("proxmox_get_resource", {"vmid": 999}),
            "TOOL_INPUT_INVALID": ("proxmox_get_resource", {"vmid": "many"}),
            "TASK_UPID_INVALID": ("proxmox_get_task_status", {"upid": "UPID:"}),
            "NOT_FOUND": ("proxmox_list_pool_resources", {}),
            "WRITE_CONFIRMATION_REQUIRED": ("proxmox_start_resource", {"vmid": 206, "confirm": False}),
            "DESTRUCTIVE_CONFIRMATION_REQUIRED": (
                "proxmox_destroy_resource",
                {"vmid": 206, "confirm": True, "destructive": False},
            ),
            "DESTRUCTIVE_ENV_REQUIRED": ("proxmox_destroy_resource", {"vmid": 206, **SURE}),
        }
        missing: list[tuple[str, tuple[str, dict[str, Any]]]] = [
            ("WRITE_CONFIRMATION_REQUIRED", ("proxmox_start_resource", {"vmid": 206})),
            ("DESTRUCTIVE_CONFIRMATION_REQUIRED", ("proxmox_destroy_resource", {"vmid": 206, "confirm": True})),
        ]
        for code, (tool, arguments) in [*expected.items(), *missing]:
            answer = await quorate.call(tool, **arguments)
            assert answer.is_error
            payload = json.loads(text_of(answer))
            assert payload["code"] == code, payload
            assert payload == answer.structured_content


async def test_new_disks_are_on_the_storage_that_the_other_server_would_choose(tmp_path):
    async with surface(tmp_path, SYSTEM) as quorate:
        guests = quorate.sim.world.guests
        await quorate.facts("proxmox_create_vm", vmid=220, name="web", confirm=True)
        assert str(guests[220].config["scsi0"]).startswith("local-lvm:")
        template = "local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst"
        await quorate.facts("proxmox_create_container", vmid=221, hostname="ct", ostemplate=template, confirm=True)
        assert str(guests[221].config["rootfs"]).startswith("local-lvm:")
        del quorate.sim.world.storages["local-lvm"]
        await quorate.facts("proxmox_create_vm", vmid=222, name="other", confirm=True)
        assert str(guests[222].config["scsi0"]).startswith(("tank:", "nas:"))


# -- gates -------------------------------------------------------------------------------------------------------------

DESTRUCTIVE = [row for row in WRITES if "destructive" in DOCUMENTED[row.tool]]


async def test_nothing_is_changed_without_confirm(tmp_path):
    async with surface(tmp_path, SYSTEM, opt_ins=OPT_IN) as quorate:
        for row in WRITES:
            text = await refused(quorate, row.tool, **{**row.arguments, "confirm": False})
            assert f"{row.tool} does nothing without confirm=true" in text


@pytest.mark.parametrize("row", DESTRUCTIVE, ids=[row.tool for row in DESTRUCTIVE])
async def test_destroying_needs_the_argument_destructive_and_the_opt_in_even_at_access_admin(tmp_path, row):
    async with surface(tmp_path, SYSTEM, opt_ins=OPT_IN) as quorate:
        text = await refused(quorate, row.tool, **{**row.arguments, "destructive": False})
        assert "does nothing without destructive=true" in text
    async with surface(tmp_path, SYSTEM) as quorate:
        text = await refused(quorate, row.tool, **row.arguments)
        assert "start Quorate with PROXMOX_ENABLE_DESTRUCTIVE=1" in text


def unset(tmp_path, *surfaces):
    """A server whose operator has set the opt-in and nothing else."""
    return surface(tmp_path, *surfaces, opt_ins=OPT_IN, access=Access.READ, approval=Approval.ASK, gate_chosen=False)


async def test_the_opt_in_counts_where_the_operator_configured_nothing_else(tmp_path):
    async with unset(tmp_path, SYSTEM) as quorate:
        await quorate.facts("proxmox_force_stop_resource", vmid=104, **SURE)
        assert not quorate.sim.world.guests[104].running
        assert quorate.audit()[-1]["approval"] == "none by PROXMOX_ENABLE_DESTRUCTIVE"


async def test_the_opt_in_never_loosens_what_the_operator_has_chosen(tmp_path):
    async with surface(tmp_path, SYSTEM, opt_ins=OPT_IN, access=Access.OPERATE) as quorate:
        text = await refused(quorate, "proxmox_force_stop_resource", vmid=104, **SURE)
        assert "proxmox_force_stop_resource is refused at access level operate" in text
        assert "by starting Quorate with --access admin." in text
    async with surface(tmp_path, SYSTEM, opt_ins=OPT_IN, approval=Approval.ASK) as quorate:
        text = await refused(quorate, "proxmox_force_stop_resource", vmid=104, **SURE)
        assert "waits for an operator's approval" in text


async def test_the_opt_in_opens_this_surface_and_no_other(tmp_path):
    async with unset(tmp_path, "native", SYSTEM) as quorate:
        assert "refused at access level read" in await refused(quorate, "guest_stop", guest=104)
        await quorate.facts("proxmox_force_stop_resource", vmid=104, **SURE)


async def test_toolsets_that_the_operator_left_out_stay_out(tmp_path):
    async with surface(tmp_path, SYSTEM, toolsets=("guests", "api")) as quorate:
        text = await refused(quorate, "proxmox_run_backup", vmid=204, storage="nas", confirm=True)
        assert "proxmox_run_backup is switched off" in text
        assert "--toolsets guests,backups,api" in text
