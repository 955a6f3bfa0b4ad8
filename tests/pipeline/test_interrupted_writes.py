"""Answers that get lost on the way: the work is found and followed, and nothing is ever done twice.

Every kind of change is made twice: once undisturbed, and once in a cluster that loses the answer to every write. Both
must have sent the same writes, started the same tasks and left the same world.
"""

import base64
from collections import Counter

import pytest

from tests.rigs.mcp_session import rig
from tests.rigs.simulator import ask_all

pytestmark = pytest.mark.anyio

LOSSES = [
    pytest.param("drop:after", id="the connection is cut before the answer"),
    pytest.param("drop:mid", id="the connection is cut within the answer", marks=pytest.mark.thorough),
    pytest.param("596:after", id="the proxy gives up while the work goes on", marks=pytest.mark.thorough),
]
IMAGE = "https://dl-cdn.alpinelinux.org/alpine/v3.22/releases/x86_64/alpine-virt-3.22.2-x86_64.iso"
BACKUP = "nas:backup/vzdump-qemu-109-2025_12_31-02_00_01.vma.zst"
CT_BACKUP = "pbs:backup/ct/203/2026-01-14T01:00:05Z"
ISO = "local:iso/debian-13.1.0-amd64-netinst.iso"
TINY = base64.b64encode(b"not much of an image").decode()
RULE = {"scope": "guest", "of": 102, "type": "in", "action": "ACCEPT", "proto": "tcp", "dport": "22"}


def change(tool, /, *before, **arguments):
    """A call, and the calls that make it possible."""
    return pytest.param(before, tool, arguments, id="-".join([tool, *_telling(arguments)]))


def _telling(arguments):
    return [str(arguments[key]) for key in ("guest", "action", "kind", "scope") if key in arguments]


CHANGES = [
    # power
    change("guest_power", guest=107, action="start"),
    change("guest_power", guest=206, action="start"),
    change("guest_power", guest=104, action="shutdown"),
    change("guest_power", guest=204, action="reboot"),
    change("guest_power", guest=104, action="suspend"),
    change("guest_power", guest=106, action="resume"),
    change("guest_power", guest=101, action="shutdown"),
    change("guest_stop", guest=[104, 204]),
    # create, clone, template, migrate, delete
    change("vm_create", name="new", disks=["4G"], start=True),
    change("container_create", template="debian-13-standard", hostname="new", start=True),
    change("guest_clone", guest=9000, name="copy"),
    change("guest_clone", guest=9001, name="copy"),
    change("guest_clone", guest=107, name="copy", start=True),
    change("guest_template", guest=107),
    change("guest_template", guest=206),
    change("guest_migrate", guest=107, node="pve3"),
    change("guest_migrate", guest=204, node="pve2"),
    change("guest_migrate", guest=101, node="pve2"),
    change("guest_delete", guest=107),
    change("guest_delete", guest=204, stop=True, purge=True),
    change("guest_bulk", action="tag", guests=[104, 204], tags=["x"]),
    # configure
    change("guest_configure", guest=107, cores=2, description="new"),
    change("guest_configure", guest=204, memory=2048),
    change("disk_add", guest=104, size=2),
    change("disk_add", guest=204, size=2, path="/data"),
    change("disk_change", action="resize", guest=104, size="+2G"),
    change("disk_change", action="resize", guest=204, size="+2G"),
    change("disk_change", action="move", guest=104, disk="scsi0", storage="tank"),
    change("disk_change", ("disk_add", {"guest": 107, "size": 2}), action="detach", guest=107, disk="scsi1"),
    change("disk_destroy", ("disk_add", {"guest": 107, "size": 2}), guest=107, disk="scsi1"),
    change("nic_set", guest=107, nic="net0", vlan=7),
    change("nic_set", guest=204, bridge="vmbr0"),
    change("nic_remove", guest=206, nic="net0"),
    change("cloudinit_set", guest=107, user="me", ip="dhcp"),
    # snapshots
    change("snapshot_create", guest=104, snapshot="s1", ram=True),
    change("snapshot_create", guest=204, snapshot="s1"),
    change("snapshot_delete", guest=108, snapshot="clean"),
    change("snapshot_rollback", guest=108, snapshot="configured", start=True),
    change("snapshot_update", guest=108, snapshot="clean", description="new words"),
    # storage and backups
    change("image_upload", data=TINY, filename="tiny.iso", storage="nas"),
    change("image_download", url=IMAGE, storage="nas"),
    change("image_download", template="alpine-3.22-default", storage="nas"),
    change("volume_delete", volume=ISO, node="pve1"),
    change("volume_update", volume=BACKUP, notes="kept"),
    change("backup_create", guest=204, storage="nas"),
    change("backup_create", guest=[104, 105], storage="nas"),
    change("backup_prune", storage="pbs", keep="last=1"),
    change("backup_restore", backup=BACKUP, storage="local-lvm"),
    change("backup_restore", backup=CT_BACKUP, storage="local-lvm"),
    change("backup_restore", backup=BACKUP, vmid=108, overwrite=True, storage="local-lvm"),
    change("backup_job_set", job="nightly", schedule="21:00", guest=102, storage="nas"),
    # access, firewall, HA, networks
    change("pool_set", pool="media", comment="films", add_guests=[205]),
    change("access_delete", kind="user", name="dave@pve"),
    change("acl_set", action="grant", path="/vms/104", roles=["PVEVMUser"], holders=["bob@pve"]),
    change("user_set", user="eve@pve", comment="new"),
    change("group_set", group="new", add=["bob@pve"]),
    change("role_set", role="New", privileges=["VM.Audit"]),
    change("firewall_rule_set", **RULE),
    change("firewall_delete", ("firewall_rule_set", RULE), scope="guest", of=102, kind="rule", item=0),
    change("firewall_options_set", scope="guest", of=102, enable=True),
    change("firewall_object_set", scope="cluster", kind="alias", name="lan", cidr="10.0.0.0/8"),
    change("ha_set", guest=104, comment="new"),
    change("ha_remove", guest=101),
    change("replication_set", guest=102, target="pve2"),
    change("node_network_change", node="pve1", action="set", iface="vmbr5", type="bridge"),
    change("node_service_control", node="pve1", service="pvestatd", action="restart"),
    change("node_updates_refresh", node="pve1"),
    change("sdn_change", action="set", kind="zone", name="z1", type="simple"),
]

