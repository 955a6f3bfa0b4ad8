"""What to suggest to someone who calls a tool that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterable

from quorate.operations.registry import Operation, Risk
from quorate.suggestions import MAX_TOOLS, suggest_tool


def suggest_instead(name: str, among: Iterable[Operation]) -> str:
    """One of these tools that the name may mean; empty if none comes near."""
    tools = {one.name: one for one in among}
    return suggest_tool(name, tools, "") or _related_tools(name, tools.values())


def _related_tools(name: str, among: Iterable[Operation]) -> str:
    """Tools for what the name says. None that destroys: a guess is taken for advice."""
    from quorate.surfaces.tool_search import Finder

    found = Finder(among).find(" ".join(re.split(r"[^A-Za-z0-9]+", name)))
    near = [one.name for one in found if one.risk is not Risk.DESTROY][:MAX_TOOLS]
    return f"Related tools: {', '.join(near)}." if near else ""


def of_other_servers(name: str) -> tuple[list[str], str]:
    """The surfaces that have a tool of this name, and what replaces it in the native one."""
    from quorate.surfaces.compat import SYSTEMS, system

    tools = {one: tool for one in SYSTEMS if (tool := system(one).tools.get(name))}
    return list(tools), " or ".join(dict.fromkeys(tool.native for tool in tools.values()))
