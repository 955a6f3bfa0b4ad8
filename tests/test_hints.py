"""Advice refers to tools by constants; each of them has to exist."""

from __future__ import annotations

from quorate import hints
from quorate.hints import ToolHint
from quorate.operations.registry import operations


def test_every_tool_hint_names_an_operation() -> None:
    named = {name: one.tool for name, one in vars(hints).items() if isinstance(one, ToolHint)}
    assert named
    assert not {name: tool for name, tool in named.items() if tool not in operations()}
