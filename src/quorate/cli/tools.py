"""quorate tools: list the tools, or explain one."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.cli.options import OK, command, gate_options, surface_option
from quorate.cli.tool_help import (
    LEAN,
    NATIVE,
    access_for,
    explain_lean,
    explain_native,
    explain_of_system,
    find_lean,
    find_native,
    find_of_system,
)
from quorate.config import load

if TYPE_CHECKING:
    from mcp.types import Tool as ListedTool

    from quorate.app import App

Row = tuple[str, str, str, str, str]
"""Group, name, risk, required access level, summary."""


def add(commands: Any) -> None:
    tools = command(commands, "tools", _tools, "list the tools; needs no cluster")
    tools.add_argument("arguments", metavar="NAME", nargs="*", help="explain these tools, listed or not")
    tools.add_argument("--json", action="store_true", help="print the MCP `tools` array")
    gate_options(tools)
    surface_option(tools)
    tools.add_argument("--config", metavar="FILE", type=Path, help="TOML configuration")


def _tools(options: argparse.Namespace) -> int:
    if options.arguments:
        _explain(options.arguments, options.surface or NATIVE, as_json=options.json)
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
        print(f"\n{_legend(settings.surfaces)}", file=sys.stderr)
    return OK


# -- one ---------------------------------------------------------------------------------------------------------------


def _explain(names: list[str], surface: str, *, as_json: bool) -> None:
    if as_json:
        from quorate.surfaces import native

        print(json.dumps(native.as_json([_describe_tool(surface, name) for name in names]), ensure_ascii=False))
    else:
        print("\n\n".join(_explain_one(surface, name) for name in names))


def _explain_one(surface: str, name: str) -> str:
    if surface == NATIVE:
        return explain_native(find_native(name))
    return explain_lean(name) if surface == LEAN else explain_of_system(surface, find_of_system(surface, name))


def _describe_tool(surface: str, name: str) -> ListedTool:
    if surface == NATIVE:
        from quorate.surfaces.native import describe

        return describe(find_native(name))
    if surface == LEAN:
        from quorate.surfaces.lean import describe_tool

        return describe_tool(find_lean(name))
    from quorate.surfaces.compat.surface import describe_tool as describe_foreign

    return describe_foreign(find_of_system(surface, name))


# -- all ---------------------------------------------------------------------------------------------------------------


def _rows(app: App, surface: str) -> list[Row]:
    """The rows of a surface, without importing the MCP SDK, which takes longer than everything else."""
    if surface == NATIVE:
        from quorate.operations.registry import EVERY

        listed = app.pipeline.visible()
        return [
            _row(f"{toolset}: {about}", one, one.summary)
            for toolset, about in EVERY.items()
            for one in listed
            if one.toolset == toolset
        ]
    if surface == LEAN:
        from quorate.pipeline.caller import Caller
        from quorate.surfaces.lean import LeanSurface

        return [_row(f"surface {surface}", one, one.about) for one in LeanSurface(app.pipeline).usable(Caller())]
    from quorate.surfaces.compat import system

    return [_row(f"surface {surface}", one, one.about) for one in system(surface).tools.values()]


def _row(group: str, tool: Any, about: str) -> Row:
    return group, tool.name, tool.risk.value, access_for(tool.risk), about


def _print_table(rows: list[Row]) -> None:
    width = max((len(name) for _, name, *_ in rows), default=0)
    last = ""
    for group, name, risk, access, summary in rows:
        if group != last:
            print(f"{chr(10) if last else ''}{group}")
            last = group
        print(f"  {name:<{width}}  {risk:<11}  {access:<7}  {summary}")


def _legend(surfaces: tuple[str, ...]) -> str:
    columns = "Columns: name, risk, required access level, summary."
    if surfaces == (NATIVE,):
        return f"{columns} `quorate tools NAME` explains one; --access admin and --toolsets all,homelab show more."
    return f"{columns} `quorate tools --surface {surfaces[0]} NAME` explains one."
