"""Guests as resources of the Terraform provider."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence

from quorate.homelab.hcl import Block, Reference
from quorate.pve import values
from quorate.pve.inventory import Resource

# Managed by PVE: generated automatically, or meaningless elsewhere.
_INTERNAL = re.compile(
    r"digest|vmgenid|meta|lock|parent|snaptime|snapstate|vmstate|runningmachine|runningcpu|running-nets-host-mtu|"
    r"template|pending"
)
_SECRET = re.compile(r"cipassword|password")


class RemainingConfig:
    """A configuration or property string that shrinks as its parts are read."""

    def __init__(self, parts: Mapping[str, object], name: str = "") -> None:
        self._parts = {key: "" if value is None else str(value) for key, value in parts.items()}
        self._name = name

    @classmethod
    def of(cls, name: str, text: str, default_key: str = "") -> RemainingConfig:
        return cls(values.parse(text, default_key), name)

    def text(self, key: str) -> str | None:
        return self._parts.pop(key, None) or None

    def flag(self, key: str) -> bool | None:
        text = self.text(key)
        return None if text is None else values.is_on(text)

    def number(self, key: str) -> int | None:
        """A whole number; anything else remains and is reported."""
        text = self._parts.get(key, "")
        if not re.fullmatch(r"\d{1,15}", text, re.ASCII):
            return None
        del self._parts[key]
        return int(text)

    def decimal(self, key: str) -> float | int | None:
        text = self._parts.get(key, "")
        if not re.fullmatch(r"\d{1,15}(\.\d{1,6})?", text, re.ASCII):
            return None
        del self._parts[key]
        number = float(text)
        return int(number) if number.is_integer() else number

    def gigabytes(self, key: str = "size") -> int | None:
        """A size in whole gigabytes, the provider's unit."""
        match = re.fullmatch(r"(\d{1,9})([GT])", self._parts.get(key, ""), re.ASCII)
        if match is None:
            return None
        del self._parts[key]
        return int(match[1]) * (1024 if match[2] == "T" else 1)

    def peek(self, key: str) -> str:
        return self._parts.get(key, "")

    def pick(self, fits: Callable[[str, str], bool]) -> tuple[str, str] | None:
        """The first matching part, with its key."""
        key = next((key for key, text in sorted(self._parts.items()) if fits(key, text)), None)
        return None if key is None else (key, self._parts.pop(key))

    def take_numbered(self, kind: str) -> list[tuple[str, str]]:
        """All parts of a kind, such as net0 and net1, in order."""
        keys = [key for key in self._parts if re.fullmatch(rf"{kind}\d+", key, re.ASCII)]
        return [(key, self._parts.pop(key)) for key in sorted(keys, key=lambda key: int(key[len(kind) :]))]

    def remark_rest(self, block: Block) -> Block:
        """Add what the provider cannot express as comments."""
        for key, value in sorted(self._parts.items()):
            if self._name or not _INTERNAL.fullmatch(key):
                shown = "(not shown)" if _SECRET.fullmatch(key) else value
                block.remark(f"not expressed here: {' '.join(filter(None, (self._name, key)))} = {shown}")
        return block


def startup(left: RemainingConfig) -> Block | None:
    text = left.text("startup")
    if text is None:
        return None
    own, block = RemainingConfig.of("startup", text, "order"), Block("startup")
    for name, key in (("order", "order"), ("up_delay", "up"), ("down_delay", "down")):
        number = own.number(key)
        block.set(**{name: None if number is None else str(number)})
    return own.remark_rest(block)


def tags(left: RemainingConfig) -> list[str] | None:
    return sorted({tag for tag in re.split(r"[;,\s]+", left.text("tags") or "") if tag}) or None


def dns(left: RemainingConfig) -> Block:
    return Block("dns").set(domain=left.text("searchdomain"), servers=(left.text("nameserver") or "").split() or None)


def ip_config(own: RemainingConfig) -> Block:
    """Both address families, if set. `manual` has no counterpart and is reported."""
    block = Block("ip_config")
    for family, address, gateway in (("ipv4", "ip", "gw"), ("ipv6", "ip6", "gw6")):
        if own.peek(address) != "manual":
            block.put(Block(family).set(address=own.text(address), gateway=own.text(gateway)))
    return block


def volume(text: str) -> tuple[str, str] | None:
    """Storage and volume of `local-lvm:vm-100-disk-0`; None for a device or path of the node."""
    storage, colon, name = text.partition(":")
    return (storage, name) if colon and name and not text.startswith("/") else None


def file_format(name: str) -> str:
    ending = name.rpartition(".")[2]
    return ending if ending in ("qcow2", "vmdk") else "raw"


