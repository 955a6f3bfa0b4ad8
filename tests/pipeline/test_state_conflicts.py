"""What the user reads when a guest's state does not allow what is asked.

First what is seen before anything is sent; then PVE's own refusals, for guests that change between look and call.
"""

import pytest

from pve_simulator.routes.replication import Replication, ReplicationJob
from pve_simulator.world import HaResource
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio

STOPPED_VM, STOPPED_CT, RUNNING_VM, RUNNING_CT, PAUSED_VM, VM_TEMPLATE, CT_TEMPLATE = (
    107,
    206,
    104,
    204,
    106,
    9000,
    9001,
)


def power(vmid, action):
    return "guest_power", {"guest": vmid, "action": action}


def tool(name, guest, **more):
    return name, {"guest": guest, **more}


@pytest.mark.parametrize(
    ("call", "state"),
    [
        (power(RUNNING_VM, "start"), "already running"),
        (power(RUNNING_CT, "start"), "already running"),
        (power(STOPPED_VM, "shutdown"), "already stopped"),
        (power(STOPPED_CT, "shutdown"), "already stopped"),
        (tool("guest_stop", STOPPED_VM), "already stopped"),
        (tool("guest_stop", STOPPED_CT), "already stopped"),
        (tool("guest_template", VM_TEMPLATE), "already a template"),
        (tool("guest_template", CT_TEMPLATE), "already a template"),
    ],
)
async def test_what_is_so_already_is_no_error_and_nothing_is_sent(tmp_path, call, state):
    name, arguments = call
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts(name, **arguments)
        assert facts["result"] == "nothing to do"
        assert state in facts["unchanged"][0]
        assert all(method == "GET" for method, _ in quorate.sim.requests)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        # start
        (power(VM_TEMPLATE, "start"), ["template", "Clone it"]),
        (power(CT_TEMPLATE, "start"), ["template", "Clone it"]),
        (power(PAUSED_VM, "start"), ["paused", "action=resume"]),
        (power(999, "start"), ["no guest '999'", "guest_list"]),
        (tool("guest_stop", 999), ["no guest '999'"]),
        # a state that does not fit
        (power(PAUSED_VM, "shutdown"), ["is paused", "action=resume"]),
        (power(PAUSED_VM, "reboot"), ["is paused", "action=resume"]),
        (power(STOPPED_VM, "reboot"), ["is stopped", "action=start"]),
        (("guest_stop", {"guest": STOPPED_VM, "reset": True}), ["is stopped", "action=start"]),
        (power(STOPPED_VM, "suspend"), ["is stopped", "action=start"]),
        (power(STOPPED_VM, "resume"), ["is stopped", "action=start"]),
        (power(STOPPED_CT, "reboot"), ["is stopped", "action=start"]),
        (power(STOPPED_CT, "suspend"), ["is stopped", "action=start"]),
        (("guest_stop", {"guest": RUNNING_CT, "reset": True}), ["no reset button", "action=reboot"]),
        # delete
        (tool("guest_delete", RUNNING_VM), ["is running", "stop=true"]),
        (tool("guest_delete", RUNNING_CT), ["is running", "stop=true"]),
        (tool("guest_delete", 109), ["protected against deletion"]),
        (tool("guest_delete", 207), ["protected against deletion"]),
        (tool("guest_delete", 999), ["no guest '999'"]),
        # clone
        (tool("guest_clone", STOPPED_VM, vmid=200), ["200 is taken", "pihole"]),
        (tool("guest_clone", STOPPED_CT, vmid=100), ["100 is taken", "router"]),
        (tool("guest_clone", STOPPED_VM, full=False), ["No linked clone", "full=true"]),
        (tool("guest_clone", STOPPED_CT, full=False), ["No linked clone", "full=true"]),
        (tool("guest_clone", 101, full=False, snapshot="x1"), ["no snapshot 'x1'"]),
        (tool("guest_clone", VM_TEMPLATE, full=False, storage="tank"), ["cannot be combined with a linked clone"]),
        (tool("guest_clone", VM_TEMPLATE, full=False, format="raw"), ["cannot be combined with a linked clone"]),
        (tool("guest_clone", RUNNING_CT), ["running container", "snapshot_create"]),
        (tool("guest_clone", STOPPED_VM, node="pve1"), ["local storage of pve2"]),
        (tool("guest_clone", STOPPED_CT, node="pve1"), ["local storage of pve3"]),
        (tool("guest_clone", STOPPED_VM, node="pve1", storage="local-lvm"), ["local-lvm is not shared"]),
        # snapshots
        (tool("snapshot_create", STOPPED_VM, snapshot="9lives"), ["begins with a letter"]),
        (tool("snapshot_create", STOPPED_VM, snapshot="current"), ["reserves the name"]),
        (tool("snapshot_create", STOPPED_CT, snapshot="vzdump"), ["reserves the name"]),
        (tool("snapshot_create", 108, snapshot="clean"), ["already has a snapshot"]),
        (tool("snapshot_create", 203, snapshot="pre-migration"), ["already has a snapshot"]),
        (tool("snapshot_create", VM_TEMPLATE), ["template"]),
        (tool("snapshot_create", CT_TEMPLATE), ["template"]),
        (tool("snapshot_create", 202), ["cannot take snapshots", "mp0"]),
        (tool("snapshot_delete", 108, snapshot="nope"), ["no snapshot 'nope'", "clean"]),
        (tool("snapshot_rollback", 203, snapshot="nope"), ["no snapshot 'nope'", "pre-migration"]),
        (tool("snapshot_update", 203, snapshot="nope", description="x"), ["no snapshot 'nope'"]),
        # templates
        (tool("guest_template", 108), ["snapshots", "snapshot_delete"]),
        (tool("guest_template", RUNNING_VM), ["running", "action=shutdown"]),
        (tool("guest_template", RUNNING_CT), ["running", "action=shutdown"]),
        # migration
        (tool("guest_migrate", STOPPED_VM, node="pve2"), ["already on pve2"]),
        (tool("guest_migrate", STOPPED_CT, node="pve3"), ["already on pve3"]),
        (tool("guest_migrate", STOPPED_VM, node="pve7"), ["no node 'pve7'"]),
        (tool("guest_migrate", RUNNING_VM, node="pve1", mode="offline"), ["running", "mode=live"]),
        (tool("guest_migrate", RUNNING_CT, node="pve1", mode="live"), ["container", "mode=restart"]),
        (tool("guest_migrate", RUNNING_VM, node="pve1"), ["local disks", "with_local_disks=true"]),
        (tool("guest_migrate", 103, node="pve3", with_local_disks=True), ["storage tank", "target_storage"]),
        # a guest is not where the caller thinks
        (tool("guest_delete", "pve3/108"), ["test-vm", "leave the node out"]),
    ],
)
async def test_what_pve_would_refuse_is_refused_before_with_what_to_do(tmp_path, call, words):
    name, arguments = call
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal(name, **arguments)
        assert all(word in text for word in words), text
        assert all(method == "GET" for method, _ in quorate.sim.requests)


