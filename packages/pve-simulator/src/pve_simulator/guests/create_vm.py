"""Creating a VM: checks at once, disks and final configuration in the task."""

from __future__ import annotations

from collections.abc import Mapping

from pve_simulator.guests import drives, options
from pve_simulator.guests.guest import Guest, Value
from pve_simulator.guests.guest_volumes import DiskMaker
from pve_simulator.guests.new_guests import (
    addresses_of,
    create_in_task,
    enter_pool,
    refuse_taken,
    require_new_guest,
    reserve,
    system_of_vm,
)
from pve_simulator.guests.option_privileges import GuestPrivileges, check_drive_parameters, check_storage_access
from pve_simulator.guests.status import QEMU_VERSION
from pve_simulator.http.routing import Call
from pve_simulator.nodes.tasks import TaskContext, TaskError
from pve_simulator.world import World

_SECONDS = 0.8
_SECONDS_A_DISK = 0.4
_BUSES = (("ide", 4), ("scsi", 31), ("virtio", 16), ("sata", 6))


def create_vm(call: Call) -> str:
    """Run the synchronous checks, then start the task that creates the VM."""
    vmid: int = call.params["vmid"]
    settings = checked_settings(call, vmid)
    refuse_taken(call.world, vmid, f"unable to create VM {vmid} - ")
    guest = reserve(call.world, call.node, "qemu", vmid)
    return create_in_task(call, "qmcreate", guest, lambda context: _make(call, context, guest, settings))


def checked_settings(call: Call, vmid: int) -> dict[str, Value]:
    """The options of the new VM, after PVE's synchronous checks."""
    params = call.params
    options.check_cpu_model(call.world, params.get("cpu"))
    options.check_encoded_ssh_keys(params.get("sshkeys"))
    pool, storage = params.get("pool"), params.get("storage")
    privileges = GuestPrivileges(call, vmid, pool)
    if storage is not None:
        call.require(f"/storage/{storage}", "Datastore.AllocateSpace")
    if params.get("ha-managed"):
        call.require("/", "Sys.Console")
    require_new_guest(call, vmid, pool)
    if params.get("start"):
        privileges.require("VM.PowerMgmt")
    settings = with_cdrom_alias(options.settings_of(params))
    check_storage_access(call, vmid, settings, storage)
    privileges.check_vm_options(settings)
    privileges.check_vm_devices(settings)
    privileges.check_bridges("qemu", settings)
    check_drive_parameters(call, settings)
    return settings


def with_cdrom_alias(settings: dict[str, Value]) -> dict[str, Value]:
    """`cdrom` is another name of the drive ide2."""
    inserted = settings.pop("cdrom", None)
    if inserted is not None:
        text = str(inserted)
        settings["ide2"] = text if "media=" in text else f"{text},media=cdrom"
    return settings


async def _make(call: Call, context: TaskContext, guest: Guest, settings: Mapping[str, Value]) -> None:
    world = call.world
    template = bool(settings.get("template"))
    maker = DiskMaker(world, guest.node, guest.vmid, "qemu", context.log, template=template)
    await context.sleep(_SECONDS)
    with maker.undo_on_failure(f"unable to create VM {guest.vmid} - "):
        config: dict[str, Value] = {
            key: value if key == "tags" else options.complete(world, "qemu", guest.vmid, key, value)
            for key, value in settings.items()
            if not drives.is_drive("qemu", key)
        }
        check_machine(str(settings.get("machine", "")))
        check_display(world, str(settings.get("vga", "")))
        for key in sorted(settings):
            if drives.is_drive("qemu", key):
                _refuse_second_cloudinit(world, config, key, str(settings[key]))
                config[key] = maker.drive(key, str(settings[key]), call.params.get("storage"))
                await context.sleep(_SECONDS_A_DISK)
        GuestPrivileges(call, guest.vmid, call.params.get("pool")).check_tags(None, config.get("tags", ""))
    guest.config = _add_defaults(world, guest.vmid, config)
    guest.system = system_of_vm(world, config, imported=maker.imported)
    guest.addresses = addresses_of(world, guest)
    guest.touch()
    enter_pool(world.access, guest.vmid, call.params.get("pool"))


