"""quorate tools: what would be listed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from quorate.cli.options import OK, command, gate_options
from quorate.config import load


def add(commands: Any) -> None:
    tools = command(commands, "tools", _tools, "show the tools that would be listed; needs no cluster")
    tools.add_argument("--json", action="store_true", help="print the MCP `tools` array")
    gate_options(tools)
    tools.add_argument("--config", metavar="FILE", type=Path, help="TOML configuration")


def _tools(options: argparse.Namespace) -> int:
    from quorate.app import build

    settings = load(file=options.config, access=options.access, toolsets=options.toolsets, tolerate=True)
    visible = build(settings).pipeline.visible()
    if options.json:
        from quorate.surfaces.native import as_json, describe

        print(json.dumps(as_json([describe(operation) for operation in visible]), ensure_ascii=False))
        return OK
    width = max((len(operation.name) for operation in visible), default=0)
    for operation in visible:
        print(f"{operation.name:<{width}}  {operation.risk.value:<8}  {operation.summary}")
    return OK