@pytest.mark.parametrize("vmid", [STOPPED_VM, STOPPED_CT])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("guest_delete", {}),
        ("guest_clone", {}),
        ("guest_template", {}),
        ("guest_migrate", {"node": "pve1"}),
        ("snapshot_create", {}),
    ],
)
async def test_a_locked_guest_is_left_alone_and_the_lock_is_explained(tmp_path, name, more, vmid):
    async with rig(tmp_path, faults=[f"locked:{vmid}:backup"]) as quorate:
        text = await quorate.refusal(name, guest=vmid, **more)
        assert "is locked (backup)" in text
        assert "task_list" in text
        assert f"unlock {vmid}" in text
        assert all(method == "GET" for method, _ in quorate.sim.requests)


@pytest.mark.parametrize("name", ["snapshot_rollback", "snapshot_delete"])
async def test_the_snapshots_of_a_locked_guest_are_left_alone(tmp_path, name):
    async with rig(tmp_path, faults=["locked:108:snapshot"]) as quorate:
        assert "is locked (snapshot)" in await quorate.refusal(name, guest=108, snapshot="clean")
        assert list(quorate.sim.world.guests[108].snapshots) == ["clean", "configured"]


@pytest.mark.parametrize(("vmid", "word"), [(STOPPED_VM, "VM"), (STOPPED_CT, "CT")])
async def test_starting_a_locked_guest_says_what_holds_it(tmp_path, vmid, word):
    async with rig(tmp_path, faults=[f"locked:{vmid}:backup"]) as quorate:
        text = await quorate.refusal("guest_power", guest=vmid, action="start")
        assert f"{word} is locked (backup)" in text
        assert "task_list" in text


