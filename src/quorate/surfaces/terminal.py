"""Answers and progress for a person at a terminal."""

from __future__ import annotations

from typing import Any, TextIO

from quorate.operations.registry import Table
from quorate.surfaces import rendering

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
