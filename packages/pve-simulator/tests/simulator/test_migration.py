"""Migration: obstacles, and what moves."""

from __future__ import annotations

import pytest

from pve_simulator.api_client import Api
from simulator.consistency import at_rest

STOPPED = "/nodes/pve2/qemu/107"  # on local-lvm
RUNNING = "/nodes/pve2/qemu/104"  # on local-lvm
CT = "/nodes/pve3/lxc/204"  # running, on local-lvm


async def migrate(api: Api, guest: str, target: str, **options: object) -> str:
    return await api.finish_task(await api.post(f"{guest}/migrate", target=target, **options))


async def log_of(api: Api, upid: str) -> str:
    return "\n".join(line["t"] for line in (await api.log(upid, limit=0)).data)


async def test_a_stopped_vm_takes_its_local_disks_along(api: Api) -> None:
    world = api.cluster.world
    assert await migrate(api, STOPPED, "pve3") == "OK"
    assert (await api.get("/nodes/pve3/qemu/107/config")).data["scsi0"].startswith("local-lvm:vm-107-disk-0,")
    gone = await api.get(f"{STOPPED}/config")
    assert gone.reason == "Configuration file 'nodes/pve2/qemu-server/107.conf' does not exist"
    lvm = world.storages["local-lvm"]
    assert lvm.volume("pve2", "local-lvm:vm-107-disk-0") is None
    assert lvm.volume("pve3", "local-lvm:vm-107-disk-0") is not None
    assert not list(at_rest(world))


async def test_a_running_vm_keeps_running_on_the_target(api: Api) -> None:
    guest = api.cluster.world.guests[104]
    since, pending = guest.started_at, dict(guest.pending)
    assert await migrate(api, RUNNING, "pve3", **{"online": 1, "with-local-disks": 1}) == "OK"
    assert (guest.node, guest.running, guest.started_at) == ("pve3", True, since)
    assert guest.pending == pending
    assert not list(at_rest(api.cluster.world))


async def test_local_disks_of_a_running_vm_migrate_only_on_request(api: Api) -> None:
    reply = await api.post(f"{RUNNING}/migrate", target="pve3", online=1)
    assert await api.finish_task(reply) == "migration aborted"
    log = await log_of(api, reply.data)
    assert "can't live migrate attached local disks without with-local-disks option" in log
    assert api.cluster.world.guests[104].node == "pve2"
    assert not list(at_rest(api.cluster.world))


async def test_disks_can_go_to_another_storage(api: Api) -> None:
    assert await migrate(api, STOPPED, "pve3", targetstorage="nas") == "OK"
    assert (await api.get("/nodes/pve3/qemu/107/config")).data["scsi0"].startswith("nas:107/vm-107-disk-0.raw,")
    assert not list(at_rest(api.cluster.world))


async def test_a_shared_disk_stays_where_it_is(api: Api) -> None:
    world = api.cluster.world
    world.ha.clear()
    before = world.guests[101].config["scsi0"]
    assert await migrate(api, "/nodes/pve1/qemu/101", "pve2", online=1) == "OK"
    assert world.guests[101].config["scsi0"] == before
    assert not list(at_rest(world))


async def test_the_cd_drive_of_the_node_cannot_move(api: Api) -> None:
    guest = api.cluster.world.guests[107]
    guest.config["ide3"] = "cdrom,media=cdrom"
    (row,) = [row for row in (await api.get(f"{STOPPED}/migrate")).data["local_disks"] if row["volid"] == "cdrom"]
    assert (row["drivename"], row["cdrom"], "size" in row) == ("ide3", 1, False)
    reply = await api.post(f"{STOPPED}/migrate", target="pve3")
    assert await api.finish_task(reply) == "migration aborted"
    assert "can't migrate local cdrom drive" in await log_of(api, reply.data)


async def test_snapshots_on_thin_volumes_cannot_move(api: Api) -> None:
    reply = await api.post("/nodes/pve1/qemu/108/migrate", target="pve2")
    assert await api.finish_task(reply) == "migration aborted"
    assert "non-migratable snapshot exists" in await log_of(api, reply.data)


async def test_snapshots_on_zfs_move_with_the_guest(api: Api) -> None:
    vm = "/nodes/pve1/qemu/102"
    await api.finish_task(await api.post(f"{vm}/status/stop"))
    assert await migrate(api, vm, "pve2") == "OK"
    names = {row["name"] for row in (await api.get("/nodes/pve2/qemu/102/snapshot")).data}
    assert names == {"before-upgrade", "current"}
    assert not list(at_rest(api.cluster.world))


