"""The machine itself: hardware, operating system, processors, memory, uptime, users, clock."""

from __future__ import annotations

import re

from quorate.inside.facts.model import Cpu, Hardware, Memory, System, Time, Uptime, User
from quorate.inside.facts.script import Answers
from quorate.inside.facts.system import fraction, name, number, rows, settings

_KIB = 1024
_UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3}


# -- hardware ----------------------------------------------------------------------------------------------------------


def hardware(answers: Answers) -> Hardware | None:
    sysctl = settings(answers.get("sysctl"), ":")
    lines = (answers.get("dmi") or answers.get("kenv")).split("\n")
    vendor, model = (name(line) for line in [*lines, ""][:2])
    if not model:
        model = name(answers.get("device_tree"))
    if not model and answers.get("sw_vers"):
        vendor, model = "Apple", name(sysctl.get("hw.model", ""))
    facts = Hardware(vendor, model, _virtualisation(answers, sysctl))
    return facts if facts != Hardware() else None


def _virtualisation(answers: Answers, sysctl: dict[str, str]) -> str | None:
    """`none` only if a source says so."""
    detected = answers.get("detect_virt").strip()
    if re.fullmatch(r"[a-z0-9-]{2,20}", detected):
        return detected
    if inside := answers.get("in_container").split():
        return inside[0][:20]
    hypervisor = settings(answers.get("lscpu"), ":").get("Hypervisor vendor", "")
    guest_of = sysctl.get("kern.vm_guest", "") or {"0": "none", "1": "yes"}.get(
        sysctl.get("kern.hv_vmm_present", ""), ""
    )
    return (hypervisor or guest_of).lower()[:20] or None


# -- operating system --------------------------------------------------------------------------------------------------


def system(answers: Answers) -> System | None:
    lines = answers.get("uname").split("\n")
    if len(lines) > 4:  # a hostname may contain line breaks
        lines[1:-2] = [" ".join(lines[1:-2])]
    family, hostname, kernel, architecture = (name(line) for line in [*lines, "", "", ""][:4])
    identity, title, version = _release(answers)
    facts = System(
        hostname, family.lower() if family else None, identity, title, version, kernel, architecture
    )  # fmt: skip
    return facts if facts != System() else None


def _release(answers: Answers) -> tuple[str | None, str | None, str | None]:
    """Id, name and version; those of a product before those of the system it is built on."""
    if match := re.search(r"pve-manager/([0-9][0-9A-Za-z.~-]*)", answers.get("pveversion")):
        return "proxmox-ve", f"Proxmox VE {match[1]}", match[1]
    if match := re.search(r"^OPNsense ([0-9][0-9A-Za-z._]*)", answers.get("opnsense")):
        return "opnsense", f"OPNsense {match[1]}", match[1]
    truenas = answers.get("etc_version") if answers.get("middleware") else ""
    if match := re.search(r"^(?:TrueNAS-)?(?:SCALE-)?([0-9][0-9A-Za-z.-]*)", truenas):
        return "truenas", f"TrueNAS {match[1]}", match[1]
    mac = settings(answers.get("sw_vers"), ":")
    if version := name(mac.get("ProductVersion", "")):
        return "macos", f"{name(mac.get('ProductName', '')) or 'macOS'} {version}", version
    release = settings(answers.get("os_release"))
    identity, version = name(release.get("ID", "")), name(release.get("VERSION_ID", ""))
    title = name(release.get("PRETTY_NAME", "")) or name(f"{release.get('NAME', '')} {version or ''}")
    if identity or title:
        return identity, title, version
    return None, name(answers.get("redhat_release")), None


# -- processors --------------------------------------------------------------------------------------------------------


def cpu(answers: Answers) -> Cpu | None:
    # In a container lscpu counts the processors of the host, /proc/cpuinfo those of the container.
    merged = _merge_cpu(Cpu(threads=number(answers.get("processors"))), _lscpu(answers.get("lscpu")))
    merged = _merge_cpu(merged, _cpuinfo(answers.get("cpuinfo")))
    merged = _merge_cpu(merged, _sysctl_cpu(settings(answers.get("sysctl"), ":"), mac=bool(answers.get("sw_vers"))))
    merged = _merge_cpu(merged, Cpu(threads=number(answers.get("getconf"))))
    return merged if merged != Cpu() else None


def _merge_cpu(first: Cpu, second: Cpu) -> Cpu:
    """A count of 0 means unknown: every machine has a processor."""
    return Cpu(
        first.model or second.model,
        first.sockets or second.sockets or None,
        first.cores or second.cores or None,
        first.threads or second.threads or None,
    )


def _lscpu(text: str) -> Cpu:
    values = settings(text, ":")
    sockets, per_socket = number(values.get("Socket(s)", "")), number(values.get("Core(s) per socket", ""))
    cores = sockets * per_socket if sockets and per_socket else None
    return Cpu(name(values.get("Model name", "")), sockets, cores, number(values.get("CPU(s)", "")))


def _cpuinfo(text: str) -> Cpu:
    """Blocks of `name : value`; those without a processor describe the board."""
    blocks = [settings(block, ":") for block in re.split(r"\n[ \t]*\n", text)]
    cores = [block for block in blocks if "processor" in block]
    if not cores:
        return Cpu()
    physical = {core["physical id"] for core in cores if "physical id" in core}
    pairs = {(core["physical id"], core["core id"]) for core in cores if "physical id" in core and "core id" in core}
    model = next((core[key] for core in cores for key in ("model name", "cpu model", "cpu") if core.get(key)), "")
    return Cpu(name(model), len(physical), len(pairs), len(cores))


