"""Check names and sentences against docs/style.md, which holds the tables of what to avoid."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "docs" / "style.md"
FOREIGN_WORDS = (
    ROOT / "tests",
    ROOT / "packages",
    ROOT / "src" / "quorate" / "surfaces" / "tool_search.py",
)
"""String literals in these are test data, PVE's answers or search words; only docstrings and comments are checked."""

SOURCES = ("src", "packages/pve-schema/src", "packages/pve-simulator/src")

NOUNS = frozenset(
    {"drawing", "housekeeping", "keyring", "mapping", "networking", "parsing", "rendering", "routing", "sighting"}
)
"""Words that look like participles but are nouns of the field."""

Passage = tuple[int, str]
"""The line where a piece of text starts, and the text."""


def main() -> int:
    findings = sorted(
        {*check_phrases(), *check_module_names(), *check_definitions(), *check_function_names(), *check_name_parts()}
    )
    for finding in findings:
        sys.stderr.write(finding + "\n")
    if findings:
        sys.stderr.write(f"{len(findings)} findings; docs/style.md says what to write instead.\n")
    return 1 if findings else 0


def check_phrases() -> Iterator[str]:
    rows = _table("Phrases to avoid")
    instead = {phrase: cells[1] for cells in rows for phrase in _split(cells[0])}
    fine = [phrase for cells in rows for phrase in _split(cells[2])]
    phrases = "|".join(
        re.escape(phrase) for phrase in [*fine, *instead]
    )  # the first match wins, so exceptions come first
    pattern = re.compile(rf"(?<![\w`.-])(?:{phrases})(?![\w`-])", re.IGNORECASE)
    for path in _files():
        for line, passage in _python(path) if path.suffix == ".py" else _paragraphs(path):
            for phrase in pattern.findall(" ".join(passage.split())):
                if phrase.lower() in instead:
                    yield f"{_relative(path)}:{line}: “{phrase}” (write: {instead[phrase.lower()]})"


def check_module_names() -> Iterator[str]:
    for path in _python_files(*SOURCES, "tools", "bench"):
        word = path.stem.rpartition("_")[2]
        if re.fullmatch(r"\w+(ing|ed)", word) and word not in NOUNS:
            yield f"{_relative(path)}:1: module named with a participle"


def check_definitions() -> Iterator[str]:
    instead = {name: cells[1] for cells in _table("Names to avoid") for name in _split(cells[0])}
    for path in _python_files(*SOURCES):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = node.name.lstrip("_")
                if name in instead:
                    yield f"{_relative(path)}:{node.lineno}: “{node.name}” (write: {instead[name]})"


def check_function_names() -> Iterator[str]:
    words = {cells[0]: _split(cells[1]) for cells in _table("Participles in function names")}
    for path in _python_files(*SOURCES):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_attribute_or_predicate(node):
                continue
            first, *rest = node.name.strip("_").split("_")
            last = rest[-1] if rest else first
            participle = last in words["irregular"] or (last.endswith("ed") and last not in words["not participles"])
            if participle and not (rest and first in words["verbs"]) and node.name not in words["callbacks"]:
                yield f"{_relative(path)}:{node.lineno}: “{node.name}” is a participle (write: a verb phrase)"


def _is_attribute_or_predicate(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    returns = ast.unparse(node.returns) if node.returns else ""
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    return returns.startswith(("bool", "TypeGuard", "TypeIs")) or any(
        "property" in decorator for decorator in decorators
    )


def check_name_parts() -> Iterator[str]:
    rows = _table("Words to avoid in names")
    instead = {word: cells[1] for cells in rows for word in _split(cells[0])}
    fine = {name for cells in rows for name in _split(cells[2])}
    for path in _python_files(*SOURCES, "tools", "bench"):
        for line, name in _names(ast.parse(path.read_text())):
            for word in set(name.lower().split("_")) & instead.keys() if name not in fine else ():
                yield f"{_relative(path)}:{line}: “{word}” in “{name}” (write: {instead[word]})"


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Everything that the code names: definitions, arguments, assigned variables and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr


def _table(heading: str) -> list[list[str]]:
    section = GUIDE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def _split(cell: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in cell.split(",") if part.strip())


def _files() -> list[Path]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "packages").rglob("*.md")]
    chosen = [path for path in pages if path != GUIDE and _chosen(path)]
    return chosen + _python_files("src", "packages", "tests", "tools", "bench")


def _python_files(*folders: str) -> list[Path]:
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in files if _chosen(path)]


def _chosen(path: Path) -> bool:
    """All files, or those under the paths given as arguments."""
    return not sys.argv[1:] or any(path.is_relative_to(ROOT / folder) for folder in sys.argv[1:])


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _paragraphs(path: Path) -> Iterator[Passage]:
    line = 1
    for paragraph in path.read_text().split("\n\n"):
        yield line, paragraph
        line += paragraph.count("\n") + 2


def _python(path: Path) -> Iterator[Passage]:
    """Comments and docstrings, and all other string literals except in `FOREIGN_WORDS`."""
    source = path.read_text()
    yield from _comments(source)
    only_docstrings = any(path.is_relative_to(word) for word in FOREIGN_WORDS)
    yield from _docstrings(ast.parse(source)) if only_docstrings else _literals(ast.parse(source))


def _comments(source: str) -> Iterator[Passage]:
    """Comments on consecutive lines are one passage."""
    start, last, words = 0, -1, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, text = token.start[0], token.string.lstrip("# ")
        if line == last + 1:
            words, last = f"{words} {text}", line
            continue
        yield start, words
        start, last, words = line, line, text
    yield start, words


def _docstrings(tree: ast.AST) -> Iterator[Passage]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def _literals(tree: ast.AST) -> Iterator[Passage]:
    """String literals; an f-string is one passage, with a hyphen for each of its values."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (str(part.value) if isinstance(part, ast.Constant) else "-" for part in node.values)
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


if __name__ == "__main__":
    sys.exit(main())
