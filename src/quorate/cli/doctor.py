"""quorate doctor: check the setup and say how to fix it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from quorate.cli.options import FAILED, OK, cluster_options, command, gate_options, only_cluster, with_demo_cluster
from quorate.config import ConfigError, Settings, load

if TYPE_CHECKING:
    from quorate.doctor import Finding

WORDS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL", "skip": "skip"}


def add(commands: Any) -> None:
    doctor = command(
        commands,
        "doctor",
        _doctor,
        "check settings, connection, certificate, token, privileges and SSH, and say how to fix problems",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.epilog = "Exit code 0 if nothing failed (there may be warnings), otherwise 1."
    gate_options(doctor)
    cluster_options(doctor)


def _doctor(options: argparse.Namespace) -> int:
    findings = asyncio.run(_findings(options))
    if options.json:
        failed = any(one.state == "fail" for one in findings)
        print(json.dumps({"ok": not failed, "findings": [asdict(one) for one in findings]}, ensure_ascii=False))
        return FAILED if failed else OK
    return _print(findings)


async def _findings(options: argparse.Namespace) -> list[Finding]:
    from quorate.doctor import HERE, Findings

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
        found.fail("settings", str(error), "Correct that setting; docs/configuration.md explains all of them")
        return found
    async with with_demo_cluster(settings, options.demo) as ready:
        return await _check(ready, options.demo)


async def _check(settings: Settings, demo: bool) -> list[Finding]:
    from quorate.doctor.cluster import check_cluster
    from quorate.doctor.hosts import check_hosts
    from quorate.doctor.local import check_settings, check_state
    from quorate.operations.registry import TOOLSETS
    from quorate.operations.toolsets import in_use
    from quorate.pipeline.sites import chosen_toolsets
    from quorate.pve.clock import SystemClock

    toolsets = [name for name in in_use(chosen_toolsets(settings)) if name in TOOLSETS]
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


def _print(findings: Sequence[Finding]) -> int:
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
    print(
        f"{failed} failed, {warned} warning{'' if warned == 1 else 's'}." if failed or warned else "No problems found."
    )
    return FAILED if failed else OK


def _plain(text: str) -> str:
    """Remove control characters: the text may come from a server."""
    from quorate.pipeline.sanitization import clean_text

    return clean_text(text).replace("\n", " ").replace("\t", " ")
