"""A volume is deleted only if nothing refers to it, whatever its name says. The simulated world decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import ElicitResult

from pve_simulator.builder import Builder
from pve_simulator.guests.guest import Snapshot
from pve_simulator.routes.replication import Replication, ReplicationJob
from pve_simulator.storage.storages import Volume
from pve_simulator.world import World
from quorate.app import build
from quorate.config import Approval
from quorate.config.policy import Policy, Rule
from tests.pipeline.test_safety_table import tries
from tests.rigs.mcp_session import DrivenTime, Rig, rig, second_server
from tests.rigs.several_clusters import SeveralClusters, several_clusters

pytestmark = pytest.mark.anyio

NAMED_AFTER_NOBODY = "local-lvm:vm-6167-disk-0"
SNIPPET = "nas:snippets/user.yml"
ISO = "nas:iso/virtio-win-0.1.271.iso"


def put(world: World, volid: str, node: str = "pve1", **more: Any) -> Volume:
    storage = world.storages[volid.partition(":")[0]]
    name = volid.partition(":")[2]
    content = name.partition("/")[0] if name.startswith(("iso/", "snippets/", "import/")) else "images"
    storage.remove(node, volid)
    volume = Volume(volid, content, more.pop("format", "raw"), 1 << 30, 4096, 1768000000, **more)
    storage.add(node, volume)
    return volume


def exists(world: World, volid: str, node: str = "pve1") -> bool:
    return world.storages[volid.partition(":")[0]].volume(node, volid) is not None


async def delete_by_api(quorate: Rig, volid: str, node: str = "pve1", **more: Any) -> Any:
    path = f"/nodes/{node}/storage/{volid.partition(':')[0]}/content/{volid}"
    return await quorate.call("api_call", method="DELETE", path=path, **more)


async def refused_everywhere(quorate: Rig, volid: str, node: str = "pve1") -> str:
    """Try the tool, its dry run and the raw API in three spellings; returns what the tool says."""
    text = await quorate.refusal("volume_delete", volume=volid, node=node)
    assert (await quorate.call("volume_delete", volume=volid, node=node, dry_run=True)).is_error
    storage, _, name = volid.partition(":")
    for path in (f"{storage}/content/{volid}", f"{storage}/content/{name}"):
        answer = await quorate.call("api_call", method="DELETE", path=f"/nodes/{node}/storage/{path}")
        assert answer.is_error
    if node == quorate.sim.node:
        path = f"/nodes/localhost/storage/{storage}/content/{volid}"
        assert (await quorate.call("api_call", method="DELETE", path=path)).is_error
    assert exists(quorate.sim.world, volid, node)
    assert not [path for method, path in quorate.sim.requests if method == "DELETE"]
    return text


def configure(**options: str) -> Callable[[World], None]:
    return lambda world: world.guests[100].config.update(options)


def pend(**options: str) -> Callable[[World], None]:
    return lambda world: world.guests[100].pending.update(options)


def remember(**options: str) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.guests[100].snapshots["before"] = Snapshot("before", 1768000000, dict(options))

    return change


def drop_at_restart(world: World) -> None:
    world.guests[100].config["scsi1"] = NAMED_AFTER_NOBODY
    world.guests[100].pending_delete["scsi1"] = 1


REFERENCES = {
    "another guest's disk": (NAMED_AFTER_NOBODY, configure(scsi1=f"{NAMED_AFTER_NOBODY},size=1G"), "scsi1"),
    "file= in front": (NAMED_AFTER_NOBODY, configure(scsi1=f"file={NAMED_AFTER_NOBODY},size=1G"), "scsi1"),
    "an unused slot": (NAMED_AFTER_NOBODY, configure(unused3=NAMED_AFTER_NOBODY), "unused3"),
    "firmware": (NAMED_AFTER_NOBODY, configure(efidisk0=f"{NAMED_AFTER_NOBODY},efitype=4m"), "efidisk0"),
    "a TPM": (NAMED_AFTER_NOBODY, configure(tpmstate0=f"{NAMED_AFTER_NOBODY},version=v2.0"), "tpmstate0"),
    "saved memory": (NAMED_AFTER_NOBODY, configure(vmstate=NAMED_AFTER_NOBODY), "vmstate"),
    "cloud-init": ("local-lvm:vm-6167-cloudinit", configure(ide2="local-lvm:vm-6167-cloudinit,media=cdrom"), "ide2"),
    "a snapshot": (NAMED_AFTER_NOBODY, remember(scsi1=NAMED_AFTER_NOBODY), "snapshot before, scsi1"),
    "memory of a snapshot": (NAMED_AFTER_NOBODY, remember(vmstate=NAMED_AFTER_NOBODY), "snapshot before, vmstate"),
    "a pending change": (NAMED_AFTER_NOBODY, pend(scsi1=NAMED_AFTER_NOBODY), "a pending change of scsi1"),
    "a pending removal": (NAMED_AFTER_NOBODY, drop_at_restart, "scsi1"),
    "a path": (NAMED_AFTER_NOBODY, configure(scsi1="/dev/pve/vm-6167-disk-0"), "scsi1"),
    "a mapped path": (NAMED_AFTER_NOBODY, configure(scsi1="/dev/mapper/pve-vm--6167--disk--0"), "scsi1"),
    "QEMU arguments": (NAMED_AFTER_NOBODY, configure(args="-drive file=/dev/pve/vm-6167-disk-0,if=none"), "args"),
    "a mounted disc": (ISO, configure(ide2=f"{ISO},media=cdrom"), "ide2"),
    "a disc by its path": (
        ISO,
        configure(ide2="/mnt/pve/nas/template/iso/virtio-win-0.1.271.iso,media=cdrom"),
        "ide2",
    ),
    "a snippet": (SNIPPET, configure(cicustom=f"meta=nas:snippets/m.yml,user={SNIPPET}"), "cicustom"),
    "a hook script": (SNIPPET, configure(hookscript=SNIPPET), "hookscript"),
}


@tries("a volume in use is deleted under a misleading name, another storage, node or path, or together with a guest")
@pytest.mark.parametrize("case", REFERENCES)
async def test_whatever_a_configuration_names_is_kept(tmp_path: Path, case: str) -> None:
    volid, change, where = REFERENCES[case]
    async with rig(tmp_path) as quorate:
        put(quorate.sim.world, volid)
        change(quorate.sim.world)
        text = await refused_everywhere(quorate, volid)
        assert f"{where} of vm 100 router" in text


async def test_a_container_refers_to_its_mount_points(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        container = next(guest for guest in world.guests.values() if guest.kind == "lxc" and guest.node == "pve1")
        put(world, NAMED_AFTER_NOBODY)
        container.config["mp3"] = f"{NAMED_AFTER_NOBODY},mp=/srv"
        assert f"mp3 of ct {container.vmid}" in await refused_everywhere(quorate, NAMED_AFTER_NOBODY)


async def test_a_name_that_suggests_another_guest_is_explained(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        put(quorate.sim.world, NAMED_AFTER_NOBODY)
        quorate.sim.world.guests[100].config["scsi1"] = NAMED_AFTER_NOBODY
        text = await quorate.refusal("volume_delete", volume=NAMED_AFTER_NOBODY)
        assert "configurations decide" in text


@pytest.mark.parametrize(
    ("base", "clone", "parent"),
    [
        ("nas:900/base-900-disk-0.qcow2", "nas:900/base-900-disk-0.qcow2/901/vm-901-disk-0.qcow2", None),
        ("nas:900/base-900-disk-0.qcow2", "nas:901/vm-901-disk-0.qcow2", "../900/base-900-disk-0.qcow2"),
        ("local-lvm:base-900-disk-0", "local-lvm:vm-901-disk-0", "base-900-disk-0"),
    ],
)
async def test_the_base_of_a_linked_clone_is_kept_even_if_no_guest_uses_the_clone(
    tmp_path: Path, base: str, clone: str, parent: str | None
) -> None:
    async with rig(tmp_path) as quorate:
        put(quorate.sim.world, base, vmid=900)
        put(quorate.sim.world, clone, vmid=901, parent=parent)
        assert f"the linked clone {clone}" in await refused_everywhere(quorate, base)


async def test_a_configuration_that_names_a_clone_refers_to_its_base_and_to_its_short_name(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        world.guests[100].config["scsi1"] = "nas:900/base-900-disk-0.qcow2/6167/vm-6167-disk-0.qcow2"
        for volid in ("nas:900/base-900-disk-0.qcow2", "nas:6167/vm-6167-disk-0.qcow2"):
            put(world, volid)
            assert "scsi1 of vm 100" in await refused_everywhere(quorate, volid)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"type": "nfs"}, "nas:6167/vm-6167-disk-0.raw"),
        ({"type": "nfs", "server": "truenas.lan"}, "nas:6167/vm-6167-disk-0.raw"),
        ({"type": "dir", "path": "/mnt/pve/nas"}, "nas:6167/vm-6167-disk-0.raw"),
        ({"type": "dir", "path": "/mnt/pve"}, "/mnt/pve/images/6167/vm-6167-disk-0.raw"),
    ],
)
async def test_another_storage_on_the_same_data_is_recognized(
    tmp_path: Path, options: dict[str, str], named: str
) -> None:
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        nas = world.storages["nas"].config
        options_given: dict[str, Any] = {
            "path": "/mnt/pve/second",
            "server": nas["server"],
            "export": nas["export"],
            **options,
        }
        kind = options_given.pop("type")
        Builder(world).storage("second", kind, "images", total=100, shared=kind == "nfs", **options_given)
        world.guests[103].config["scsi1"] = named  # on another node than the one that is asked
        node = world.guests[103].node if named.startswith("/") else "pve1"
        put(world, "second:6167/vm-6167-disk-0.raw", node)
        text = await refused_everywhere(quorate, "second:6167/vm-6167-disk-0.raw", node)
        assert "scsi1 of vm 103" in text


async def test_two_storages_on_one_volume_group_share_their_volumes(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        Builder(world).storage("thick", "lvm", "images", total=100, vgname="pve")
        put(world, "thick:vm-6167-disk-0")
        world.guests[100].config["scsi1"] = NAMED_AFTER_NOBODY
        assert "scsi1 of vm 100" in await refused_everywhere(quorate, "thick:vm-6167-disk-0")


async def test_a_leftover_on_another_node_is_deleted_while_the_guest_keeps_its_own_disk(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        put(quorate.sim.world, "local-lvm:vm-100-disk-0", "pve2", vmid=100)
        await quorate.facts("volume_delete", volume="local-lvm:vm-100-disk-0", node="pve2")
        assert not exists(quorate.sim.world, "local-lvm:vm-100-disk-0", "pve2")
        assert exists(quorate.sim.world, "local-lvm:vm-100-disk-0", "pve1")


async def test_a_replica_and_the_disk_that_a_recovered_guest_left_behind_are_kept(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        put(world, "local-lvm:vm-100-disk-0", "pve2", vmid=100)
        world.part(Replication).add(ReplicationJob("100-0", 100, "pve2", {"disable": 1}))
        assert "of vm 100" in await refused_everywhere(quorate, "local-lvm:vm-100-disk-0", "pve2")
        world.guests[103].config["scsi1"] = NAMED_AFTER_NOBODY  # runs elsewhere now, without its disk
        assert world.guests[103].node != "pve1"
        put(world, NAMED_AFTER_NOBODY)
        assert "scsi1 of vm 103" in await refused_everywhere(quorate, NAMED_AFTER_NOBODY)


# -- what cannot be read -----------------------------------------------------------------------------------------------


async def test_what_cannot_be_read_may_use_the_volume(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        put(quorate.sim.world, NAMED_AFTER_NOBODY)
        quorate.sim.faults.add("node-offline:pve3")
        text = await refused_everywhere(quorate, NAMED_AFTER_NOBODY)
        assert "pve3 is offline" in text


@pytest.mark.parametrize("read", ["/nodes/*/qemu/103/pending", "/nodes/*/qemu/102/snapshot", "/cluster/replication"])
async def test_a_read_that_fails_is_named(tmp_path: Path, read: str) -> None:
    async with rig(tmp_path, faults=[f"500:got no data:GET:{read}"]) as quorate:
        put(quorate.sim.world, NAMED_AFTER_NOBODY)
        assert "Not read: " in await refused_everywhere(quorate, NAMED_AFTER_NOBODY)


async def test_guests_that_the_token_cannot_see_may_use_the_volume(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        put(world, NAMED_AFTER_NOBODY)
        world.guests[100].config["scsi1"] = NAMED_AFTER_NOBODY
        world.access.custom_roles["Storekeeper"] = frozenset({"Datastore.Allocate", "Datastore.Audit", "Sys.Audit"})
        for path in ("/", "/storage/local-lvm"):
            world.access.grant(path, "Storekeeper", "alice@pve")
            world.access.grant(path, "Storekeeper", "alice@pve!cli")
        async with second_server(quorate, tmp_path / "other.jsonl", token="alice@pve!cli") as alice:
            text = await alice.refusal("volume_delete", volume=NAMED_AFTER_NOBODY)
            assert "VM.Audit" in text
            assert (await delete_by_api(alice, NAMED_AFTER_NOBODY)).is_error
        assert exists(world, NAMED_AFTER_NOBODY)


async def test_a_hidden_guest_protects_its_disk_without_being_named(tmp_path: Path) -> None:
    rules = Policy((Rule("secret", False, "read", vmids=(range(103, 104),)),))
    async with rig(tmp_path, more={"policy": rules}) as quorate:
        world = quorate.sim.world
        node = world.guests[103].node
        put(world, NAMED_AFTER_NOBODY, node)
        world.guests[103].config["scsi1"] = NAMED_AFTER_NOBODY
        text = await refused_everywhere(quorate, NAMED_AFTER_NOBODY, node)
        assert "in use" in text
        assert "103" not in text
        assert world.guests[103].name not in text


# -- what is free ------------------------------------------------------------------------------------------------------


async def test_the_dry_run_and_the_question_say_what_was_checked(tmp_path: Path) -> None:
    questions = []

    async def person(context: Any, params: Any) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(action="accept", content={"typed": NAMED_AFTER_NOBODY})

    async with rig(tmp_path, approval=Approval.ASK, elicitation=person) as quorate:
        world = quorate.sim.world
        put(world, NAMED_AFTER_NOBODY)
        world.guests[100].snapshots["before"] = Snapshot("before", 1768000000, {})
        snapshots = sum(len(guest.snapshots) for guest in world.guests.values())
        checked = f"{len(world.guests)} guests, {snapshots} snapshots, pending changes and linked clones"
        dry = await quorate.facts("volume_delete", volume=NAMED_AFTER_NOBODY, dry_run=True)
        assert dry["checked"].startswith(checked)
        assert "nothing refers to it" in dry["checked"]
        await quorate.facts("volume_delete", volume=NAMED_AFTER_NOBODY)
        assert checked in questions[0]
        assert not exists(world, NAMED_AFTER_NOBODY)


@pytest.mark.parametrize("by", ["tool", "api"])
async def test_a_volume_that_is_attached_while_the_person_thinks_is_kept(tmp_path: Path, by: str) -> None:
    async with rig(tmp_path) as probe:
        world = probe.sim.world

        async def person(context: Any, params: Any) -> ElicitResult:
            world.guests[100].config["scsi1"] = NAMED_AFTER_NOBODY
            words = [line for line in params.message.splitlines() if line.startswith("Type ")]
            return ElicitResult(action="accept", content={"typed": words[-1][5:].removesuffix(" to approve.")})

        put(world, NAMED_AFTER_NOBODY)
        settings = replace(probe.app.settings, approval=Approval.ASK)
        app = build(settings, clock=DrivenTime(probe.clock))
        try:
            async with Client(app.server(), elicitation_callback=person) as client:
                quorate = Rig(probe.sim, app, client, probe.audit_file)
                if by == "tool":
                    answer = await quorate.call("volume_delete", volume=NAMED_AFTER_NOBODY)
                else:
                    answer = await delete_by_api(quorate, NAMED_AFTER_NOBODY)
                assert answer.is_error
        finally:
            await app.close()
        assert exists(world, NAMED_AFTER_NOBODY)
        assert "scsi1" in world.guests[100].config


async def test_backups_and_templates_need_no_look_at_the_guests(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        template = "local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst"
        await quorate.facts("volume_delete", volume=template, node="pve2")
        assert not [path for _, path in quorate.sim.requests if path.endswith("/pending")]


# -- what goes with a guest --------------------------------------------------------------------------------------------


async def test_disks_named_after_a_deleted_guest_are_kept_if_another_guest_uses_them(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        guest = next(
            candidate for candidate in world.guests.values() if not candidate.running and candidate.kind == "qemu"
        )
        foreign = f"local-lvm:vm-{guest.vmid}-disk-7"
        put(world, foreign, guest.node, vmid=guest.vmid)
        world.guests[100].config["scsi1"] = foreign
        world.guests[100].node = guest.node
        options = {"guest": guest.vmid, "purge": True, "destroy_unreferenced_disks": True}
        assert "scsi1 of vm 100" in await quorate.refusal("guest_delete", **options)
        path = f"/nodes/{guest.node}/qemu/{guest.vmid}"
        params = {"destroy-unreferenced-disks": 1, "purge": 1}
        assert (await quorate.call("api_call", method="DELETE", path=path, params=params)).is_error
        assert exists(world, foreign, guest.node)
        assert guest.vmid in world.guests
        await quorate.facts("guest_delete", guest=guest.vmid)  # without that option it stays
        assert exists(world, foreign, guest.node)


@pytest.mark.parametrize("by", ["disk_destroy", "config", "unlink", "guest_delete", "move"])
async def test_a_disk_that_two_guests_share_survives_the_one_it_is_named_after(tmp_path: Path, by: str) -> None:
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        guest = next(
            candidate for candidate in world.guests.values() if not candidate.running and candidate.kind == "qemu"
        )
        shared = f"nas:{guest.vmid}/vm-{guest.vmid}-disk-7.raw"
        put(world, shared, vmid=guest.vmid)
        guest.config["unused7"] = shared
        guest.config["scsi7"] = shared
        world.guests[100].config["scsi1"] = f"{shared},shared=1"
        path = f"/nodes/{guest.node}/qemu/{guest.vmid}"
        calls: dict[str, tuple[str, dict[str, Any]]] = {
            "disk_destroy": ("disk_destroy", {"guest": guest.vmid, "disk": "unused7"}),
            "config": ("api_call", {"method": "PUT", "path": f"{path}/config", "params": {"delete": "unused7"}}),
            "unlink": ("api_call", {"method": "PUT", "path": f"{path}/unlink", "params": {"idlist": "unused7"}}),
            "guest_delete": ("guest_delete", {"guest": guest.vmid}),
            "move": (
                "api_call",
                {
                    "method": "POST",
                    "path": f"{path}/move_disk",
                    "params": {"disk": "scsi7", "storage": "local-lvm", "delete": 1},
                },
            ),
        }
        tool, arguments = calls[by]
        assert "scsi1 of vm 100" in await quorate.refusal(tool, **arguments)
        assert exists(world, shared)


async def test_a_guest_is_deleted_although_a_node_is_offline(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world
        guest = next(
            candidate for candidate in world.guests.values() if not candidate.running and candidate.node != "pve3"
        )
        quorate.sim.faults.add("node-offline:pve3")
        facts = await quorate.facts("guest_delete", guest=guest.vmid)
        assert "could not be read" in facts["checked"]
        assert guest.vmid not in world.guests


# -- other clusters ----------------------------------------------------------------------------------------------------


def share(quorate: SeveralClusters, **other: Any) -> str:
    """Give lab the NFS export of prod, and a guest there a disk on it."""
    prod, lab = quorate.sims["prod"].world, quorate.sims["lab"].world
    nas = prod.storages["nas"].config
    row = {"path": "/mnt/pve/theirs", "server": nas["server"], "export": nas["export"], **other}
    Builder(lab).storage("theirs", "nfs", "images", total=100, shared=True, **row)
    lab.guests[302].config["scsi1"] = "theirs:302/vm-302-disk-5.raw"
    put(prod, "nas:302/vm-302-disk-5.raw", vmid=302)
    return "nas:302/vm-302-disk-5.raw"


@pytest.mark.parametrize("other", [{}, {"server": "Storage.example"}])
async def test_a_guest_of_another_cluster_on_the_same_export_keeps_its_disk(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    async with several_clusters(tmp_path) as quorate:
        volid = share(quorate, **other)
        text = await quorate.refusal("volume_delete", volume=volid, cluster="prod")
        assert "a guest of the cluster lab" in text
        path = f"/nodes/pve1/storage/nas/content/{volid}"
        assert (await quorate.call("api_call", method="DELETE", path=path, cluster="prod")).is_error
        assert exists(quorate.sims["prod"].world, volid)


async def test_another_export_does_not_matter(tmp_path: Path) -> None:
    async with several_clusters(tmp_path) as quorate:
        volid = share(quorate, export="/mnt/elsewhere")
        await quorate.facts("volume_delete", volume=volid, cluster="prod")
        assert not exists(quorate.sims["prod"].world, volid)


async def test_a_cluster_that_does_not_answer_may_use_a_shared_volume_but_not_a_local_one(tmp_path: Path) -> None:
    async with several_clusters(tmp_path) as quorate:
        volid = share(quorate)
        put(quorate.sims["prod"].world, NAMED_AFTER_NOBODY)
        quorate.sims["lab"].faults.add("500:no quorum:GET:/storage")
        assert "cluster lab" in await quorate.refusal("volume_delete", volume=volid, cluster="prod")
        assert exists(quorate.sims["prod"].world, volid)
        await quorate.facts("volume_delete", volume=NAMED_AFTER_NOBODY, cluster="prod")
        assert not exists(quorate.sims["prod"].world, NAMED_AFTER_NOBODY)