def _refuse_second_cloudinit(world: World, config: Mapping[str, Value], key: str, text: str) -> None:
    attached = drives.cloudinit_drive(world, config)
    if attached is not None and drives.is_cloudinit(drives.parse(world, "qemu", key, text)):
        raise TaskError(f"{key} - cloud-init drive is already attached at '{attached}'")


def _add_defaults(world: World, vmid: int, config: dict[str, Value]) -> dict[str, Value]:
    """Add PVE's defaults for new VMs."""
    config = {key: value for key, value in config.items() if value != "" or key not in ("tags", "description")}
    if not config.get("boot"):
        config["boot"] = boot_order(default_boot_devices(world, config))
    config.setdefault("smbios1", f"uuid={drives.new_uuid(world, vmid, 'smbios')}")
    config.setdefault("vmgenid", drives.new_uuid(world, vmid, "vmgenid"))
    config["meta"] = f"creation-qemu={QEMU_VERSION},ctime={int(world.clock.now())}"
    if is_windows(config):
        config |= pinned_machine(world, config)
    return config


def check_machine(value: str) -> None:
    """Refuse a virtual IOMMU that cannot be combined with the machine."""
    options = dict(part.partition("=")[::2] if "=" in part else ("type", part) for part in value.split(","))
    width = options.get("aw-bits", "0")
    if options.get("viommu") == "intel":
        if "q35" not in options.get("type", ""):
            raise TaskError("to use Intel vIOMMU please set the machine type to q35")
        if float(width) not in (0, 39, 48):
            raise TaskError("Intel vIOMMU supports only 39 or 48 bits as address width")
    if float(width) and "viommu" not in options:
        raise TaskError("cannot set aw-bits if no vIOMMU is configured")


def check_display(world: World, value: str) -> None:
    """Refuse a VNC clipboard without a suitable display."""
    display = drives.parse(world, "qemu", "vga", value) if value else {}
    kind = display.get("type", "std")
    if display.get("clipboard") == "vnc" and not kind.startswith(("std", "cirrus", "vmware", "virtio", "qxl")):
        raise TaskError(f"vga type {kind} is not compatible with VNC clipboard")


def is_windows(config: Mapping[str, Value]) -> bool:
    return str(config.get("ostype", "")).startswith(("w", "win"))


def pinned_machine(world: World, config: Mapping[str, Value]) -> dict[str, Value]:
    """Pin the machine version for Windows, unless one is set."""
    machine = drives.parse(world, "qemu", "machine", str(config.get("machine", "pc")))
    if machine.get("type", "pc") not in ("pc", "q35"):
        return {}
    chipset = "q35" if machine.get("type") == "q35" else "i440fx"
    machine["type"] = f"pc-{chipset}-{'.'.join(QEMU_VERSION.split('.')[:2])}"
    return {"machine": drives.render(world, "qemu", "machine", machine)}


def default_boot_devices(world: World, config: Mapping[str, Value]) -> list[str]:
    """The first disk, the first CD-ROM and the first network card."""
    disk = cdrom = None
    for key in (f"{bus}{number}" for bus, count in _BUSES for number in range(count)):
        if key not in config:
            continue
        if drives.is_cdrom(drives.parse(world, "qemu", key, str(config[key]))):
            cdrom = cdrom or key
        else:
            disk = disk or key
    cards = sorted((key for key in config if drives.is_net(key)), key=lambda key: int(key[3:]))
    return [key for key in (disk, cdrom, *cards[:1]) if key is not None]


def boot_order(devices: list[str]) -> str:
    """The `boot` option; PVE writes a space if nothing can boot."""
    return f"order={';'.join(devices)}" if devices else " "
