"""Clones, full and linked, and templates."""

from __future__ import annotations

import pytest

from pve_simulator.api_client import Api
from simulator.consistency import at_rest

TEMPLATE = "/nodes/pve1/qemu/9000"
VM = "/nodes/pve1/qemu/108"  # stopped, on local-lvm, with snapshots
SHARED = "/nodes/pve1/qemu/101"  # running, on nas
CT = "/nodes/pve3/lxc/206"


async def clone(api: Api, guest: str, newid: int, **options: object) -> str:
    return await api.finish_task(await api.post(f"{guest}/clone", newid=newid, **options))


async def test_a_template_is_cloned_linked_by_default(api: Api) -> None:
    assert await clone(api, TEMPLATE, 300, name="web", description="a web server", pool="lab") == "OK"
    config = (await api.get("/nodes/pve1/qemu/300/config")).data
    source = (await api.get(f"{TEMPLATE}/config")).data
    assert config["scsi0"] == "local-lvm:vm-300-disk-0,size=3G"
    assert config["ide2"] == "local-lvm:vm-300-cloudinit,media=cdrom,size=4M"
    assert config["name"] == "web"
    assert config["description"].strip() == "a web server"
    assert "template" not in config
    assert "lock" not in config
    for key in ("net0", "smbios1", "vmgenid"):
        assert config[key] != source[key]
    assert config["net0"].startswith("virtio=BC:24:11:")
    volume = api.cluster.world.storages["local-lvm"].volume("pve1", "local-lvm:vm-300-disk-0")
    assert volume is not None
    assert volume.parent == "base-9000-disk-0"
    assert 300 in api.cluster.world.access.pools["lab"].vms
    assert not list(at_rest(api.cluster.world))


async def test_a_template_with_linked_clones_cannot_go(api: Api) -> None:
    await clone(api, TEMPLATE, 300)
    reply = await api.delete(TEMPLATE)
    assert "base-9000-disk-0' is still in use by linked clone" in await api.finish_task(reply)


async def test_a_normal_vm_is_copied_and_named_after_its_source(api: Api) -> None:
    world = api.cluster.world
    assert await clone(api, VM, 300, storage="nas", format="qcow2") == "OK"
    config = (await api.get("/nodes/pve1/qemu/300/config")).data
    assert config["name"] == "Copy-of-VM-test-vm"
    assert config["scsi0"] == "nas:300/vm-300-disk-0.qcow2,size=8G"
    assert "parent" not in config
    assert not world.guests[300].snapshots
    assert not list(at_rest(world))


async def test_a_clone_of_a_snapshot_has_the_state_of_then(api: Api) -> None:
    await api.put(f"{VM}/config", memory=4096)
    assert await clone(api, VM, 300, snapname="clean") == "OK"
    assert (await api.get("/nodes/pve1/qemu/300/config")).data["memory"] == "1024"
    assert await clone(api, VM, 301, snapname="clean", full=0) == "OK"  # thin volumes can do that
    assert not list(at_rest(api.cluster.world))


async def test_a_clone_on_shared_storage_can_go_to_another_node(api: Api) -> None:
    assert await clone(api, SHARED, 300, target="pve3") == "OK"
    assert (await api.get("/nodes/pve3/qemu/300/config")).data["scsi0"].startswith("nas:300/vm-300-disk-0")
    assert api.cluster.world.guests[300].node == "pve3"
    assert not list(at_rest(api.cluster.world))


async def test_a_clone_is_locked_until_it_is_done_and_gone_if_interrupted(api: Api) -> None:
    reply = await api.post(f"{VM}/clone", newid=300)
    await api.clock.advance(0.5)
    assert (await api.get("/nodes/pve1/qemu/300/config")).data["lock"] == "clone"
    await api.cluster.world.tasks.cancel(reply.data)
    assert 300 not in api.cluster.world.guests
    assert not list(at_rest(api.cluster.world))


async def test_a_full_storage_fails_the_clone_and_leaves_nothing(api: Api) -> None:
    space = api.cluster.world.storages["local-lvm"].space("pve1")
    space.base_used = space.total - space.volumes_used
    assert (await clone(api, VM, 300)).startswith("clone failed: lvcreate")
    assert 300 not in api.cluster.world.guests


