"""What a Windows guest tells about itself beyond its agent: load, memory, uptime, routes."""

from __future__ import annotations

from quorate.inside.posix_network import Surroundings
from quorate.inside.system_facts import SystemFacts
from quorate.inside.way import Way
from quorate.inside.windows import ask

_FACTS = """$o=Get-CimInstance Win32_OperatingSystem
$c=@(Get-CimInstance Win32_Processor)
@{os=$o.Caption+' '+$o.Version;hostname=$env:COMPUTERNAME;uptime=[int64]((Get-Date)-$o.LastBootUpTime).TotalSeconds
total=[int64]$o.TotalVisibleMemorySize;free=[int64]$o.FreePhysicalMemory
load="$([int]($c|Measure-Object LoadPercentage -Average).Average)%"
cpus=[int]($c|Measure-Object NumberOfLogicalProcessors -Sum).Sum}"""
_NETWORK = """@{gateways=@(Get-NetRoute -DestinationPrefix '0.0.0.0/0','::/0' -ErrorAction SilentlyContinue|
Sort-Object RouteMetric|ForEach-Object{$_.NextHop+' dev '+$_.InterfaceAlias})
dns=@(Get-DnsClientServerAddress -ErrorAction SilentlyContinue|ForEach-Object{$_.ServerAddresses}|Select-Object -Unique)
search=@((Get-DnsClientGlobalSetting).SuffixSearchList)}"""
_KIB = 1024


async def system_facts(way: Way) -> SystemFacts:
    told = await ask(way, "Asking about the system", _FACTS)
    total, free = int(told["total"]) * _KIB, int(told["free"]) * _KIB
    return SystemFacts(
        os=str(told["os"]),
        hostname=str(told["hostname"]),
        uptime=float(told["uptime"]),
        load=str(told["load"]),
        cpus=int(told["cpus"]),
        memory_total=total,
        memory_used=total - free,
    )


async def surroundings(way: Way) -> Surroundings:
    told = await ask(way, "Asking for the network", _NETWORK)
    gateways, dns, search = ([str(one) for one in told.get(key) or []] for key in ("gateways", "dns", "search"))
    return Surroundings(gateways=gateways, dns=dns, search=search)
