"""quorate tools: what would be listed, and what one of them takes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.cli.options import OK, command, gate_options, surface_option
from quorate.cli.reference import explained, found
from quorate.config import load

if TYPE_CHECKING:
    from quorate.app import App
    from quorate.operations.registry import Operation


def add(commands: Any) -> None:
    tools = command(commands, "tools", _tools, "show the tools that would be listed; needs no cluster")
    tools.add_argument(
        "arguments", metavar="NAME", nargs="*", help="explain these, whether they would be listed or not"
    )
    tools.add_argument("--json", action="store_true", help="print the MCP `tools` array")
    gate_options(tools)
    surface_option(tools)
    tools.add_argument("--config", metavar="FILE", type=Path, help="TOML configuration")


def _tools(options: argparse.Namespace) -> int:
    if options.arguments:
        chosen = [found(name) for name in options.arguments]
        print(
            json.dumps(_described(chosen), ensure_ascii=False) if options.json else "\n\n".join(map(explained, chosen))
        )
        return OK
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
        print("\n`quorate tools NAME` explains one; --access admin and --toolsets all show more.", file=sys.stderr)
    return OK


def _described(chosen: list[Operation]) -> list[dict[str, Any]]:
    from quorate.surfaces.native import as_json, describe

    return as_json([describe(one) for one in chosen])


def _rows(app: App, surface: str) -> list[tuple[str, str, str, str]]:
    """Group, name, risk and summary; without the MCP SDK, whose import takes longer than the rest."""
    if surface == "native":
        from quorate.operations.registry import TOOLSETS

        listed = app.pipeline.visible()
        return [
            (f"{toolset}: {about}", one.name, one.risk.value, one.summary)
            for toolset, about in TOOLSETS.items()
            for one in listed
            if one.toolset == toolset
        ]
    if surface == "lean":
        from quorate.pipeline.caller import Caller
        from quorate.surfaces.lean import LeanSurface

        usable = LeanSurface(app.pipeline).usable(Caller())
        return [(f"surface {surface}", one.name, one.risk.value, one.about) for one in usable]
    from quorate.surfaces.compat import system

    return [(f"surface {surface}", one.name, one.risk.value, one.about) for one in system(surface).tools.values()]


def _print_table(rows: list[tuple[str, str, str, str]]) -> None:
    width = max((len(name) for _, name, _, _ in rows), default=0)
    last = ""
    for group, name, risk, summary in rows:
        if group != last:
            print(f"{chr(10) if last else ''}{group}")
            last = group
        print(f"  {name:<{width}}  {risk:<11}  {summary}")
