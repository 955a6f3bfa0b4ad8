"""Regular expressions read untrusted text: none of Quorate's, and none of PVE's that it applies, may take forever."""

from __future__ import annotations

import ast
import importlib
import multiprocessing
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import pve_schema
import quorate
from pve_schema import formats
from pve_schema.schema import NEWEST, OLDEST, facts
from tests.rigs.mcp_session import rig

PACKAGES = [Path(quorate.__file__).parent, Path(pve_schema.__file__).parent]
REPEATED = [
    *"a1-_., ;:/=@\t\n\"'[](){}%!*?+\\Aé|~#<>&$^`",
    "a-",
    "a.",
    "a,",
    "a:",
    "a/",
    "1.",
    "a=",
    "=,",
    "a=b,",
    "a ",
]
TIMES = 26
"""What takes exponential time takes minutes then; everything else takes microseconds."""
MOST_SECONDS = 120

Patterns = dict[tuple[str, int], str]


def own_patterns() -> Patterns:
    """Those that modules keep, and those that are written where they are used, each with its place."""
    patterns: Patterns = {}
    for file in (file for package in PACKAGES for file in package.rglob("*.py")):
        package = next(package for package in PACKAGES if file.is_relative_to(package))
        parts = file.relative_to(package.parent).with_suffix("").parts
        if parts[-1] == "__main__":
            continue
        module = ".".join(part for part in parts if part != "__init__")
        for pattern in within(vars(importlib.import_module(module))):
            patterns.setdefault((pattern.pattern, pattern.flags & ~re.UNICODE), module)
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(ast.Attribute(ast.Name("re")), [ast.Constant(str(text)), *_]):
                    patterns.setdefault((text, 0), module)
    return patterns


def within(value: Any, depth: int = 0) -> Iterator[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        if isinstance(value.pattern, str):
            yield value
    elif depth < 4 and isinstance(value, Mapping):
        for inner in list(value.values()):
            yield from within(inner, depth + 1)
    elif depth < 4 and isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from within(inner, depth + 1)


def patterns_of_pve() -> Patterns:
    patterns: Patterns = {}

    def note(schema: Any, where: str) -> None:
        if isinstance(schema, Mapping):
            for key in ("pattern", "re"):
                if isinstance(schema.get(key), str) and (compiled := formats.perl_regex(schema[key])):
                    patterns.setdefault((compiled.pattern, compiled.flags & ~re.UNICODE), where)
            for inner in schema.values():
                note(inner, where)

    for version in (NEWEST, OLDEST):
        for endpoint in facts(version).endpoints():
            note(endpoint.parameters, f"{endpoint.method} {endpoint.template}")
        note(facts(version).formats._table, "a format")
    return patterns


def try_all(patterns: Patterns, current: Any) -> None:
    texts = [
        before + repeated * TIMES + after
        for repeated in REPEATED
        for before in ("", "a", "/", "x=")
        for after in ("", "\0!")
    ]
    for number, (pattern, flags) in enumerate(patterns):
        current.value = number
        compiled = re.compile(pattern, flags)
        for text in texts:
            compiled.search(text)
            compiled.fullmatch(text)
    current.value = -1


@pytest.mark.thorough
def test_no_pattern_takes_forever() -> None:
    patterns = own_patterns() | patterns_of_pve()
    assert len(patterns) > 400
    current = multiprocessing.Value("i", 0)
    trying = multiprocessing.get_context("fork").Process(target=try_all, args=(patterns, current))
    trying.start()
    trying.join(MOST_SECONDS)
    trying.kill()
    trying.join()
    assert current.value == -1, list(patterns.items())[current.value]


@pytest.mark.anyio
async def test_a_long_list_of_nothing_is_read_at_once(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        call = {"method": "PUT", "path": "/nodes/pve1/qemu/108/config", "dry_run": True}
        await quorate.call("api_call", **call, params={"delete": "description" + ",; " * 5000 + "\t"})
