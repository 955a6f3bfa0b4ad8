"""Changing a guest's configuration: every change is first noted as pending, then applied as far as possible.

A stopped guest takes all of it, a running one what can be changed while it runs. What leaves the configuration on
the way keeps its disk as `unusedN`, unless its removal was forced.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from quorate.sim import cloudinit, drives, guest_options, guest_volumes, hotplug, starting
from quorate.sim.create_vm import boot_order
from quorate.sim.guest_volumes import UNUSED, DiskMaker, Log
from quorate.sim.guests import Guest, Value, volume_of_drive
from quorate.sim.new_guests import addresses_of, system_of_vm
from quorate.sim.refusals import bad_parameters, failure
from quorate.sim.tasks import TaskError
from quorate.sim.world import World

_LOCK_SECONDS = 10.0


class Change:
    """One change of one guest's configuration, step by step."""

    def __init__(self, world: World, guest: Guest, log: Log = guest_volumes.silent) -> None:
        self._world = world
        self._guest = guest
        self._log = log
        self._modified: set[str] = set()
        self._imported = False
        self._on_drive = cloudinit.settings(guest.config)

    def delete(self, key: str, *, force: bool) -> None:
        """Note that an option goes away; unused disks and tags go at once."""
        guest = self._guest
        value = guest.config.get(key, guest.pending.get(key))
        if value is None:
            self._log(f"cannot delete '{key}' - not set in current configuration!")
            return
        self._modified.add(key)
        waiting = guest.pending.pop(key, None)
        self._leave_boot_order(key)
        if UNUSED.fullmatch(key) or key == "vmstate":
            guest_volumes.destroy(self._world, guest, volume_of_drive(str(value)))
            del guest.config[key]
        elif key == "tags":
            guest.config.pop(key, None)
        else:
            if waiting is not None and drives.is_drive(guest.kind, key):
                guest_volumes.let_go(self._world, guest, key, str(waiting), force=force)
            if key in guest.config:
                guest.pending_delete[key] = 2 if force else 1
        guest.touch()

    def set(self, key: str, value: Value) -> None:
        """Note a new value; the volume of a drive is made at once."""
        guest = self._guest
        self._modified.add(key)
        if key in guest.pending and guest.pending[key] == value:
            return
        if drives.is_drive(guest.kind, key):
            value = self._drive(key, str(value))
        elif key == "boot" and guest.kind == "qemu":
            value = self._boot(str(value))
        guest.pending[key] = value
        guest.pending_delete.pop(key, None)
        guest.touch()

    def revert(self, key: str) -> None:
        """Drop a pending change, and keep the disk that was made for it."""
        guest = self._guest
        waiting = guest.pending.pop(key, None)
        if waiting is not None and drives.is_drive(guest.kind, key):
            current = str(guest.config.get(key, ""))
            if volume_of_drive(str(waiting)) != volume_of_drive(current):
                guest_volumes.keep_as_unused(self._world, guest, volume_of_drive(str(waiting)))
        guest.pending_delete.pop(key, None)
        guest.touch()

    def settle(self) -> None:
        """Apply what was noted, as far as the guest's state allows."""
        guest = self._guest
        for key, value in list(guest.pending.items()):
            if guest.config.get(key) == value:
                del guest.pending[key]
        errors: dict[str, str] = {}
        for key in list(guest.pending_delete):
            if not guest.running or (key in self._modified and hotplug.deletes_live(guest, key)):
                self._apply_delete(key)
        for key, value in list(guest.pending.items()):
            if not guest.running:
                self._apply(key, value)
            elif key in self._modified and hotplug.sets_live(self._world, guest, key, value):
                self._apply_live(key, value, errors)
        self._drop_reused()
        guest.touch()
        if errors:
            raise bad_parameters(errors)
        self._notice_inside()

    def _drop_reused(self) -> None:
        """A volume that is a drive again, be it only pending, is no longer listed as unused."""
        guest = self._guest
        listed = [
            *guest_volumes.volumes_in(guest.config, guest.kind),
            *guest_volumes.volumes_in(guest.pending, guest.kind),
        ]
        used = {volid for key, volid in listed if not UNUSED.fullmatch(key)}
        for key, volid in list(guest_volumes.volumes_in(guest.config, guest.kind)):
            if UNUSED.fullmatch(key) and volid in used:
                del guest.config[key]

    def _drive(self, key: str, text: str) -> str:
        guest = self._guest
        maker = DiskMaker(self._world, guest.node, guest.vmid, guest.kind, self._log)
        try:
            stored = maker.mount_point(key, text) if guest.kind == "lxc" else self._vm_drive(maker, key, text)
        except TaskError:
            maker.undo()
            raise
        self._imported |= maker.imported
        replaced = guest.pending.get(key)
        if replaced is not None and volume_of_drive(str(replaced)) != volume_of_drive(stored):
            guest_volumes.keep_as_unused(self._world, guest, volume_of_drive(str(replaced)))
        return stored

    def _vm_drive(self, maker: DiskMaker, key: str, text: str) -> str:
        guest = self._guest
        drive = drives.parse(self._world, "qemu", key, text)
        others = {name: value for name, value in (guest.config | guest.pending).items() if name != key}
        attached = drives.cloudinit_drive(self._world, others)
        if attached is not None and drives.is_cloudinit(drive):
            raise TaskError(f"{key} - cloud-init drive is already attached at '{attached}'")
        stored = maker.drive(key, text)
        if drives.is_cloudinit(drive):  # it may have been left over as unused
            for name, volid in list(guest_volumes.volumes_in(guest.config, "qemu")):
                if UNUSED.fullmatch(name) and volid == volume_of_drive(stored):
                    del guest.config[name]
        order = self._boot_devices()
        if order and drives.is_cdrom(drive) and key not in order:
            self._note_boot_order([*order, key])
        return stored

    def _boot(self, value: str) -> str:
        order = value.partition("order=")[2]
        if not order:
            return value
        devices = guest_options.split_list(order)
        for device in devices:
            if device not in self._guest.effective_config():
                raise TaskError(f"invalid bootorder: device '{device}' does not exist'")
        return boot_order(devices)

    def _boot_devices(self) -> list[str]:
        boot = self._guest.effective_config().get("boot", "")
        return guest_options.split_list(str(boot).partition("order=")[2])

    def _leave_boot_order(self, key: str) -> None:
        order = self._boot_devices() if self._guest.kind == "qemu" else []
        if key in order:
            self._note_boot_order([device for device in order if device != key])

    def _note_boot_order(self, devices: list[str]) -> None:
        self._guest.pending["boot"] = boot_order(devices)
        self._modified.add("boot")

    def _apply_live(self, key: str, value: Value, errors: dict[str, str]) -> None:
        guest = self._guest
        bridge = starting.missing_bridge(self._world, guest, key, value) if drives.is_net(key) else None
        if bridge is not None:
            errors[key] = f"hotplug problem - bridge '{bridge}' does not exist\n"
        else:
            self._apply(key, value)

    def _apply(self, key: str, value: Value) -> None:
        guest = self._guest
        guest.pending.pop(key, None)
        replaced = guest.config.get(key)
        if value == "" and key in ("tags", "description"):
            guest.config.pop(key, None)
        else:
            guest.config[key] = value
        other = volume_of_drive(str(replaced)) != volume_of_drive(str(value))
        if replaced is not None and other and drives.is_drive(guest.kind, key):
            guest_volumes.let_go(self._world, guest, key, str(replaced))

    def _apply_delete(self, key: str) -> None:
        guest = self._guest
        force = guest.pending_delete.pop(key) == 2
        value = guest.config.pop(key, None)
        if value is not None and drives.is_drive(guest.kind, key):
            guest_volumes.let_go(self._world, guest, key, str(value), force=force)

    def _notice_inside(self) -> None:
        """A disc in an empty VM gives it something to boot; network settings change its addresses.

        What cloud-init finds inside stays as it was, until the VM starts again or somebody writes the drive anew.
        """
        guest = self._guest
        if guest.running and guest.cloudinit is None and cloudinit.settings(guest.config) != self._on_drive:
            guest.cloudinit = self._on_drive
        if guest.kind == "qemu" and not guest.system.id:
            guest.system = system_of_vm(self._world, guest.config, imported=self._imported)
        if any(drives.is_net(key) or key.startswith("ipconfig") for key in self._modified):
            guest.addresses = addresses_of(self._world, guest)


def check_digest(guest: Guest, digest: str | None) -> None:
    """Refuse a change that was made for an older version of the configuration."""
    if digest and digest != guest.digest():
        if guest.kind == "qemu":
            raise failure("checksum mismatch (file change by other user?)")
        raise failure("detected modified configuration - file changed by other user? Try again.")


def check_protection(config: Mapping[str, Value], what: str) -> None:
    if config.get("protection"):
        raise failure(f"{what} - protection mode enabled")


@asynccontextmanager
async def config_file_lock(world: World, guest: Guest) -> AsyncIterator[None]:
    """Hold the lock file of a guest outside of a task, after waiting for whoever has it."""
    waited = 0.0
    while guest.lock_file_held:
        if waited >= _LOCK_SECONDS:
            raise failure(f"can't lock file '{guest.lock_file}' - got timeout")
        await world.clock.sleep(0.5)
        waited += 0.5
    guest.lock_file_held = True
    try:
        yield
    finally:
        guest.lock_file_held = False