def _sysctl_cpu(values: dict[str, str], *, mac: bool) -> Cpu:
    """On a Mac hw.model is the computer, elsewhere the processor."""
    model = values.get("machdep.cpu.brand_string", "") or ("" if mac else values.get("hw.model", ""))
    cores = number(values.get("hw.physicalcpu", "")) or number(values.get("kern.smp.cores", ""))
    threads = number(values.get("hw.logicalcpu", "")) or number(values.get("hw.ncpu", ""))
    return Cpu(name(model), number(values.get("hw.packages", "")), cores, threads)


# -- memory ------------------------------------------------------------------------------------------------------------


def memory(answers: Answers) -> Memory | None:
    facts = _meminfo(answers.get("meminfo")) or _sysctl_memory(answers)
    return facts if facts != Memory() else None


def _meminfo(text: str) -> Memory | None:
    kib = {key: number(value.split()[0]) for key, value in settings(text, ":").items() if value.split()}
    sizes = {key: count * _KIB for key, count in kib.items() if count is not None}
    if "MemTotal" not in sizes:
        return None
    swap, free = sizes.get("SwapTotal"), sizes.get("SwapFree")
    used = max(0, swap - free) if swap is not None and free is not None else None
    available = sizes.get("MemAvailable", sizes.get("MemFree"))  # kernels before 3.14 lack the former
    return Memory(sizes["MemTotal"], available, swap, used)


def _sysctl_memory(answers: Answers) -> Memory:
    values = settings(answers.get("sysctl"), ":")
    total = number(values.get("hw.memsize", "")) or number(values.get("hw.physmem", ""))
    swap, used = _swapusage(values.get("vm.swapusage", ""))
    if swap is None:
        devices = [words for words in rows(answers.get("swapinfo"), 4) if words[0].startswith("/dev/")]
        counted = [(number(words[1]) or 0, number(words[2]) or 0) for words in devices]
        if answers.get("swapinfo"):
            swap, used = sum(size for size, _ in counted) * _KIB, sum(size for _, size in counted) * _KIB
    return Memory(total, None, swap, used)


def _swapusage(text: str) -> tuple[int | None, int | None]:
    """total = 2048.00M  used = 1025.75M  free = 1022.25M  (encrypted)"""
    sizes = dict(re.findall(r"(total|used) = ([0-9.]{1,16}[KMG])", text))
    total, used = (_parse_size(sizes.get(key, "")) for key in ("total", "used"))
    return total, used


def _parse_size(text: str) -> int | None:
    count = fraction(text[:-1])
    return None if count is None else int(count * _UNITS.get(text[-1:], 1))


# -- uptime, users, clock ----------------------------------------------------------------------------------------------


def uptime(answers: Answers) -> Uptime | None:
    values = settings(answers.get("sysctl"), ":")
    seconds = next((fraction(words[0]) for words in rows(answers.get("uptime"))), None)
    booted, now = re.search(r"sec = ([0-9]{1,12})", values.get("kern.boottime", "")), number(answers.get("date"))
    if seconds is None and booted and now is not None:
        seconds = max(0, now - int(booted[1]))
    averages = (answers.get("loadavg") or values.get("vm.loadavg", "").strip("{} ")).split()[:3]
    load = tuple(average for text in averages if (average := fraction(text)) is not None)
    facts = Uptime(None if seconds is None else int(seconds), load)
    return facts if facts != Uptime() else None


def users(answers: Answers) -> tuple[User, ...] | None:
    """Lines such as `root  pts/0  2026-01-15 10:00 (10.0.0.5)`; BusyBox prints a heading and no parentheses."""
    if "who" not in answers.texts:
        return None
    busybox = answers.get("who").startswith("USER")
    sessions = []
    for words in rows(answers.get("who"), 2):
        if words[:2] == ["USER", "TTY"] or not re.search(r"[0-9]:[0-9]", " ".join(words[2:])):
            continue
        from_afar = words[-1].startswith("(") or (busybox and len(words) > 6)
        origin = words[-1].strip("()") if from_afar else words[1]
        sessions.append(User(words[0], name(origin)))
    if not sessions and answers.get("who") and not busybox:
        return None  # an error message
    return tuple(sorted(set(sessions), key=lambda user: (user.name, user.origin or "")))


def time(answers: Answers) -> Time | None:
    values = settings(answers.get("timedatectl"))
    zone = name(values.get("Timezone", "")) or name(answers.get("localtime").rpartition("zoneinfo/")[2])
    facts = Time(zone, _is_synchronized(answers, values))
    return facts if facts != Time() else None


def _is_synchronized(answers: Answers, values: dict[str, str]) -> bool | None:
    if leap := settings(answers.get("chronyc"), ":").get("Leap status"):
        return leap != "Not synchronised"
    if values.get("NTPSynchronized") in ("yes", "no"):
        return values["NTPSynchronized"] == "yes"
    if "refid" in answers.get("ntpq"):
        return any(line.startswith("*") for line in answers.get("ntpq").splitlines())
    return None


def temperature(answers: Answers) -> float | None:
    """The highest plausible reading; unplugged sensors report garbage."""
    degrees = [value / 1000 for line in answers.get("sensors").splitlines() if (value := number(line)) is not None]
    return max((celsius for celsius in degrees if 1 <= celsius <= 150), default=None)
