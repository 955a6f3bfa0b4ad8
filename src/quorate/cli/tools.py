"""quorate tools: what would be listed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.cli.options import OK, command, gate_options, surface_option
from quorate.config import load

if TYPE_CHECKING:
    from quorate.app import App


def add(commands: Any) -> None:
    tools = command(commands, "tools", _tools, "show the tools that would be listed; needs no cluster")
    tools.add_argument("--json", action="store_true", help="print the MCP `tools` array")
    gate_options(tools)
    surface_option(tools)
    tools.add_argument("--config", metavar="FILE", type=Path, help="TOML configuration")


def _tools(options: argparse.Namespace) -> int:
    from quorate.app import build

    settings = load(
        file=options.config,
        access=options.access,
        toolsets=options.toolsets,
        approval=options.approval,
        surface=options.surface,
        tolerate=True,
    )
    app = build(settings)
    if options.json:
        from quorate.pipeline.caller import Caller
        from quorate.surfaces.native import as_json

        listed = [tool for surface in app.surfaces() for tool in surface.tools(Caller())]
        print(json.dumps(as_json(listed), ensure_ascii=False))
    else:
        _print_table([row for name in settings.surfaces for row in _rows(app, name)])
    return OK


def _rows(app: App, surface: str) -> list[tuple[str, str, str]]:
    """Name, risk and summary; without the MCP SDK, whose import takes longer than the rest."""
    if surface == "native":
        return [(one.name, one.risk.value, one.summary) for one in app.pipeline.visible()]
    if surface == "lean":
        from quorate.pipeline.caller import Caller
        from quorate.surfaces.lean import LeanSurface

        return [(one.name, one.risk.value, one.about) for one in LeanSurface(app.pipeline).usable(Caller())]
    from quorate.surfaces.compat import system

    return [(one.name, one.risk.value, one.about) for one in system(surface).tools.values()]


def _print_table(rows: list[tuple[str, str, str]]) -> None:
    width = max((len(name) for name, _, _ in rows), default=0)
    for name, risk, summary in rows:
        print(f"{name:<{width}}  {risk:<11}  {summary}")
