"""Snapshots: the tree, saved memory, rollback, and refusals."""

from __future__ import annotations

import pytest

from pve_simulator.api_client import Api
from pve_simulator.guest_os.machine import Machines
from pve_simulator.guests.drives import disks
from simulator.consistency import at_rest

VM = "/nodes/pve1/qemu/108"  # stopped, has the snapshots clean and configured
RUNNING = "/nodes/pve1/qemu/100"
CT = "/nodes/pve3/lxc/206"


async def take(api: Api, guest: str, name: str, **options: object) -> str:
    return await api.finish_task(await api.post(f"{guest}/snapshot", snapname=name, **options))


async def test_a_snapshot_becomes_the_parent_of_the_current_state(api: Api) -> None:
    assert await take(api, VM, "third", description="one more") == "OK"
    rows = {row["name"]: row for row in (await api.get(f"{VM}/snapshot")).data}
    assert rows["third"]["parent"] == "configured"
    assert rows["third"]["description"] == "one more"
    assert rows["third"]["vmstate"] == 0
    assert rows["current"]["parent"] == "third"
    assert not list(at_rest(api.cluster.world))


async def test_rolling_back_brings_back_the_files_inside(api: Api) -> None:
    machines = api.cluster.world.part(Machines)
    guest = api.cluster.world.guests[206]
    machines.of(guest).files.write("/root/before", b"kept")
    assert await take(api, CT, "one") == "OK"
    machines.of(guest).files.write("/root/before", b"overwritten")
    machines.of(guest).files.write("/root/after", b"lost")
    assert await api.finish_task(await api.post(f"{CT}/snapshot/one/rollback")) == "OK"
    assert machines.of(guest).files.read("/root/before") == b"kept"
    assert machines.of(guest).files.find("/root/after") is None


async def test_a_snapshot_with_memory_has_a_state_volume_that_goes_with_it(api: Api) -> None:
    storage = api.cluster.world.storages["local-lvm"]
    before = storage.space("pve1").used
    assert await take(api, RUNNING, "ram", vmstate=1) == "OK"
    config = (await api.get(f"{RUNNING}/snapshot/ram/config")).data
    assert config["vmstate"] == "local-lvm:vm-100-state-ram"
    assert storage.volume("pve1", config["vmstate"]) is not None
    assert not list(at_rest(api.cluster.world))
    assert await api.finish_task(await api.delete(f"{RUNNING}/snapshot/ram")) == "OK"
    assert storage.volume("pve1", config["vmstate"]) is None
    assert storage.space("pve1").used == before


async def test_memory_of_a_stopped_vm_is_not_saved(api: Api) -> None:
    assert await take(api, VM, "ram", vmstate=1) == "OK"
    assert "vmstate" not in (await api.get(f"{VM}/snapshot/ram/config")).data


async def test_while_it_is_taken_the_guest_is_locked_and_the_snapshot_incomplete(api: Api) -> None:
    first = await api.post(f"{VM}/snapshot", snapname="slow")
    await api.clock.advance(0.1)
    assert (await api.get(f"{VM}/config")).data["lock"] == "snapshot"
    rows = {row["name"]: row for row in (await api.get(f"{VM}/snapshot")).data}
    assert rows["slow"]["snapstate"] == "prepare"
    second = await api.post(f"{VM}/snapshot", snapname="other")
    assert await api.finish_task(second) == "VM is locked (snapshot)"
    assert (await api.task(first.data))["exitstatus"] == "OK"


async def test_an_interrupted_snapshot_leaves_nothing_behind(api: Api) -> None:
    reply = await api.post(f"{RUNNING}/snapshot", snapname="ram", vmstate=1)
    await api.clock.advance(1.5)
    await api.cluster.world.tasks.cancel(reply.data)
    assert not api.cluster.world.guests[100].snapshots
    assert not list(at_rest(api.cluster.world))


@pytest.mark.parametrize(
    ("guest", "name", "text"),
    [
        (VM, "clean", "snapshot name 'clean' already used"),
        ("/nodes/pve1/qemu/9000", "x1", "you can't take a snapshot if it's a template"),
        ("/nodes/pve1/lxc/999", "x1", "Configuration file 'nodes/pve1/lxc/999.conf' does not exist"),
        ("/nodes/pve2/lxc/202", "x1", "snapshot feature is not available"),
    ],
)
async def test_refused_inside_the_task(api: Api, guest: str, name: str, text: str) -> None:
    assert await take(api, guest, name) == text


@pytest.mark.parametrize(("guest", "name"), [(VM, "current"), (VM, "pending"), (CT, "current"), (CT, "vzdump")])
async def test_reserved_names_are_refused_at_once(api: Api, guest: str, name: str) -> None:
    reply = await api.post(f"{guest}/snapshot", snapname=name)
    assert (reply.status, reply.reason) == (500, f"unable to use snapshot name '{name}' (reserved name)")


