"""A VM as a resource proxmox_virtual_environment_vm."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence

from quorate.homelab.terraform_export.hcl import Block
from quorate.homelab.terraform_export.parts import RemainingConfig, dns, file_format, ip_config, startup, tags, volume
from quorate.pve import values
from quorate.pve.inventory import Resource

VM = "proxmox_virtual_environment_vm"
DEFAULT_SCSI, DEFAULT_CPU = "lsi", "kvm64"
"""PVE's defaults. The provider has others and would change the VM."""
_SPEEDS = {
    "iops_read": "iops_rd", "iops_read_burstable": "iops_rd_max", "iops_write": "iops_wr",
    "iops_write_burstable": "iops_wr_max", "read": "mbps_rd", "read_burstable": "mbps_rd_max", "write": "mbps_wr",
    "write_burstable": "mbps_wr_max",
}  # fmt: skip


def virtual_machine(name: str, row: Resource, config: Mapping[str, object]) -> Block:
    left = RemainingConfig(config)
    block = Block("resource", (VM, name))
    block.set(
        node_name=row.node, vm_id=row.vmid, name=left.text("name"), description=left.text("description"),
        tags=tags(left), pool_id=row.pool or None, template=True if row.template else None,
        started=row.status == "running", on_boot=left.flag("onboot") or False, bios=left.text("bios"),
        machine=left.text("machine"), scsi_hardware=left.text("scsihw") or DEFAULT_SCSI,
        keyboard_layout=left.text("keyboard"), tablet_device=left.flag("tablet"), acpi=left.flag("acpi"),
        kvm_arguments=left.text("args"), hook_script_file_id=left.text("hookscript"), boot_order=_boot_order(left),
    )  # fmt: skip
    block.put(_processor(left), _memory(left), _agent(left))
    block.put(Block("operating_system").set(type=left.text("ostype")), startup(left))
    cloud_init = _cloud_init_drive(left)
    block.put(*_with_one_disc([drive for bus in values.BOOTABLE for drive in _of_each(left, bus, _drive)]))
    block.put(*_of_each(left, "efidisk", _efi), *_of_each(left, "tpmstate", _tpm))
    block.put(*_cards(left), _initialization(left, cloud_init))
    block.put(*_of_each(left, "serial", lambda _, text: Block("serial_device").set(device=text)))
    block.put(*_of_each(left, "hostpci", _pci), *_of_each(left, "usb", _usb), *_of_each(left, "audio", _audio))
    block.put(_screen(left), _smbios(left))
    left.tell(block)
    return block.put(Block("lifecycle").set(prevent_destroy=True))


def _of_each(left: RemainingConfig, kind: str, make: Callable[[str, str], Block | str]) -> list[Block | str]:
    return [make(key, text) for key, text in left.take_numbered(kind)]


def _boot_order(left: RemainingConfig) -> list[str] | None:
    devices = values.boot_devices({"boot": left.peek("boot")})
    return devices if devices and left.text("boot") else None


def _processor(left: RemainingConfig) -> Block:
    own = RemainingConfig.of("cpu", left.text("cpu") or "", "cputype")
    flags = [flag for flag in (own.text("flags") or "").split(";") if flag]
    block = Block("cpu").set(
        cores=left.number("cores"), sockets=left.number("sockets"), type=own.text("cputype") or DEFAULT_CPU,
        flags=flags or None, architecture=left.text("arch"), numa=left.flag("numa"), units=left.number("cpuunits"),
        limit=left.decimal("cpulimit"), hotplugged=left.number("vcpus"),
    )  # fmt: skip
    own.tell(block)
    return block


def _memory(left: RemainingConfig) -> Block:
    own = RemainingConfig.of("memory", left.text("memory") or "", "current")
    block = Block("memory").set(dedicated=own.number("current"), floating=left.number("balloon"))
    own.tell(block)
    return block


def _agent(left: RemainingConfig) -> Block | None:
    text = left.text("agent")
    if text is None:
        return None
    own = RemainingConfig.of("agent", text, "enabled")
    block = Block("agent").set(enabled=own.flag("enabled"), trim=own.flag("fstrim_cloned_disks"), type=own.text("type"))
    own.tell(block)
    return block


# -- drives ------------------------------------------------------------------------------------------------------------


def _drive(key: str, text: str) -> Block | str:
    if values.parse(text, "file").get("media") == "cdrom":
        return _disc(key, text)
    own = RemainingConfig.of(key, text, "file")
    place = volume(own.text("file") or "")
    size = own.gigabytes()
    if place is None or size is None or key.startswith("ide"):
        return _unknown(key, text)
    block = Block("disk").set(
        interface=key, datastore_id=place[0], file_format=own.text("format") or file_format(place[1]), size=size,
        aio=own.text("aio"), backup=own.flag("backup"), cache=own.text("cache"), discard=own.text("discard"),
        iothread=own.flag("iothread"), replicate=own.flag("replicate"), ssd=own.flag("ssd"),
    )  # fmt: skip
    block.put(Block("speed").set(**{name: own.number(key) for name, key in _SPEEDS.items()}))
    own.tell(block)
    return block


def _unknown(key: str, text: str) -> str:
    """A drive that the provider cannot express."""
    return f"not expressed here: {key} = {text}"


