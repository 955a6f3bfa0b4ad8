"""Devices, disks and file systems; and the text parsing that all readers of facts share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from quorate.documents import Unreadable, read_json
from quorate.inside.facts.model import Disk, Filesystem, Pci, Usb
from quorate.inside.facts.script import Answers

MAX_NAME = 200
"""Characters of one name."""


def number(text: object) -> int | None:
    """A whole number in digits, not negative."""
    digits = str(text).strip()
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 20 else None


def hexadecimal(text: str) -> int | None:
    return int(text, 16) if re.fullmatch(r"[0-9A-Fa-f]{1,32}", text) else None


def fraction(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", text) else None


def name(text: object) -> str | None:
    """The text with single blanks, bounded; None for an empty text or a placeholder."""
    words = " ".join(str(text).split())[:MAX_NAME]
    return words if words and words.lower() not in _PLACEHOLDERS else None


_PLACEHOLDERS = frozenset(
    {"none", "null", "n/a", "unknown", "-", "to be filled by o.e.m.", "not specified", "default string", "system manufacturer", "system product name", "o.e.m.", "(null)"}  # noqa: E501
)  # fmt: skip


def settings(text: str, separator: str = "=") -> dict[str, str]:
    """Lines of name and value; the first of several with one name counts."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, between, value = line.partition(separator)
        if between and key.strip():
            values.setdefault(key.strip(), _unquote(value.strip()))
    return values


def _unquote(value: str) -> str:
    if value[:1] not in ("'", '"'):
        return value
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value.strip("'\"")


def quoted_words(line: str) -> list[str]:
    """The words of a line, some of them quoted."""
    try:
        return shlex.split(line)
    except ValueError:
        return []


def rows(text: str, minimum: int = 1) -> Iterator[list[str]]:
    """The words of each line that has at least `minimum` of them."""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= minimum:
            yield words


def json_of(text: str) -> object:
    """The text parsed as JSON; None if it is not JSON."""
    try:
        value: object = read_json(text.encode("utf-8", "replace"))
        return value
    except Unreadable:
        return None


