"""Migration: obstacles, and what moves."""

from __future__ import annotations

import pytest

from pve_simulator.api_client import Api, run, simulated_api
from simulator.consistency import at_rest

STOPPED = "/nodes/pve2/qemu/107"  # on local-lvm
RUNNING = "/nodes/pve2/qemu/104"  # on local-lvm
CT = "/nodes/pve3/lxc/204"  # running, on local-lvm


async def migrate(api: Api, guest: str, target: str, **options: object) -> str:
    return await api.finish_task(await api.post(f"{guest}/migrate", target=target, **options))


async def log_of(api: Api, upid: str) -> str:
    return "\n".join(line["t"] for line in (await api.log(upid, limit=0)).data)


def test_a_stopped_vm_takes_its_local_disks_along() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            world = api.cluster.world
            assert await migrate(api, STOPPED, "pve3") == "OK"
            assert (await api.get("/nodes/pve3/qemu/107/config")).data["scsi0"].startswith("local-lvm:vm-107-disk-0,")
            gone = await api.get(f"{STOPPED}/config")
            assert gone.reason == "Configuration file 'nodes/pve2/qemu-server/107.conf' does not exist"
            lvm = world.storages["local-lvm"]
            assert lvm.volume("pve2", "local-lvm:vm-107-disk-0") is None
            assert lvm.volume("pve3", "local-lvm:vm-107-disk-0") is not None
            assert not list(at_rest(world))

    run(scenario())


def test_a_running_vm_keeps_running_on_the_target() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            guest = api.cluster.world.guests[104]
            since, pending = guest.started_at, dict(guest.pending)
            assert await migrate(api, RUNNING, "pve3", **{"online": 1, "with-local-disks": 1}) == "OK"
            assert (guest.node, guest.running, guest.started_at) == ("pve3", True, since)
            assert guest.pending == pending
            assert not list(at_rest(api.cluster.world))

    run(scenario())


def test_local_disks_of_a_running_vm_need_to_be_asked_for() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            reply = await api.post(f"{RUNNING}/migrate", target="pve3", online=1)
            assert await api.finish_task(reply) == "migration aborted"
            log = await log_of(api, reply.data)
            assert "can't live migrate attached local disks without with-local-disks option" in log
            assert api.cluster.world.guests[104].node == "pve2"
            assert not list(at_rest(api.cluster.world))

    run(scenario())


def test_disks_can_go_to_another_storage() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            assert await migrate(api, STOPPED, "pve3", targetstorage="nas") == "OK"
            assert (await api.get("/nodes/pve3/qemu/107/config")).data["scsi0"].startswith("nas:107/vm-107-disk-0.raw,")
            assert not list(at_rest(api.cluster.world))

    run(scenario())


def test_a_shared_disk_stays_where_it_is() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            world = api.cluster.world
            world.ha.clear()
            before = world.guests[101].config["scsi0"]
            assert await migrate(api, "/nodes/pve1/qemu/101", "pve2", online=1) == "OK"
            assert world.guests[101].config["scsi0"] == before
            assert not list(at_rest(world))

    run(scenario())


def test_snapshots_on_thin_volumes_cannot_move() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            reply = await api.post("/nodes/pve1/qemu/108/migrate", target="pve2")
            assert await api.finish_task(reply) == "migration aborted"
            assert "non-migratable snapshot exists" in await log_of(api, reply.data)

    run(scenario())


def test_snapshots_on_zfs_move_with_the_guest() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            vm = "/nodes/pve1/qemu/102"
            await api.finish_task(await api.post(f"{vm}/status/stop"))
            assert await migrate(api, vm, "pve2") == "OK"
            names = {row["name"] for row in (await api.get("/nodes/pve2/qemu/102/snapshot")).data}
            assert names == {"before-upgrade", "current"}
            assert not list(at_rest(api.cluster.world))

    run(scenario())


