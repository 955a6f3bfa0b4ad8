"""Whose a volume is, what uses it, and cleaning up what belongs to nobody."""

import pytest

from pve_simulator.access.directory import Token, User
from pve_simulator.builder import Builder
from pve_simulator.guests.guest import Snapshot
from pve_simulator.storage.storages import Volume
from quorate.config.policy import Policy, Rule
from tests.rigs.mcp_session import second_server, text_of
from tests.rigs.several_clusters import several_clusters

pytestmark = pytest.mark.anyio

ORPHAN = "local-lvm:vm-777-disk-0"
EXTRA = "local-lvm:vm-108-disk-5"
LEFT_BACKUP = "nas:backup/vzdump-qemu-888-2025_12_31-02_00_01.vma.zst"
GONE_AND_USED = "local-lvm:vm-778-disk-0"


HIDES_ROUTER = Policy((Rule("hidden", False, "read", names=("router",)),))


def put(quorate, volid, node="pve1", *, vmid, content="images", **more):
    volume = Volume(volid, content, more.pop("format", "raw"), 1 << 30, 4096, 1768000000, vmid=vmid, **more)
    quorate.sim.world.storages[volid.partition(":")[0]].add(node, volume)
    return volume


def exists(quorate, volid, node="pve1"):
    return quorate.sim.world.storages[volid.partition(":")[0]].volume(node, volid) is not None


def leave_things_behind(quorate):
    """Leave an orphan, a detached disk, a backup of a deleted guest, and a disk whose name misleads."""
    put(quorate, ORPHAN, vmid=777)
    put(quorate, EXTRA, vmid=108)
    quorate.sim.world.guests[108].config["unused0"] = EXTRA
    put(quorate, LEFT_BACKUP, vmid=888, content="backup", format="vma.zst")
    put(quorate, GONE_AND_USED, vmid=778)
    quorate.sim.world.guests[100].config["scsi1"] = f"{GONE_AND_USED},size=1G"


async def listed(quorate, **arguments):
    return {row["volume"]: row for row in await quorate.rows("volume_list", limit=200, **arguments)}


async def test_each_volume_shows_its_owner_and_everything_that_uses_it(quorate):
    leave_things_behind(quorate)
    rows = await listed(quorate, storage="local-lvm")
    assert rows["local-lvm:vm-100-disk-0"]["used_by"] == "scsi0"
    assert rows["local-lvm:vm-108-disk-0"]["owner"] == "vm test-vm"
    assert "snapshot clean scsi0" in rows["local-lvm:vm-108-disk-0"]["used_by"]
    assert rows[EXTRA]["used_by"] == "unused0"
    assert (rows[ORPHAN]["owner"], rows[ORPHAN]["used_by"]) == ("deleted", "nothing")
    assert rows[GONE_AND_USED]["used_by"] == "vm 100 router: scsi1"


async def test_a_linked_clone_shows_its_parent_and_the_base_its_clones(quorate):
    clone = (await quorate.facts("guest_clone", guest=9000, name="linked"))["vmid"]
    rows = await listed(quorate, storage="local-lvm")
    base = "local-lvm:base-9000-disk-0"
    (linked,) = [row for row in rows.values() if row["guest"] == clone and row.get("parent")]
    assert linked["parent"].endswith("base-9000-disk-0")
    assert f"linked clone {linked['volume']}" in rows[base]["used_by"]


@pytest.mark.parametrize(
    ("only", "there", "not_there"),
    [
        ("orphans", {ORPHAN}, {EXTRA, GONE_AND_USED, LEFT_BACKUP}),
        ("unused", {ORPHAN, EXTRA, "nas:iso/virtio-win-0.1.271.iso"}, {GONE_AND_USED, LEFT_BACKUP}),
        ("deleted_guests", {ORPHAN, GONE_AND_USED, LEFT_BACKUP}, {EXTRA}),
        ("unprotected", {LEFT_BACKUP}, {ORPHAN}),
    ],
)
async def test_volumes_are_filtered_by_what_uses_them(quorate, only, there, not_there):
    leave_things_behind(quorate)
    rows = await listed(quorate, only=only)
    assert there <= rows.keys()
    assert not not_there & rows.keys()
    if only == "unprotected":
        assert not any(row.get("protected") for row in rows.values())


async def test_a_disk_of_a_guest_that_is_hidden_is_neither_an_orphan_nor_named(start_quorate, tmp_path):
    quorate = await start_quorate(tmp_path, more={"policy": HIDES_ROUTER})
    put(quorate, ORPHAN, vmid=777)
    quorate.sim.world.guests[100].config["scsi1"] = f"{ORPHAN},size=1G"
    for only in ("orphans", "deleted_guests", None):
        text = text_of(await quorate.call("volume_list", only=only, storage="local-lvm"))
        assert ORPHAN not in text
        assert "router" not in text
    assert (await quorate.facts("storage_cleanup", what=["orphans"]))["result"] == "nothing to do"