async def test_a_vm_that_is_suspended_to_disk_is_resumed_not_started_and_may_be_deleted(tmp_path):
    async with rig(tmp_path, faults=[f"locked:{STOPPED_VM}:suspended"]) as quorate:
        assert "action=resume" in await quorate.refusal("guest_power", guest=STOPPED_VM, action="start")
        assert "action=resume" in await quorate.refusal("guest_clone", guest=STOPPED_VM)
        await quorate.facts("guest_delete", guest=STOPPED_VM)
        assert STOPPED_VM not in quorate.sim.world.guests


async def test_a_guest_that_does_not_shut_down_is_distinguished_from_a_lock(tmp_path):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("guest_power", guest="router", action="shutdown", timeout=5)
        assert "got timeout" in text
        assert "guest_stop" in text
        assert "holds the lock" not in text
        assert quorate.sim.world.guests[100].running


async def test_a_container_that_does_not_shut_down_is_reported_in_pves_words(tmp_path):
    fault = "task-fails:vzshutdown:command 'lxc-stop -n 204 --timeout 60 --nokill' failed: exit code 1"
    async with rig(tmp_path, faults=[fault]) as quorate:
        assert "lxc-stop" in await quorate.refusal("guest_power", guest=RUNNING_CT, action="shutdown")


@pytest.mark.parametrize("vmid", [STOPPED_VM, STOPPED_CT])
async def test_references_of_ha_and_replication_are_explained(tmp_path, vmid):
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        guest = world.guests[vmid]
        world.ha[guest.sid] = HaResource(guest.sid, state="stopped")
        text = await quorate.refusal("guest_delete", guest=vmid)
        assert "is under HA" in text
        assert "purge=true" in text
        del world.ha[guest.sid]
        world.part(Replication).add(ReplicationJob(f"{vmid}-0", vmid, "pve1", {}))
        text = await quorate.refusal("guest_delete", guest=vmid)
        assert f"{vmid}-0" in text
        assert "purge=true" in text
        assert vmid in world.guests


# -- PVE's own refusals, when the guest has changed since it was looked at ---------------------------------------------

CLONE, MIGRATE, DELETE = "POST:/nodes/*/clone", "POST:/nodes/*/migrate", "DELETE:/nodes/*"
TEMPLATE = "POST:/nodes/*/template"


