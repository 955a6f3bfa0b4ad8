"""What a POSIX guest tells about itself: system, uptime, load, memory, file systems, people logged in."""

from __future__ import annotations

import shlex
from typing import Any

from quorate.inside.posix_script import failure, script
from quorate.inside.system_facts import FileSystem, SystemFacts
from quorate.inside.way import Way

# df may wait for ever for a file server that is gone, hence the time limit.
_ASK = "printf '\\0'\n".join(
    (
        "cat /etc/os-release 2>/dev/null || cat /usr/lib/os-release 2>/dev/null\n",
        "uname -srm\n",
        "cat /proc/sys/kernel/hostname 2>/dev/null || hostname\n",
        "cat /proc/uptime 2>/dev/null\n",
        "cat /proc/loadavg 2>/dev/null\n",
        "cat /proc/meminfo 2>/dev/null\n",
        "grep -c ^processor /proc/cpuinfo 2>/dev/null\n",
        "timeout 5 df -P -k 2>/dev/null\n",
        "who 2>/dev/null\n",
        "exit 0\n",
    )
)
_PSEUDO = ("tmpfs", "devtmpfs", "udev", "none", "shm", "overlay", "efivarfs", "cgroup", "dev", "run", "ramfs")
_KIB = 1024


async def system_facts(way: Way) -> SystemFacts:
    output = await way.run(script(_ASK))
    parts = output.stdout.decode("utf-8", "replace").split("\0")
    if len(parts) < 10:
        raise failure(output, "Asking about the system")
    release, kernel, hostname, uptime, load, memory, cpus, disks, people, _ = (part.strip() for part in parts)
    total, available = _memory(memory)
    return SystemFacts(
        os=_os_name(release),
        kernel=kernel,
        hostname=hostname,
        uptime=float(uptime.split()[0]) if uptime else None,
        load=" ".join(load.split()[:3]),
        cpus=int(cpus) if cpus.isdecimal() else None,
        memory_total=total,
        memory_used=None if total is None or available is None else total - available,
        filesystems=_filesystems(disks),
        users=[line for line in people.splitlines() if line.strip()],
    )


def _os_name(release: str) -> str:
    values: dict[str, Any] = {}
    for line in release.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            values[name] = _unquoted(value)
    return str(values.get("PRETTY_NAME") or f"{values.get('NAME', '')} {values.get('VERSION_ID', '')}".strip())


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value


def _memory(text: str) -> tuple[int | None, int | None]:
    """Total and available bytes; old kernels do not tell the latter."""
    rows = {line.partition(":")[0]: line.partition(":")[2].split() for line in text.splitlines()}
    numbers = {name: int(words[0]) * _KIB for name, words in rows.items() if words and words[0].isdecimal()}
    return numbers.get("MemTotal"), numbers.get("MemAvailable", numbers.get("MemFree"))


def _filesystems(text: str) -> list[FileSystem]:
    """Rows of device, KiB, used, free, share, mount point; without those that live in memory or inside others."""
    rows = [line.split(None, 5) for line in text.splitlines()[1:]]
    return [
        FileSystem(words[5], int(words[1]) * _KIB, int(words[2]) * _KIB)
        for words in rows
        if len(words) == 6 and words[1].isdecimal() and int(words[1]) and _is_real(words[0], words[5])
    ]


def _is_real(device: str, mount: str) -> bool:
    if mount == "/":
        return True
    return (
        device not in _PSEUDO and not device.startswith("/dev/loop") and not mount.startswith(("/dev", "/proc", "/sys"))
    )
