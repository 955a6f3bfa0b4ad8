"""quorate call: one tool from the shell."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from quorate.cli.operator import at_terminal
from quorate.cli.options import (
    FAILED,
    OK,
    STILL_RUNNING,
    WAITS_FOR_APPROVAL,
    cluster_options,
    command,
    gate_options,
    on_cluster,
    settings_from,
)
from quorate.cli.reference import explained, found
from quorate.config import ConfigError, Settings


def add(commands: Any) -> None:
    call = command(commands, "call", _call, "run one tool from the shell", add_help=False)
    call.add_argument("tool", metavar="TOOL", help="its name; `quorate tools` lists them")
    call.add_argument("arguments", metavar="key=value", nargs="*", help="arguments; repeat a key for a list")
    call.add_argument("--json", action="store_true", help="print the structured answer")
    call.add_argument("--output", metavar="FILE", type=Path, help="where a picture goes (default: a new TOOL.png)")
    call.add_argument("-h", "--help", action=_Help, nargs=0, help="show this, or after TOOL what that takes")
    gate_options(call)
    cluster_options(call)
    call.epilog = (
        "Exit codes: 0 done, 1 failed or refused, 2 wrong usage or settings, 3 the task still runs, "
        "4 waits for an operator's approval, 130 interrupted."
    )


class _Help(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> None:
        tool = getattr(namespace, "tool", None)
        try:
            print(explained(found(tool)) if tool else parser.format_help().rstrip())
        except ConfigError as error:
            parser.error(str(error))
        parser.exit()


def _call(options: argparse.Namespace) -> int:
    arguments = key_values(options.arguments)
    settings = settings_from(options)
    if settings.toolsets is None:
        settings = replace(settings, toolsets=("all",))  # the default set spares a model's tokens, not a person's
    if "wait" not in arguments:
        settings = replace(settings, wait_seconds=math.inf)  # a person at a shell wants the end of it
    return asyncio.run(_call_once(settings, options, arguments))


async def _call_once(settings: Settings, options: argparse.Namespace, arguments: dict[str, Any]) -> int:
    from quorate.app import build
    from quorate.pipeline.caller import Caller, Exchange
    from quorate.pve.errors import Problem
    from quorate.surfaces import rendering, terminal

    async with on_cluster(settings, options.demo) as ready:
        app = build(ready)
        bar = terminal.ProgressBar(sys.stderr)
        try:
            exchange = Exchange(Caller("quorate call", "cli"), bar.show, at_terminal(app.store))
            result = await app.pipeline.run(options.tool, arguments, exchange)
        except Problem as problem:
            bar.clear()
            if options.json:
                print(json.dumps({"error": {"kind": problem.kind, "message": str(problem), **problem.facts}}))
            else:
                print(f"quorate: {rendering.problem_text(problem)}", file=sys.stderr)
            return WAITS_FOR_APPROVAL if problem.kind == "approval" else FAILED
        finally:
            await app.close()
    bar.clear()
    print(
        json.dumps(rendering.structured(result.data), ensure_ascii=False)
        if options.json
        else terminal.readable(result.data)
    )
    if not _save(result.pictures, options.output, options.tool):
        return FAILED
    if result.failed:
        return FAILED
    facts = result.data if isinstance(result.data, dict) else {}
    if facts.get("result") == "running":
        return STILL_RUNNING
    return FAILED if facts.get("exit_code") or facts.get("signal") else OK  # of a command inside a guest


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


def key_values(pairs: Sequence[str]) -> dict[str, Any]:
    """`key=value` as strings; JSON lists and objects as such; a repeated key becomes a list."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"Arguments are key=value pairs; {pair!r} has no '='.")
        value = _value(text)
        if key in found:
            found[key] = [*(found[key] if isinstance(found[key], list) else [found[key]]), value]
        else:
            found[key] = value
    return found


def _value(text: str) -> Any:
    if text[:1] in ("[", "{"):
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(text)
    return text
