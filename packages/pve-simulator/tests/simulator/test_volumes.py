"""Disks on storages: names, sizes, formats and space."""

from __future__ import annotations

import pytest

from pve_schema.schema import facts
from pve_simulator.access.directory import Access
from pve_simulator.clock import ManualClock
from pve_simulator.demo_world import build_demo_world
from pve_simulator.guests.guest import GIB, MIB, Kind
from pve_simulator.nodes.tasks import TaskError
from pve_simulator.storage import volumes
from pve_simulator.world import World


def _world() -> World:
    world = World(clock=ManualClock(), access=Access(facts("9.1.8").roles), name="t", seed=0, version="9.1.8")
    build_demo_world(world)
    return world


@pytest.mark.parametrize(
    ("storage", "kind", "fmt", "volid"),
    [
        ("local-lvm", "qemu", None, "local-lvm:vm-500-disk-0"),
        ("local-lvm", "lxc", None, "local-lvm:vm-500-disk-0"),
        ("tank", "qemu", None, "tank:vm-500-disk-0"),
        ("tank", "lxc", None, "tank:subvol-500-disk-0"),
        ("nas", "qemu", None, "nas:500/vm-500-disk-0.raw"),
        ("nas", "qemu", "qcow2", "nas:500/vm-500-disk-0.qcow2"),
        ("nas", "lxc", None, "nas:500/vm-500-disk-0.raw"),
        ("nas", "lxc", "subvol", "nas:500/subvol-500-disk-0.subvol"),
    ],
)
def test_every_type_of_storage_has_its_names(storage: str, kind: Kind, fmt: str | None, volid: str) -> None:
    world = _world()
    volume = volumes.allocate(world, "pve1", storage, 500, kind, GIB, fmt=fmt)
    assert volume.volid == volid
    assert volumes.content_of(world, volid) == ("images", 500)
    assert [volume.volid for volume in volumes.owned_by(world, "pve1", 500)] == [volid]


def test_the_lowest_free_number_is_taken() -> None:
    world = _world()
    names = [volumes.allocate(world, "pve1", "local-lvm", 500, "qemu", GIB).volid for _ in range(3)]
    volumes.free(world, "pve1", names[1])
    assert volumes.allocate(world, "pve1", "local-lvm", 500, "qemu", GIB).volid == names[1]


@pytest.mark.parametrize(
    ("storage", "size"), [("local-lvm", 104 * MIB), ("tank", 101 * MIB), ("nas", 100 * MIB + 1024)]
)
def test_sizes_are_rounded_up_as_the_storage_does(storage: str, size: int) -> None:
    assert volumes.allocate(_world(), "pve1", storage, 500, "qemu", 100 * MIB + 1).size == size


@pytest.mark.parametrize(
    ("size", "text"), [(GIB, "1G"), (1536 * MIB, "1536M"), (2048 * GIB, "2T"), (107374592, "104858K"), (1000, "1000")]
)
def test_sizes_are_written_in_the_largest_whole_unit(size: int, text: str) -> None:
    assert volumes.size_text(size) == text


def test_allocated_space_is_counted_and_freed() -> None:
    world = _world()
    del world.storages["tank"].config["sparse"]
    space = world.storages["tank"].space("pve1")
    before = space.used
    volume = volumes.allocate(world, "pve1", "tank", 500, "qemu", 10 * GIB)
    assert space.used == before + 10 * GIB
    volumes.resize(world, "pve1", volume.volid, 12 * GIB)
    assert space.used == before + 12 * GIB
    volumes.free(world, "pve1", volume.volid)
    assert space.used == before


def test_a_thin_disk_takes_space_only_for_what_is_written() -> None:
    world = _world()
    space = world.storages["local-lvm"].space("pve1")
    before = space.used
    volume = volumes.allocate(world, "pve1", "local-lvm", 500, "qemu", 90_000 * GIB)
    assert space.used - before < MIB
    with pytest.raises(TaskError, match="No space left on device"):
        volumes.fill(world, "pve1", volume, 80_000 * GIB)
    volumes.fill(world, "pve1", volume, 5 * GIB)
    assert space.used == before + 5 * GIB


@pytest.mark.parametrize(
    ("storage", "node", "complaint"),
    [
        ("nope", "pve1", "storage 'nope' does not exist"),
        ("tank", "pve3", "storage 'tank' is not available on node 'pve3'"),
    ],
)
def test_storages_that_cannot_be_used(storage: str, node: str, complaint: str) -> None:
    with pytest.raises(TaskError, match=complaint):
        volumes.allocate(_world(), node, storage, 500, "qemu", GIB)


def test_a_disabled_storage_cannot_be_used() -> None:
    world = _world()
    world.storages["nas"].disabled = True
    with pytest.raises(TaskError, match="storage 'nas' is disabled"):
        volumes.find(world, "pve1", "nas:iso/virtio-win-0.1.271.iso")


def test_a_linked_clone_names_its_base_and_keeps_it() -> None:
    world = _world()
    base = volumes.allocate(world, "pve1", "nas", 500, "qemu", GIB, fmt="qcow2", name="base-500-disk-0")
    clone = volumes.allocate(world, "pve1", "nas", 501, "qemu", base.size, linked_to=base)
    assert clone.volid == "nas:500/base-500-disk-0.qcow2/501/vm-501-disk-0.qcow2"
    assert clone.parent == "../500/base-500-disk-0.qcow2"
    with pytest.raises(TaskError, match="is still in use by linked cloned"):
        volumes.free(world, "pve1", base.volid)


def test_a_copy_uses_what_its_source_uses() -> None:
    world = _world()
    source = world.storages["local-lvm"].volume("pve1", "local-lvm:vm-108-disk-0")
    assert source is not None
    copied = volumes.copy(world, source, "pve1", "tank", 500, "qemu")
    assert (copied.size, copied.used, copied.format) == (source.size, source.used, "raw")
