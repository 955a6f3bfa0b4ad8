"""quorate doctor: whether everything is as it has to be, and what to do if not."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from quorate.cli.options import FAILED, OK, cluster_options, command, gate_options, on_cluster, only_cluster
from quorate.config import ConfigError, Settings, load

if TYPE_CHECKING:
    from quorate.checkup.findings import Finding

WORDS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL", "skip": "skip"}


def add(commands: Any) -> None:
    doctor = command(
        commands,
        "doctor",
        _doctor,
        "check settings, connection, certificate, token, privileges and SSH, and say what to do",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.epilog = "Exit code 0 if nothing failed (warnings may stand), 1 if something did."
    gate_options(doctor)
    cluster_options(doctor)


def _doctor(options: argparse.Namespace) -> int:
    findings = asyncio.run(_findings(options))
    if options.json:
        failed = any(one.state == "fail" for one in findings)
        print(json.dumps({"ok": not failed, "findings": [asdict(one) for one in findings]}, ensure_ascii=False))
        return FAILED if failed else OK
    return _told(findings)


async def _findings(options: argparse.Namespace) -> list[Finding]:
    from quorate.checkup.findings import HERE, Findings

    try:
        settings = load(
            file=options.config,
            access=options.access,
            toolsets=options.toolsets,
            approval=options.approval,
            tolerate=True,
        )
        settings = only_cluster(settings, None if options.demo else options.cluster)
    except ConfigError as error:
        found = Findings(HERE)
        found.fail("settings", str(error), "Correct what is named; docs/configuration.md explains every setting")
        return found
    async with on_cluster(settings, options.demo) as ready:
        return await _examined(ready, options.demo)


async def _examined(settings: Settings, demo: bool) -> list[Finding]:
    from quorate.checkup.cluster import check_cluster
    from quorate.checkup.home import check_settings, check_state
    from quorate.checkup.hosts import check_hosts
    from quorate.operations.registry import DEFAULT_TOOLSETS, TOOLSETS
    from quorate.pve.clock import SystemClock

    chosen = settings.toolsets or DEFAULT_TOOLSETS
    toolsets = [name for name in TOOLSETS if name in chosen or "all" in chosen]
    clock = SystemClock()
    parts = await asyncio.gather(
        check_state(settings, clock),
        *(
            check_cluster(one, (one.access or settings.access).value, toolsets, clock, simulated=demo)
            for one in settings.clusters
        ),
        check_hosts(settings, clock),
    )
    return [*check_settings(settings), *(finding for part in parts for finding in part)]


def _told(findings: Sequence[Finding]) -> int:
    place = ""
    for one in findings:
        if one.place != place:
            place = one.place
            print(place)
        print(f"  {WORDS[one.state]}  {one.check:<12}  {_plain(one.says)}")
        if one.do and one.state != "ok":
            print(f"        -> {_plain(one.do)}")
        for line in one.commands:
            print(f"           {_plain(line)}")
        sys.stdout.flush()
    failed = sum(one.state == "fail" for one in findings)
    warned = sum(one.state == "warn" for one in findings)
    print(f"{failed} failed, {warned} to look at." if failed or warned else "All is well.")
    return FAILED if failed else OK


def _plain(text: str) -> str:
    """A server's words must not draw on the terminal."""
    from quorate.pipeline.sanitise import clean_text

    return clean_text(text).replace("\n", " ").replace("\t", " ")
