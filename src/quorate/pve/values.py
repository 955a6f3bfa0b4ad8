"""PVE's property strings: `virtio=BC:24:11:AA:BB:CC,bridge=vmbr0` and the like."""

from __future__ import annotations

import base64
import binascii
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote

from pve_schema.formats import split_list
from pve_schema.validation import text_of
from quorate.secret import HIDDEN

_DEVICE = re.compile(r"^(?P<bus>scsi|virtio|sata|ide|efidisk|tpmstate|mp|net|ipconfig|unused)(?P<index>\d+)$|^rootfs$")
DISKS = frozenset({"scsi", "virtio", "sata", "ide", "efidisk", "tpmstate", "mp", "rootfs"})
BOOTABLE = ("scsi", "virtio", "sata", "ide")
NIC_MODELS = frozenset(
    [
        "e1000",
        "e1000-82540em",
        "e1000-82544gc",
        "e1000-82545em",
        "e1000e",
        "i82551",
        "i82557b",
        "i82559er",
        "ne2k_isa",
        "ne2k_pci",
        "pcnet",
        "rtl8139",
        "virtio",
        "vmxnet3",
    ]
)


def parse(text: str, default_key: str = "") -> dict[str, str]:
    """The parts of a property string; a part without a key goes under `default_key`."""
    parts: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if equals:
            parts[key.strip()] = value.strip()
        elif part:
            parts[default_key] = part.strip()
    return parts


def build(parts: Mapping[str, str], default_key: str = "") -> str:
    """The property string of these parts, in their order; the part of `default_key` is written without its key."""
    return ",".join(value if key == default_key else f"{key}={value}" for key, value in parts.items())


def merge(text: str, changes: Mapping[str, object], default_key: str = "") -> str:
    """The property string with some parts changed and all others in place; None removes a part."""
    parts = parse(text, default_key)
    for key, value in changes.items():
        if value is None:
            parts.pop(key, None)
        else:
            parts[key] = str(int(value)) if isinstance(value, bool) else str(value)
    return build(parts, default_key)


def same(first: object, second: object, schema: Mapping[str, Any] | None = None) -> bool:
    """Whether two values of an option mean the same: 1 and true, the same parts in another order, text and parsed.

    The schema of the option tells a list or property string from free text, whose commas mean nothing. Without it,
    commas separate parts.
    """
    if isinstance(first, Mapping) or isinstance(second, Mapping):
        return _parts(first) == _parts(second)
    if isinstance(first, (list, tuple)) or isinstance(second, (list, tuple)):
        return _elements(first) == _elements(second)
    left, right = ("" if value is None else text_of(value).strip() for value in (first, second))
    if left == right or not (left and right):
        return left == right
    kind, layout = (schema or {}).get("type"), (schema or {}).get("format")
    if kind == "boolean":
        return is_on(left) == is_on(right)
    if kind in ("integer", "number"):
        return number(left) is not None and number(left) == number(right)
    if str(layout).endswith("-list"):
        return set(split_list(left)) == set(split_list(right))
    return (schema is None or layout is not None) and _parts(left) == _parts(right)


def _parts(value: object) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return sorted((str(key), text_of(part)) for key, part in value.items())
    pairs = (part.partition("=") for part in text_of("" if value is None else value).split(",") if part)
    return sorted((key.strip(), text.strip()) for key, _, text in pairs)


def _elements(value: object) -> list[list[tuple[str, str]]]:
    if not isinstance(value, (list, tuple)):
        text = text_of("" if value is None else value)
        value = [text] if "=" in text else split_list(text)
    return sorted(map(_parts, value))


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def is_on(text: object) -> bool:
    """Inside property strings PVE takes 1, on, yes and true."""
    return str(text).lower() in ("1", "on", "yes", "true")


def bus_of(key: str) -> str | None:
    """The kind of device of a config key: `scsi` for scsi0, `rootfs` for rootfs, None for cores."""
    match = _DEVICE.match(key)
    return None if match is None else match["bus"] or "rootfs"


def is_disk(key: str, value: str) -> bool:
    """A drive or mount point that holds data; CD-ROMs do not."""
    return bus_of(key) in DISKS and parse(value, "volume").get("media") != "cdrom"


def volume_of(text: str) -> str:
    """The volume of a drive or mount point: `local-lvm:vm-100-disk-0` of `local-lvm:vm-100-disk-0,size=8G`."""
    parts = parse(text, "volume")
    return parts.get("volume") or parts.get("file", "")