async def test_an_interrupted_migration_changes_nothing(api: Api) -> None:
    reply = await api.post(f"{STOPPED}/migrate", target="pve3")
    await api.clock.advance(1)
    assert (await api.get(f"{STOPPED}/config")).data["lock"] == "migrate"
    await api.cluster.world.tasks.cancel(reply.data)
    assert api.cluster.world.guests[107].node == "pve2"
    assert not list(at_rest(api.cluster.world))


async def test_a_running_container_is_restarted_on_the_way(api: Api) -> None:
    guest = api.cluster.world.guests[204]
    since = guest.started_at
    assert await migrate(api, CT, "pve1", restart=1) == "OK"
    assert (guest.node, guest.running) == ("pve1", True)
    assert guest.started_at > since
    assert not list(at_rest(api.cluster.world))


async def test_a_container_cannot_be_migrated_live(api: Api) -> None:
    reply = await api.post(f"{CT}/migrate", target="pve1", online=1)
    assert await api.finish_task(reply) == "migration aborted"
    assert "lxc live migration is currently not implemented" in await log_of(api, reply.data)


@pytest.mark.parametrize(
    ("guest", "options", "status", "text"),
    [
        (STOPPED, {"target": "nowhere"}, 500, "no such cluster node 'nowhere'"),
        (RUNNING, {"target": "pve3"}, 500, "can't migrate running VM without --online"),
        (CT, {"target": "pve1"}, 500, "can't migrate running container without --online or --restart"),
        (
            "/nodes/pve2/qemu/103",
            {"target": "pve3", "online": 1},
            500,
            "storage 'tank' is not available on node 'pve3'",
        ),
        (STOPPED, {"target": "pve3", "targetstorage": "nope"}, 500, "storage 'nope' does not exist"),
        (STOPPED, {"target": "pve3", "targetstorage": "local"}, 500, "storage 'local' does not support vm images"),
        (STOPPED, {"target": "pve3", "force": 1}, 400, "Only root may use this option."),
        (
            "/nodes/pve1/qemu/999",
            {"target": "pve3"},
            500,
            "Configuration file 'nodes/pve1/qemu-server/999.conf' does not exist",
        ),
    ],
)
async def test_refused_at_once(api: Api, guest: str, options: dict[str, object], status: int, text: str) -> None:
    reply = await api.post(f"{guest}/migrate", **options)
    assert reply.status == status
    assert text in (reply.reason if status == 500 else reply.errors.values())


@pytest.mark.api(faults=["locked:107:backup"])
async def test_a_locked_vm_stays(api: Api) -> None:
    for reply in (await api.post(f"{STOPPED}/migrate", target="pve3"), await api.get(f"{STOPPED}/migrate")):
        assert (reply.status, reply.reason) == (500, "VM is locked (backup)")


@pytest.mark.api(faults=["node-offline:pve3"])
async def test_a_dead_target_is_found_out_in_the_task(api: Api) -> None:
    reply = await api.post(f"{STOPPED}/migrate", target="pve3")
    assert await api.finish_task(reply) == "migration aborted"
    assert "Can't connect to destination address using public key" in await log_of(api, reply.data)


async def test_preconditions_list_local_disks_and_nodes(api: Api) -> None:
    preconditions = (await api.get("/nodes/pve1/qemu/102/migrate")).data
    assert preconditions["running"] == 1
    assert preconditions["allowed_nodes"] == ["pve2"]
    assert preconditions["not_allowed_nodes"] == {"pve2": {}, "pve3": {"unavailable_storages": ["tank"]}}
    disk = preconditions["local_disks"][0]
    assert disk["volid"] == "tank:vm-102-disk-0"
    assert disk["drivename"] == "scsi0"
    assert disk["referenced_in_snapshot"] == {"before-upgrade": 1}
    container = (await api.get(f"{CT}/migrate")).data
    assert container == {"running": 1, "allowed-nodes": ["pve1", "pve2"], "not-allowed-nodes": {}}


async def test_other_clusters_cannot_be_reached(api: Api) -> None:
    options = {
        "target-endpoint": "apitoken=PVEAPIToken=root@pam!x=11111111-2222-3333-4444-555555555555,host=10.9.9.9",
        "target-bridge": "vmbr0",
        "target-storage": "local-lvm",
    }
    reply = await api.post(f"{STOPPED}/remote_migrate", **options)
    assert (reply.status, reply.reason) == (500, "500 Can't connect to 10.9.9.9:8006 (Connection timed out)")
    managed = await api.post("/nodes/pve1/qemu/101/remote_migrate", **options)
    assert managed.errors == {"vmid": "cannot migrate HA-managed VM to remote cluster"}
