"""Configuration changes: at once, by hotplug, or pending until the next start."""

from __future__ import annotations

from collections.abc import Mapping

from pve_simulator.cluster.config_files import MODIFIED
from pve_simulator.guests import cloudinit, drives, guest_volumes, start_requirements
from pve_simulator.guests.create_vm import boot_order
from pve_simulator.guests.drives import is_unused_key
from pve_simulator.guests.guest import Guest, Value, volume_of_drive
from pve_simulator.guests.guest_volumes import DiskMaker, Log
from pve_simulator.guests.new_guests import addresses_of, system_of_vm
from pve_simulator.guests.options import is_cloudinit_option
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import bad_parameters, failure
from pve_simulator.nodes.tasks import TaskError
from pve_simulator.world import World

_DEFAULT_FEATURES = frozenset({"network", "disk", "usb"})

# Options without effect on a running VM.
_VM_ALWAYS = frozenset(
    split_list(
        "description hookscript lock migrate_downtime migrate_speed name onboot protection shares startup tags"
        " vmstatestorage"
    )
)
_CONTAINER_ALWAYS = frozenset(
    split_list(
        "description onboot startup protection hostname hookscript cores tags lock memory swap cpulimit cpuunits"
        " template"
    )
)
# Properties of a network device that can change without unplugging it, and of a disk that cannot.
_LIVE_NET = frozenset({"bridge", "tag", "trunks", "firewall", "rate", "link_down"})
_FIXED_DISK = frozenset(split_list("aio discard iothread queues product cache ssd vendor ro"))
_COLD_DISKS = ("efidisk", "tpmstate")
_COLD_BUSES = ("ide", "sata", *_COLD_DISKS)
_PCI_DEVICES = ("net", "virtio")


def is_passive(kind: str, key: str) -> bool:
    """Whether the option does not affect a running guest."""
    return kind == "qemu" and (key in _VM_ALWAYS or is_cloudinit_option(key))


def sets_live(world: World, guest: Guest, key: str, new: Value) -> bool:
    """Whether PVE tries to apply this value to a running guest."""
    if guest.kind == "lxc":
        return _container_sets_live(guest, key)
    features = _features(guest)
    old = guest.config.get(key)
    if drives.is_net(key):
        return "network" in features or not _needs_unplugging(world, guest, key, str(new))
    if drives.is_drive("qemu", key):
        return _drive_live(world, key, old, str(new), plugging="disk" in features)
    match key:
        case "balloon":  # the balloon's size may change, its presence may not
            return bool(guest.config.get("balloon", 1)) == bool(new)
        case "hotplug":
            return not any(name in f"{new} {old}" for name in ("cpu", "memory"))
        case "agent":
            return old is not None and _agent_stays(world, str(old), str(new))
        case _:
            return is_passive("qemu", key) or _plugs(guest, key, features)


def deletes_live(guest: Guest, key: str) -> bool:
    """Whether PVE tries to remove this option from a running guest."""
    if guest.kind == "lxc":
        return (key in _CONTAINER_ALWAYS and key != "memory") or drives.is_net(key) or key.startswith("unused")
    features = _features(guest)
    if drives.is_net(key):
        return "network" in features
    if drives.is_drive("qemu", key):
        return "disk" in features and not key.startswith(_COLD_BUSES)
    match key:
        case "balloon":
            return guest.config.get("balloon") != 0
        case "hotplug":
            return not {"cpu", "memory"} & features
        case _:
            return is_passive("qemu", key) or _plugs(guest, key, features)


def hotplug_problem(world: World, guest: Guest, key: str, new: Value | None) -> str | None:
    """Why hotplug of this value fails; without a value, why unplugging fails."""
    old = guest.config.get(key)
    if guest.kind == "qemu" and old is not None and (drives.is_net(key) or drives.is_drive("qemu", key)):
        if new is not None and drives.is_drive("qemu", key) and _media(old) != _media(new):
            return "unable to change media type"
        if new is None or _needs_unplugging(world, guest, key, str(new)):
            if drives.is_drive("qemu", key) and key in guest.boot_devices():
                return f"can't unplug bootdisk '{key}'"
            if key.startswith(_COLD_BUSES):
                return f"can't unplug device '{key}'"
            if key.startswith(_PCI_DEVICES) and not guest.system.id:  # the guest does not release it
                return f"error on hot-unplugging device '{key}'"
    bridge = start_requirements.missing_bridge(world, guest, key, new) if drives.is_net(key) and new else None
    return None if bridge is None else f"bridge '{bridge}' does not exist"


def _plugs(guest: Guest, key: str, features: frozenset[str]) -> bool:
    if key.startswith("usb"):
        return "usb" in features and _usb_can_be_plugged(guest)
    needed = {"tablet": "usb", "vcpus": "cpu", "memory": "memory"}.get(key)
    return needed in features or key in ("cpulimit", "cpuunits")


def _usb_can_be_plugged(guest: Guest) -> bool:
    """Only supported guest systems have a USB controller for hotplug."""
    ostype = str(guest.config.get("ostype", "other"))
    return ostype == "l26" or (ostype.startswith("win") and ostype != "win7")


