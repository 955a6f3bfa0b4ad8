"""quorate runs: list, follow and control durable runs, or continue them without a server."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from quorate.cli.options import (
    FAILED,
    OK,
    STILL_RUNNING,
    actions_of,
    add_command,
    cluster_options,
    gate_options,
    with_app,
    with_store,
)
from quorate.config import Access
from quorate.hints import resolve
from quorate.pipeline.caller import Caller, Exchange
from quorate.pipeline.redaction import clean, one_line
from quorate.runs.control import WAITS_FOR_WORKER, describe, describe_progress
from quorate.runs.start import access_for
from quorate.runs.store import ACTIVE, RunState, RunStore
from quorate.units import iso_times, moment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from quorate.app import App
    from quorate.runs.runs import MissingRequirement
    from quorate.runs.store import Run


FOLLOW_SECONDS = 1.0


def add(commands: Any) -> None:
    runs = add_command(commands, "runs", _list)
    runs.epilog = (
        "Runs are started with `quorate call`, such as `quorate call run_evacuate node=pve1 --access operate`."
    )
    runs.add_argument("--all", action="store_true", help="include runs that have ended")
    runs.add_argument("--json", action="store_true", help="print JSON")
    add_action = actions_of(runs, gate_options, cluster_options)
    for name, run, summary in (
        ("show", _show, "show state, report and log of a run"),
        ("follow", _follow, "print the log of a run until it ends or pauses"),
        ("pause", _pause, "finish the current step, then stop"),
        ("resume", _resume, "continue a paused run; may need approval"),
        ("abort", _abort, "finish the current step, then report what is left"),
    ):
        action = add_action(name, run, summary)
        action.add_argument("id", metavar="ID", help="id of the run, as listed")
    add_action("work", _work, "continue all runs that no server is working on, until they end or pause")


def _list(options: argparse.Namespace) -> int:
    async def run(store: RunStore) -> int:
        rows = await store.list(tuple(RunState) if options.all else ACTIVE, limit=200)
        if options.json:
            print(json.dumps(clean([_plain(row) for row in rows]), ensure_ascii=False))
        elif not rows:
            print("There are no runs." if options.all else "No run is active.")
        for row in () if options.json else rows:
            why = WAITS_FOR_WORKER if await store.lacks_worker(row) else describe_progress(row)
            reason = f"  ({one_line(why)})" if why else ""
            print(f"{row.id}  {row.state.value:<8}  {row.cluster}  {one_line(row.title)}{reason}")
        return OK

    return _with_runs(options, run)


def _show(options: argparse.Namespace) -> int:
    async def run(store: RunStore) -> int:
        stored = await store.get(options.id)
        facts = clean(resolve(describe(stored, 1000, lacks_worker=await store.lacks_worker(stored))))
        if "next" in facts:
            resume = f"quorate runs resume {stored.id} --access {access_for(stored.tool)}"
            facts["next"] = f"Fix the reason, then run `{resume}`, or `quorate runs abort {stored.id}`"
        for name, value in facts.items():
            if name == "log":
                continue
            print(f"{name:<9} {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
        print(*facts["log"], sep="\n")
        return OK

    return _with_runs(options, run)


def _follow(options: argparse.Namespace) -> int:
    async def run(store: RunStore) -> int:
        return await follow(store, options.id)

    return _with_runs(options, run)


async def follow(store: RunStore, name: str) -> int:
    """Print new lines of the log as they appear."""
    last = 0.0
    shown: set[tuple[float, str]] = set()
    while True:
        run = await store.get(name)
        for line in run.log:
            if line.time >= last and (line.time, line.text) not in shown:
                shown.add((line.time, line.text))
                last = line.time
                print(f"{moment(line.time)} {one_line(line.text)}", flush=True)
        if run.state.has_ended or run.state is RunState.PAUSED:
            print(f"{run.state.value}: {one_line(run.reason)}")
            return _code(run)
        await asyncio.sleep(FOLLOW_SECONDS)


def _pause(options: argparse.Namespace) -> int:
    async def run(store: RunStore) -> int:
        return _say(await store.pause(options.id, _operator_name()))

    return _with_runs(options, run)


def _abort(options: argparse.Namespace) -> int:
    async def run(store: RunStore) -> int:
        return _say(await store.abort(options.id, _operator_name(), origin=Caller(_operator_name(), "cli").as_origin()))

    return _with_runs(options, run)


def _resume(options: argparse.Namespace) -> int:
    async def run(app: App) -> int:
        await app.runs.control(options.id, "resume", Exchange(Caller(_operator_name(), "cli"), wait_seconds=0.0))
        return _say(await app.runs.get(options.id))

    return with_app(options, run)


def _work(options: argparse.Namespace) -> int:
    async def run(app: App) -> int:
        worked = await app.runs.work()
        for ended in worked:
            print(f"{ended.id}  {ended.state.value}: {one_line(ended.reason)}")
        left = await app.runs.blocked_runs()
        if left:
            print(*_need_more(left), sep="\n", file=sys.stderr)
        elif not worked:
            print("No run is due.")
        return max([*map(_code, worked), *([FAILED] if left else [])], default=OK)

    return with_app(options, run)


def _need_more(left: Mapping[str, MissingRequirement]) -> Iterator[str]:
    for lack in dict.fromkeys(need for need in left.values() if need.cluster):
        shown = ", ".join(name for name, need in left.items() if need == lack)
        if lack.needed is None:
            yield f"quorate: The cluster {lack.cluster}, at the address of these runs, is not configured: {shown}."
        else:
            yield f'quorate: These runs need access = "{lack.needed}" in [clusters.{lack.cluster}]: {shown}.'
    levels = {name: need.needed for name, need in left.items() if need.needed is not None and not need.cluster}
    if names := list(levels):
        level = max(levels.values(), key=Access.rank)
        which = "This run needs" if len(names) == 1 else "These runs need"
        shown = ", ".join(names)
        yield f"quorate: {which} --access {level}: {shown}. Run `quorate runs work --access {level}`."


def _code(run: Run) -> int:
    if run.state is RunState.DONE:
        return OK
    return FAILED if run.state.has_ended or run.state is RunState.PAUSED else STILL_RUNNING


def _say(run: Run) -> int:
    print(f"{run.id}: {run.state.value}. {run.title}")
    return OK


def _plain(run: Run) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(run)
    facts["starts"] = facts["starts"] or None
    facts["log"] = [iso_times(line, ("time",)) for line in facts["log"]]
    facts["current"] = {name: iso_times(step, ("begun",)) for name, step in facts["current"].items()}
    return iso_times(facts, ("created", "starts", "ended", "changed"))


def _operator_name() -> str:
    return f"{getpass.getuser()} at a shell"


def _with_runs(options: argparse.Namespace, run: Callable[[RunStore], Awaitable[int]]) -> int:
    return with_store(options, lambda store: run(RunStore(store)))