def test_an_interrupted_migration_changes_nothing() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            reply = await api.post(f"{STOPPED}/migrate", target="pve3")
            await api.clock.advance(1)
            assert (await api.get(f"{STOPPED}/config")).data["lock"] == "migrate"
            await api.cluster.world.tasks.cancel(reply.data)
            assert api.cluster.world.guests[107].node == "pve2"
            assert not list(at_rest(api.cluster.world))

    run(scenario())


def test_a_running_container_is_restarted_on_the_way() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            guest = api.cluster.world.guests[204]
            since = guest.started_at
            assert await migrate(api, CT, "pve1", restart=1) == "OK"
            assert (guest.node, guest.running) == ("pve1", True)
            assert guest.started_at > since
            assert not list(at_rest(api.cluster.world))

    run(scenario())


def test_a_container_cannot_be_migrated_live() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            reply = await api.post(f"{CT}/migrate", target="pve1", online=1)
            assert await api.finish_task(reply) == "migration aborted"
            assert "lxc live migration is currently not implemented" in await log_of(api, reply.data)

    run(scenario())


@pytest.mark.parametrize(
    ("guest", "options", "status", "text"),
    [
        (STOPPED, {"target": "pve2"}, 400, "target is local node."),
        (CT, {"target": "pve3"}, 400, "target is local node."),
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
def test_refused_at_once(guest: str, options: dict[str, object], status: int, text: str) -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            reply = await api.post(f"{guest}/migrate", **options)
            assert reply.status == status
            assert text in (reply.reason if status == 500 else reply.errors.values())

    run(scenario())


def test_a_locked_vm_stays() -> None:
    async def scenario() -> None:
        async with simulated_api(faults=["locked:107:backup"]) as api:
            for reply in (await api.post(f"{STOPPED}/migrate", target="pve3"), await api.get(f"{STOPPED}/migrate")):
                assert (reply.status, reply.reason) == (500, "VM is locked (backup)")

    run(scenario())


def test_a_dead_target_is_found_out_in_the_task() -> None:
    async def scenario() -> None:
        async with simulated_api(faults=["node-offline:pve3"]) as api:
            reply = await api.post(f"{STOPPED}/migrate", target="pve3")
            assert await api.finish_task(reply) == "migration aborted"
            assert "Can't connect to destination address using public key" in await log_of(api, reply.data)

    run(scenario())


def test_preconditions_tell_local_disks_and_nodes() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            found = (await api.get("/nodes/pve1/qemu/102/migrate")).data
            assert found["running"] == 1
            assert found["allowed_nodes"] == ["pve2"]
            assert found["not_allowed_nodes"] == {"pve3": {"unavailable_storages": ["tank"]}}
            disk = found["local_disks"][0]
            assert disk["volid"] == "tank:vm-102-disk-0"
            assert disk["drivename"] == "scsi0"
            assert disk["referenced_in_snapshot"] == {"before-upgrade": 1}
            container = (await api.get(f"{CT}/migrate")).data
            assert container == {"running": 1, "allowed-nodes": ["pve1", "pve2"], "not-allowed-nodes": {}}

    run(scenario())


def test_other_clusters_cannot_be_reached() -> None:
    async def scenario() -> None:
        async with simulated_api() as api:
            options = {
                "target-endpoint": "apitoken=PVEAPIToken=root@pam!x=11111111-2222-3333-4444-555555555555,host=10.9.9.9",
                "target-bridge": "vmbr0",
                "target-storage": "local-lvm",
            }
            reply = await api.post(f"{STOPPED}/remote_migrate", **options)
            assert (reply.status, reply.reason) == (500, "500 Can't connect to 10.9.9.9:8006 (Connection timed out)")
            managed = await api.post("/nodes/pve1/qemu/101/remote_migrate", **options)
            assert managed.errors == {"vmid": "cannot migrate HA-managed VM to remote cluster"}

    run(scenario())