@pytest.mark.parametrize(
    ("guest", "options", "text"),
    [
        (VM, {"newid": 300, "full": 0}, "Linked clone feature is not supported for 'local-lvm:vm-108-disk-0' (scsi0)"),
        (
            "/nodes/pve2/qemu/103",
            {"newid": 300, "full": 0},
            "Linked clone feature is not supported for 'tank:vm-103-disk-0' (scsi0)",
        ),
        (CT, {"newid": 300, "full": 0}, "Linked clone feature for 'local-lvm:vm-206-disk-0' is not available"),
        (VM, {"newid": 300, "target": "pve2"}, "can't clone VM to node 'pve2' (VM uses local storage)"),
        (
            SHARED,
            {"newid": 300, "target": "pve2", "storage": "local-lvm"},
            "can't clone to non-shared storage 'local-lvm'",
        ),
        (CT, {"newid": 100}, "VM 100 already exists on node 'pve1'"),
        ("/nodes/pve1/lxc/200", {"newid": 300}, "Full clone of a running container is only possible from a snapshot"),
        (CT, {"newid": 300, "target": "pve1"}, "can't clone CT to node 'pve1' (CT uses local storage)"),
    ],
)
async def test_refused_at_once(api: Api, guest: str, options: dict[str, object], text: str) -> None:
    reply = await api.post(f"{guest}/clone", **options)
    assert (reply.status, reply.reason) == (500, text)
    assert not list(at_rest(api.cluster.world))


async def test_a_number_that_another_node_has_fails_in_the_task(api: Api) -> None:
    assert (await clone(api, VM, 103)).endswith("qemu-server/103.conf' failed: File exists")


async def test_an_unknown_pool_is_a_matter_of_permission(api: Api) -> None:
    reply = await api.post(f"{VM}/clone", newid=300, pool="nope")
    assert (reply.status, reply.reason) == (403, "Permission check failed (pool 'nope' does not exist)")


async def test_a_container_clone_locks_both_and_takes_a_hostname(api: Api) -> None:
    reply = await api.post(f"{CT}/clone", newid=300, hostname="twin")
    await api.clock.advance(0.5)
    assert (await api.get(f"{CT}/config")).data["lock"] == "disk"
    assert (await api.get("/nodes/pve3/lxc/300/config")).data["lock"] == "create"
    assert await api.finish_task(reply) == "OK"
    config = (await api.get("/nodes/pve3/lxc/300/config")).data
    assert config["hostname"] == "twin"
    assert config["rootfs"] == "local-lvm:vm-300-disk-0,size=8G"
    assert config["net0"] != (await api.get(f"{CT}/config")).data["net0"]
    assert "name" not in config
    assert await clone(api, CT, 301) == "OK"
    assert (await api.get("/nodes/pve3/lxc/301/config")).data["hostname"] == "dev-sandbox"
    assert not list(at_rest(api.cluster.world))


async def test_a_vm_becomes_a_template_with_base_images(api: Api) -> None:
    vm = "/nodes/pve2/qemu/107"
    assert await api.finish_task(await api.post(f"{vm}/template")) == "OK"
    config = (await api.get(f"{vm}/config")).data
    assert config["template"] == 1
    assert config["scsi0"] == "local-lvm:base-107-disk-0,size=120G"
    again = await api.post(f"{vm}/template")
    assert (again.status, again.reason) == (500, "you can't convert a template to a template")
    start = await api.post(f"{vm}/status/start")
    assert await api.finish_task(start) == "you can't start a vm if it's a template"
    assert not list(at_rest(api.cluster.world))


async def test_a_container_becomes_a_template_without_telling_the_task(api: Api) -> None:
    assert (await api.post(f"{CT}/template")).data is None
    await api.clock.advance(10)
    config = (await api.get(f"{CT}/config")).data
    assert config["template"] == 1
    assert config["rootfs"] == "local-lvm:base-206-disk-0,size=8G"


@pytest.mark.parametrize(
    ("guest", "text"),
    [
        ("/nodes/pve1/qemu/100", "you can't convert a VM to template if VM is running"),
        ("/nodes/pve1/lxc/200", "you can't convert a CT to template if the CT is running"),
    ],
)
async def test_what_cannot_become_a_template(api: Api, guest: str, text: str) -> None:
    reply = await api.post(f"{guest}/template")
    assert (reply.status, reply.reason) == (500, text)


async def test_btrfs_forgets_of_which_snapshot_a_clone_is(api: Api) -> None:
    await api.post("/storage", storage="pool", type="btrfs", path="/mnt/pool")
    for path, options in (
        ("", {"vmid": 500, "scsi0": "pool:1"}),
        ("/500/snapshot", {"snapname": "before"}),
        ("/500/clone", {"newid": 501, "full": 0, "snapname": "before"}),
    ):
        created = await api.post(f"/nodes/pve1/qemu{path}", **options)
        assert await api.finish_task(created) == "OK"
    assert (await api.log(created.data)).data[-1] == {"n": 3, "t": "TASK OK"}
    rows = (await api.get("/nodes/pve1/storage/pool/content", vmid=501)).data
    assert [(row["volid"], row["parent"]) for row in rows] == [("pool:501/vm-501-disk-0.raw", None)]
