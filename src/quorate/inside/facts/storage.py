"""Disks and file systems."""

from __future__ import annotations

import re

from quorate.inside.facts.model import Disk, Filesystem
from quorate.inside.facts.parsing import json_objects, json_of, name, number, quoted_words, rows, settings
from quorate.inside.facts.script import Answers

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
        if (found := read(answers.get(source))) is not None:
            return tuple(sorted(found, key=lambda disk: disk.name))
    return None


def _lsblk_json(text: str) -> list[Disk] | None:
    answer = json_of(text)
    if not isinstance(answer, dict) or "blockdevices" not in answer:
        return None
    return _of_lsblk([{key: str(one[key]) for key in one} for one in json_objects(answer["blockdevices"])])


def _lsblk_pairs(text: str) -> list[Disk] | None:
    listed = [dict(word.split("=", 1) for word in quoted_words(line) if "=" in word) for line in text.splitlines()]
    found = [{key.lower(): value for key, value in one.items()} for one in listed]
    return _of_lsblk(found) if any("name" in one for one in found) else None


def _of_lsblk(listed: list[dict[str, str]]) -> list[Disk]:
    """Older versions write everything as text, including numbers and booleans."""
    return [
        Disk(one["name"], number(one.get("size", "")), name(one.get("model", "")), _boolean(one.get("rota", "")))
        for one in listed
        if one.get("type") == "disk" and one.get("name") and not _NOT_A_DISK.match(one["name"])
    ]


def _boolean(text: str) -> bool | None:
    return {"1": True, "true": True, "0": False, "false": False}.get(text.strip().lower())


def _sys_block(text: str) -> list[Disk] | None:
    found = []
    for line in text.splitlines():
        cells = [*line.split("\t"), "", "", ""]
        blocks = number(cells[1])
        if blocks is not None and not _NOT_A_DISK.match(cells[0]):
            found.append(Disk(cells[0], blocks * _SECTOR, name(cells[3]), _boolean(cells[2])))
    return found if text else None


def _partitions(text: str) -> list[Disk] | None:
    listed = [words for words in rows(text, 4) if number(words[2]) is not None]
    whole = [words for words in listed if _WHOLE_DISK.fullmatch(words[3])]
    return [Disk(words[3], (number(words[2]) or 0) * _KIB) for words in whole] if listed else None


def _geom(text: str) -> list[Disk] | None:
    """`Geom name: ada0`, then indented facts, among them `Mediasize: 256060514304 (238G)`."""
    if "Geom name:" not in text:
        return None
    found = []
    for block in text.split("Geom name:")[1:]:
        values = settings(f"geom:{block}", ":")
        disk, size = values.get("geom", ""), values.get("Mediasize", "").partition(" ")[0]
        rate = number(values.get("rotationrate", ""))
        if disk and not re.match(r"(?:cd|md)[0-9]", disk):
            found.append(Disk(disk, number(size), name(values.get("descr", "")), None if rate is None else rate > 0))
    return found


def _diskutil(text: str) -> list[Disk] | None:
    if "Device Identifier" not in text:
        return None
    found = []
    for block in text.split("**********"):
        values = settings(block, ":")
        if values.get("Whole") == "Yes" and values.get("Virtual") != "Yes" and values.get("Device Identifier"):
            size = re.search(r"\(([0-9]{1,18}) Bytes\)", values.get("Disk Size", ""))
            solid = {"Yes": False, "No": True}.get(values.get("Solid State", ""))
            model = name(values.get("Device / Media Name", ""))
            found.append(Disk(values["Device Identifier"], int(size[1]) if size else None, model, solid))
    return found


# -- file systems ------------------------------------------------------------------------------------------------------


def filesystems(answers: Answers) -> tuple[Filesystem, ...] | None:
    """All of them, or only the local ones where `df` did not end."""
    text = next((answers.get(one) for one in ("df", "df_local") if answers.get(one) and one not in answers.late), "")
    if "%" not in text:
        return None
    types = _types(answers)
    found = {}
    for line in text.splitlines():
        row = re.fullmatch(r"(.+?)\s+([0-9]+)\s+([0-9]+)\s+(-?[0-9]+)\s+([0-9]+%|-)\s+(/.*)", line)
        if row is None:
            continue
        device, mount, kind = row[1].strip(), row[6], types.get(row[6])
        size, used = number(row[2]), number(row[3])
        free = number(row[4]) or 0  # nothing, too, where root took reserved blocks and `df` counts below zero
        if size and used is not None and _is_storage(device, mount, kind):
            found[mount] = Filesystem(mount, device, kind, size * _KIB, used * _KIB, free * _KIB)
    return tuple(found[mount] for mount in sorted(found))


def only_local(answers: Answers) -> bool:
    """Whether network file systems may be missing."""
    return "df" in answers.late


def _types(answers: Answers) -> dict[str, str]:
    """By mount point; `/proc/mounts` and BSD's `mount -p` have the same columns."""
    mounts = answers.get("mounts") or answers.get("mount")
    return {_unescape(words[1]): words[2] for words in rows(mounts, 3) if words[1].startswith("/")}


def _unescape(path: str) -> str:
    return re.sub(r"\\([0-3][0-7]{2})", lambda found: chr(int(found[1], 8)), path)


def _is_storage(device: str, mount: str, kind: str | None) -> bool:
    if mount in ("/", "/System/Volumes/Data"):
        return True
    if mount.startswith(_SYSTEM_MOUNTS) or mount in ("/dev", "/run"):
        return False
    return (
        kind not in _PSEUDO_TYPES if kind else not _PSEUDO_DEVICES.match(device) and not device.startswith("/dev/loop")
    )