async def test_deleting_a_snapshot_joins_its_children_to_its_parent(api: Api) -> None:
    await take(api, VM, "third")
    assert await api.finish_task(await api.delete(f"{VM}/snapshot/configured")) == "OK"
    rows = {row["name"]: row for row in (await api.get(f"{VM}/snapshot")).data}
    assert rows["third"]["parent"] == "clean"
    assert "configured" not in rows
    gone = await api.delete(f"{VM}/snapshot/configured")
    assert await api.finish_task(gone) == "snapshot 'configured' does not exist"


async def test_rolling_back_restores_configuration_and_size_but_keeps_the_notes(api: Api) -> None:
    guest = api.cluster.world.guests[108]
    generation = guest.config["vmgenid"]
    await api.put(f"{VM}/config", memory=2048, description="today")
    await api.finish_task(await api.put(f"{VM}/resize", disk="scsi0", size="+4G"))
    assert await api.finish_task(await api.post(f"{VM}/snapshot/clean/rollback")) == "OK"
    config = (await api.get(f"{VM}/config")).data
    assert config["memory"] == "1024"
    assert config["description"].strip() == "today"
    assert config["parent"] == "clean"
    assert config["scsi0"].endswith("size=8G")
    assert config["vmgenid"] != generation
    assert "lock" not in config
    volume = api.cluster.world.storages["local-lvm"].volume("pve1", next(disks(guest.config)).volid)
    assert volume is not None
    assert volume.size == 8 * 1024**3
    assert not list(at_rest(api.cluster.world))


async def test_rolling_back_stops_a_running_guest_and_start_starts_it_again(api: Api) -> None:
    await api.finish_task(await api.post("/nodes/pve1/qemu/108/status/start"))
    assert await api.finish_task(await api.post(f"{VM}/snapshot/clean/rollback")) == "OK"
    assert (await api.get(f"{VM}/status/current")).data["status"] == "stopped"
    assert await api.finish_task(await api.post(f"{VM}/snapshot/clean/rollback", start=1)) == "OK"
    assert (await api.get(f"{VM}/status/current")).data["status"] == "running"


async def test_a_vm_runs_after_rollback_to_a_snapshot_with_memory(api: Api) -> None:
    await take(api, RUNNING, "ram", vmstate=1)
    await api.finish_task(await api.post(f"{RUNNING}/status/stop"))
    assert await api.finish_task(await api.post(f"{RUNNING}/snapshot/ram/rollback")) == "OK"
    assert (await api.get(f"{RUNNING}/status/current")).data["status"] == "running"
    assert "vmstate" not in (await api.get(f"{RUNNING}/config")).data


async def test_zfs_rolls_back_only_to_the_latest_snapshot(api: Api) -> None:
    guest = "/nodes/pve2/qemu/103"
    await take(api, guest, "one")
    await take(api, guest, "two")
    reply = await api.post(f"{guest}/snapshot/one/rollback")
    volid = next(disks(api.cluster.world.guests[103].config)).volid
    assert await api.finish_task(reply) == f"can't rollback, 'one' is not most recent snapshot on '{volid}'"
    assert await api.finish_task(await api.post(f"{guest}/snapshot/two/rollback")) == "OK"


async def test_containers_have_snapshots_too(api: Api) -> None:
    assert await take(api, CT, "fresh") == "OK"
    row = (await api.get(f"{CT}/snapshot")).data[0]
    assert row["name"] == "fresh"
    assert "vmstate" not in row
    assert await api.finish_task(await api.post(f"{CT}/snapshot/fresh/rollback", start=1)) == "OK"
    assert (await api.get(f"{CT}/status/current")).data["status"] == "running"


async def test_the_description_can_be_changed(api: Api) -> None:
    assert (await api.put(f"{VM}/snapshot/clean/config", description="new words")).data is None
    assert (await api.get(f"{VM}/snapshot/clean/config")).data["description"] == "new words"
    reply = await api.put(f"{VM}/snapshot/nope/config", description="x")
    assert (reply.status, reply.reason) == (500, "snapshot 'nope' does not exist")
    assert (await api.get(f"{VM}/snapshot/clean")).data == [{"cmd": "rollback"}, {"cmd": "config"}]


@pytest.mark.parametrize(
    ("guest", "feature", "expected"),
    [
        ("/nodes/pve1/qemu/100", "snapshot", {"hasFeature": 1, "nodes": ["pve1"]}),
        ("/nodes/pve1/qemu/100", "clone", {"hasFeature": 0, "nodes": ["pve1"]}),
        ("/nodes/pve1/qemu/9000", "clone", {"hasFeature": 1, "nodes": ["pve1"]}),
        ("/nodes/pve1/qemu/101", "snapshot", {"hasFeature": 1, "nodes": ["pve1", "pve2", "pve3"]}),
        ("/nodes/pve2/qemu/103", "copy", {"hasFeature": 1, "nodes": ["pve2"]}),
        ("/nodes/pve2/lxc/202", "snapshot", {"hasFeature": 0}),
        ("/nodes/pve1/lxc/9001", "clone", {"hasFeature": 1}),
    ],
)
async def test_features_follow_the_storages(api: Api, guest: str, feature: str, expected: dict[str, object]) -> None:
    assert (await api.get(f"{guest}/feature", feature=feature)).data == expected