async def test_everything_that_belongs_to_nobody_goes_in_one_plan_with_reasons(quorate):
    leave_things_behind(quorate)
    what = ["orphans", "detached", "deleted_guests"]
    plan = await quorate.facts("storage_cleanup", what=what, dry_run=True)
    steps = " ".join(step["step"] for step in plan["steps"])
    assert f"{ORPHAN} on pve1 (1G" in steps
    assert "guest 777 does not exist" in steps
    assert f"unused0 {EXTRA}" in steps
    assert plan["frees"] == 3 << 30
    assert any(GONE_AND_USED in line and "vm 100 router: scsi1" in line for line in plan["kept"])

    await quorate.facts("storage_cleanup", what=what)
    assert not exists(quorate, ORPHAN)
    assert not exists(quorate, EXTRA)
    assert not exists(quorate, LEFT_BACKUP)
    assert exists(quorate, GONE_AND_USED)
    assert "unused0" not in quorate.sim.world.guests[108].config
    assert not quorate.audit()[-1].get("dry_run")
    assert len(quorate.audit()) == 2  # the dry run and one change
    again = await quorate.facts("storage_cleanup", what=what)
    assert again["result"] == "nothing to do"


async def test_what_is_protected_young_in_a_snapshot_or_to_be_kept_stays(quorate):
    leave_things_behind(quorate)
    put(quorate, "local-lvm:vm-779-disk-0", vmid=779)
    quorate.sim.world.storages["nas"].volume("pve1", LEFT_BACKUP).protected = True
    test_vm = quorate.sim.world.guests[108]
    test_vm.snapshots["with"] = Snapshot("with", 1768000000, {"scsi1": f"{EXTRA},size=1G"})
    what = ["orphans", "detached", "deleted_guests"]
    plan = await quorate.facts("storage_cleanup", what=what, keep=["777"], dry_run=True)
    assert [step["call"].split("content/")[-1] for step in plan["steps"]] == ["local-lvm:vm-779-disk-0"]
    kept = "\n".join(plan["kept"])
    assert f"{LEFT_BACKUP} (1G): it is protected" in kept
    assert "snapshot with scsi1" in kept
    assert f"{ORPHAN} on pve1 (1G): it was to be kept" in kept
    young = await quorate.facts("storage_cleanup", what=["orphans"], older_than=4000)
    assert young["result"] == "nothing to do"


async def test_a_protected_guest_keeps_its_detached_disks(quorate):
    leave_things_behind(quorate)
    quorate.sim.world.guests[108].config["protection"] = 1
    facts = await quorate.facts("storage_cleanup", what=["detached"], storage="local-lvm")
    assert facts["result"] == "nothing to do"
    assert "vm 108 test-vm is protected" in facts["kept"][0]


async def test_what_the_token_may_not_delete_is_kept_with_the_privilege_it_lacks(quorate, tmp_path):
    leave_things_behind(quorate)
    access = quorate.sim.world.access
    access.users["clean@pve"] = User(
        "clean@pve", tokens={"mcp": Token("0badc0de-0000-4000-8000-00000000cafe", privsep=False)}
    )
    access.grant("/", "PVEAuditor", "clean@pve")
    access.grant("/storage/local-lvm", "PVEDatastoreAdmin", "clean@pve")
    access.invalidate_cache()
    async with second_server(quorate, tmp_path / "weak.jsonl", token="clean@pve!mcp") as weak:
        plan = await weak.facts("storage_cleanup", what=["orphans", "detached", "deleted_guests"], dry_run=True)
    assert [step["call"].split("content/")[-1] for step in plan["steps"]] == [ORPHAN]
    assert f"{EXTRA} on pve1 (1G): clean@pve!mcp may not destroy disks of vm 108 test-vm." in plan["kept"]


# -- what a cleanup must not touch -------------------------------------------------------------------------------------

ALL = ["orphans", "detached", "deleted_guests"]
OTHERS_BACKUP = "nas:backup/vzdump-qemu-302-2025_12_31-02_00_01.vma.zst"
OTHERS_DISK = "nas:302/vm-302-disk-5.raw"
VM_ELSEWHERE = 107
NOBODYS = "nas:777/vm-777-disk-0.raw"


def share_nas(quorate, **other):
    """Give lab the export behind the storage nas of prod, where volumes of both clusters are."""
    prod, lab = quorate.sims["prod"].world, quorate.sims["lab"].world
    nas = prod.storages["nas"].config
    row = {"path": "/mnt/pve/theirs", "server": nas["server"], "export": nas["export"], **other}
    Builder(lab).storage("theirs", "nfs", "images,backup", total=100, shared=True, **row)
    for volid, content in ((OTHERS_BACKUP, "backup"), (OTHERS_DISK, "images"), (NOBODYS, "images")):
        vmid = 777 if volid == NOBODYS else 302
        volume = Volume(volid, content, "raw", 1 << 30, 4096, 1768000000, vmid=vmid)
        prod.storages["nas"].add("pve1", volume)


def deletions(plan):
    return {step["call"].split("content/")[-1] for step in plan.get("steps", ())}


