"""Answers as compact text and as structured content, with the same facts in both."""

from __future__ import annotations

from typing import Any

from quorate.operations.registry import Table
from quorate.pve.errors import Problem


def structured(data: dict[str, Any] | Table) -> dict[str, Any]:
    if not isinstance(data, Table):
        return {key: value for key, value in data.items() if value not in ("", None, [], {})}
    more = {} if data.next_offset is None else {"next_offset": data.next_offset}
    note = {"note": data.note} if data.note else {}
    return {
        "columns": list(data.columns),
        "rows": data.rows,
        "total": data.total,
        **more,
        **note,
        **data.facts,
    }


def text(data: dict[str, Any] | Table) -> str:
    """Tab-separated rows for a table, `key: value` lines for the rest."""
    if not isinstance(data, Table):
        return "\n".join(_lines(structured(data), ""))
    lines = ["\t".join(data.columns)] if data.rows else []
    lines += ["\t".join(_cell(value) for value in row) for row in data.rows]
    return "\n".join([*lines, _footer(data), *_lines(data.facts, "")])


def _footer(table: Table) -> str:
    if not table.total:
        return "none found"
    shown = f"{len(table.rows)} of {table.total}"
    if table.next_offset is None:
        return shown
    return f"{shown}; next: offset={table.next_offset}" + (f"; {table.note}" if table.note else "")


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("\t", " ").replace("\n", " ")


def _lines(values: dict[str, Any], indent: str) -> list[str]:
    lines: list[str] = []
    for key, value in values.items():
        if isinstance(value, dict) and value.keys() == {"columns", "rows"}:
            lines += [f"{indent}{key}:", *("\t".join(map(_cell, row)) for row in (value["columns"], *value["rows"]))]
        elif isinstance(value, dict):
            lines.append(f"{indent}{key}:")
            lines += _lines(value, indent + "  ") or [f"{indent}  none"]
        elif isinstance(value, list):
            lines += _list(key, value, indent)
        elif isinstance(value, str) and "\n" in value:
            # Every line is set in by the same: a file keeps its shape, and no line of it passes for one of ours.
            lines += [f"{indent}{key}:", *(f"{indent}  {line}" for line in value.split("\n"))]
        else:
            lines.append(f"{indent}{key}: {_scalar(value, indent)}")
    return lines


def _list(key: str, items: list[Any], indent: str) -> list[str]:
    if all(isinstance(item, str) and len(item) < 40 for item in items):
        return [f"{indent}{key}: {', '.join(items)}"]
    lines = [f"{indent}{key}:"]
    for item in items:
        if isinstance(item, dict):
            first, *rest = _lines(item, indent + "  ") or [""]
            lines += [f"{indent}- {first.strip()}", *rest]
        else:
            lines.append(f"{indent}- {_scalar(item, indent)}")
    return lines


def _scalar(value: Any, indent: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value).replace("\n", f"\n{indent}  ")


def problem_text(problem: Problem) -> str:
    """What happened, why, what to do next; then the facts that help, such as the task and the end of its log."""
    lines = [str(problem)]
    if "task" in problem.facts:
        lines.append(f"Task: {problem.facts['task']}")
    if problem.facts.get("log"):
        lines += ["Log:", *(f"  {line}" for line in problem.facts["log"])]
    return "\n".join(lines)
