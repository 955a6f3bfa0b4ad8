"""Turning a guest into a template: its disks become base images that linked clones can build on."""

from __future__ import annotations

from quorate.sim import volumes
from quorate.sim.disks import Drive, disks
from quorate.sim.guests import Guest
from quorate.sim.storage_features import format_of, has_feature, is_base
from quorate.sim.tasks import TaskContext, TaskError, Work
from quorate.sim.world import World


def convert(world: World, guest: Guest, only: str | None = None) -> Work:
    """All disks become base images, or with `only` just that one; then the guest is a template."""

    async def work(context: TaskContext) -> None:
        async with context.config_lock(guest):
            if only is None and guest.kind == "qemu":
                _mark(guest)  # a container gets the mark when all is done
            for drive in list(disks(guest.config)):
                if only in (None, drive.key) and not is_base(drive.volid):
                    await context.sleep(1.0)
                    make_base(world, guest, drive)
            if guest.kind == "lxc":
                _mark(guest)

    return work


def _mark(guest: Guest) -> None:
    guest.config["template"] = 1
    guest.touch()


def make_base(world: World, guest: Guest, drive: Drive) -> None:
    """Rename one disk to a base image and let the configuration follow."""
    storage = volumes.usable_storage(world, guest.node, drive.storage)
    if not has_feature(storage, drive.volid, format_of(drive.volid), "template"):
        raise TaskError(f"can't create base images in {storage.type} storage")
    volume = volumes.rename(world, guest.node, drive.volid, _base_name(drive.volid))
    guest.config[drive.key] = drive.with_volume(volume.volid)
    guest.touch()


def _base_name(volid: str) -> str:
    storage, _, name = volid.partition(":")
    directory, slash, own_name = name.rpartition("/")
    prefix = "basevol-" if own_name.startswith("subvol-") else "base-"
    return f"{storage}:{directory}{slash}{prefix}{own_name.partition('-')[2]}"
