"""One tool, explained for the shell: what it does, what it takes, and a call to begin with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quorate.config import ConfigError

if TYPE_CHECKING:
    from quorate.operations.registry import Operation
    from quorate.surfaces.compat.declaring import Tool
    from quorate.surfaces.lean import Tool as LeanTool

WIDTH = 100
NATIVE, LEAN = "native", "lean"


def found(name: str) -> Operation:
    """The operation of this name, or an error that names what else may be meant."""
    from quorate.operations.registry import operation_named, operations

    if known := operation_named(name):
        return known
    from quorate.operations.meant import meant

    if elsewhere := _of_another_server(name):
        raise ConfigError(f"There is no tool {name!r} of ours: {elsewhere}")
    near = meant(name, operations())
    everything = "`quorate tools --access admin --toolsets all,homelab` has them all."
    hint = f"did you mean {' or '.join(near)}?" if near else everything
    raise ConfigError(f"There is no tool {name!r}: {hint}")


def _of_another_server(name: str) -> str:
    from quorate.surfaces.compat import SYSTEMS, system

    tools = {one: tool for one in SYSTEMS if (tool := system(one).tools.get(name))}
    if not tools:
        return ""
    natives = " or ".join(dict.fromkeys(tool.native for tool in tools.values()))
    return f"--surface {' or '.join(tools)} has it, and our own for the same is {natives}."


def tool_of(surface: str, name: str) -> Tool:
    """A tool of another server."""
    from quorate.operations.meant import meant
    from quorate.surfaces.compat import system

    tools = system(surface).tools
    if name in tools:
        return tools[name]
    near = meant(name, tools)
    hint = f"did you mean {' or '.join(near)}?" if near else f"`quorate tools --surface {surface}` has them all."
    raise ConfigError(f"{surface} has no tool {name!r}: {hint}")


def lean_tool(name: str) -> LeanTool:
    from quorate.surfaces.lean import TOOLS

    if name not in TOOLS:
        raise ConfigError(f"The lean surface has no tool {name!r}: it has {', '.join(TOOLS)}.")
    return TOOLS[name]


def explained(operation: Operation) -> str:
    facts = {"toolset": operation.toolset, "risk": _risk(operation)}
    return _page(f"quorate call {operation.name}", operation.summary, facts, operation.schema(), example(operation))


def explained_lean(name: str) -> str:
    tool = lean_tool(name)
    facts = {"surface": LEAN, "risk": f"{tool.risk.value}, needs --access {access_for(tool.risk)}"}
    call = f"quorate call --surface {LEAN} {name}"
    begin = f"{call} words='give a VM more memory'" if name == "pve_find" else f"{call} operation=guest_list"
    return _page(call, tool.about, facts, tool.schema(), begin)


def explained_tool(surface: str, tool: Tool) -> str:
    """One of another server: with its own gate, and how to ask for the same by our tools."""
    import shlex

    from quorate.cli.examples import stand_in

    gate = [f"{name}=true" for name in tool.gate.arguments]
    gate += [f"{tool.gate.variable} in the environment"] if tool.gate.variable else []
    facts = {
        "surface": surface,
        "risk": f"{tool.risk.value}, needs --access {access_for(tool.risk)}",
        **({"gate": f"its own: {' and '.join(gate)}"} if gate else {}),
        "ours": tool.native,
    }
    level = access_for(tool.risk)
    needed = [f"{one.name}={stand_in(one.name, one.schema())}" for one in tool.parameters if one.required]
    words = ["quorate", "call", "--surface", surface, tool.name, *needed]
    begin = shlex.join([*words, *(("--access", level) if level != "read" else ())])
    return _page(f"quorate call --surface {surface} {tool.name}", tool.about, facts, tool.schema(), begin)


def _page(call: str, summary: str, facts: Mapping[str, str], schema: Mapping[str, Any], begin: str) -> str:
    import textwrap

    from quorate.surfaces.describing import arguments_of

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
    import shlex

    from quorate.cli.examples import pairs
    from quorate.cli.key_values import key_values

    given = pairs(operation)
    risk = operation.risk if operation.risk_of is None else _risk_of(operation, key_values(given, operation.schema()))
    level = access_for(risk)
    words = ["quorate", "call", operation.name, *given]
    return shlex.join([*words, *(("--access", level) if level != "read" else ())])


def _risk_of(operation: Operation, given: Mapping[str, Any]) -> Any:
    from quorate.pipeline.arguments import decode

    assert operation.risk_of is not None
    return operation.risk_of(decode(operation, given))


def access_for(risk: Any) -> str:
    from quorate.pipeline.gate import NEEDED

    return NEEDED[risk].value


def _risk(operation: Operation) -> str:
    most = f"{operation.risk.value}, needs --access {access_for(operation.risk)}"
    if operation.risk_of is None:
        return most
    return f"{operation.least_risk.value} to {most}, by the arguments"
