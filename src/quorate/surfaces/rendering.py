"""Answers as compact text and as structured content, with the same facts in both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TextIO

from quorate.hints import Naming, resolve
from quorate.operations.registry import Table
from quorate.problems import Problem
from quorate.surfaces import rendering
from quorate.units import Quantity


def render_advice(data: dict[str, Any] | Table, name: Naming = str) -> dict[str, Any] | Table:
    """The same answer with its advice as text, in which `name` writes the calls of tools."""
    if isinstance(data, Table):
        return replace(
            data, rows=resolve(data.rows, name), note=resolve(data.note, name), facts=resolve(data.facts, name)
        )
    resolved: dict[str, Any] = resolve(data, name)
    return resolved


def text_and_structure(data: dict[str, Any] | Table, name: Naming = str) -> tuple[str, dict[str, Any]]:
    """The answer for people and models, and for programs."""
    rendered = render_advice(data, name)
    return _text(rendered), _structure(rendered)


def structure(data: dict[str, Any] | Table, name: Naming = str) -> dict[str, Any]:
    """The answer for programs: raw values, and a table as columns and rows, which is half the size of objects."""
    return _structure(render_advice(data, name))


def _structure(data: dict[str, Any] | Table) -> dict[str, Any]:
    if isinstance(data, Table):
        return {"columns": list(data.columns), "rows": raw(data.rows), **_table_facts(data)}
    return _drop_empty(raw(data))


def objects(data: dict[str, Any] | Table, name: Naming = str) -> dict[str, Any]:
    """The answer for scripts: raw values, and every table as a list of objects without empty values."""
    data = render_advice(data, name)
    if isinstance(data, Table):
        return {
            "items": _to_objects(data.columns, raw(data.rows)),
            **{key: _unfold(item) for key, item in _table_facts(data).items()},
        }
    unfolded: dict[str, Any] = _unfold(_drop_empty(raw(data)))
    return unfolded


def raw(value: Any) -> Any:
    """The same structure with the values that its texts stand for: bytes, seconds, fractions, ISO times."""
    if isinstance(value, Quantity):
        return value.value
    if isinstance(value, dict):
        return {key: raw(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [raw(item) for item in value]
    return value


def _table_facts(table: Table) -> dict[str, Any]:
    more = {} if table.next_offset is None else {"next_offset": table.next_offset}
    note = {"note": table.note} if table.note else {}
    return {"total": table.total, **more, **note, **raw(table.facts)}


def _drop_empty(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in ("", None, [], {})}


def _to_objects(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    return [_drop_empty(dict(zip(columns, row, strict=True))) for row in rows]


def _unfold(value: Any) -> Any:
    """Convert the tables inside an answer to lists of objects."""
    if isinstance(value, dict) and value.keys() == {"columns", "rows"}:
        return _to_objects(value["columns"], value["rows"])
    if isinstance(value, dict):
        return {key: _unfold(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unfold(item) for item in value]
    return value


def text(data: dict[str, Any] | Table, name: Naming = str) -> str:
    """Tab-separated rows for a table, `key: value` lines for the rest."""
    return _text(render_advice(data, name))


def _text(data: dict[str, Any] | Table) -> str:
    if not isinstance(data, Table):
        return "\n".join(_lines(_drop_empty(data), ""))
    return "\n".join([*_table(data.columns, data.rows), _footer(data), *_lines(data.facts, "")])


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """A line per row, without the columns that are empty in all of them."""
    cells = [[_cell(value) for value in row] for row in rows]
    filled = [index for index in range(len(columns)) if any(row[index] for row in cells)]
    lines = [columns, *cells] if cells else []
    return ["\t".join(line[index] for index in filled) for line in lines]


def _footer(table: Table) -> str:
    if not table.total:
        return "none found"
    shown = f"{len(table.rows)} of {table.total}"
    if table.next_offset is None:
        return shown
    return f"{shown}; next: offset={table.next_offset}" + (f"; {table.note}" if table.note else "")


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        value = ", ".join(f"{key}: {_cell(item)}" for key, item in value.items())
    elif isinstance(value, list):
        value = "; ".join(map(_cell, value))
    elif isinstance(value, bool):
        value = _yes_or_no(value)
    # The lines of an output stay apart.
    return "" if value is None else str(value).rstrip("\n").replace("\t", " ").replace("\n", r"\n")


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def _lines(values: dict[str, Any], indent: str) -> list[str]:
    lines: list[str] = []
    for key, raw_value in values.items():
        value = _without_line_end(raw_value)
        if isinstance(value, dict) and value.keys() == {"columns", "rows"}:
            lines += [f"{indent}{key}:", *_table(value["columns"], value["rows"])]
        elif isinstance(value, dict):
            lines.append(f"{indent}{key}:")
            lines += _lines(value, indent + "  ") or [f"{indent}  none"]
        elif isinstance(value, list):
            lines += _list(key, value, indent)
        elif isinstance(value, str) and "\n" in value:
            # Every line is indented equally: a file keeps its shape, and none of its lines looks like one of Quorate's.
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
        return _yes_or_no(value)
    if value is None or isinstance(value, list):
        return ", ".join(map(_cell, value or ())) or "none"
    return str(_without_line_end(value)).replace("\n", f"\n{indent}  ")


def _without_line_end(value: Any) -> Any:
    """A text that ends with its last line, not with a blank one."""
    return value.removesuffix("\n") if isinstance(value, str) else value


def problem_text(problem: Problem, name: Naming = str) -> str:
    """What happened, why, what to do next; then the facts that help, such as the task and the end of its log."""
    lines = [problem.render(name)]
    if "task" in problem.facts:
        lines.append(f"Task: {problem.facts['task']}")
    if problem.facts.get("log"):
        lines += ["Log:", *(f"  {line}" for line in problem.facts["log"])]
    return "\n".join(lines)


BAR_WIDTH = 30
LINE_WIDTH = 100


class ProgressBar:
    """One line that redraws itself; where nobody looks it is silent, or a line per step if `always`."""

    def __init__(self, stream: TextIO, *, always: bool = False) -> None:
        self._stream = stream
        self._redraws = stream.isatty()
        self._on = always or self._redraws
        self._drawn = False

    async def show(self, done: float, whole: float | None, line: str) -> None:
        if self._on:
            share = min(done / (whole or 100.0), 1.0)
            filled = round(share * BAR_WIDTH)
            text = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {share:4.0%} {line}"
            line = text[:LINE_WIDTH]
            self._stream.write(f"\r{line:<{LINE_WIDTH}}" if self._redraws else f"{line}\n")
            self._stream.flush()
            self._drawn = self._redraws

    def clear(self) -> None:
        if self._drawn:
            self._stream.write("\r" + " " * LINE_WIDTH + "\r")
            self._stream.flush()
            self._drawn = False


def readable(data: dict[str, Any] | Table) -> str:
    return align(rendering.text(data))


def align(text: str) -> str:
    """Tab-separated lines as aligned columns; all other lines as they are."""
    rows = [line.split("\t") for line in text.split("\n")]
    table = [row for row in rows if len(row) > 1]
    if not table:
        return text
    columns = max(len(row) for row in table)
    widths = [max((len(row[index]) for row in table if index < len(row)), default=0) for index in range(columns)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        if len(row) > 1
        else row[0]
        for row in rows
    )
