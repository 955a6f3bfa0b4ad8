"""Checks of the simulated world, independent of the product: has it really happened?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pve_simulator.guests.guest import parse_size, size_of_drive
from tests.rigs.compat_session import Done
from tests.rigs.simulator import volumes

Check = Callable[[Done], Any]


# -- guests ------------------------------------------------------------------------------------------------------------


def is_running(done: Done) -> None:
    assert not done.runs_before[done.guest().vmid][0]
    assert done.guest().running


def is_stopped(done: Done) -> None:
    assert done.runs_before[done.guest().vmid][0]
    assert not done.guest().running


def was_rebooted(done: Done) -> None:
    guest = done.guest()
    assert guest.running
    assert guest.started_at > done.runs_before[guest.vmid][1]


def is_paused(done: Done) -> None:
    assert done.guest().paused


def goes_on(done: Done) -> None:
    assert done.guest().running
    assert not done.guest().paused


def is_gone(done: Done) -> None:
    vmid = int(done.arguments["vmid"])
    assert vmid in done.runs_before
    assert vmid not in done.world.guests
    assert not [volid for volid in volumes(done.world) if f"-{vmid}-disk-" in volid]


def is_on(parameter: str) -> Check:
    """It has moved to the node that the parameter names, and runs there if it did before."""

    def look(done: Done) -> None:
        guest = done.guest()
        assert guest.node == done.arguments[parameter]
        assert guest.running == done.runs_before[guest.vmid][0]

    return look


def is_template(done: Done) -> None:
    assert done.guest().template


def is_made(kind: str, *, vmid: str = "vmid", **config: Any) -> Check:
    """A new guest with these options; a value may be a test of the option's text."""

    def look(done: Done) -> None:
        guest = done.guest(vmid) if vmid in done.arguments else done.world.guests[done.facts["vmid"]]
        assert guest.vmid not in done.runs_before
        assert guest.kind == kind
        if "node" in done.arguments:
            assert guest.node == done.arguments["node"]
        has(guest.config, **config)

    return look


def is_cloned(kind: str, *, source: str = "vmid", new: str = "newid", linked: bool = False, **config: Any) -> Check:
    """The clone exists next to its source, with disks of its own, which point back if it is a linked clone."""

    def look(done: Done) -> None:
        clone, original = done.guest(new), done.guest(source)
        assert clone.kind == original.kind == kind
        assert clone.vmid not in done.runs_before
        has(clone.config, **config)
        disks = [done.volume(volume) for _, volume in clone.drives() if volume in done.new_volumes()]
        assert disks
        assert any(disk.parent is not None for disk in disks) == linked

    return look


def has(config: dict[str, Any], **expected: Any) -> None:
    for key, value in expected.items():
        actual = config.get(key.replace("__", "-"))
        assert value(str(actual)) if callable(value) else str(actual) == str(value), f"{key} is {actual!r}"


def config_has(**expected: Any) -> Check:
    """The options, as they will be after a restart at the latest."""
    return lambda done: has(done.guest().effective_config(), **expected)


def holds(*parts: str) -> Callable[[str], bool]:
    return lambda text: all(part in text for part in parts)


def lacks(key: str) -> Check:
    def look(done: Done) -> None:
        assert key not in done.guest().effective_config()

    return look


def disk_is(key: str, *, storage: str | None = None, size: str | None = None) -> Check:
    def look(done: Done) -> None:
        drive = str(done.guest().config[key])
        assert storage is None or drive.startswith(f"{storage}:")
        assert size is None or size_of_drive(drive) == parse_size(size)
        assert done.volume(drive.split(",")[0]).size == size_of_drive(drive)

    return look


def disk_was_moved(key: str) -> Check:
    """It is on the other storage, and the copy on the old one is gone."""

    def look(done: Done) -> None:
        drive = str(done.guest().config[key]).split(",")[0]
        assert drive.startswith(f"{done.arguments['storage']}:")
        assert drive in done.new_volumes()
        assert len(done.volumes_before - volumes(done.world)) == 1

    return look


def is_detached(key: str) -> Check:
    def look(done: Done) -> None:
        config = done.guest().config
        assert key not in config
        assert [name for name in config if name.startswith("unused")]
        assert volumes(done.world) == done.volumes_before

    return look


# -- snapshots ---------------------------------------------------------------------------------------------------------


def has_snapshot(done: Done) -> None:
    snapshot = done.guest().snapshots[done.arguments["snapname"]]
    assert (snapshot.description or "").strip() == done.arguments.get("description", "")


def lacks_snapshot(done: Done) -> None:
    assert done.arguments["snapname"] not in done.guest().snapshots


def is_rolled_back(done: Done) -> None:
    guest = done.guest()
    snapshot = guest.snapshots[done.arguments["snapname"]]
    assert guest.config.get("tags") == snapshot.config.get("tags")
    assert guest.config["parent"] == snapshot.name


# -- storages and backups ----------------------------------------------------------------------------------------------


def is_backed_up(done: Done) -> None:
    (volid,) = done.new_volumes()
    assert volid.startswith(f"{done.arguments['storage']}:backup/")
    assert done.volume(volid).vmid == done.guest().vmid
    notes = done.arguments.get("notes")
    assert notes is None or done.volume(volid).notes == notes


def is_restored(kind: str, *, over_old: bool = False) -> Check:
    def look(done: Done) -> None:
        guest = done.guest()
        assert guest.kind == kind
        assert (guest.vmid in done.runs_before) == over_old
        storage = done.arguments.get("storage")
        drives = [volume for key, volume in guest.drives() if key in ("scsi0", "rootfs")]
        assert drives
        assert set(drives) <= volumes(done.world)
        assert storage in (None, "nas", *(volume.partition(":")[0] for volume in drives))

    return look


def volume_is_gone(volid: str) -> Check:
    def look(done: Done) -> None:
        assert volid in done.volumes_before
        assert volid not in volumes(done.world)

    return look


def is_uploaded(volid: str, size: int) -> Check:
    def look(done: Done) -> None:
        assert done.new_volumes() == {volid}
        assert done.volume(volid).size == size

    return look


def both(*all_of: Check) -> Check:
    def look(done: Done) -> None:
        for check in all_of:
            check(done)

    return look


def runs_in_pool(done: Done) -> None:
    assert done.guest().running
    assert done.guest().vmid in done.world.access.pools[done.arguments["pool"]].vms


def snapshot_holds_memory(done: Done) -> None:
    assert done.guest().snapshots[done.arguments["snapname"]].vmstate