CONTAINER = "proxmox_virtual_environment_container"
UNKNOWN_TEMPLATE = "local:vztmpl/unknown.tar.zst"
"""The provider requires one, but PVE does not record it. Changes of it are ignored."""


def container(name: str, row: Resource, config: Mapping[str, object]) -> Block:
    left = RemainingConfig({key: value for key, value in config.items() if key != "lxc"})
    block = Block("resource", (CONTAINER, name))
    block.set(
        node_name=row.node, vm_id=row.vmid, description=left.text("description"), tags=tags(left),
        pool_id=row.pool or None, template=True if row.template else None, started=row.status == "running",
        start_on_boot=left.flag("onboot") or False, unprivileged=left.flag("unprivileged") or False,
        protection=left.flag("protection"), hook_script_file_id=left.text("hookscript"),
    )  # fmt: skip
    block.put(
        _container_processor(left),
        Block("memory").set(dedicated=left.number("memory"), swap=left.number("swap")),
        Block("operating_system").set(type=left.text("ostype"), template_file_id=UNKNOWN_TEMPLATE),
        startup(left), _features(left),
        Block("console").set(enabled=left.flag("console"), type=left.text("cmode"), tty_count=left.number("tty")),
        _root(left),
        *(_mount(key, text) for key, text in left.take_numbered("mp")),
        *(_device(key, text) for key, text in left.take_numbered("dev")),
        *_network(left),
    )  # fmt: skip
    left.remark_rest(block)
    if config.get("lxc"):
        block.remark("not expressed here: raw lxc settings of the container")
    return block.put(Block("lifecycle").set(prevent_destroy=True, ignore_changes=[Reference("operating_system")]))


def _container_processor(left: RemainingConfig) -> Block:
    cores = left.number("cores")
    block = Block("cpu").set(architecture=left.text("arch"), cores=cores, units=left.number("cpuunits"))
    return block if cores else block.remark("it may use all cores of its node here; the provider would allow it one")


def _features(left: RemainingConfig) -> Block:
    own = RemainingConfig.of("features", left.text("features") or "")
    mounts = [mount for mount in (own.text("mount") or "").split(";") if mount]
    block = Block("features").set(
        nesting=own.flag("nesting"), fuse=own.flag("fuse"), keyctl=own.flag("keyctl"), mount=mounts or None
    )
    return own.remark_rest(block)


def _root(left: RemainingConfig) -> Block | str | None:
    text = left.text("rootfs")
    if text is None:
        return None
    own = RemainingConfig.of("rootfs", text, "volume")
    place, size = volume(own.text("volume") or ""), own.gigabytes()
    if place is None or size is None:
        return f"not expressed here: rootfs = {text}"
    block = Block("disk").set(datastore_id=place[0], size=size)
    return own.remark_rest(block)


def _mount(key: str, text: str) -> Block:
    own = RemainingConfig.of(key, text, "volume")
    options = [option for option in (own.text("mountoptions") or "").split(";") if option]
    block = Block("mount_point").set(
        volume=own.text("volume"), path=own.text("mp"), size=own.text("size"), acl=own.flag("acl"),
        backup=own.flag("backup"), quota=own.flag("quota"), read_only=own.flag("ro"), replicate=own.flag("replicate"),
        shared=own.flag("shared"), mount_options=options or None,
    )  # fmt: skip
    return own.remark_rest(block)


def _device(key: str, text: str) -> Block:
    own = RemainingConfig.of(key, text, "path")
    block = Block("device_passthrough").set(
        path=own.text("path"), uid=own.number("uid"), gid=own.number("gid"), mode=own.text("mode"),
        deny_write=own.flag("deny-write"),
    )  # fmt: skip
    return own.remark_rest(block)


def _network(left: RemainingConfig) -> list[Block]:
    """Network cards, and settings inside the container: addresses are in the order of the cards."""
    inside = Block("initialization").set(hostname=left.text("hostname")).put(dns(left))
    cards = []
    for position, (key, text) in enumerate(left.take_numbered("net")):
        own, card = RemainingConfig.of(key, text), Block("network_interface")
        if key != f"net{position}":
            card.remark(f"it is {key} here; the provider numbers cards without gaps")
        own.text("type")
        card.set(
            name=own.text("name"), bridge=own.text("bridge"), mac_address=own.text("hwaddr"),
            vlan_id=own.number("tag"), firewall=own.flag("firewall"), mtu=own.number("mtu"),
            rate_limit=own.decimal("rate"),
        )  # fmt: skip
        inside.parts.append(ip_config(own))
        cards.append(own.remark_rest(card))
    return [*cards, inside]


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
    left.remark_rest(block)
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
    return own.remark_rest(block)


def _memory(left: RemainingConfig) -> Block:
    own = RemainingConfig.of("memory", left.text("memory") or "", "current")
    block = Block("memory").set(dedicated=own.number("current"), floating=left.number("balloon"))
    return own.remark_rest(block)


