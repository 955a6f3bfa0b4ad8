"""Creating VMs and containers."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest

from pve_simulator.api_client import Api, Reply, simulated_api
from simulator.consistency import at_rest
from simulator.guest_steps import (
    CT,
    TEMPLATE,
    VM,
    config,
    create_container,
    create_vm,
    import_image,
    log_of,
    role,
    user,
    volume,
)

_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGkX6fYJ1sT0b1PXnq1d5gk9n8Yk7O3K3o4oT7gJm3fB a@b"


async def test_a_vm_is_stored_with_everything_pve_adds(api: Api) -> None:
    done = await create_vm(
        api, name="web", memory=256, cores=1, scsi0="local-lvm:1", net0="virtio,bridge=vmbr0",
        tags="Web prod,web", description="first VM\nline2\n", agent="1", onboot=1,
    )  # fmt: skip
    stored = await config(api, f"{VM}/500")
    assert done == "OK"
    assert stored["scsi0"] == "local-lvm:vm-500-disk-0,size=1G"
    assert re.fullmatch(r"virtio=BC:24:11(:[0-9A-F]{2}){3},bridge=vmbr0", stored["net0"])
    assert re.fullmatch(r"uuid=[0-9a-f-]{36}", stored["smbios1"])
    assert re.fullmatch(r"[0-9a-f-]{36}", stored["vmgenid"])
    assert re.fullmatch(r"creation-qemu=[\d.]+,ctime=\d+", stored["meta"])
    assert stored["boot"] == "order=scsi0;net0"
    assert stored["tags"] == "Web prod,web"  # as they were options; only a change puts them in order
    assert stored["description"] == "first VM\nline2"
    assert (stored["memory"], stored["cores"], stored["onboot"], stored["agent"]) == ("256", 1, 1, "1")
    assert re.fullmatch(r"[0-9a-f]{40}", stored["digest"])
    assert "lock" not in stored
    assert list(at_rest(api.cluster.world)) == []


async def test_the_same_seed_gives_the_same_addresses() -> None:
    async def mac() -> str:
        async with simulated_api(seed=7) as api:
            await create_vm(api, net0="virtio,bridge=vmbr0", net1="e1000,bridge=vmbr0")
            stored = await config(api, f"{VM}/500")
            assert stored["net0"].split(",")[0].partition("=")[2] != stored["net1"].split(",")[0].partition("=")[2]
            return str(stored["net0"])

    assert await mac() == await mac()


@pytest.mark.parametrize(
    ("options", "stored"),
    [
        ({"scsi0": "nas:2,format=qcow2"}, {"scsi0": "nas:500/vm-500-disk-0.qcow2,size=2G"}),
        ({"scsi0": "nas:0.1"}, {"scsi0": "nas:500/vm-500-disk-0.raw,size=104858K"}),
        ({"scsi0": "tank:1,ssd=on,discard=on,iothread=1"},
         {"scsi0": "tank:vm-500-disk-0,discard=on,iothread=1,size=1G,ssd=1"}),
        ({"scsi0": "local-lvm:1", "virtio0": "local-lvm:2"}, {"virtio0": "local-lvm:vm-500-disk-1,size=2G"}),
        ({"ide2": "local-lvm:cloudinit"}, {"ide2": "local-lvm:vm-500-cloudinit,media=cdrom", "boot": "order=ide2"}),
        ({"ide2": "nas:cloudinit"}, {"ide2": "nas:500/vm-500-cloudinit.qcow2,media=cdrom"}),
        ({"ide2": "none,media=cdrom"}, {"ide2": "none,media=cdrom"}),
        ({"cdrom": "local:iso/debian-13.1.0-amd64-netinst.iso"},
         {"ide2": "local:iso/debian-13.1.0-amd64-netinst.iso,media=cdrom,size=783M"}),
        ({"efidisk0": "local-lvm:1,efitype=4m,pre-enrolled-keys=1"},
         {"efidisk0": "local-lvm:vm-500-disk-0,efitype=4m,pre-enrolled-keys=1,size=4M"}),
        ({"tpmstate0": "local-lvm:1,version=v2.0"}, {"tpmstate0": "local-lvm:vm-500-disk-0,size=4M,version=v2.0"}),
        ({"net0": "bridge=vmbr0,model=virtio,macaddr=bc:24:11:00:00:01,tag=5"},
         {"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0,tag=5"}),
        ({"ostype": "win11"}, {"machine": "pc-i440fx-10.1"}),
        ({"cpulimit": "2"}, {"cpulimit": "2"}),
        ({}, {"boot": " "}),
    ],
)  # fmt: skip
async def test_settings_are_completed_as_pve_does(api: Api, options: dict[str, Any], stored: dict[str, Any]) -> None:
    assert await create_vm(api, **options) == "OK"
    shown = await config(api, f"{VM}/500")
    assert {key: shown[key] for key in stored} == stored
    assert list(at_rest(api.cluster.world)) == []


async def test_a_disk_can_be_imported_from_an_image(api: Api) -> None:
    image = import_image(api)
    assert await create_vm(api, scsi0=f"local-lvm:0,import-from={image}", agent="1") == "OK"
    disk = volume(api, "local-lvm:vm-500-disk-0")
    assert (await config(api, f"{VM}/500"))["scsi0"] == "local-lvm:vm-500-disk-0,size=3G"
    assert disk is not None
    assert disk.used == 1024**3
    assert api.cluster.world.guests[500].system.agent_installed


async def test_a_second_vm_with_the_same_vmid_is_refused_even_while_the_first_is_being_created(api: Api) -> None:
    await api.post(VM, vmid=500)
    again = await api.post("/nodes/pve2/qemu", vmid=500)
    container = await api.post(CT, vmid=102, ostemplate=TEMPLATE)
    assert (again.status, again.reason) == (
        500,
        "unable to create VM 500 - VM 500 already exists on node 'pve1'",
    )
    assert (container.status, container.reason) == (500, "VM 102 already exists on node 'pve1'")


def _refusal(reply: Reply) -> Any:
    return reply.errors if reply.status == 400 else reply.reason


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"scsi0": "local:8"}, {"storage": "storage 'local' does not support vm images"}),
        ({"scsi0": "nope:8"}, "storage 'nope' does not exist"),
        ({"ide2": "local:iso/debian-13.1.0-amd64-netinst.iso"},
         {"ide2": "explicit 'media=cdrom' is required for iso images"}),
        ({"scsi0": f"{TEMPLATE}"}, {"scsi0": "content type needs to be 'images' or 'iso'"}),
        ({"scsi0": "local-lvm:1,import-from=local:import/x.qcow2"},
         {"scsi0": "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>"}),
        ({"scsi0": "local-lvm:0,import-from=local:iso/x.iso"},
         {"scsi0": "local:iso/x.iso has wrong type 'iso' - needs to be 'images' or 'import'"}),
        ({"sshkeys": quote("not a key")}, "SSH public key validation error"),
        ({"args": "-foo"}, "only root can set 'args' config"),
        ({"pool": "nope"}, "Permission check failed (pool 'nope' does not exist)"),
        ({"scsi0": "local-lvm:weird"}, "unable to parse lvm volume name 'weird'"),
    ],
)  # fmt: skip
async def test_refused_before_the_task(api: Api, options: dict[str, str], refused: Any) -> None:
    assert _refusal(await api.post(VM, vmid=500, **options)) == refused
    assert 500 not in api.cluster.world.guests


@pytest.mark.parametrize(
    ("options", "failed"),
    [
        ({"ide2": "local:iso/nope.iso,media=cdrom"}, "volume 'local:iso/nope.iso' does not exist"),
        ({"scsi0": "local-lvm:1,format=qcow2"},
         "unsupported format 'qcow2' at /usr/share/perl5/PVE/Storage/LvmThinPlugin.pm line 117."),
        ({"ide2": "local-lvm:cloudinit", "ide0": "nas:cloudinit"},
         "ide2 - cloud-init drive is already attached at 'ide0'"),
        ({"scsi0": "local-lvm:0,import-from=local:import/gone.qcow2"},
         "cannot import from 'local:import/gone.qcow2' - could not get size of local:import/gone.qcow2"),
        ({"scsi0": "local-lvm:vm-500-disk-9"},
         "can't activate LV '/dev/pve/vm-500-disk-9':   Failed to find logical volume \"pve/vm-500-disk-9\""),
    ],
)  # fmt: skip
async def test_fails_inside_the_task_and_leaves_nothing_behind(api: Api, options: dict[str, str], failed: str) -> None:
    assert await create_vm(api, scsi5="local-lvm:1", **options) == f"unable to create VM 500 - {failed}"
    assert 500 not in api.cluster.world.guests
    assert list(at_rest(api.cluster.world)) == []


async def test_a_storage_that_reserves_space_runs_out(api: Api) -> None:
    del api.cluster.world.storages["tank"].config["sparse"]
    failed = await create_vm(api, scsi0="tank:90000")
    assert failed == "unable to create VM 500 - zfs error: cannot create 'tank/vm/vm-500-disk-0': out of space"
    assert list(at_rest(api.cluster.world)) == []


async def test_a_cancelled_creation_leaves_nothing_behind(api: Api) -> None:
    started = await api.post(VM, vmid=500, scsi0="local-lvm:1", scsi1="local-lvm:1")
    await api.clock.advance(1.0)
    await api.delete(f"/nodes/pve1/tasks/{quote(started.data, safe='')}")
    await api.clock.advance(10.0)
    assert (await api.task(started.data))["exitstatus"] == "received interrupt"
    assert 500 not in api.cluster.world.guests
    assert list(at_rest(api.cluster.world)) == []


async def test_a_new_guest_can_start_join_a_pool_and_be_managed(api: Api) -> None:
    created = await api.post(VM, vmid=500, pool="lab", start=1, net0="virtio,bridge=vmbr0")
    await api.clock.advance(30.0)
    world = api.cluster.world
    assert log_of(api, created)[-2:] == ["Execute autostart", "TASK OK"]
    assert world.guests[500].running
    assert world.access.pool_of(500) == "lab"


@pytest.mark.parametrize(
    ("kind", "model", "result"),
    [
        ("qemu", "virtio", "bridge 'vmbr9' does not exist"),  # its MTU is asked for before QEMU starts
        ("qemu", "e1000", "start failed: QEMU exited with code 1"),
        ("lxc", "name=eth0", "startup for container '500' failed"),
    ],
)
async def test_an_unknown_bridge_passes_creation_and_fails_at_the_start(
    api: Api, kind: str, model: str, result: str
) -> None:
    create = create_vm if kind == "qemu" else create_container
    assert await create(api, net0=f"{model},bridge=vmbr9") == "OK"
    started = await api.post(f"/nodes/pve1/{kind}/500/status/start")
    assert await api.finish_task(started) == result
    assert log_of(api, started)[0].removeprefix("TASK ERROR: ") == "bridge 'vmbr9' does not exist"
    assert not api.cluster.world.guests[500].running


async def test_the_privileges_of_a_user_decide_what_a_new_vm_may_have(api: Api) -> None:
    eve = user(api)
    nothing = await eve.post(VM, vmid=500)
    access = api.cluster.world.access
    access.grant("/vms/500", role(api, "Maker", "VM.Allocate", "VM.Config.Disk"), "eve@pve")
    disk = await eve.post(VM, vmid=500, scsi0="local-lvm:1")
    memory = await eve.post(VM, vmid=500, memory=512)
    access.grant("/storage/local-lvm", "PVEDatastoreUser", "eve@pve")
    access.grant("/vms/500", role(api, "Networker", "VM.Config.Network"), "eve@pve")
    net = await eve.post(VM, vmid=500, scsi0="local-lvm:1", net0="virtio,bridge=vmbr0,tag=7")
    started = await eve.post(VM, vmid=500, start=1)
    allowed = await eve.post(VM, vmid=500, scsi0="local-lvm:1")
    assert nothing.reason == "Permission check failed"
    assert disk.reason == "Permission check failed (/storage/local-lvm, Datastore.AllocateSpace)"
    assert memory.reason == "Permission check failed (/vms/500, VM.Config.Memory)"
    assert net.reason == "Permission check failed (/sdn/zones/localnetwork/vmbr0/7, SDN.Use)"
    assert started.reason == "Permission check failed (/vms/500, VM.PowerMgmt)"
    assert allowed.status == 200


async def test_privileges_on_a_pool_are_enough_for_a_vm_inside_it(api: Api) -> None:
    eve = user(api, ("/pool/lab", "PVEVMAdmin"))
    outside = await eve.post(VM, vmid=500, memory=512)
    inside = await eve.post(VM, vmid=500, memory=512, pool="lab")
    assert (outside.status, inside.status) == (403, 200)


async def test_a_container_is_stored_with_everything_pve_adds(api: Api) -> None:
    done = await create_container(
        api, mp0="local-lvm:2,mp=/data,backup=1", net0="name=eth0,bridge=vmbr0,ip=10.0.0.5/24",
        hostname="ct", tags="b a", description="hello", password="secret123",
        **{"ssh-public-keys": _KEY},
    )  # fmt: skip
    stored = await config(api, f"{CT}/500")
    assert done == "OK"
    assert stored["rootfs"] == "local-lvm:vm-500-disk-0,size=4G"
    assert stored["mp0"] == "local-lvm:vm-500-disk-1,mp=/data,backup=1,size=2G"
    assert re.fullmatch(
        r"name=eth0,bridge=vmbr0,hwaddr=BC:24:11(:[0-9A-F]{2}){3},ip=10.0.0.5/24,type=veth", stored["net0"]
    )
    assert (stored["arch"], stored["ostype"], stored["unprivileged"]) == ("amd64", "debian", 1)
    assert (stored["memory"], stored["swap"], stored["tags"]) == (512, 512, "a;b")
    assert stored["description"] == "hello\n"
    assert "password" not in stored
    assert list(at_rest(api.cluster.world)) == []


async def test_a_container_on_zfs_gets_a_subvolume(api: Api) -> None:
    assert await create_container(api, rootfs="tank:8") == "OK"
    assert (await config(api, f"{CT}/500"))["rootfs"] == "tank:subvol-500-disk-0,size=8G"


async def test_a_missing_template_fails_in_the_task(api: Api) -> None:
    created = await api.post(CT, vmid=500, ostemplate="local:vztmpl/nope.tar.zst", rootfs="local-lvm:1")
    failed = await api.finish_task(created)
    assert failed == "unable to create CT 500 - volume 'local:vztmpl/nope.tar.zst' does not exist"
    assert log_of(api, created)[-2] == "volume 'local:vztmpl/nope.tar.zst' does not exist"
    assert list(at_rest(api.cluster.world)) == []


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"storage": "local"}, {"storage": "storage 'local' does not support container directories"}),
        ({"mp0": "local-lvm:1,mp=/data"}, "mount points configured, but 'rootfs' not set - aborting"),
        ({"rootfs": "local-lvm:1", "mp0": "/mnt/data,mp=/data"},
         "Permission check failed (mount point type bind is only allowed for root@pam)"),
        ({"rootfs": "local-lvm:1", "features": "keyctl=1"},
         "Permission check failed (changing feature flags (except nesting) is only allowed for root@pam)"),
        ({"rootfs": "local-lvm:1", "ssh-public-keys": "nonsense"}, "SSH public key validation error"),
        ({"rootfs": "local-lvm:1", "ostemplate": "local:iso/x.iso"},
         "unable to use volume local:iso/x.iso - content type needs to be 'vztmpl'"),
    ],
)  # fmt: skip
async def test_containers_refused_before_the_task(api: Api, options: dict[str, str], refused: Any) -> None:
    reply = await api.post(CT, vmid=500, **{"ostemplate": TEMPLATE, **options})
    assert _refusal(reply) == refused


async def test_a_privileged_container_needs_the_right_to_change_the_host(api: Api) -> None:
    eve = user(api, ("/vms", "PVEVMAdmin"), ("/storage", "PVEDatastoreAdmin"))
    refused = await eve.post(CT, vmid=500, ostemplate=TEMPLATE, rootfs="local-lvm:1", unprivileged=0)
    assert refused.reason == "Permission check failed (/, Sys.Modify)"
    created = await api.post(CT, vmid=500, ostemplate=TEMPLATE, rootfs="local-lvm:1", unprivileged=0)
    assert await api.finish_task(created) == "WARNINGS: 1"
    assert "unprivileged" not in await config(api, f"{CT}/500")