def _features(guest: Guest) -> frozenset[str]:
    setting = str(guest.config.get("hotplug", "1"))
    if setting in ("0", "1"):
        return _DEFAULT_FEATURES if setting == "1" else frozenset()
    return frozenset(split_list(setting))


def _container_sets_live(guest: Guest, key: str) -> bool:
    if key in _CONTAINER_ALWAYS or drives.is_net(key) or key.startswith("unused"):
        return True
    return key.startswith("mp") and key not in guest.config


def _agent_stays(world: World, old: str, new: str) -> bool:
    before, after = (drives.parse(world, "qemu", "agent", text) for text in (old, new))
    return _changed_keys(before, after) <= {"fstrim_cloned_disks"}


def _needs_unplugging(world: World, guest: Guest, key: str, new: str) -> bool:
    """Whether this value needs the device unplugged or plugged in again."""
    old = guest.config.get(key)
    if old is None:
        return True
    before, after = (drives.parse(world, "qemu", key, text) for text in (str(old), new))
    if drives.is_net(key):
        return not _changed_keys(before, after) <= _LIVE_NET or "bridge" not in before or "bridge" not in after
    return not drives.is_cdrom(before) and before["file"] != after["file"]


def _drive_live(world: World, key: str, old: Value | None, new: str, *, plugging: bool) -> bool:
    if key.startswith(_COLD_DISKS):
        return False
    after = drives.parse(world, "qemu", key, new)
    if old is not None:
        before = drives.parse(world, "qemu", key, str(old))
        if _media(old) != _media(new) or drives.is_cdrom(before):  # another disc goes into the same drive
            return True
        if before["file"] == after["file"]:
            return not _changed_keys(before, after) & _FIXED_DISK
        return plugging
    return plugging and not key.startswith(_COLD_BUSES)


def _media(drive: Value) -> str:
    return "cdrom" if "media=cdrom" in str(drive).split(",") else "disk"


