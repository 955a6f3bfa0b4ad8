"""The machine itself: hardware, operating system, processors, memory, uptime, people, clock."""

from __future__ import annotations

import re

from quorate.homelab.discovery.asking import Told
from quorate.homelab.discovery.facts import Cpu, Hardware, Memory, System, Time, Uptime, User
from quorate.homelab.discovery.words import fraction, name, number, rows, settings

_KIB = 1024
_UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3}


# -- hardware ----------------------------------------------------------------------------------------------------------


def hardware(told: Told) -> Hardware | None:
    sysctl = settings(told.get("sysctl"), ":")
    vendor, model = _two_lines(told.get("dmi") or told.get("kenv"))
    if not model:
        model = name(told.get("device_tree"))
    if not model and told.get("sw_vers"):
        vendor, model = "Apple", name(sysctl.get("hw.model", ""))
    found = Hardware(vendor, model, _virtualisation(told, sysctl))
    return found if found != Hardware() else None


def _two_lines(text: str) -> tuple[str | None, str | None]:
    lines = [*text.split("\n"), "", ""]
    return name(lines[0]), name(lines[1])


def _virtualisation(told: Told, sysctl: dict[str, str]) -> str | None:
    """`none` only if somebody who knows says so."""
    said = told.get("detect_virt").strip()
    if re.fullmatch(r"[a-z0-9-]{2,20}", said):
        return said
    if inside := told.get("in_container").split():
        return inside[0][:20]
    hypervisor = settings(told.get("lscpu"), ":").get("Hypervisor vendor", "")
    guest_of = sysctl.get("kern.vm_guest", "") or {"0": "none", "1": "yes"}.get(
        sysctl.get("kern.hv_vmm_present", ""), ""
    )
    return (hypervisor or guest_of).lower()[:20] or None


# -- operating system --------------------------------------------------------------------------------------------------


def system(told: Told) -> System | None:
    lines = [*told.get("uname").split("\n"), "", "", "", ""]
    family, hostname, kernel, architecture = (name(line) for line in lines[:4])
    identity, title, version = _release(told)
    found = System(
        hostname, family.lower() if family else None, identity, title, version, kernel, architecture
    )  # fmt: skip
    return found if found != System() else None


def _release(told: Told) -> tuple[str | None, str | None, str | None]:
    """Id, name and version. Who builds on another system knows best what it is."""
    if found := re.search(r"pve-manager/([0-9][0-9A-Za-z.~-]*)", told.get("pveversion")):
        return "proxmox-ve", f"Proxmox VE {found[1]}", found[1]
    if found := re.search(r"^OPNsense ([0-9][0-9A-Za-z._]*)", told.get("opnsense")):
        return "opnsense", f"OPNsense {found[1]}", found[1]
    truenas = told.get("etc_version") if told.get("middleware") else ""
    if found := re.search(r"^(?:TrueNAS-)?(?:SCALE-)?([0-9][0-9A-Za-z.-]*)", truenas):
        return "truenas", f"TrueNAS {found[1]}", found[1]
    mac = settings(told.get("sw_vers"), ":")
    if version := name(mac.get("ProductVersion", "")):
        return "macos", f"{name(mac.get('ProductName', '')) or 'macOS'} {version}", version
    release = settings(told.get("os_release"))
    if release.get("ID"):
        return name(release["ID"]), name(release.get("PRETTY_NAME", "")), name(release.get("VERSION_ID", ""))
    return None, name(told.get("redhat_release")), None


# -- processors --------------------------------------------------------------------------------------------------------


def cpu(told: Told) -> Cpu | None:
    found = _filled(_lscpu(told.get("lscpu")), _cpuinfo(told.get("cpuinfo")))
    found = _filled(found, _sysctl_cpu(settings(told.get("sysctl"), ":"), mac=bool(told.get("sw_vers"))))
    found = _filled(found, Cpu(threads=number(told.get("getconf"))))
    return found if found != Cpu() else None


def _filled(first: Cpu, second: Cpu) -> Cpu:
    """A count of 0 is none: no machine is without processors."""
    return Cpu(
        first.model or second.model,
        first.sockets or second.sockets or None,
        first.cores or second.cores or None,
        first.threads or second.threads or None,
    )


def _lscpu(text: str) -> Cpu:
    said = settings(text, ":")
    sockets, per_socket = number(said.get("Socket(s)", "")), number(said.get("Core(s) per socket", ""))
    cores = sockets * per_socket if sockets and per_socket else None
    return Cpu(name(said.get("Model name", "")), sockets, cores, number(said.get("CPU(s)", "")))


def _cpuinfo(text: str) -> Cpu:
    """Blocks of `name : value`; those without a processor tell about the board."""
    blocks = [settings(block, ":") for block in re.split(r"\n[ \t]*\n", text)]
    cores = [one for one in blocks if "processor" in one]
    if not cores:
        return Cpu()
    physical = {one["physical id"] for one in cores if "physical id" in one}
    pairs = {(one["physical id"], one["core id"]) for one in cores if "physical id" in one and "core id" in one}
    model = next((one[key] for one in cores for key in ("model name", "cpu model", "cpu") if one.get(key)), "")
    return Cpu(name(model), len(physical), len(pairs), len(cores))


