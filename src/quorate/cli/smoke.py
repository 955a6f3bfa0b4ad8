"""quorate smoke: run a smoke test on a real cluster."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import replace
from typing import Any

from quorate.cli.options import FAILED, OK, cluster_options, command, gate_options, settings_from, with_demo_cluster
from quorate.cli.prompts import ask_operator
from quorate.config import Settings

SHOWN = ("vmid", "node", "count", "version", "pool", "upid", "result", "ok", "ipv4", "volid", "not_verified", "error")


def add(commands: Any) -> None:
    smoke = command(
        commands, "smoke", _smoke, "run a smoke test on a real cluster, as configured by PROXMOX_SMOKE_* variables"
    )
    smoke.add_argument("--setup", action="store_true", help="print the commands that create a user and a pool for it")
    smoke.add_argument("--json", action="store_true", help="print each step as a line of JSON")
    gate_options(smoke)
    cluster_options(smoke)


def _smoke(options: argparse.Namespace) -> int:
    from quorate.config.smoke import read_smoke, smoke_settings

    if options.setup:
        from quorate.smoke import setup_commands

        print("\n".join(setup_commands(smoke_settings())))
        return OK
    chosen = read_smoke()
    settings = replace(settings_from(options), surfaces=("solomonneas",))
    return asyncio.run(_run(settings, chosen, options))


async def _run(settings: Settings, chosen: Any, options: argparse.Namespace) -> int:
    from quorate.app import build
    from quorate.smoke import Smoke
    from quorate.surfaces.compat.surface import CompatSurface

    async with with_demo_cluster(settings, options.demo) as ready:
        app = build(ready)
        (tools,) = app.surfaces()
        assert isinstance(tools, CompatSurface)
        assert app.cluster is not None
        try:
            say = _say_json if options.json else _say
            smoke = Smoke(tools, chosen, clock=app.cluster.clock, say=say, ask=ask_operator(app.store))
            return OK if await smoke.run() else FAILED
        finally:
            await app.close()


def _say_json(step: str, well: bool, facts: dict[str, Any]) -> None:
    print(json.dumps({"step": step, "ok": well, **{key: facts[key] for key in SHOWN if key in facts and key != "ok"}}))


def _say(step: str, well: bool, facts: dict[str, Any]) -> None:
    shown = "  ".join(f"{key}={facts[key]}" for key in SHOWN if key in facts)
    print(
        f"{'ok  ' if well else 'FAIL'}  {step:<18} {shown}".rstrip(),
        file=sys.stdout if well else sys.stderr,
        flush=True,
    )
