"""One read of several clusters: tables are merged, other results get one part for each cluster."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from quorate.operations.registry import IllustratedFacts, Table
from quorate.pipeline.routing import ask_within_limit
from quorate.pipeline.sites import Site
from quorate.problems import BadArgument, NotFound, Problem

Data = dict[str, Any] | Table | IllustratedFacts
Ask = Callable[[Site, Mapping[str, Any]], Awaitable[Data]]

NO_ANSWER = "no_answer"


async def ask_all(sites: Sequence[Site], arguments: Mapping[str, Any], ask: Ask) -> Data:
    """Ask all of them in parallel. The result names the ones that do not answer in time."""
    limit, offset = arguments.get("limit"), arguments.get("offset", 0)
    # The first rows of every cluster contain the requested page, wherever it begins.
    wide = {**arguments, "limit": offset + limit} if limit else dict(arguments)
    if "offset" in arguments:
        wide["offset"] = 0
    answers = await asyncio.gather(*(ask_within_limit(site, lambda one: ask(one, wide)) for site in sites))
    by_site = {site.name: answer for site, answer in zip(sites, answers, strict=True)}
    parts = {name: answer for name, answer in by_site.items() if not isinstance(answer, Problem)}
    problems = {name: answer for name, answer in by_site.items() if isinstance(answer, Problem)}
    if not parts:
        raise _explain_silence(problems)
    # A cluster without such a node or storage is not mentioned if another one has it.
    silent = {name: str(one) for name, one in problems.items() if not isinstance(one, (NotFound, BadArgument))}
    if all(isinstance(part, Table) for part in parts.values()):
        return _one_table(parts, silent, limit, offset if "offset" in arguments else None)
    pictures = [picture for part in parts.values() if isinstance(part, IllustratedFacts) for picture in part.pictures]
    facts = {name: _facts(part) for name, part in parts.items()} | {
        name: {NO_ANSWER: why} for name, why in silent.items()
    }
    return IllustratedFacts(facts, tuple(pictures)) if pictures else facts


def _explain_silence(problems: Mapping[str, Problem]) -> Problem:
    """Every cluster failed: one reason if it is the same everywhere, otherwise all of them."""
    first = next(iter(problems.values()))
    if len({str(problem) for problem in problems.values()}) > 1:
        first.what = " ".join(f"{name}: {problem.what}" for name, problem in problems.items())
        first.why = None
    return first


def _facts(part: Data) -> dict[str, Any]:
    if isinstance(part, IllustratedFacts):
        return part.facts
    if isinstance(part, Table):
        return {"columns": list(part.columns), "rows": part.rows, **part.facts}
    return part


def _one_table(parts: Mapping[str, Table], silent: Mapping[str, str], limit: int | None, offset: int | None) -> Table:
    """`offset` is None where there are no pages, only a number of rows."""
    columns = list(dict.fromkeys(column for part in parts.values() for column in part.columns))
    rows = _merge_rows({name: (part, _wide_rows(name, part, columns)) for name, part in parts.items()})
    begin = offset or 0
    shown = rows[begin : begin + limit] if limit else rows
    facts = {name: part.facts for name, part in parts.items() if part.facts}
    return Table(
        columns=("cluster", *columns),
        rows=shown,
        total=len(shown) if offset is None else sum(part.total for part in parts.values()),
        offset=begin,
        note=next((part.note for part in parts.values() if part.note), None),
        facts={**facts, **({NO_ANSWER: dict(silent)} if silent else {})},
    )


def _wide_rows(name: str, part: Table, columns: Sequence[str]) -> list[list[Any]]:
    place = {column: index for index, column in enumerate(part.columns)}
    return [[name, *(row[place[column]] if column in place else "" for column in columns)] for row in part.rows]


def _merge_rows(parts: Mapping[str, tuple[Table, list[list[Any]]]]) -> list[list[Any]]:
    """Merge the rows in order if the tables have sort keys, otherwise cluster by cluster."""
    if all(len(table.keys) == len(rows) for table, rows in parts.values()):
        keyed = (
            zip(table.keys, itertools.repeat(number), rows, strict=False)
            for number, (table, rows) in enumerate(parts.values())
        )
        return [row for _, _, row in heapq.merge(*keyed, key=lambda one: one[:2])]
    return [row for _, rows in parts.values() for row in rows]
