"""Help for one tool: what it does, its arguments, and an example call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quorate.config import ConfigError
from quorate.suggestions import suggest_tool

if TYPE_CHECKING:
    from quorate.operations.registry import Operation
    from quorate.surfaces.compat.declaration import Tool
    from quorate.surfaces.lean import Tool as LeanTool

WIDTH = 100
NATIVE, LEAN = "native", "lean"


def find_native(name: str) -> Operation:
    """The operation of this name, or an error with a suggestion."""
    from quorate.operations.registry import find_operation, operations

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
    import shlex

    from quorate.surfaces.argument_pairs import placeholder

    gate = [f"{name}=true" for name in tool.gate.arguments]
    gate += [f"{tool.gate.variable} in the environment"] if tool.gate.variable else []
    facts = {
        "surface": surface,
        "risk": f"{tool.risk.value}, needs --access {access_for(tool.risk)}",
        **({"gate": f"its own: {' and '.join(gate)}"} if gate else {}),
        "native": tool.native,
    }
    level = access_for(tool.risk)
    needed = [f"{one.name}={placeholder(one.name, one.schema())}" for one in tool.parameters if one.required]
    words = ["quorate", "call", "--surface", surface, tool.name, *needed]
    begin = shlex.join([*words, *(("--access", level) if level != "read" else ())])
    return _page(f"quorate call --surface {surface} {tool.name}", tool.about, facts, tool.schema(), begin)


def _page(call: str, summary: str, facts: Mapping[str, str], schema: Mapping[str, Any], begin: str) -> str:
    import textwrap

    from quorate.surfaces.argument_help import arguments_of

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

    from quorate.surfaces.argument_pairs import example_pairs, parse_pairs

    given = example_pairs(operation)
    risk = operation.risk if operation.risk_of is None else _risk_of(operation, parse_pairs(given, operation.schema()))
    level = access_for(risk)
    words = ["quorate", "call", operation.name, *given]
    return shlex.join([*words, *(("--access", level) if level != "read" else ())])


def _risk_of(operation: Operation, given: Mapping[str, Any]) -> Any:
    from quorate.pipeline.arguments import decode

    assert operation.risk_of is not None
    return operation.risk_of(decode(operation, given))


def access_for(risk: Any) -> str:
    from quorate.operations.registry import NEEDED

    return NEEDED[risk].value


def _risk(operation: Operation) -> str:
    most = f"{operation.risk.value}, needs --access {access_for(operation.risk)}"
    if operation.risk_of is None:
        return most
    return f"{operation.least_risk.value} to {most}, depending on the arguments"
