"""Services of Windows guests, through PowerShell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.hints import Advice
from quorate.inside.service_state import Service, no_service
from quorate.inside.transport import Transport
from quorate.inside.windows_files import run_powershell
from quorate.problems import BadArgument

_TELL = """function Tell($s){@{name=$s.Name;title=$s.DisplayName;state="$($s.State)";start="$($s.StartMode)"
pid=[int]$s.ProcessId;code=[int64]$s.ExitCode}}
"""
_STATUS = (
    _TELL
    + """$s=@(Get-CimInstance Win32_Service|Where-Object{$_.Name -eq $v.service})
if($s.Count -eq 0){@{found=$false}}else{
$t=Tell $s[0]
$t.found=$true
$t.log=@()
if($v.log -gt 0){
$of=@{LogName='System';ProviderName='Service Control Manager'}
$t.log=@(try{Get-WinEvent -FilterHashtable $of -MaxEvents 200|
Where-Object{$_.Message -and ($_.Message.Contains($s[0].DisplayName) -or $_.Message.Contains($s[0].Name))}|
Select-Object -First $v.log|
ForEach-Object{$_.TimeCreated.ToUniversalTime().ToString('yyyy-MM-dd HH:mm:ssZ ')+$_.Message}}catch{})}
$t}"""
)
_LIST = _TELL + "@{services=@(Get-CimInstance Win32_Service|ForEach-Object{Tell $_})}"
_ACT = {
    "start": "Start-Service -Name $v.service",
    "stop": "Stop-Service -Name $v.service",
    "restart": "Restart-Service -Name $v.service",
    "enable": "Set-Service -Name $v.service -StartupType Automatic",
    # Not "Disabled", which would forbid manual starts, too.
    "disable": "Set-Service -Name $v.service -StartupType Manual",
}
_STATES = {
    "Running": "active", "Stopped": "inactive", "Start Pending": "activating", "Stop Pending": "deactivating",
    "Continue Pending": "activating", "Pause Pending": "deactivating", "Paused": "inactive",
}  # fmt: skip
_STARTS = {"Auto": "enabled", "Boot": "enabled", "System": "enabled", "Manual": "disabled", "Disabled": "masked"}
# Success, or not started since boot.
_NO_ERROR = (0, 1077)


async def status(transport: Transport, name: str, *, log_lines: int = 0) -> Service:
    facts = await run_powershell(transport, f"Reading the service {name}", _STATUS, service=name, log=log_lines)
    if not facts["found"]:
        raise no_service(name)
    return _service(facts)


async def list_services(transport: Transport) -> list[Service]:
    return [_service(row) for row in (await run_powershell(transport, "Listing the services", _LIST))["services"]]


async def act(transport: Transport, service: Service, action: str, *, seconds: float) -> None:
    if action not in _ACT:
        raise BadArgument(
            f"Windows services do not support {action}", next_step=Advice("Use {action}", action="restart")
        )
    await run_powershell(
        transport, f"{action.capitalize()} of {service.name}", _ACT[action], seconds=seconds, service=service.name
    )


def _service(row: Mapping[str, Any]) -> Service:
    code = int(row["code"])
    return Service(
        name=str(row["name"]),
        manager="windows",
        state=_STATES.get(str(row["state"]), str(row["state"])),
        detail=str(row["state"]),
        enabled=_STARTS.get(str(row["start"]), str(row["start"])),
        description=str(row["title"]),
        pid=int(row["pid"]),
        result="" if code in _NO_ERROR or row["state"] == "Running" else f"exit code {code}",
        busy=str(row["state"]).endswith("Pending"),
        log=[str(line) for line in row.get("log") or []],
    )
