"""Making a virtual machine: the checks at once, the disks and the final configuration inside the task."""

from __future__ import annotations

from collections.abc import Mapping

from quorate.sim import drives, guest_options
from quorate.sim.guest_volumes import DiskMaker
from quorate.sim.guests import Guest, Value
from quorate.sim.new_guests import (
    abandon,
    addresses_of,
    after_creation,
    enter_pool,
    refuse_taken,
    require_new_guest,
    reserve,
    system_of_vm,
)
from quorate.sim.option_privileges import GuestRights, check_drive_parameters, check_storage_access
from quorate.sim.routing import Call
from quorate.sim.status import QEMU_VERSION
from quorate.sim.tasks import TaskContext, TaskError
from quorate.sim.world import World

_SECONDS = 0.8
_SECONDS_A_DISK = 0.4
_BUSES = (("ide", 4), ("scsi", 31), ("virtio", 16), ("sata", 6))


def create_vm(call: Call) -> str:
    """Check what can be checked before, then start the task that makes the VM."""
    vmid: int = call.params["vmid"]
    settings = checked_settings(call, vmid)
    refuse_taken(call.world, vmid, f"unable to create VM {vmid} - ")
    guest = reserve(call.world, call.node, "qemu", vmid)

    async def work(context: TaskContext) -> None:
        try:
            async with context.config_lock(guest):
                await _make(call, context, guest, settings)
        except BaseException:
            abandon(call.world, guest)
            raise
        after_creation(call, context, guest)

    return call.start_task("qmcreate", str(vmid), work)


def checked_settings(call: Call, vmid: int) -> dict[str, Value]:
    """The options of the new VM, after every check that PVE makes before the task."""
    params = call.params
    guest_options.check_encoded_ssh_keys(params.get("sshkeys"))
    pool, storage = params.get("pool"), params.get("storage")
    rights = GuestRights(call, vmid, pool)
    if storage is not None:
        call.require(f"/storage/{storage}", "Datastore.AllocateSpace")
    if params.get("ha-managed"):
        call.require("/", "Sys.Console")
    require_new_guest(call, vmid, pool)
    if params.get("start"):
        rights.require("VM.PowerMgmt")
    settings = with_cdrom_alias(guest_options.settings_of(params))
    check_storage_access(call, vmid, settings, storage)
    rights.check_vm_options(settings)
    rights.check_vm_devices(settings)
    rights.check_bridges("qemu", settings)
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
    maker = DiskMaker(world, guest.node, guest.vmid, "qemu", context.log)
    await context.sleep(_SECONDS)
    try:
        config: dict[str, Value] = {
            key: guest_options.complete(world, "qemu", guest.vmid, key, value)
            for key, value in settings.items()
            if not drives.is_drive("qemu", key)
        }
        for key in sorted(settings):
            if drives.is_drive("qemu", key):
                _refuse_second_cloudinit(world, config, key, str(settings[key]))
                config[key] = maker.drive(key, str(settings[key]), call.params.get("storage"))
                await context.sleep(_SECONDS_A_DISK)
        GuestRights(call, guest.vmid, call.params.get("pool")).check_tags(None, config.get("tags", ""))
    except TaskError as error:
        maker.undo()
        raise TaskError(f"unable to create VM {guest.vmid} - {error}") from error
    except BaseException:
        maker.undo()
        raise
    guest.config = _completed(world, guest.vmid, config)
    guest.system = system_of_vm(world, config, imported=maker.imported)
    guest.addresses = addresses_of(world, guest)
    guest.touch()
    enter_pool(world.access, guest.vmid, call.params.get("pool"))


def _refuse_second_cloudinit(world: World, config: Mapping[str, Value], key: str, text: str) -> None:
    attached = drives.cloudinit_drive(world, config)
    if attached is not None and drives.is_cloudinit(drives.parse(world, "qemu", key, text)):
        raise TaskError(f"{key} - cloud-init drive is already attached at '{attached}'")


def _completed(world: World, vmid: int, config: dict[str, Value]) -> dict[str, Value]:
    """What PVE adds by itself to every new VM."""
    config = {key: value for key, value in config.items() if value != "" or key not in ("tags", "description")}
    if not config.get("boot"):
        config["boot"] = boot_order(default_boot_devices(world, config))
    config.setdefault("smbios1", f"uuid={drives.new_uuid(world, vmid, 'smbios')}")
    config.setdefault("vmgenid", drives.new_uuid(world, vmid, "vmgenid"))
    config["meta"] = f"creation-qemu={QEMU_VERSION},ctime={int(world.clock.now())}"
    if str(config.get("ostype", "")).startswith("win") and config.get("machine") in (None, "q35", "pc"):
        config["machine"] = _pinned_machine(str(config.get("machine", "pc")))
    return config


def _pinned_machine(machine: str) -> str:
    """Windows keeps the machine version it was installed on."""
    version = ".".join(QEMU_VERSION.split(".")[:2])
    return f"pc-{'q35' if machine == 'q35' else 'i440fx'}-{version}"


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
    """The `boot` option; PVE writes a blank where nothing can boot."""
    return f"order={';'.join(devices)}" if devices else " "
