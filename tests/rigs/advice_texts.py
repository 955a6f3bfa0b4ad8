"""Texts for callers in the source: literals, and advice that the code builds, found in the syntax tree."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import quorate
from quorate import hints
from quorate.hints import NAMED, OMITTED, Advice, ToolHint, see

SOURCE = Path(quorate.__file__).parent
OWN_WORDS = ("cli", "doctor", "config", "surfaces")
"""Packages that speak to operators, or name the tools of their own surface."""
BUILDERS = {"Advice", "Sentence", "see", "either", "append_advice", "refuse_combination"}
KEYS = re.compile(r"what|why|next|next_step|note|warnings|unchanged|to_do|\w+_cut")
VALUE = "X"


def literal_texts(folder: Path = SOURCE) -> Iterator[tuple[str, str]]:
    """Every literal text in problems, advice, notes and warnings, with its place and without its placeholders."""
    for module, tree in _modules(folder):
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for root in _roots(tree):
            for node in ast.walk(root):
                text = _text(node)
                if text is not None and id(node) not in parts and " " in text:
                    plain = re.sub(r"`[^`]*`|\{\w+\}", "", text)
                    yield f"{module.relative_to(SOURCE)}:{node.lineno}", plain  # type: ignore[attr-defined]


@functools.cache
def built_advice() -> list[Advice]:
    """Every piece of advice that the source builds, with a letter for values that are known only at run time."""
    texts = []
    for _, tree in _modules(SOURCE):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node.func) in ("Advice", "see", "append_advice"):
                arguments = node.args[1:] if _name(node.func) == "append_advice" else node.args
                text = _text(arguments[0]) if arguments else None
                if text is not None:
                    build = see if _name(node.func) == "see" else Advice
                    tools = [tool for argument in arguments[1:] if (tool := _tool(argument))]
                    texts.append(
                        build(
                            text,
                            *tools,
                            **{keyword.arg: _value(keyword.value) for keyword in node.keywords if keyword.arg},
                        )
                    )
    return texts


@functools.cache
def _modules(folder: Path) -> list[tuple[Path, ast.Module]]:
    modules = (path for path in folder.rglob("*.py") if path.relative_to(folder).parts[0] not in OWN_WORDS)
    return [(module, ast.parse(module.read_text())) for module in modules]


def _roots(tree: ast.Module) -> Iterator[ast.AST]:
    """The expressions whose texts a caller reads."""
    for node in ast.walk(tree):
        match node:
            case ast.Raise(exc=ast.Call() as raised):
                yield raised
            case ast.Call() if _name(node.func) in BUILDERS:
                yield node
            case (
                ast.keyword(arg=str(key), value=value)
                | ast.Assign(
                    targets=[ast.Attribute(attr=str(key)) | ast.Subscript(slice=ast.Constant(value=str(key)))],
                    value=value,
                )
            ) if KEYS.fullmatch(key):
                yield value
            case ast.Dict():
                for name, value in zip(node.keys, node.values, strict=True):
                    if isinstance(name, ast.Constant) and KEYS.fullmatch(str(name.value)):
                        yield value


def _name(node: ast.expr) -> str:
    return getattr(node, "id", getattr(node, "attr", ""))


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(VALUE if isinstance(part, ast.FormattedValue) else str(_text(part)) for part in node.values)
    return None


def _tool(node: ast.expr) -> ToolHint | None:
    call = node if isinstance(node, ast.Call) else None
    tool = getattr(hints, _name(call.func if call else node), None)
    if not isinstance(tool, ToolHint):
        return None
    return tool(**{keyword.arg: _value(keyword.value) for keyword in call.keywords if keyword.arg}) if call else tool


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    return {"NAMED": NAMED, "OMITTED": OMITTED}.get(_name(node), VALUE)