def _agent(left: RemainingConfig) -> Block | None:
    text = left.text("agent")
    if text is None:
        return None
    own = RemainingConfig.of("agent", text, "enabled")
    block = Block("agent").set(enabled=own.flag("enabled"), trim=own.flag("fstrim_cloned_disks"), type=own.text("type"))
    return own.remark_rest(block)


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
    return own.remark_rest(block)


def _unknown(key: str, text: str) -> str:
    """A drive that the provider cannot express."""
    return f"not expressed here: {key} = {text}"


def _disc(key: str, text: str) -> Block:
    own = RemainingConfig.of(key, text, "file")
    own.text("media")
    own.text("size")
    block = Block("cdrom").set(interface=key, file_id=own.text("file"))
    return own.remark_rest(block)


def _with_one_disc(drives: Sequence[Block | str]) -> list[Block | str]:
    """The provider supports one CD-ROM drive."""
    discs = [drive for drive in drives if isinstance(drive, Block) and drive.kind == "cdrom"]
    further = {id(disc): f"not expressed here: one more CD-ROM drive, {_settings_of(disc)}" for disc in discs[1:]}
    return [further.get(id(drive), drive) for drive in drives]


def _settings_of(block: Block) -> str:
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
    return own.remark_rest(block)


def _tpm(key: str, text: str) -> Block | str:
    own = RemainingConfig.of(key, text, "file")
    place = volume(own.text("file") or "")
    own.text("size")
    if place is None:
        return _unknown(key, text)
    block = Block("tpm_state").set(datastore_id=place[0], version=own.text("version"))
    return own.remark_rest(block)


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
        cards.append(own.remark_rest(block))
    return cards


def _cloud_init_drive(left: RemainingConfig) -> tuple[str, str] | None:
    """Key and storage of the drive, which the provider does not treat as a disk."""
    drive = left.pick(lambda key, text: values.bus_of(key) in values.BOOTABLE and values.is_cloudinit(text))
    if drive is None:
        return None
    place = volume(values.volume_of(drive[1]))
    return drive[0], place[0] if place else ""


def _initialization(left: RemainingConfig, drive: tuple[str, str] | None) -> Block:
    block = Block("initialization")
    if drive is not None:
        block.set(interface=drive[0], datastore_id=drive[1] or None)
    block.set(type=left.text("citype"))
    block.put(dns(left))
    for _, text in left.take_numbered("ipconfig"):
        own = RemainingConfig.of("ipconfig", text)
        block.put(own.remark_rest(ip_config(own)))
    keys = values.decode_keys(left.text("sshkeys") or "")
    account = Block("user_account").set(username=left.text("ciuser"), keys=keys or None)
    if left.text("cipassword") is not None:
        account.remark("a password is set; it is not shown here")
    block.put(account)
    files = RemainingConfig.of("cicustom", left.text("cicustom") or "")
    block.set(**{f"{kind}_data_file_id": files.text(kind) for kind in ("user", "network", "vendor", "meta")})
    return files.remark_rest(block)


# -- devices -----------------------------------------------------------------------------------------------------------


def _pci(key: str, text: str) -> Block:
    own = RemainingConfig.of(key, text, "host")
    block = Block("hostpci").set(
        device=key, id=own.text("host"), mapping=own.text("mapping"), mdev=own.text("mdev"), pcie=own.flag("pcie"),
        rombar=own.flag("rombar"), rom_file=own.text("romfile"), xvga=own.flag("x-vga"),
    )  # fmt: skip
    return own.remark_rest(block)


def _usb(key: str, text: str) -> Block:
    own = RemainingConfig.of(key, text, "host")
    block = Block("usb").set(host=own.text("host"), mapping=own.text("mapping"), usb3=own.flag("usb3"))
    return own.remark_rest(block)


def _audio(key: str, text: str) -> Block:
    own = RemainingConfig.of(key, text, "device")
    block = Block("audio_device").set(device=own.text("device"), driver=own.text("driver"))
    return own.remark_rest(block)


def _screen(left: RemainingConfig) -> Block:
    own = RemainingConfig.of("vga", left.text("vga") or "", "type")
    block = Block("vga").set(type=own.text("type"), memory=own.number("memory"))
    return own.remark_rest(block)


def _smbios(left: RemainingConfig) -> Block:
    own = RemainingConfig.of("smbios1", left.text("smbios1") or "")
    coded = own.flag("base64")
    block = Block("smbios").set(uuid=own.text("uuid"))
    for name in ("family", "manufacturer", "product", "serial", "sku", "version"):
        text = own.text(name)
        block.set(**{name: _decode(text) if text and coded else text})
    return own.remark_rest(block)


def _decode(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        return text