@pytest.mark.parametrize(
    ("fault", "call", "words"),
    [
        ("task-fails:qmstart:VM 107 already running", power(STOPPED_VM, "start"), ["already running"]),
        ("500:CT 206 already running:POST:/nodes/*", power(STOPPED_CT, "start"), ["already running"]),
        (
            "task-fails:qmstart:you can't start a vm if it's a template",
            power(STOPPED_VM, "start"),
            ["clone it into a guest"],
        ),
        ("500:CT 204 not running:POST:/nodes/*", tool("guest_stop", RUNNING_CT), ["not running"]),
        ("500:VM is paused - cannot shutdown:POST:/nodes/*", power(RUNNING_VM, "shutdown"), ["action=resume"]),
        ("500:VM 104 not running:POST:/nodes/*", power(RUNNING_VM, "reboot"), ["action=start"]),
        (
            "500:unable to find configuration file for VM 104 on node 'pve2':POST:/nodes/*",
            ("guest_stop", {"guest": RUNNING_VM, "reset": True}),
            ["guest_list"],
        ),
        (f"500:VM 107 is running - destroy failed:{DELETE}", tool("guest_delete", STOPPED_VM), ["action=shutdown"]),
        (
            f"500:unable to destroy CT 206 - container is running:{DELETE}",
            tool("guest_delete", STOPPED_CT),
            ["action=shutdown"],
        ),
        (
            f"500:can't remove VM 107 - protection mode enabled:{DELETE}",
            tool("guest_delete", STOPPED_VM),
            ["is protected"],
        ),
        (
            f"500:unable to remove VM 107 - used in HA resources and purge parameter not set.:{DELETE}",
            tool("guest_delete", STOPPED_VM),
            ["purge=true"],
        ),
        (
            f"500:There is a replication job '107-0' for guest '107' - Please remove that first.:{DELETE}",
            tool("guest_delete", STOPPED_VM),
            ["107-0", "purge=true"],
        ),
        ("task-fails:qmdestroy:VM is locked (clone)", tool("guest_delete", STOPPED_VM), ["task_list"]),
        (f"500:CT is locked (disk):{DELETE}", tool("guest_delete", STOPPED_CT), ["task_list"]),
        (
            "task-fails:qmdestroy:base volume 'local-lvm:base-9000-disk-0' is still in use by linked clones",
            tool("guest_delete", VM_TEMPLATE),
            ["base-9000-disk-0", "cloned from it"],
        ),
        (
            f"500:unable to create VM 300: config file already exists:{CLONE}",
            tool("guest_clone", STOPPED_VM, vmid=300),
            ["Choose another name or id"],
        ),
        (f"500:VM is locked (backup):{CLONE}", tool("guest_clone", STOPPED_VM), ["task_list"]),
        (
            f"500:Linked clone feature is not supported for 'nas:9000/x.raw' (scsi0):{CLONE}",
            tool("guest_clone", VM_TEMPLATE, full=False),
            ["full=true"],
        ),
        (
            f"500:Full clone of a running container is only possible from a snapshot:{CLONE}",
            tool("guest_clone", STOPPED_CT),
            ["snapshot_create"],
        ),
        (
            "task-fails:qmsnapshot:snapshot name 'two' already used",
            tool("snapshot_create", STOPPED_VM, snapshot="two"),
            ["Choose another name"],
        ),
        (
            "task-fails:vzsnapshot:snapshot feature is not available",
            tool("snapshot_create", STOPPED_CT),
            ["make a backup"],
        ),
        ("task-fails:qmsnapshot:VM is locked (snapshot)", tool("snapshot_create", STOPPED_VM), ["task_list"]),
        (
            "task-fails:qmdelsnapshot:snapshot 'clean' does not exist",
            tool("snapshot_delete", 108, snapshot="clean"),
            ["does not exist"],
        ),
        (
            "task-fails:qmrollback:snapshot 'clean' does not exist",
            tool("snapshot_rollback", 108, snapshot="clean"),
            ["does not exist"],
        ),
        (
            f"500:unable to create template, because CT contains snapshots:{TEMPLATE}",
            tool("guest_template", STOPPED_CT),
            ["snapshot_delete"],
        ),
        (
            f"500:you can't convert a VM to template if VM is running:{TEMPLATE}",
            tool("guest_template", STOPPED_VM),
            ["action=shutdown"],
        ),
        (
            f"500:can't migrate running VM without --online:{MIGRATE}",
            tool("guest_migrate", STOPPED_VM, node="pve1"),
            ["started since"],
        ),
        (
            f"500:can't migrate running container without --online or --restart:{MIGRATE}",
            tool("guest_migrate", STOPPED_CT, node="pve1"),
            ["started since"],
        ),
        (
            f"500:storage 'tank' is not available on node 'pve1':{MIGRATE}",
            tool("guest_migrate", STOPPED_VM, node="pve1"),
            ["not available on node"],
        ),
        (f"500:no such cluster node 'pve1':{MIGRATE}", tool("guest_migrate", STOPPED_VM, node="pve1"), ["node_list"]),
    ],
)
async def test_what_pve_refuses_itself_is_passed_on_with_the_way_out_and_asked_once(tmp_path, fault, call, words):
    name, arguments = call
    async with rig(tmp_path, faults=[fault]) as quorate:
        text = await quorate.refusal(name, **arguments)
        assert "not done" in text
        assert all(word in text for word in words), text
        assert sum(method != "GET" for method, _ in quorate.sim.requests) == 1