def _disc(key: str, text: str) -> Block:
    own = RemainingConfig.of(key, text, "file")
    own.text("media")
    own.text("size")
    block = Block("cdrom").set(interface=key, file_id=own.text("file"))
    own.tell(block)
    return block


def _with_one_disc(drives: Sequence[Block | str]) -> list[Block | str]:
    """The provider supports one CD-ROM drive."""
    discs = [one for one in drives if isinstance(one, Block) and one.kind == "cdrom"]
    further = {id(one): f"not expressed here: one more CD-ROM drive, {_describe(one)}" for one in discs[1:]}
    return [further.get(id(one), one) for one in drives]


def _describe(block: Block) -> str:
    return " ".join(f"{name}={value}" for name, value in block.attributes)


def _efi(key: str, text: str) -> Block | str:
    own = RemainingConfig.of(key, text, "file")
    place = volume(own.text("file") or "")
    own.text("size")
    if place is None:
        return _unknown(key, text)
    block = Block("efi_disk").set(
        datastore_id=place[0], file_format=own.text("format") or file_format(place[1]), type=own.text("efitype"),
        pre_enrolled_keys=own.flag("pre-enrolled-keys"),
    )  # fmt: skip
    own.tell(block)
    return block


def _tpm(key: str, text: str) -> Block | str:
    own = RemainingConfig.of(key, text, "file")
    place = volume(own.text("file") or "")
    own.text("size")
    if place is None:
        return _unknown(key, text)
    block = Block("tpm_state").set(datastore_id=place[0], version=own.text("version"))
    own.tell(block)
    return block


# -- network and cloud-init --------------------------------------------------------------------------------------------


def _cards(left: RemainingConfig) -> list[Block]:
    cards = []
    for position, (key, text) in enumerate(left.take_numbered("net")):
        own, block = RemainingConfig(values.parse_nic(text), key), Block("network_device")
        if key != f"net{position}":
            block.remark(f"it is {key} here; the provider numbers cards without gaps")
        block.set(
            bridge=own.text("bridge"), model=own.text("model"), mac_address=own.text("macaddr"),
            vlan_id=own.number("tag"), firewall=own.flag("firewall"), mtu=own.number("mtu"),
            queues=own.number("queues"), rate_limit=own.decimal("rate"), trunks=own.text("trunks"),
        )  # fmt: skip
        own.tell(block)
        cards.append(block)
    return cards


def _cloud_init_drive(left: RemainingConfig) -> tuple[str, str] | None:
    """Key and storage of the drive, which the provider does not treat as a disk."""
    found = left.pick(lambda key, text: values.bus_of(key) in values.BOOTABLE and values.is_cloudinit(text))
    if found is None:
        return None
    place = volume(values.volume_of(found[1]))
    return found[0], place[0] if place else ""


def _initialization(left: RemainingConfig, drive: tuple[str, str] | None) -> Block:
    block = Block("initialization")
    if drive is not None:
        block.set(interface=drive[0], datastore_id=drive[1] or None)
    block.set(type=left.text("citype"))
    block.put(dns(left))
    for _, text in left.take_numbered("ipconfig"):
        own = RemainingConfig.of("ipconfig", text)
        addresses = ip_config(own)
        own.tell(addresses)
        block.put(addresses)
    keys = values.decode_keys(left.text("sshkeys") or "")
    account = Block("user_account").set(username=left.text("ciuser"), keys=keys or None)
    if left.text("cipassword") is not None:
        account.remark("a password is set; it is not shown here")
    block.put(account)
    files = RemainingConfig.of("cicustom", left.text("cicustom") or "")
    block.set(**{f"{kind}_data_file_id": files.text(kind) for kind in ("user", "network", "vendor", "meta")})
    files.tell(block)
    return block


# -- devices -----------------------------------------------------------------------------------------------------------


def _pci(key: str, text: str) -> Block:
    own = RemainingConfig.of(key, text, "host")
    block = Block("hostpci").set(
        device=key, id=own.text("host"), mapping=own.text("mapping"), mdev=own.text("mdev"), pcie=own.flag("pcie"),
        rombar=own.flag("rombar"), rom_file=own.text("romfile"), xvga=own.flag("x-vga"),
    )  # fmt: skip
    own.tell(block)
    return block


def _usb(key: str, text: str) -> Block:
    own = RemainingConfig.of(key, text, "host")
    block = Block("usb").set(host=own.text("host"), mapping=own.text("mapping"), usb3=own.flag("usb3"))
    own.tell(block)
    return block


def _audio(key: str, text: str) -> Block:
    own = RemainingConfig.of(key, text, "device")
    block = Block("audio_device").set(device=own.text("device"), driver=own.text("driver"))
    own.tell(block)
    return block


def _screen(left: RemainingConfig) -> Block:
    own = RemainingConfig.of("vga", left.text("vga") or "", "type")
    block = Block("vga").set(type=own.text("type"), memory=own.number("memory"))
    own.tell(block)
    return block


def _smbios(left: RemainingConfig) -> Block:
    own = RemainingConfig.of("smbios1", left.text("smbios1") or "")
    coded = own.flag("base64")
    block = Block("smbios").set(uuid=own.text("uuid"))
    for name in ("family", "manufacturer", "product", "serial", "sku", "version"):
        text = own.text(name)
        block.set(**{name: _decode(text) if text and coded else text})
    own.tell(block)
    return block


def _decode(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        return text