async def test_what_a_guest_of_another_cluster_left_on_a_shared_storage_stays(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        share_nas(quorate)
        plan = await quorate.facts("storage_cleanup", cluster="prod", storage="nas", what=ALL, dry_run=True)
        assert deletions(plan) == {NOBODYS}
        kept = "\n".join(plan["kept"])
        assert f"{OTHERS_BACKUP} (1G): another cluster uses this storage, and has a guest 302" in kept
        assert f"{OTHERS_DISK} (1G): another cluster uses this storage, and has a guest 302" in kept


async def test_a_shared_storage_stays_as_it_is_while_another_cluster_cannot_be_read(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        share_nas(quorate)
        quorate.sims["lab"].faults.add("500:no quorum:GET:/storage")
        plan = await quorate.facts("storage_cleanup", cluster="prod", storage="nas", what=ALL, dry_run=True)
        assert deletions(plan) == set()
        assert all("not all of its guests can be read" in line for line in plan["kept"])


async def test_a_storage_that_only_has_the_same_name_elsewhere_is_cleaned_up(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        share_nas(quorate, export="/mnt/elsewhere")
        plan = await quorate.facts("storage_cleanup", cluster="prod", storage="nas", what=ALL, dry_run=True)
        assert {OTHERS_BACKUP, OTHERS_DISK, NOBODYS} <= deletions(plan)


async def test_a_volume_that_a_guest_of_a_node_not_asked_uses_stays(quorate):
    put(quorate, NOBODYS, vmid=777)
    assert quorate.sim.world.guests[VM_ELSEWHERE].node != "pve1"
    quorate.sim.world.guests[VM_ELSEWHERE].config["scsi5"] = f"{NOBODYS},size=1G"
    plan = await quorate.facts("storage_cleanup", storage="nas", node="pve1", what=ALL, dry_run=True)
    assert NOBODYS not in deletions(plan)


async def test_a_token_that_does_not_see_all_guests_cleans_up_nothing(quorate, tmp_path):
    leave_things_behind(quorate)
    access = quorate.sim.world.access
    access.users["some@pve"] = User(
        "some@pve", tokens={"mcp": Token("0badc0de-0000-4000-8000-00000000cafe", privsep=False)}
    )
    for path in ("/nodes", "/storage", "/vms/108"):
        access.grant(path, "PVEAdmin" if path == "/vms/108" else "PVEDatastoreAdmin", "some@pve")
    access.invalidate_cache()
    async with second_server(quorate, tmp_path / "some.jsonl", token="some@pve!mcp") as some:
        await some.call("storage_cleanup", what=["orphans", "deleted_guests"])
    assert exists(quorate, ORPHAN)
    assert exists(quorate, GONE_AND_USED)
    assert exists(quorate, LEFT_BACKUP)


@pytest.mark.quorate(faults=["500:timeout:GET:/nodes/pve1/storage/local-lvm/content"])
async def test_a_storage_that_cannot_be_read_is_named_and_left_alone(quorate):
    leave_things_behind(quorate)
    answer = await quorate.call("storage_cleanup", what=ALL)
    assert "local-lvm on pve1" in text_of(answer)
    assert exists(quorate, ORPHAN)
    assert exists(quorate, EXTRA)


async def test_the_base_of_a_deleted_template_stays_while_a_clone_builds_on_it(quorate):
    await quorate.facts("guest_clone", guest=9000, name="linked")
    del quorate.sim.world.guests[9000]
    plan = await quorate.facts("storage_cleanup", what=ALL, storage="local-lvm", dry_run=True)
    assert not any("base-9000" in volume for volume in deletions(plan))
    assert any("base-9000-disk-0" in line and "linked clone" in line for line in plan["kept"])


async def test_what_is_imported_moved_or_locked_right_now_stays(quorate):
    leave_things_behind(quorate)
    fresh = put(quorate, "local-lvm:vm-108-disk-8", vmid=108)
    quorate.sim.world.guests[108].config["lock"] = "migrate"
    quorate.sim.world.guests[108].touch()
    plan = await quorate.facts("storage_cleanup", what=ALL, storage="local-lvm", dry_run=True)
    assert deletions(plan) == {ORPHAN}
    assert f"{fresh.volid} on pve1 (1G): guest 108 is locked (migrate)" in plan["kept"]
    now = int(quorate.sim.world.clock.now())
    put(quorate, "local-lvm:vm-781-disk-0", vmid=781).ctime = now - 60
    plan = await quorate.facts("storage_cleanup", what=ALL, storage="local-lvm", dry_run=True)
    assert deletions(plan) == {ORPHAN}
    assert any("vm-781-disk-0" in line and "may not be done" in line for line in plan["kept"])


async def test_the_result_names_what_went_and_why_also_if_it_is_one_volume(quorate):
    put(quorate, ORPHAN, vmid=777)
    facts = await quorate.facts("storage_cleanup", storage="local-lvm", what=["orphans"])
    assert facts["step"].startswith(f"Delete {ORPHAN} on pve1 (1G")
    assert facts["step"].endswith(": nothing refers to it")
    assert not exists(quorate, ORPHAN)
