"""Help for one tool: what it does, its arguments, and an example call."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.cli.options import OK, add_command, gate_options, surface_option
from quorate.config import ConfigError, load
from quorate.operations.arguments import decode
from quorate.operations.registry import EVERY, NEEDED, find_operation, operations
from quorate.pipeline.caller import Caller
from quorate.suggestions import suggest_tool
from quorate.surfaces.arguments import arguments_of, example_pairs, parse_pairs, placeholder

if TYPE_CHECKING:
    from mcp.types import Tool as ListedTool

    from quorate.app import App
    from quorate.operations.registry import Operation
    from quorate.surfaces.compat.declaration import Tool
    from quorate.surfaces.lean import Tool as LeanTool


WIDTH = 100
NATIVE, LEAN = "native", "lean"


def find_native(name: str) -> Operation:
    """The operation of this name, or an error with a suggestion."""
    if known := find_operation(name):
        return known

    from quorate.surfaces.tool_search import find_in_other_servers, suggest_instead

    surfaces, natives = find_in_other_servers(name)
    if surfaces:
        raise ConfigError(
            f"There is no native tool {name!r}: --surface {' or '.join(surfaces)} has it; "
            f"the native equivalent is {natives}."
        )
    everything = "`quorate tools --access admin --toolsets all,homelab` lists them all."
    raise ConfigError(
        f"There is no tool {name!r}. {suggest_instead(name, operations().values())} {everything}".replace("  ", " ")
    )


def find_of_system(surface: str, name: str) -> Tool:
    """A tool of another server."""
    from quorate.surfaces.compat import system

    tools = system(surface).tools
    if name in tools:
        return tools[name]
    hint = suggest_tool(name, tools, f"`quorate tools --surface {surface}` lists them all.")
    raise ConfigError(f"{surface} has no tool {name!r}. {hint}")


def find_lean(name: str) -> LeanTool:
    from quorate.surfaces.lean import TOOLS

    if name not in TOOLS:
        raise ConfigError(f"The lean surface has no tool {name!r}: it has {', '.join(TOOLS)}.")
    return TOOLS[name]


def explain_native(operation: Operation) -> str:
    facts = {"toolset": operation.toolset, "risk": _risk(operation)}
    return _page(f"quorate call {operation.name}", operation.summary, facts, operation.schema(), example(operation))


def explain_lean(name: str) -> str:
    tool = find_lean(name)
    facts = {"surface": LEAN, "risk": f"{tool.risk.value}, needs --access {access_for(tool.risk)}"}
    call = f"quorate call --surface {LEAN} {name}"
    call_example = f"{call} words='give a VM more memory'" if name == "pve_find" else f"{call} operation=guest_list"
    return _page(call, tool.about, facts, tool.schema(), call_example)


def explain_of_system(surface: str, tool: Tool) -> str:
    """A tool of another server, with its own gate and its native equivalent."""
    gate = [f"{name}=true" for name in tool.gate.arguments]
    gate += [f"{tool.gate.variable} in the environment"] if tool.gate.variable else []
    facts = {
        "surface": surface,
        "risk": f"{tool.risk.value}, needs --access {access_for(tool.risk)}",
        **({"gate": f"its own: {' and '.join(gate)}"} if gate else {}),
        "native": tool.native,
    }
    level = access_for(tool.risk)
    needed = [
        f"{parameter.name}={placeholder(parameter.name, parameter.schema())}"
        for parameter in tool.parameters
        if parameter.required
    ]
    words = ["quorate", "call", "--surface", surface, tool.name, *needed]
    begin = shlex.join([*words, *(("--access", level) if level != "read" else ())])
    return _page(f"quorate call --surface {surface} {tool.name}", tool.about, facts, tool.schema(), begin)


def _page(call: str, summary: str, facts: Mapping[str, str], schema: Mapping[str, Any], begin: str) -> str:
    lines = [f"{call} [key=value ...]", "", *textwrap.wrap(summary, WIDTH), ""]
    lines += [f"{name:<9}{text}" for name, text in facts.items()]
    lines += ["", "arguments"]
    described = arguments_of(schema)
    width = max((len(name) for name in described), default=0) + 1
    for name, about in described.items():
        first, *rest = textwrap.wrap(about, WIDTH - width - 4) or [""]
        lines.append(f"  {name + '=':<{width}}  {first}")
        lines += [" " * (width + 4) + line for line in rest]
    if not described:
        lines.append("  none")
    return "\n".join([*lines, "", "example", f"  {begin}"])


def example(operation: Operation) -> str:
    arguments = example_pairs(operation)
    risk = (
        operation.risk if operation.risk_of is None else _risk_of(operation, parse_pairs(arguments, operation.schema()))
    )
    level = access_for(risk)
    words = ["quorate", "call", operation.name, *arguments]
    return shlex.join([*words, *(("--access", level) if level != "read" else ())])


def _risk_of(operation: Operation, arguments: Mapping[str, Any]) -> Any:
    assert operation.risk_of is not None
    return operation.risk_of(decode(operation, arguments))


def access_for(risk: Any) -> str:
    return NEEDED[risk].value


def _risk(operation: Operation) -> str:
    most = f"{operation.risk.value}, needs --access {access_for(operation.risk)}"
    if operation.least_risk is operation.risk:
        return most
    return f"{operation.least_risk.value} to {most}, depending on the arguments"


Row = tuple[str, str, str, str, str]
"""Group, name, risk, required access level, summary."""


def add(commands: Any) -> None:
    tools = add_command(commands, "tools", _tools)
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
        listed = app.pipeline.visible()
        return [
            _row(f"{toolset}: {about}", operation, operation.summary)
            for toolset, about in EVERY.items()
            for operation in listed
            if operation.toolset == toolset
        ]
    if surface == LEAN:
        from quorate.surfaces.lean import LeanSurface

        return [_row(f"surface {surface}", tool, tool.about) for tool in LeanSurface(app.pipeline).usable(Caller())]
    from quorate.surfaces.compat import system

    return [_row(f"surface {surface}", tool, tool.about) for tool in system(surface).tools.values()]


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