NEVER_ARRIVED = [
    change("vm_create", name="new", disks=["4G"]),
    change("guest_clone", guest=9000, name="copy"),
    change("guest_delete", guest=107),
    change("guest_migrate", guest=107, node="pve3"),
    change("guest_configure", guest=204, memory=2048),
    change("disk_change", action="resize", guest=104, size="+2G"),
    change("snapshot_create", guest=204, snapshot="s1"),
    change("backup_create", guest=204, storage="nas"),
    change("backup_restore", backup=CT_BACKUP, storage="local-lvm"),
    change("pool_set", pool="media", comment="films"),
]
LISTS = (
    "/access/acl",
    "/access/groups",
    "/access/roles",
    "/cluster/backup",
    "/cluster/firewall/aliases",
    "/cluster/replication",
    "/cluster/sdn/zones",
    "/nodes/pve1/network",
    "/nodes/pve1/qemu/102/firewall/options",
    "/nodes/pve1/qemu/102/firewall/rules",
)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("before", "tool", "arguments"), CHANGES)
async def test_a_lost_answer_changes_nothing_but_the_words(tmp_path, before, tool, arguments, loss):
    undisturbed = await outcome(tmp_path, before, tool, arguments)
    assert undisturbed["writes"]
    assert "answer was lost" not in undisturbed.pop("told")
    lossy = await outcome(tmp_path, before, tool, arguments, loss)
    assert "answer was lost" in lossy.pop("told")
    assert lossy == undisturbed


@pytest.mark.parametrize(("before", "tool", "arguments"), NEVER_ARRIVED)
async def test_a_write_that_never_arrived_is_reported_as_unknown_and_not_sent_again(tmp_path, before, tool, arguments):
    async with rig(tmp_path) as quorate:
        untouched = contents(quorate.sim.world)
        for method in ("POST", "PUT", "DELETE"):
            quorate.sim.faults.add(f"drop:before:{method}:/*")
        text = await quorate.refusal(tool, **arguments)
        assert "not known whether" in text
        assert "not sent again" in text
        assert sum(method != "GET" for method, _ in quorate.sim.requests) == 1
        assert contents(quorate.sim.world) == untouched


async def outcome(tmp_path, before, tool, arguments, loss=None):
    """The writes that were sent, the tasks that were started and the world that came of it."""
    async with rig(tmp_path) as quorate:
        for name, options in before:
            await quorate.facts(name, **options)
        if loss is not None:
            for method in ("POST", "PUT", "DELETE"):
                quorate.sim.faults.add(f"{loss}:{method}:/*")
        mark, tasks = len(quorate.sim.requests), all_tasks(quorate.sim.world)
        facts = await quorate.facts(tool, **arguments)
        assert facts["result"] in ("done", "done with warnings"), facts
        writes = Counter(request for request in quorate.requests_since(mark) if request[0] != "GET")
        return {
            "told": str(facts),
            "writes": writes,
            "tasks": all_tasks(quorate.sim.world) - tasks,
            **contents(quorate.sim.world),
            **await ask_all(quorate.sim, *LISTS),
        }


def all_tasks(world):
    return Counter(
        (t.upid.node, t.upid.type, t.upid.id) for node in world.nodes for t in world.tasks.newest_first(node)
    )


def contents(world):
    """Everything that a change can reach, without random parts (MAC addresses, ids, times)."""
    return {
        "guests": {
            vmid: (
                guest.kind,
                guest.node,
                guest.running,
                guest.paused,
                sorted(guest.effective_config()),
                list(guest.snapshots),
            )
            for vmid, guest in world.guests.items()
        },
        "sizes": {vmid: (guest.memory, guest.cores, guest.disk_size) for vmid, guest in world.guests.items()},
        "volumes": Counter(
            (storage.id, node, volume.content, volume.vmid)
            for storage in world.storages.values()
            for node, space in storage.spaces.items()
            for volume in space.volumes.values()
        ),
        "pools": {pool.id: (pool.comment, pool.vms, pool.storages) for pool in world.access.pools.values()},
        "users": {user.userid: (user.comment, user.groups, set(user.tokens)) for user in world.access.users.values()},
        "ha": {sid: (resource.state, resource.comment) for sid, resource in world.ha.items()},
    }
