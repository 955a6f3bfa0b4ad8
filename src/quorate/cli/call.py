"""quorate call: run one tool from the shell."""

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

from quorate.cli.options import (
    FAILED,
    OK,
    STILL_RUNNING,
    add_command,
    cluster_options,
    exit_code_of,
    gate_options,
    reach_all_tools,
    settings_from,
    surface_option,
    with_demo_cluster,
)
from quorate.cli.prompts import ask_operator, decline_to_wait, report_wait
from quorate.cli.tools import (
    LEAN,
    NATIVE,
    explain_lean,
    explain_native,
    explain_of_system,
    find_lean,
    find_native,
    find_of_system,
)
from quorate.config import ConfigError, Settings
from quorate.hints import resolve
from quorate.inside.transport import is_fault
from quorate.pipeline.caller import Caller, Exchange
from quorate.problems import Problem, ProblemCode
from quorate.surfaces import rendering
from quorate.surfaces.arguments import parse_pairs
from quorate.surfaces.rendering import ProgressBar, readable

if TYPE_CHECKING:
    from quorate.app import App


DEMO_APPROVAL = (
    "Nothing was changed. Each demo cluster ends with its command, so nobody can approve the call later: run it at a "
    "terminal, where you are asked, or add --approval none."
)


def add(commands: Any) -> None:
    call = add_command(commands, "call", _call, add_help=False)
    call.add_argument("tool", metavar="TOOL", help="name of the tool; `quorate tools` lists them")
    call.add_argument(
        "arguments",
        metavar="key=value",
        nargs="*",
        default=[],
        help="arguments; repeat a key for a list; obvious keys can be omitted",
    )
    call.add_argument("--json", action="store_true", help="print JSON with raw values (docs/output.md)")
    call.add_argument("--output", metavar="FILE", type=Path, help="file for an image (default: a new TOOL.png)")
    call.add_argument("-h", "--help", action=_Help, nargs=0, help="show this, or the arguments of TOOL")
    gate_options(call)
    surface_option(call)
    cluster_options(call)
    call.epilog = (
        "Exit codes: 0 done, 1 failed or refused, 2 wrong usage or settings, 3 task still running, "
        "4 waiting for an operator's approval, 130 interrupted."
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
        return explain_native(find_native(tool))
    if surface == LEAN:
        return explain_lean(tool)
    return explain_of_system(str(surface), find_of_system(str(surface), tool))


def _call(options: argparse.Namespace) -> int:
    schema = _schema(options.surface or NATIVE, options.tool)
    _require_image_name(options.output, schema)
    typed, picture = parse_pairs(options.arguments, schema), _asking_for_picture(options.output, schema)
    arguments = {**picture, **typed}
    if (
        picture.get("chart") == "svg" and str(typed.get("chart")).lower() == "true"
    ):  # `chart=true` leaves the format open
        arguments |= picture
    settings = reach_all_tools(settings_from(options))
    if "wait" not in arguments:
        settings = replace(settings, wait_seconds=math.inf)  # a person at a shell waits for the end
    return asyncio.run(_call_once(settings, options, arguments))


def _schema(surface: str, tool: str) -> Mapping[str, Any]:
    """The tool's parameters. An unknown name is refused here, with a suggestion."""
    if surface == NATIVE:
        return find_native(tool).schema()
    return find_lean(tool).schema() if surface == LEAN else find_of_system(surface, tool).schema()


def _require_image_name(output: Path | None, schema: Mapping[str, Any]) -> None:
    """Before anything runs: a file must not claim to be what is never written."""
    properties = schema["properties"]
    if output is not None and output.suffix.lower() not in ("", ".png", ".svg"):
        draws_svg = "chart" in properties or "svg" in properties.get("format", {}).get("enum", ())
        fitting = ".png or .svg" if draws_svg else ".png"
        raise ConfigError(
            f"{output} cannot be written: images are not {output.suffix} files. End the name in {fitting}."
        )


def _asking_for_picture(output: Path | None, schema: Mapping[str, Any]) -> dict[str, Any]:
    """A file for an image asks for the image, in the format of its name."""
    if output is None:
        return {}
    properties, ending = schema["properties"], output.suffix.lower().removeprefix(".")
    if ending in properties.get("format", {}).get("enum", ()):
        return {"format": ending}
    return {"chart": ending if ending == "svg" else True} if "chart" in properties else {}


@dataclass(frozen=True, slots=True)
class _Outcome:
    facts: dict[str, Any]
    text: str
    pictures: Sequence[bytes]
    failed: bool


async def _run_tool(
    app: App, surface: str | None, tool: str, arguments: dict[str, Any], exchange: Exchange
) -> _Outcome:
    """Native tools run without the MCP SDK, whose import takes longer than the call; others as for a client."""
    if surface in (None, NATIVE):
        result = await app.pipeline.run(tool, arguments, exchange)
        text = readable(result.data)
        return _Outcome(rendering.objects(result.data), text, result.pictures, result.failed)
    from quorate.surfaces.native import pictures_of, text_of

    (only,) = app.surfaces()
    shown = await only.call(tool, arguments, exchange)
    return _Outcome(shown.structured_content or {}, text_of(shown), pictures_of(shown), bool(shown.is_error))


async def _call_once(settings: Settings, options: argparse.Namespace, arguments: dict[str, Any]) -> int:
    from quorate.app import build

    async with with_demo_cluster(settings, options.demo) as ready:
        app = build(ready)
        bar = ProgressBar(sys.stderr)
        try:
            ask = ask_operator(app.store) or (decline_to_wait if options.demo else None)
            exchange = Exchange(Caller("quorate call", "cli"), bar.show, ask, on_wait=report_wait)
            outcome = await _run_tool(app, options.surface, options.tool, arguments, exchange)
        except Problem as problem:
            bar.clear()
            if options.demo and problem.code is ProblemCode.APPROVAL:
                problem.next_step = DEMO_APPROVAL
            if options.json:
                print(json.dumps({"error": {"kind": problem.code, "message": str(problem), **resolve(problem.facts)}}))
            else:
                print(f"quorate: {rendering.problem_text(problem)}", file=sys.stderr)
            return exit_code_of(problem)
        finally:
            await app.close()
    bar.clear()
    drawing = _svg(outcome, options.output)
    if drawing is None or options.json:
        print(json.dumps(outcome.facts, ensure_ascii=False) if options.json else outcome.text)
    pictures = outcome.pictures if drawing is None else (drawing,)
    if not _save(pictures, options.output, options.tool):
        return FAILED
    if outcome.failed:
        return FAILED
    if outcome.facts.get("result") == "running":
        return _unfinished_status(outcome.facts)
    return FAILED if _command_failed(outcome.facts) else OK


def _command_failed(facts: Mapping[str, Any]) -> bool:
    """Whether a command ended with an error, on one machine or on one of several."""
    hosts = facts.get("hosts") or ()
    if isinstance(hosts, Mapping):  # a table; for a program, it is a list of objects
        hosts = [dict(zip(hosts["columns"], row, strict=True)) for row in hosts["rows"]]
    elif not isinstance(hosts, Sequence):  # a number of hosts
        hosts = ()
    return any(
        row.get("exit_code") or row.get("signal") or is_fault(row.get("result")) or is_fault(row.get("state"))
        for row in (facts, *hosts)
    )


def _unfinished_status(facts: Mapping[str, Any]) -> int:
    """A task of the cluster continues; a command over this process's connection ends with it."""
    from quorate.tools.commands import ENDS_WITH_SERVER  # which needs what only changes need

    if not facts.get(ENDS_WITH_SERVER):
        return STILL_RUNNING
    print("quorate: the command ended with this call; omit wait= to follow it to its end", file=sys.stderr)
    return FAILED


def _svg(outcome: _Outcome, output: Path | None) -> bytes | None:
    """The drawing that the answer holds as text, if a file for it was named."""
    drawing = outcome.facts.get("svg") if output is not None else None
    return drawing.encode() if isinstance(drawing, str) else None


def _save(pictures: Sequence[bytes], output: Path | None, tool: str) -> bool:
    """Write images to files and say where. Only a file that was named is overwritten."""
    if output is not None and not pictures:
        print(f"quorate: {tool} returned no image; {output} was not written", file=sys.stderr)
        return False
    if output is not None and (output.suffix.lower() == ".svg") != pictures[0].startswith(b"<"):
        made = "an SVG" if pictures[0].startswith(b"<") else "a PNG"
        print(
            f"quorate: {tool} drew {made}; {output} was not written. End the name in .{made[-3:].lower()}.",
            file=sys.stderr,
        )
        return False
    for number, picture in enumerate(pictures):
        file = output.with_stem(f"{output.stem}-{number + 1}") if output and number else output or _unused_path(tool)
        try:
            file.write_bytes(picture)
        except OSError as error:
            print(f"quorate: cannot write the image to {file}: {error.strerror}", file=sys.stderr)
            return False
        print(f"quorate: image written to {file}", file=sys.stderr)
    return True


def _unused_path(tool: str) -> Path:
    names = (Path(f"{tool}.png"), *(Path(f"{tool}-{number}.png") for number in range(2, 10_000)))
    return next(name for name in names if not name.exists())
