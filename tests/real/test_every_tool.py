"""Every tool for hosts on every host of the laboratory: it works there, or says clearly why it does not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from quorate.operations.registry import operations
from tests.real.homelab import LAN, HomelabLab
from tests.real.lab import Lab
from tests.real.test_homelab_day import NAMES, day
from tests.rigs.mcp_session import Rig, text_of

pytestmark = pytest.mark.anyio

DEAD = "10.78.1.99"
ALIVE = tuple(name for name in NAMES if name != "dead")
NO_SUDO = {"web": "sudo: a password is required"}
NO_MANAGER = dict.fromkeys(("pi", "bare"), "has no package manager that Quorate knows")
NO_INIT = dict.fromkeys(("pi", "bare"), "this machine runs neither systemd nor OpenRC")
NO_NAPPING = NO_INIT | dict.fromkeys(("nas", "desk", "web"), "There is no service 'napping'")
NO_LOG = dict.fromkeys(("nas", "desk", "pi", "web", "bare"), "This machine keeps no journal and no system log")
NO_ENGINE = dict.fromkeys(ALIVE, "has no container engine")
REFUSED_BY_SUDO = {"web": "sudo does not allow the command"}
"""Where nothing is possible on any host, each reason is one sentence."""
NO_COMPOSE = dict.fromkeys(ALIVE, "There is no Compose on host") | REFUSED_BY_SUDO
NO_ACCOUNT = dict.fromkeys(ALIVE, "There is no account quorate on host") | REFUSED_BY_SUDO
CANNOT_ADMINISTER = NO_SUDO | {"bare": "has no program to create accounts", "units": "has no sudo"}
UNTOUCHED = {"dead": ""}
"""For what needs no connection."""


@dataclass(frozen=True)
class Case:
    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    """Host -> a part of the reason. The dead one is added; all others must work."""


LOOKS = (
    Case("host_status"),
    Case("host_file", {"path": "/etc/passwd"}),
    Case("host_file", {"path": "/root", "sudo": True}, NO_SUDO),
    Case("host_service", {}, NO_INIT),
    Case("host_service", {"service": "napping"}, NO_NAPPING),
    Case("host_logs", {"lines": 1}, NO_LOG),
    Case("host_logs", {"path": "/etc/passwd", "pattern": "^root"}),
    Case("workload_usage", {}, NO_ENGINE),
    Case("host_list", {}, UNTOUCHED),
    Case("host_verify", {}),
    Case("host_discover", {}),
    Case("host_export", {}, UNTOUCHED),
    Case("workload_list", {}, NO_ENGINE),
    Case("workload_logs", {"name": "web"}, NO_ENGINE),
    Case("service_check", {"service": "uptime-kuma"}),
    Case("service_status"),
)
PREVIEWS = (
    Case("host_upgrade", {"refresh": False}, NO_MANAGER),
    Case("host_reboot"),
    Case("workload_prune", {}, NO_ENGINE),
    Case("host_admin_setup", {}, CANNOT_ADMINISTER),
    Case("host_admin_groups", {}, NO_ACCOUNT),
    Case("host_admin_remove", {}, NO_SUDO),
    Case("host_update", {"labels": ["seen"]}, UNTOUCHED),
    Case("service_install", {"service": "uptime-kuma"}, NO_COMPOSE),
    Case("project_update", {"project": "photos"}, NO_ENGINE),
    Case("workload_deploy", {"name": "web", "image": "nginx"}, NO_ENGINE),
)
"""Called with dry_run=true."""
CHANGES = (
    Case("host_exec", {"command": "id -un; uname -s"}),
    Case("host_exec", {"command": ["id", "-un"], "sudo": True}, NO_SUDO),
    Case("host_file_write", {"path": "/tmp/day", "content": "hello\n"}),
    Case("host_file_write", {"path": "/srv/more", "content": "x" * 4_000_000, "sudo": True},
         NO_SUDO | {"nas": "/srv/more could not be written. It said: cat: write error: No space left on device"}),
    Case("host_service_control", {"service": "napping", "action": "start"}, NO_NAPPING | NO_SUDO),
    Case("host_upgrade", {"refresh": False}, NO_MANAGER | NO_SUDO),
)  # fmt: skip
LAST = Case("host_service_control", {"service": "napping", "action": "stop"}, NO_NAPPING | NO_SUDO)
ELSEWHERE = {"host_admin_verify", "host_job", "host_import", "host_register", "host_remove", "host_shell_open"}
"""Below, in test_homelab_day.py (jobs, restarts), or on the page of the HTTP server."""


def test_no_tool_for_hosts_is_left_out() -> None:
    tested = {case.tool for case in (*LOOKS, *PREVIEWS, *CHANGES)} | ELSEWHERE
    tools = {name for name, operation in operations().items() if operation.toolset in ("hosts", "host_admin")}
    assert tools <= tested


def reasons(answer: Any) -> dict[str, str]:
    """Host -> why it did not work there; hosts without a reason are left out."""
    content = answer.structured_content or {}
    if not content:  # possible on none of them: one error that names each
        return {name: text_of(answer) for name in NAMES if f"host {name}:" in text_of(answer)}
    table = content["hosts"] if isinstance(content.get("hosts"), dict) else content
    rows = [dict(zip(table.get("columns", ()), row, strict=True)) for row in table.get("rows", ())]
    reasons_by_host = {str(row["host"]): row.get("why") or row.get("why_not") or "" for row in rows if "host" in row}
    reasons_by_host |= dict(line.split(": ", 1) for line in content.get("failures", ()))
    return {name.removeprefix("host "): why for name, why in reasons_by_host.items() if why}


async def ask(quorate: Rig, case: Case, **more: Any) -> dict[str, str]:
    hosts = "hosts" if case.tool == "host_export" else "host"
    return reasons(await quorate.call(case.tool, **{hosts: "all"}, **case.arguments, **more))


async def check(quorate: Rig, case: Case, **more: Any) -> None:
    told = await ask(quorate, case, **more)
    expected = {"dead": DEAD, **case.refusals}
    for name in NAMES:
        why, part = told.get(name, ""), expected.get(name, "")
        assert (part in why) if part else not why, (case.tool, case.arguments, name, why)


async def test_every_tool_works_on_every_host_or_says_why_it_does_not(
    lab: Lab, homelab: HomelabLab, tmp_path: Path
) -> None:
    async with day(lab, homelab, tmp_path) as quorate:
        keyless = reasons(await quorate.call("host_admin_verify", host="all"))
        assert all("There is no key for an account" in keyless[name] for name in ALIVE), keyless
        await asyncio.gather(*(check(quorate, case) for case in LOOKS))
        await asyncio.gather(*(check(quorate, case, dry_run=True) for case in PREVIEWS))
        try:
            await asyncio.gather(*(check(quorate, case) for case in CHANGES))
        finally:
            await quorate.call("host_exec", host=list(ALIVE), command=["rm", "-f", "/srv/more", "/tmp/day"], sudo=True)
        await check(quorate, LAST)
        status = await quorate.rows("host_status")
        assert status[0]["host"] == "host dead"
        full = next(row for row in status if row["host"] == "host nas")
        assert "disk" in full["attention"]
        assert full["disk"].startswith("/srv ")
        scanned = await quorate.facts("host_import", source="scan", targets=[f"{LAN.prefix}.0/28"], dry_run=True)
        [router] = scanned["missing"].values()
        assert f"quorate trust {LAN.prefix}.1" in router
        assert len(scanned["unchanged"]) == 3
        for name in NAMES:
            await quorate.facts("host_remove", host=name)
