"""Facts about a guest: its system and network as seen from inside, or as the agent of a VM reports them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from quorate.inside.facts.collector import collect_answers, read_facts
from quorate.inside.facts.model import Facts, Filesystem, Interface
from quorate.inside.facts.network import search_domains
from quorate.inside.transport import Transport
from quorate.inside.windows_files import run_powershell
from quorate.problems import Problem
from quorate.pve.cluster import Guest

_SYSTEM_SECTIONS = ("system", "cpu", "memory", "filesystems", "uptime", "users")
_AGENT_COMMANDS = ("get-host-name", "get-timezone", "get-time", "get-fsinfo", "get-users", "get-vcpus")
_KIB = 1024
_NANOSECONDS = 1_000_000_000

_WINDOWS_SYSTEM = """$o=Get-CimInstance Win32_OperatingSystem
$c=@(Get-CimInstance Win32_Processor)
@{os=$o.Caption+' '+$o.Version;hostname=$env:COMPUTERNAME;uptime=[int64]((Get-Date)-$o.LastBootUpTime).TotalSeconds
total=[int64]$o.TotalVisibleMemorySize;free=[int64]$o.FreePhysicalMemory
load="$([int]($c|Measure-Object LoadPercentage -Average).Average)%"
cpus=[int]($c|Measure-Object NumberOfLogicalProcessors -Sum).Sum}"""
_WINDOWS_NETWORK = """@{gateways=@(Get-NetRoute -DestinationPrefix '0.0.0.0/0','::/0' -ErrorAction SilentlyContinue|
Sort-Object RouteMetric|ForEach-Object{$_.NextHop+' dev '+$_.InterfaceAlias})
dns=@(Get-DnsClientServerAddress -ErrorAction SilentlyContinue|ForEach-Object{$_.ServerAddresses}|Select-Object -Unique)
search=@((Get-DnsClientGlobalSetting).SuffixSearchList)}"""


@dataclass(frozen=True, slots=True)
class SystemFacts:
    os: str = ""
    kernel: str = ""
    hostname: str = ""
    uptime: float | None = None
    load: str = ""
    cpus: int | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    timezone: str = ""
    clock: float | None = None
    """The guest's own time, in seconds since 1970."""
    filesystems: list[Filesystem] = field(default_factory=list)
    users: list[str] = field(default_factory=list)

    def filled_from(self, other: SystemFacts) -> SystemFacts:
        """These facts, with gaps filled from the other."""
        empty = [attribute.name for attribute in fields(self) if getattr(self, attribute.name) in (None, "", [])]
        return replace(self, **{name: getattr(other, name) for name in empty})


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    interfaces: list[Interface] = field(default_factory=list)
    gateways: list[str] = field(default_factory=list)
    """192.168.1.1 dev eth0"""
    dns: list[str] = field(default_factory=list)
    search: list[str] = field(default_factory=list)


async def system_facts(transport: Transport, label: str) -> SystemFacts:
    if transport.system == "windows":
        return await _windows_system(transport)
    answers = await collect_answers(transport, label, sections=_SYSTEM_SECTIONS)
    return _posix_system(read_facts(answers, _SYSTEM_SECTIONS), " ".join(answers.get("uname").split("\n")[:1]))


async def network_facts(transport: Transport, label: str) -> NetworkFacts:
    if transport.system == "windows":
        reported = await run_powershell(transport, "Reading the network", _WINDOWS_NETWORK)
        gateways, dns, search = (
            [str(part) for part in reported.get(key) or []] for key in ("gateways", "dns", "search")
        )
        return NetworkFacts(gateways=gateways, dns=dns, search=search)
    answers = await collect_answers(transport, label, sections=("network",))
    network = read_facts(answers, ("network",)).network
    if network is None:
        return NetworkFacts(search=search_domains(answers))
    return NetworkFacts(list(network.interfaces), list(network.gateways), list(network.dns), search_domains(answers))


def _posix_system(facts: Facts, kernel_name: str) -> SystemFacts:
    system, memory, uptime = facts.system, facts.memory, facts.uptime
    total, available = (memory.total, memory.available) if memory else (None, None)
    return SystemFacts(
        os=(system.name or "") if system else "",
        kernel=" ".join(part for part in (kernel_name, system.kernel, system.architecture) if part) if system else "",
        hostname=(system.hostname or "") if system else "",
        uptime=uptime.seconds if uptime else None,
        load=" ".join(f"{average:.2f}" for average in uptime.load) if uptime else "",
        cpus=facts.cpu.threads if facts.cpu else None,
        memory_total=total,
        memory_used=None if total is None or available is None else total - available,
        filesystems=list(facts.filesystems or ()),
        users=[f"{user.name} ({user.origin})" if user.origin else user.name for user in facts.users or ()],
    )


async def _windows_system(transport: Transport) -> SystemFacts:
    reported = await run_powershell(transport, "Reading the system", _WINDOWS_SYSTEM)
    total, free = int(reported["total"]) * _KIB, int(reported["free"]) * _KIB
    return SystemFacts(
        os=str(reported["os"]),
        hostname=str(reported["hostname"]),
        uptime=float(reported["uptime"]),
        load=str(reported["load"]),
        cpus=int(reported["cpus"]),
        memory_total=total,
        memory_used=total - free,
    )


# -- the guest agent, without running a command ------------------------------------------------------------------------


async def agent_facts(guest: Guest) -> SystemFacts:
    """What the agent of a VM reports itself. Raises a Problem if it does not answer at all."""
    system = await _agent_result(guest, "get-osinfo") or {}
    answers = await asyncio.gather(*(_agent_result_or_none(guest, name) for name in _AGENT_COMMANDS))
    host, zone, time, volumes, users, cpus = answers
    return SystemFacts(
        os=_os_name(system),
        kernel=str(system.get("kernel-release") or ""),
        hostname=str((host or {}).get("host-name", "")),
        timezone=str((zone or {}).get("zone", "")),
        clock=time / _NANOSECONDS if isinstance(time, int) else None,
        cpus=len([cpu for cpu in cpus if cpu.get("online")]) if isinstance(cpus, list) else None,
        filesystems=[_filesystem(row) for row in volumes or [] if row.get("total-bytes")],
        users=[_user(row) for row in users or []],
    )


async def _agent_result_or_none(guest: Guest, name: str) -> Any:
    """The result of an agent command; None if this agent lacks it."""
    try:
        return await _agent_result(guest, name)
    except Problem:
        return None


async def _agent_result(guest: Guest, name: str) -> Any:
    answer = await guest.get(f"agent/{name}")
    result = answer.get("result") if isinstance(answer, dict) else None
    return None if isinstance(result, dict) and "error" in result else result


def _os_name(system: Mapping[str, Any]) -> str:
    name = str(system.get("pretty-name") or system.get("name") or "")
    return f"{name} {system.get('version', '')}".strip() if name and not system.get("pretty-name") else name


def _filesystem(volume: Mapping[str, Any]) -> Filesystem:
    mount, kind = str(volume.get("mountpoint", "?")), str(volume.get("type", ""))
    return Filesystem(mount, "", kind, int(volume["total-bytes"]), int(volume.get("used-bytes", 0)))


def _user(user: Mapping[str, Any]) -> str:
    domain = f"{user['domain']}\\" if user.get("domain") else ""
    return f"{domain}{user.get('user', '?')}"
