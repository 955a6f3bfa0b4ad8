"""A Windows guest as Quorate sees it: the answers that PowerShell would give to the scripts that are sent.

PowerShell itself does not run here. The tests show that the scripts do not depend on the caller's values, that values
arrive as data, and that output in the form of ConvertTo-Json is understood.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

from pve_simulator.guest_os.execution import Io
from tests.rigs.mcp_session import Rig
from tests.rigs.simulated_guests import WINDOWS, files, machine

WIN = 103
_VALUES = re.compile(r"FromBase64String\('([A-Za-z0-9+/=]*)'\)")


class Thrown(Exception):
    """An exception of .NET: its type and its message."""


class PowerShell:
    def __init__(self, quorate: Rig) -> None:
        self.scripts: list[str] = []
        self.values: list[dict[str, Any]] = []
        self.services: dict[str, dict[str, Any]] = {
            "Spooler": service("Spooler", "Print Spooler", "Running", pid=1200),
            "wuauserv": service("wuauserv", "Windows Update", "Stopped", start="Manual"),
            "MSSQL$PROD": service("MSSQL$PROD", "SQL Server (PROD)", "Running", pid=2222),
        }
        self.breaks: dict[str, str] = {}
        self._files = files(quorate, WIN)
        self._parts: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
            ("[IO.File]::Open($v.path", self._write),
            ("[IO.File]::Replace", self._finish),
            ("[IO.File]::Create", self._prepare),
            ("Get-ChildItem", self._list),
            ("Remove-Item", self._discard),
            ("Get-Item -LiteralPath", self._stat),
            ("Get-NetRoute", self._network),
            ("Win32_OperatingSystem", self._facts),
            ("$v.service}", self._service),
            ("Get-CimInstance Win32_Service|ForEach-Object", self._services),
            ("-StartupType", self._startup),
            ("-Service -Name $v.service", self._control),
        ]

    def __call__(self, io: Io, args: list[str]) -> int:
        assert args[:2] == ["-NoProfile", "-NonInteractive"]
        script = base64.b64decode(args[args.index("-EncodedCommand") + 1]).decode("utf-16-le")
        encoded = _VALUES.search(script)
        values = json.loads(base64.b64decode(encoded[1]) if encoded else io.stdin)
        self.scripts.append(_VALUES.sub("FromBase64String('')", script))
        self.values.append(values)
        part = next(part for mark, part in self._parts if mark in script)
        try:
            answer: dict[str, Any] = {"value": part(values | {"script": script})}
        except Thrown as error:
            kind, text = error.args
            answer = {"error": text, "kind": kind}
        if encoded:
            io.out.extend(base64.b64encode(json.dumps(answer).encode()))
        return 0

    # -- files: the simulated disk has them by their whole name ----------------------------------------------------

    def _at(self, path: str) -> str:
        return f"/{path}"

    def _told(self, path: str) -> dict[str, Any]:
        entry = self._files.find(self._at(path))
        if entry is None and not self._children(path):
            raise Thrown("ItemNotFoundException", f"Cannot find path '{path}' because it does not exist.")
        name = path.rpartition("\\")[2] or path
        folder = entry is None
        return {
            "name": name, "folder": folder, "size": 0 if entry is None else len(entry.read()),
            "modified": 1_768_464_000, "attributes": "Directory" if folder else "Archive", "link": False, "target": "",
        }  # fmt: skip

    def _children(self, path: str) -> list[str]:
        start = path.rstrip("\\") + "\\"
        names = [name.removeprefix(start) for name in self._files.get("/").children if name.startswith(start)]
        return sorted({name.partition("\\")[0] for name in names})

    def _stat(self, values: dict[str, Any]) -> dict[str, Any]:
        return self._told(values["path"]) | {"owner": "BUILTIN\\Administrators"}

    def _list(self, values: dict[str, Any]) -> dict[str, Any]:
        path = values["path"]
        if not self._told(path)["folder"]:
            return {"folder": False}
        names = self._children(path)
        entries = [self._told(path.rstrip("\\") + "\\" + name) for name in names[: values["most"]]]
        return {"folder": True, "cut": len(names) > values["most"], "entries": entries}

    def _prepare(self, values: dict[str, Any]) -> dict[str, Any]:
        path = values["path"]
        folder = path.rpartition("\\")[0]
        if self._children(path):
            return {"folder": True}
        if folder.count("\\") and not self._children(folder) and not values["parents"]:
            raise Thrown("DirectoryNotFoundException", f"no folder {folder}")
        old = self._files.find(self._at(path))
        temporary = ""
        if old is None or not values["append"]:
            temporary = f"{folder}\\.quorate-0f0f"
            self._files.write(self._at(temporary), b"")
        return {"folder": False, "old": None if old is None else len(old.read()), "temporary": temporary}

    def _finish(self, values: dict[str, Any]) -> None:
        data = self._files.read(self._at(values["temporary"]))
        if "finish" in self.breaks:
            raise Thrown("UnauthorizedAccessException", self.breaks["finish"])
        assert len(data) == values["size"]
        self._files.write(self._at(values["path"]), data)
        self._files.remove(self._at(values["temporary"]))

    def _write(self, values: dict[str, Any]) -> None:
        data, append = base64.b64decode(values["data"]), values["how"] == "Append"
        self._files.write(self._at(values["path"]), data, append=append)

    def _discard(self, values: dict[str, Any]) -> None:
        self._files.remove(self._at(values["path"]))

    # -- services --------------------------------------------------------------------------------------------------

    def _service(self, values: dict[str, Any]) -> dict[str, Any]:
        service = next(
            (candidate for name, candidate in self.services.items() if name.lower() == values["service"].lower()), None
        )
        if service is None:
            return {"found": False}
        log = ["2026-01-15 08:00:00Z The service terminated with error 1067."] * min(values["log"], 1)
        return service | {"found": True, "log": log}

    def _services(self, _values: dict[str, Any]) -> dict[str, Any]:
        return {"services": list(self.services.values())}

    def _startup(self, values: dict[str, Any]) -> None:
        automatic = "-StartupType Automatic" in values["script"]
        self.services[values["service"]]["start"] = "Auto" if automatic else "Manual"

    def _control(self, values: dict[str, Any]) -> None:
        name, script = values["service"], values["script"]
        if name in self.breaks:
            raise Thrown("ServiceCommandException", self.breaks[name])
        stops = "Stop-Service" in script and "Restart-Service" not in script
        self.services[name] |= {"state": "Stopped", "pid": 0} if stops else {"state": "Running", "pid": 3333}

    # -- facts -----------------------------------------------------------------------------------------------------

    def _facts(self, _values: dict[str, Any]) -> dict[str, Any]:
        return {
            "os": "Microsoft Windows Server 2022 Standard 10.0.20348", "hostname": "WIN-1", "uptime": 90_061,
            "total": 4 * 1024 * 1024, "free": 1024 * 1024, "load": "7%", "cpus": 4,
        }  # fmt: skip

    def _network(self, _values: dict[str, Any]) -> dict[str, Any]:
        return {"gateways": ["192.168.10.1 dev Ethernet"], "dns": ["192.168.10.2"], "search": None}


def service(name: str, title: str, state: str, *, start: str = "Auto", pid: int = 0) -> dict[str, Any]:
    return {"name": name, "title": title, "state": state, "start": start, "pid": pid, "code": 0}


def windows(quorate: Rig) -> PowerShell:
    """Turn guest 103 into a Windows machine."""
    quorate.sim.world.guests[WIN].system = WINDOWS
    shell = PowerShell(quorate)
    machine(quorate, WIN).own_commands["powershell.exe"] = shell
    for path in ("C:\\Windows\\system.ini", "C:\\Data\\old.txt"):
        files(quorate, WIN).write(f"/{path}", b"for 16-bit app support\r\n")
    return shell