def json_objects(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


_ROOT_HUB = "1d6b:"  # the Linux kernel's own name for its controllers
_GRAPHICS = ("VGA", "3D controller", "Display controller", "display", "Class 03")
# The first byte of a class, as the kernel reports it.
_KINDS = {
    1: "Storage controller", 2: "Network controller", 3: "Display controller", 4: "Multimedia controller",
    5: "Memory controller", 6: "Bridge", 7: "Communication controller", 8: "System peripheral",
    12: "Serial bus controller", 13: "Wireless controller", 18: "Processing accelerator",
}  # fmt: skip


def usb(answers: Answers) -> tuple[Usb, ...] | None:
    listed = re.findall(r"^Bus [0-9]+ Device [0-9]+: ID ([0-9a-f]{4}:[0-9a-f]{4})(.*)$", answers.get("lsusb"), re.M)
    if not listed:
        listed = re.findall(r"^([0-9a-f]{4}:[0-9a-f]{4})\t(.*)$", answers.get("sys_usb"), re.M)
    if not listed and not _is_empty(answers, "lsusb", "sys_usb"):
        return None
    named = [Usb(identity, name(words)) for identity, words in listed if not identity.startswith(_ROOT_HUB)]
    return tuple(sorted(named, key=lambda device: (device.id, device.name or "")))


def pci(answers: Answers) -> tuple[Pci, ...] | None:
    for source, read in (("lspci", _lspci), ("pciconf", _pciconf), ("sys_pci", _sys_pci)):
        if devices := read(answers.get(source)):
            return tuple(sorted(devices, key=lambda device: device.slot))
    return () if _is_empty(answers, "lspci", "sys_pci") else None


def gpus(answers: Answers) -> tuple[str, ...] | None:
    listed = pci(answers)
    if listed is None:
        return None
    return tuple(
        device.name or device.kind or device.slot for device in listed if (device.kind or "").startswith(_GRAPHICS)
    )


def _is_empty(answers: Answers, *sources: str) -> bool:
    """Empty output of a source means that there are none; an error message does not."""
    return any(answers.texts.get(source) == "" for source in sources)


def _lspci(text: str) -> list[Pci]:
    """00:02.0 "VGA compatible controller" "Intel Corporation" "UHD Graphics 630" -r02 "" "" """
    devices = []
    for line in text.splitlines():
        words = quoted_words(line)
        if len(words) >= 4 and re.fullmatch(r"[0-9a-f:]{2,10}:[0-9a-f]{2}\.[0-7]", words[0]):
            devices.append(Pci(words[0], name(words[1]), name(f"{words[2]} {words[3]}")))
    return devices


def _pciconf(text: str) -> list[Pci]:
    """`vgapci0@pci0:0:2:0: class=0x030000 …`, then indented `vendor = '…'`, `device = '…'`, `class = display`."""
    devices = []
    for block in re.split(r"\n(?=\S)", text):
        head = re.match(r"\S+@pci([0-9:]+):\s", block)
        values = settings(block.partition("\n")[2])
        if head and values:
            model = name(f"{values.get('vendor', '')} {values.get('device', '')}")
            devices.append(Pci(head[1], name(values.get("class", "")), model))
    return devices


def _sys_pci(text: str) -> list[Pci]:
    listed = re.findall(
        r"^([0-9a-f:.]{5,16})\t0x([0-9a-f]{2})[0-9a-f]{4}\t0x([0-9a-f]{4}):0x([0-9a-f]{4})$", text, re.M
    )
    return [Pci(slot, _KINDS.get(int(kind, 16)), f"{vendor}:{device}") for slot, kind, vendor, device in listed]


_KIB = 1024
_SECTOR = 512
# Not a disk: made of memory, of files, of the network, or a volume inside a pool.
_NOT_A_DISK = re.compile(r"(?:loop|ram|zram|zd|nbd|rbd|dm-|md|sr|fd|mtdblock)[0-9]")
_WHOLE_DISK = re.compile(r"(?:[shv]d[a-z]+|xvd[a-z]+|nvme[0-9]+n[0-9]+|mmcblk[0-9]+)")
_PSEUDO_TYPES = frozenset(
    {
        "tmpfs", "devtmpfs", "devfs", "overlay", "squashfs", "proc", "procfs", "sysfs", "cgroup", "cgroup2",
        "efivarfs", "fdescfs", "linprocfs", "linsysfs", "autofs", "ramfs", "fuse.lxcfs", "fuse.gvfsd-fuse",
        "fuse.portal", "fuse", "nsfs", "mqueue", "debugfs", "tracefs", "securityfs", "pstore", "bpf", "configfs",
        "hugetlbfs", "binfmt_misc", "devpts", "rpc_pipefs", "fusectl", "nullfs", "iso9660", "udf",
    }
)  # fmt: skip
_PSEUDO_DEVICES = re.compile(
    r"(?:tmpfs|devtmpfs|udev|none|shm|overlay|overlayfs|efivarfs|cgroup|dev|run|ramfs|devfs|map)\b"
)
_SYSTEM_MOUNTS = ("/dev", "/proc", "/sys", "/run", "/snap/", "/var/lib/docker/", "/System/Volumes/", "/private/var/vm")


# -- disks -------------------------------------------------------------------------------------------------------------


def disks(answers: Answers) -> tuple[Disk, ...] | None:
    readers = (
        ("lsblk_json", _lsblk_json),
        ("lsblk_pairs", _lsblk_pairs),
        ("sys_block", _sys_block),
        ("geom", _geom),
        ("diskutil", _diskutil),
        ("partitions", _partitions),
    )
    for source, read in readers:
        if (listed := read(answers.get(source))) is not None:
            return tuple(sorted(listed, key=lambda disk: disk.name))
    return None


def _lsblk_json(text: str) -> list[Disk] | None:
    answer = json_of(text)
    if not isinstance(answer, dict) or "blockdevices" not in answer:
        return None
    return _of_lsblk([{key: str(row[key]) for key in row} for row in json_objects(answer["blockdevices"])])


def _lsblk_pairs(text: str) -> list[Disk] | None:
    listed = [dict(word.split("=", 1) for word in quoted_words(line) if "=" in word) for line in text.splitlines()]
    parsed = [{key.lower(): value for key, value in row.items()} for row in listed]
    return _of_lsblk(parsed) if any("name" in row for row in parsed) else None


def _of_lsblk(listed: list[dict[str, str]]) -> list[Disk]:
    """Older versions write everything as text, including numbers and booleans."""
    return [
        Disk(row["name"], number(row.get("size", "")), name(row.get("model", "")), _boolean(row.get("rota", "")))
        for row in listed
        if row.get("type") == "disk" and row.get("name") and not _NOT_A_DISK.match(row["name"])
    ]


def _boolean(text: str) -> bool | None:
    return {"1": True, "true": True, "0": False, "false": False}.get(text.strip().lower())


def _sys_block(text: str) -> list[Disk] | None:
    listed = []
    for line in text.splitlines():
        cells = [*line.split("\t"), "", "", ""]
        blocks = number(cells[1])
        if blocks is not None and not _NOT_A_DISK.match(cells[0]):
            listed.append(Disk(cells[0], blocks * _SECTOR, name(cells[3]), _boolean(cells[2])))
    return listed if text else None


def _partitions(text: str) -> list[Disk] | None:
    listed = [words for words in rows(text, 4) if number(words[2]) is not None]
    whole = [words for words in listed if _WHOLE_DISK.fullmatch(words[3])]
    return [Disk(words[3], (number(words[2]) or 0) * _KIB) for words in whole] if listed else None


def _geom(text: str) -> list[Disk] | None:
    """`Geom name: ada0`, then indented facts, among them `Mediasize: 256060514304 (238G)`."""
    if "Geom name:" not in text:
        return None
    listed = []
    for block in text.split("Geom name:")[1:]:
        values = settings(f"geom:{block}", ":")
        disk, size = values.get("geom", ""), values.get("Mediasize", "").partition(" ")[0]
        rate = number(values.get("rotationrate", ""))
        if disk and not re.match(r"(?:cd|md)[0-9]", disk):
            listed.append(Disk(disk, number(size), name(values.get("descr", "")), None if rate is None else rate > 0))
    return listed


def _diskutil(text: str) -> list[Disk] | None:
    if "Device Identifier" not in text:
        return None
    listed = []
    for block in text.split("**********"):
        values = settings(block, ":")
        if values.get("Whole") == "Yes" and values.get("Virtual") != "Yes" and values.get("Device Identifier"):
            size = re.search(r"\(([0-9]{1,18}) Bytes\)", values.get("Disk Size", ""))
            solid = {"Yes": False, "No": True}.get(values.get("Solid State", ""))
            model = name(values.get("Device / Media Name", ""))
            listed.append(Disk(values["Device Identifier"], int(size[1]) if size else None, model, solid))
    return listed


# -- file systems ------------------------------------------------------------------------------------------------------


def filesystems(answers: Answers) -> tuple[Filesystem, ...] | None:
    """All of them, or only the local ones where `df` did not end."""
    text = next(
        (answers.get(source) for source in ("df", "df_local") if answers.get(source) and source not in answers.late), ""
    )
    if "%" not in text:
        return None
    types = _types(answers)
    mounted = {}
    for line in text.splitlines():
        row = re.fullmatch(r"(.+?)\s+([0-9]+)\s+([0-9]+)\s+(-?[0-9]+)\s+([0-9]+%|-)\s+(/.*)", line)
        if row is None:
            continue
        device, mount, kind = row[1].strip(), row[6], types.get(row[6])
        size, used = number(row[2]), number(row[3])
        free = number(row[4]) or 0  # nothing, too, where root took reserved blocks and `df` counts below zero
        if size and used is not None and _is_storage(device, mount, kind):
            mounted[mount] = Filesystem(mount, device, kind, size * _KIB, used * _KIB, free * _KIB)
    return tuple(mounted[mount] for mount in sorted(mounted))


def only_local(answers: Answers) -> bool:
    """Whether network file systems may be missing."""
    return "df" in answers.late


def _types(answers: Answers) -> dict[str, str]:
    """The file system type of each mount point. `/proc/mounts` and BSD's `mount -p` have the same columns."""
    mounts = answers.get("mounts") or answers.get("mount")
    mounted = ((words[1], words[2]) for words in rows(mounts, 3) if words[1].startswith("/"))
    return {re.sub(r"\\([0-3][0-7]{2})", lambda octal: chr(int(octal[1], 8)), path): kind for path, kind in mounted}


def _is_storage(device: str, mount: str, kind: str | None) -> bool:
    if mount in ("/", "/System/Volumes/Data"):
        return True
    if mount.startswith(_SYSTEM_MOUNTS) or mount in ("/dev", "/run"):
        return False
    return (
        kind not in _PSEUDO_TYPES if kind else not _PSEUDO_DEVICES.match(device) and not device.startswith("/dev/loop")
    )
