"""Deleting guests."""

from __future__ import annotations

from pve_simulator.api_client import Api
from pve_simulator.storage.backup_jobs import BackupJobs
from pve_simulator.world import HaResource
from simulator.consistency import at_rest
from simulator.guest_steps import CT, VM, create_container, create_vm, log_of, put, volume


async def test_a_vm_goes_with_its_disks_its_pool_and_the_roles_on_it(api: Api) -> None:
    await create_vm(api, scsi0="local-lvm:1", ide2="local-lvm:cloudinit", scsi1="nas:1", pool="lab")
    await put(api, f"{VM}/500/config", delete="scsi1")
    access = api.cluster.world.access
    access.grant("/vms/500", "PVEVMUser", "bob@pve")
    deleted = await api.delete(f"{VM}/500")
    assert ":qmdestroy:500:" in deleted.data
    assert await api.finish_task(deleted) == "OK"
    assert '  Logical volume "vm-500-disk-0" successfully removed.' in log_of(api, deleted)
    assert 500 not in api.cluster.world.guests
    assert access.pool_of(500) is None
    assert not [entry for entry in access.acl() if entry.path == "/vms/500"]
    assert volume(api, "nas:500/vm-500-disk-0.raw") is None
    assert list(at_rest(api.cluster.world)) == []


async def test_purge_also_removes_what_points_to_the_guest(api: Api) -> None:
    await create_vm(api)
    world = api.cluster.world
    world.ha["vm:500"] = HaResource("vm:500", state="ignored")
    jobs = world.part(BackupJobs)
    jobs.add("both", {"vmid": "100,500", "schedule": "02:00"})
    jobs.add("alone", {"vmid": "500", "schedule": "02:00"})
    deleted = await api.delete(f"{VM}/500?purge=1")
    assert await api.finish_task(deleted) == "OK"
    assert "purging VM 500 from related configurations.." in log_of(api, deleted)
    assert "vm:500" not in world.ha
    assert {job_id: job["vmid"] for job_id, job in jobs.all().items()} == {"both": "100"}


async def test_unreferenced_disks_stay_unless_the_call_includes_them(api: Api) -> None:
    for vmid in (500, 501):
        await create_vm(api, vmid, scsi0="local-lvm:1")
        del api.cluster.world.guests[vmid].config["scsi0"]
    await api.finish_task(await api.delete(f"{VM}/500"))
    await api.finish_task(await api.delete(f"{VM}/501?destroy-unreferenced-disks=1"))
    assert volume(api, "local-lvm:vm-500-disk-0") is not None
    assert volume(api, "local-lvm:vm-501-disk-0") is None


async def test_a_locked_vm_fails_in_the_task_a_container_at_once_and_a_suspended_vm_goes(api: Api) -> None:
    await create_vm(api)
    await create_container(api, 501)
    api.cluster.faults.lock(500, "clone")
    api.cluster.faults.lock(501, "backup")
    machine = await api.finish_task(await api.delete(f"{VM}/500"))
    container = await api.delete(f"{CT}/501")
    api.cluster.faults.lock(500, "suspended")
    suspended = await api.finish_task(await api.delete(f"{VM}/500"))
    assert machine == "VM is locked (clone)"
    assert container.reason == "CT is locked (backup)"
    assert suspended == "OK"


async def test_force_stops_a_container_first(api: Api) -> None:
    deleted = await api.delete(f"{CT}/200?force=1")
    assert await api.finish_task(deleted) == "OK"
    assert 200 not in api.cluster.world.guests
    assert list(at_rest(api.cluster.world)) == []


async def test_a_template_stays_while_linked_clones_build_on_it(api: Api) -> None:
    await api.finish_task(await api.post(f"{VM}/9000/clone", newid=500))
    failed = await api.finish_task(await api.delete(f"{VM}/9000"))
    assert failed == "base volume 'local-lvm:base-9000-disk-0' is still in use by linked cloned"
    await api.finish_task(await api.delete(f"{VM}/500"))
    assert await api.finish_task(await api.delete(f"{VM}/9000")) == "OK"
    assert list(at_rest(api.cluster.world)) == []


async def test_of_two_deletions_the_second_finds_nothing(api: Api) -> None:
    await create_vm(api, scsi0="local-lvm:1")
    first, second = await api.delete(f"{VM}/500"), await api.delete(f"{VM}/500")
    assert await api.finish_task(first) == "OK"
    assert await api.finish_task(second) == "Configuration file 'nodes/pve1/qemu-server/500.conf' does not exist"