def is_cloudinit(text: str) -> bool:
    """Whether a drive is the one that cloud-init reads."""
    return re.search(r":(?:.*/)?(?:vm-\d+-)?cloudinit(?:\.\w+)?$", volume_of(text)) is not None


def boot_devices(config: Mapping[str, object]) -> list[str]:
    """The boot order, empty if the configuration has none in the current form."""
    return [device for device in str(config.get("boot", "")).partition("order=")[2].split(";") if device]


def boot_disk(config: Mapping[str, object], *, is_vm: bool) -> str | None:
    """The disk that the guest boots from; for a VM without a boot order, the first disk."""
    if not is_vm:
        return "rootfs"
    disks = {key for key, value in config.items() if bus_of(key) in BOOTABLE and is_disk(key, str(value))}
    old_way = str(config.get("bootdisk", ""))
    candidates = boot_devices(config) or ([old_way] if old_way else sorted(disks, key=_by_bus))
    return next((key for key in candidates if key in disks), None)


def _by_bus(key: str) -> tuple[int, int]:
    return BOOTABLE.index(str(bus_of(key))), int(re.sub(r"\D", "", key))


def parse_nic(text: str) -> dict[str, str]:
    """A VM's network card: `virtio=MAC,bridge=vmbr0` with `model` and `macaddr` as parts of their own."""
    parts: dict[str, str] = {}
    for key, value in parse(text, "model").items():
        if key in NIC_MODELS:
            parts |= {"model": key, "macaddr": value}
        else:
            parts[key] = value
    return parts


def build_nic(parts: Mapping[str, str]) -> str:
    """A VM's network card as PVE stores it: model and address in one part, then the rest."""
    rest = {key: value for key, value in parts.items() if key not in ("model", "macaddr")}
    model = parts.get("model", "virtio")
    head = {model: parts["macaddr"]} if "macaddr" in parts else {"": model}
    return build({**head, **rest})


def decode_keys(stored: str) -> list[str]:
    """The lines of cloud-init's `sshkeys`, which PVE keeps percent-encoded."""
    return [line.strip() for line in unquote(stored).splitlines() if line.strip()]


def encode_keys(keys: Iterable[str]) -> str:
    """Keys as PVE expects them in the value: percent-encoded, including spaces. The form encodes them again."""
    return quote("\n".join(keys) + "\n", safe="")


def is_ssh_key(line: str) -> bool:
    """Whether the line is a public key: optional options, a type, and a blob that starts with the same type."""
    words = line.split()
    return any(_blob_says(blob, kind) for kind, blob in itertools.pairwise(words))


def _blob_says(blob: str, kind: str) -> bool:
    try:
        decoded = base64.b64decode(blob, validate=True)
    except (binascii.Error, ValueError):
        return False
    length = int.from_bytes(decoded[:4], "big")
    return length > 0 and decoded[4 : 4 + length] == kind.encode()


def agent_enabled(value: object) -> bool:
    """The `agent` option: `1`, `enabled=1,...` or absent."""
    return is_on(parse(str(value or "0"), "enabled").get("enabled", "0"))


def addresses_in_config(config: Mapping[str, object]) -> dict[str, list[str]]:
    """Static addresses that the configuration sets, by option: containers in netN, cloud-init in ipconfigN."""
    addresses: dict[str, list[str]] = {}
    for key in sorted(config):
        if bus_of(key) in ("net", "ipconfig"):
            parts = parse(str(config[key]), "model")
            own = [parts[name].partition("/")[0] for name in ("ip", "ip6") if _is_address(parts.get(name, ""))]
            if own:
                addresses[key] = own
    return addresses


def _is_address(text: str) -> bool:
    return bool(text) and text not in ("dhcp", "manual", "auto")


VARIABLES, RAW_VARIABLES = "env", "lxc.environment"
"""The options with the variables of a container, which often hold passwords; older versions have only raw ones."""


def holds_secrets(option: str) -> bool:
    """Whether the value of a guest's option must not be seen."""
    return option in ("cipassword", VARIABLES) or option.startswith(RAW_VARIABLES)


def pending_changes(entries: Iterable[Mapping[str, object]]) -> dict[str, str]:
    """Changes that wait for a restart: option -> new value, without secrets."""
    new = {str(entry["key"]): str(entry["pending"]) for entry in entries if "pending" in entry}
    waiting = {option: HIDDEN if holds_secrets(option) else value for option, value in new.items()}
    return waiting | {str(entry["key"]): "(removed)" for entry in entries if entry.get("delete")}
