"""Advice refers to tools by constants; each of them has to exist, and no layer below the operations spells a name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import quorate
from quorate import hints
from quorate.hints import ToolHint
from quorate.operations.registry import operations

SOURCE = Path(quorate.__file__).parent


def test_every_tool_hint_names_an_operation() -> None:
    named = {name: one.tool for name, one in vars(hints).items() if isinstance(one, ToolHint)}
    assert named
    assert not {name: tool for name, tool in named.items() if tool not in operations()}


@pytest.mark.parametrize("package", ["pve", "inside", "homelab", "ssh"])
def test_no_layer_below_the_operations_spells_the_name_of_a_tool(package: str) -> None:
    name = re.compile(rf"(?<![\w-])({'|'.join(operations())})(?![\w-])")
    modules = list((SOURCE / package).rglob("*.py"))
    assert modules
    assert not [f"{module}:{line}: {text}" for module in modules for line, text in _texts(module) if name.search(text)]


def _texts(module: Path) -> Iterator[tuple[int, str]]:
    """Every text in a module that is not documentation."""
    tree = ast.parse(module.read_text())
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.lineno, node.value
