"""quorate call: one tool from the shell."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.cli.key_values import key_values
from quorate.cli.operator import at_terminal, nobody_is_there
from quorate.cli.options import (
    EVERYTHING,
    FAILED,
    OK,
    STILL_RUNNING,
    WAITS_FOR_APPROVAL,
    cluster_options,
    command,
    gate_options,
    on_cluster,
    settings_from,
    surface_option,
)
from quorate.cli.reference import LEAN, NATIVE, explained, explained_lean, explained_tool, found, lean_tool, tool_of
from quorate.config import ConfigError, Settings

if TYPE_CHECKING:
    from quorate.app import App
    from quorate.pipeline.caller import Exchange

DEMO_APPROVAL = (
    "Nothing was done. Every demo is a cluster of its own that ends with the command, so nobody can approve it later: "
    "run it at a terminal, where you are asked, or add --approval none."
)


def add(commands: Any) -> None:
    call = command(commands, "call", _call, "run one tool from the shell", add_help=False)
    call.add_argument("tool", metavar="TOOL", help="its name; `quorate tools` lists them")
    call.add_argument("arguments", metavar="key=value", nargs="*", help="arguments; repeat a key for a list")
    call.add_argument("--json", action="store_true", help="print the structured answer")
    call.add_argument("--output", metavar="FILE", type=Path, help="where a picture goes (default: a new TOOL.png)")
    call.add_argument("-h", "--help", action=_Help, nargs=0, help="show this, or after TOOL what that takes")
    gate_options(call)
    surface_option(call)
    cluster_options(call)
    call.epilog = (
        "Exit codes: 0 done, 1 failed or refused, 2 wrong usage or settings, 3 the task still runs, "
        "4 waits for an operator's approval, 130 interrupted."
    )


class _Help(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> None:
        tool = getattr(namespace, "tool", None)
        try:
            print(_help_of(namespace.surface, tool) if tool else parser.format_help().rstrip())
        except ConfigError as error:
            parser.error(str(error))
        parser.exit()


def _help_of(surface: str | None, tool: str) -> str:
    if surface in (None, NATIVE):
        return explained(found(tool))
    return explained_lean(tool) if surface == LEAN else explained_tool(str(surface), tool_of(str(surface), tool))


def _call(options: argparse.Namespace) -> int:
    arguments = key_values(options.arguments, _schema(options.surface or NATIVE, options.tool))
    settings = settings_from(options)
    if settings.toolsets is None:
        settings = replace(settings, toolsets=EVERYTHING)  # the default set spares a model's tokens, not a person's
    if "wait" not in arguments:
        settings = replace(settings, wait_seconds=math.inf)  # a person at a shell wants the end of it
    return asyncio.run(_call_once(settings, options, arguments))


def _schema(surface: str, tool: str) -> Mapping[str, Any]:
    """What the tool takes; a name that there is not is refused here, with what may be meant."""
    if surface == NATIVE:
        return found(tool).schema()
    return lean_tool(tool).schema() if surface == LEAN else tool_of(surface, tool).schema()


@dataclass(frozen=True, slots=True)
class _Answer:
    facts: dict[str, Any]
    text: str
    pictures: Sequence[bytes]
    failed: bool


async def _answered(app: App, surface: str | None, tool: str, arguments: dict[str, Any], exchange: Exchange) -> _Answer:
    """Our own tools without the MCP SDK, whose import takes longer than the call; those of others as a client does."""
    if surface in (None, NATIVE):
        from quorate.surfaces import rendering, terminal

        result = await app.pipeline.run(tool, arguments, exchange)
        text = terminal.readable(result.data)
        return _Answer(rendering.structured(result.data), text, result.pictures, result.failed)
    from quorate.surfaces.surface import pictures_of, text_of

    (only,) = app.surfaces()
    shown = await only.call(tool, arguments, exchange)
    return _Answer(shown.structured_content or {}, text_of(shown), pictures_of(shown), bool(shown.is_error))


async def _call_once(settings: Settings, options: argparse.Namespace, arguments: dict[str, Any]) -> int:
    from quorate.app import build
    from quorate.pipeline.caller import Caller, Exchange
    from quorate.pve.errors import Problem
    from quorate.surfaces import rendering, terminal

    async with on_cluster(settings, options.demo) as ready:
        app = build(ready)
        bar = terminal.ProgressBar(sys.stderr)
        try:
            ask = at_terminal(app.store) or (nobody_is_there if options.demo else None)
            exchange = Exchange(Caller("quorate call", "cli"), bar.show, ask)
            answer = await _answered(app, options.surface, options.tool, arguments, exchange)
        except Problem as problem:
            bar.clear()
            if options.demo and problem.kind == "approval":
                problem.next_step = DEMO_APPROVAL
            if options.json:
                print(json.dumps({"error": {"kind": problem.kind, "message": str(problem), **problem.facts}}))
            else:
                print(f"quorate: {rendering.problem_text(problem)}", file=sys.stderr)
            return WAITS_FOR_APPROVAL if problem.kind == "approval" else FAILED
        finally:
            await app.close()
    bar.clear()
    print(json.dumps(answer.facts, ensure_ascii=False) if options.json else answer.text)
    if not _save(answer.pictures, options.output, options.tool):
        return FAILED
    if answer.failed:
        return FAILED
    if answer.facts.get("result") == "running":
        return _left_behind(answer.facts)
    return FAILED if answer.facts.get("exit_code") or answer.facts.get("signal") else OK  # of a command in a guest


def _left_behind(facts: Mapping[str, Any]) -> int:
    """A task of the cluster goes on without us; a command over our own connection has ended with it."""
    from quorate.operations.running import DIES_WITH_US

    if facts.get("note") != DIES_WITH_US:
        return STILL_RUNNING
    print("quorate: with this call it was ended; without wait= it is followed to its end", file=sys.stderr)
    return FAILED


def _save(pictures: Sequence[bytes], wanted: Path | None, tool: str) -> bool:
    """Write pictures to files and say where; a file is only written over if its name was given."""
    if wanted is not None and not pictures:
        print(f"quorate: {tool} drew no picture; {wanted} is not written", file=sys.stderr)
    for number, picture in enumerate(pictures):
        file = wanted.with_stem(f"{wanted.stem}-{number + 1}") if wanted and number else wanted or _unused(tool)
        try:
            file.write_bytes(picture)
        except OSError as error:
            print(f"quorate: the picture cannot be written to {file}: {error.strerror}", file=sys.stderr)
            return False
        print(f"quorate: picture written to {file}", file=sys.stderr)
    return True


def _unused(tool: str) -> Path:
    names = (Path(f"{tool}.png"), *(Path(f"{tool}-{number}.png") for number in range(2, 10_000)))
    return next(name for name in names if not name.exists())