def _sysctl_cpu(said: dict[str, str], *, mac: bool) -> Cpu:
    """On a Mac hw.model is the computer, elsewhere the processor."""
    model = said.get("machdep.cpu.brand_string", "") or ("" if mac else said.get("hw.model", ""))
    cores = number(said.get("hw.physicalcpu", "")) or number(said.get("kern.smp.cores", ""))
    threads = number(said.get("hw.logicalcpu", "")) or number(said.get("hw.ncpu", ""))
    return Cpu(name(model), number(said.get("hw.packages", "")), cores, threads)


# -- memory ------------------------------------------------------------------------------------------------------------


def memory(told: Told) -> Memory | None:
    found = _meminfo(told.get("meminfo")) or _sysctl_memory(told)
    return found if found != Memory() else None


def _meminfo(text: str) -> Memory | None:
    kib = {key: number(value.split()[0]) for key, value in settings(text, ":").items() if value.split()}
    sizes = {key: count * _KIB for key, count in kib.items() if count is not None}
    if "MemTotal" not in sizes:
        return None
    swap, free = sizes.get("SwapTotal"), sizes.get("SwapFree")
    used = max(0, swap - free) if swap is not None and free is not None else None
    return Memory(sizes["MemTotal"], sizes.get("MemAvailable"), swap, used)


def _sysctl_memory(told: Told) -> Memory:
    said = settings(told.get("sysctl"), ":")
    total = number(said.get("hw.memsize", "")) or number(said.get("hw.physmem", ""))
    swap, used = _swapusage(said.get("vm.swapusage", ""))
    if swap is None:
        devices = [words for words in rows(told.get("swapinfo"), 4) if words[0].startswith("/dev/")]
        counted = [(number(words[1]) or 0, number(words[2]) or 0) for words in devices]
        if told.get("swapinfo"):
            swap, used = sum(one for one, _ in counted) * _KIB, sum(one for _, one in counted) * _KIB
    return Memory(total, None, swap, used)


def _swapusage(text: str) -> tuple[int | None, int | None]:
    """total = 2048.00M  used = 1025.75M  free = 1022.25M  (encrypted)"""
    said = dict(re.findall(r"(total|used) = ([0-9.]{1,16}[KMG])", text))
    total, used = (_sized(said.get(key, "")) for key in ("total", "used"))
    return total, used


def _sized(text: str) -> int | None:
    count = fraction(text[:-1])
    return None if count is None else int(count * _UNITS.get(text[-1:], 1))


# -- how it is ---------------------------------------------------------------------------------------------------------


def uptime(told: Told) -> Uptime | None:
    said = settings(told.get("sysctl"), ":")
    seconds = next((fraction(words[0]) for words in rows(told.get("uptime"))), None)
    booted, now = re.search(r"sec = ([0-9]{1,12})", said.get("kern.boottime", "")), number(told.get("date"))
    if seconds is None and booted and now is not None:
        seconds = max(0, now - int(booted[1]))
    averages = (told.get("loadavg") or said.get("vm.loadavg", "").strip("{} ")).split()[:3]
    load = tuple(one for text in averages if (one := fraction(text)) is not None)
    found = Uptime(None if seconds is None else int(seconds), load)
    return found if found != Uptime() else None


def users(told: Told) -> tuple[User, ...] | None:
    """Lines such as `root  pts/0  2026-01-15 10:00 (10.0.0.5)`; with BusyBox there is a heading, and no parentheses."""
    if "who" not in told.answers:
        return None
    busybox = told.get("who").startswith("USER")
    found = []
    for words in rows(told.get("who"), 2):
        if words[:2] == ["USER", "TTY"] or not re.search(r"[0-9]:[0-9]", " ".join(words[2:])):
            continue
        from_afar = words[-1].startswith("(") or (busybox and len(words) > 6)
        origin = words[-1].strip("()") if from_afar else words[1]
        found.append(User(words[0], name(origin)))
    if not found and told.get("who") and not busybox:
        return None  # a complaint
    return tuple(sorted(set(found), key=lambda user: (user.name, user.origin or "")))


def time(told: Told) -> Time | None:
    said = settings(told.get("timedatectl"))
    zone = name(said.get("Timezone", "")) or name(told.get("localtime").rpartition("zoneinfo/")[2])
    found = Time(zone, _synchronised(told, said))
    return found if found != Time() else None


def _synchronised(told: Told, said: dict[str, str]) -> bool | None:
    if leap := settings(told.get("chronyc"), ":").get("Leap status"):
        return leap != "Not synchronised"
    if said.get("NTPSynchronized") in ("yes", "no"):
        return said["NTPSynchronized"] == "yes"
    if "refid" in told.get("ntpq"):
        return any(line.startswith("*") for line in told.get("ntpq").splitlines())
    return None