def _changed_keys(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


_INTEGER_BITS = 63


class Change:
    """One change of a guest's configuration."""

    def __init__(self, world: World, guest: Guest, log: Log = guest_volumes.silent) -> None:
        self._world = world
        self._guest = guest
        self._log = log
        self._modified: set[str] = set()
        self._boot_order = guest.boot_devices()  # without pending changes
        self._imported = False
        self._on_drive = cloudinit.settings(guest.config)

    def delete(self, key: str, *, force: bool) -> None:
        """Mark an option for deletion; unused disks and tags are deleted at once."""
        guest = self._guest
        value = guest.config.get(key, guest.pending.get(key))
        if value is None:
            self._log(f"cannot delete '{key}' - not set in current configuration!")
            return
        self._modified.add(key)
        waiting = guest.pending.pop(key, None)
        self._leave_boot_order(key)
        if is_unused_key(key) or key == "vmstate":
            guest_volumes.destroy(self._world, guest, volume_of_drive(str(value)))
            del guest.config[key]
        elif key == "tags":
            guest.config.pop(key, None)
        else:
            if waiting is not None and drives.is_drive(guest.kind, key):
                guest_volumes.detach(self._world, guest, key, str(waiting), force=force)
            if key in guest.config:
                guest.pending_delete[key] = 2 if force else 1
        guest.touch()

    def set(self, key: str, value: Value) -> None:
        """Set a new value; the volume of a drive is created at once."""
        guest = self._guest
        if isinstance(value, int) and value.bit_length() > _INTEGER_BITS:
            return  # PVE writes it in a form that it cannot read back, so it is lost
        self._modified.add(key)
        if key in guest.pending and guest.pending[key] == value:
            return
        if drives.is_drive(guest.kind, key) and key != "rootfs":  # PVE takes a root file system as specified
            value = self._drive(key, str(value))
        elif key == "boot" and guest.kind == "qemu":
            value = self._boot(str(value))
        guest.pending[key] = value
        guest.pending_delete.pop(key, None)
        guest.touch()

    def revert(self, key: str) -> None:
        """Drop a pending change, and keep the disk that was created for it."""
        guest = self._guest
        waiting = guest.pending.pop(key, None)
        if waiting is not None and drives.is_drive(guest.kind, key):
            current = str(guest.config.get(key, ""))
            if volume_of_drive(str(waiting)) != volume_of_drive(current):
                guest_volumes.keep_as_unused(self._world, guest, volume_of_drive(str(waiting)))
        guest.pending_delete.pop(key, None)
        guest.touch()

    def settle(self) -> None:
        """Apply the changes, as far as the guest's state allows."""
        guest = self._guest
        for key, value in list(guest.pending.items()):
            if guest.config.get(key) == value:
                del guest.pending[key]
        errors: dict[str, str] = {}
        for key in list(guest.pending_delete):
            if not guest.running or (key in self._modified and deletes_live(guest, key)):
                self._plug(key, None, errors)
        for key, value in list(guest.pending.items()):
            concerned = key in self._modified and sets_live(self._world, guest, key, value)
            if not guest.running or concerned or is_passive(guest.kind, key):
                self._plug(key, value, errors)
        self._drop_reused()
        guest.touch()
        if errors:
            raise bad_parameters(errors)
        attached = drives.cloudinit_drive(self._world, guest.config) if guest.kind == "qemu" else None
        if attached in self._modified and not guest.running:
            start_requirements.write_cloudinit(self._world, guest, self._log)
        self._update_guest_system()

    def _drop_reused(self) -> None:
        """Stop listing a volume as unused once it is a drive again, even a pending one."""
        guest = self._guest
        listed = [
            *guest_volumes.volumes_in(guest.config, guest.kind),
            *guest_volumes.volumes_in(guest.pending, guest.kind),
        ]
        used = {volid for key, volid in listed if not is_unused_key(key)}
        for key, volid in list(guest_volumes.volumes_in(guest.config, guest.kind)):
            if is_unused_key(key) and volid in used:
                del guest.config[key]

    def _drive(self, key: str, text: str) -> str:
        guest = self._guest
        template = guest.kind == "qemu" and bool(guest.config.get("template"))
        maker = DiskMaker(self._world, guest.node, guest.vmid, guest.kind, self._log, template=template)
        with maker.undo_on_failure():
            stored = maker.mount_point(key, text) if guest.kind == "lxc" else self._vm_drive(maker, key, text)
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
        if drives.is_cloudinit(drive):  # it may be listed as unused
            for name, volid in list(guest_volumes.volumes_in(guest.config, "qemu")):
                if is_unused_key(name) and volid == volume_of_drive(stored):
                    del guest.config[name]
        if self._boot_order and drives.is_cdrom(drive) and key not in self._boot_order:
            self._note_boot_order([*self._boot_order, key])
        return stored

    def _boot(self, value: str) -> str:
        order = value.partition("order=")[2]
        if not order:
            return value
        devices = split_list(order)
        for device in devices:
            deleted = device in self._modified and device in self._guest.pending_delete
            if deleted or (device not in self._guest.config and device not in self._guest.pending):
                raise TaskError(f"invalid bootorder: device '{device}' does not exist'")
        return boot_order(devices)

    def _leave_boot_order(self, key: str) -> None:
        if self._guest.kind == "qemu" and key in self._boot_order:
            self._note_boot_order([device for device in self._boot_order if device != key])

    def _note_boot_order(self, devices: list[str]) -> None:
        self._boot_order = devices
        self._guest.pending["boot"] = boot_order(devices)
        self._modified.add("boot")

    def _plug(self, key: str, value: Value | None, errors: dict[str, str]) -> None:
        guest = self._guest
        problem = hotplug_problem(self._world, guest, key, value) if guest.running else None
        if problem is not None:
            errors[key] = f"{'hotplug problem -' if guest.kind == 'qemu' else f'unable to hotplug {key}:'} {problem}\n"
        elif value is None:
            self._apply_delete(key)
        else:
            self._apply(key, value)

    def _apply(self, key: str, value: Value) -> None:
        guest = self._guest
        guest.pending.pop(key, None)
        replaced = guest.config.get(key)
        if value == "" and (key == "description" or guest.kind == "lxc"):
            guest.config.pop(key, None)
        else:  # an empty value is read back as a space from a VM's file
            guest.config[key] = " " if value == "" else value
        self._drop_reused()
        other = volume_of_drive(str(replaced)) != volume_of_drive(str(value))
        if replaced is not None and other and drives.is_drive(guest.kind, key) and key != "rootfs":
            guest_volumes.detach(self._world, guest, key, str(replaced))

    def _apply_delete(self, key: str) -> None:
        guest = self._guest
        force = guest.pending_delete.pop(key) == 2
        value = guest.config.pop(key, None)
        if value is not None and drives.is_drive(guest.kind, key):
            guest_volumes.detach(self._world, guest, key, str(value), force=force)

    def _update_guest_system(self) -> None:
        """Update the guest's system after a change: a disk in an empty VM boots, network settings change its addresses.

        The cloud-init drive keeps the old settings until the VM is started again or the drive is regenerated.
        """
        guest = self._guest
        if guest.running and guest.cloudinit is None and cloudinit.settings(guest.config) != self._on_drive:
            guest.cloudinit = self._on_drive
        if guest.kind == "qemu" and not guest.system.id:
            guest.system = system_of_vm(self._world, guest.config, imported=self._imported)
        if any(drives.is_net(key) or key.startswith("ipconfig") for key in self._modified):
            guest.addresses = addresses_of(self._world, guest)


def check_digest(guest: Guest, digest: str | None) -> None:
    """Refuse a change for an outdated version of the configuration."""
    if digest and digest != guest.digest():
        if guest.kind == "qemu":
            raise failure("checksum mismatch (file change by other user?)")
        raise failure(MODIFIED)


def check_protection(config: Mapping[str, Value], what: str) -> None:
    if config.get("protection"):
        raise failure(f"{what} - protection mode enabled")
