"""The `quorate` command. Each module adds one or two of its commands."""

from __future__ import annotations

import argparse
import atexit
import errno
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from quorate import __version__

INTERRUPTED = 130
COMMANDS = {
    "init": "init",
    "doctor": "doctor",
    "serve": "serve",
    "call": "call",
    "tools": "tools",
    "approvals": "approvals",
    "console": "console",
    "runs": "runs",
    "freeze": "freeze",
    "unfreeze": "freeze",
    "watch": "watch",
    "policy": "policy",
    "audit": "audit",
    "tokens": "tokens",
    "certificate": "certificate",
    "secrets": "secrets",
    "scripts": "scripts",
    "trust": "trust",
    "sim": "sim",
    "demo": "sim",
    "smoke": "smoke",
    "completion": "completion",
}
"""Command -> its module here. Only the module of the command that runs is imported."""
ALLOCATIONS_BEFORE_COLLECTION = 50_000
"""Python's default of 700 spends a tenth of the start on looking for garbage among modules that stay."""

DESCRIPTION = "An MCP server for Proxmox VE and homelabs, and all of its tools at the shell."
BEGIN = """\
get started:
  quorate demo                      take a tour on a simulated cluster
  quorate init                      set up your cluster and your client
  quorate doctor                    check the setup
  quorate call guest_list           call a tool; add --demo for the simulated cluster
  quorate call guest_power --help   explain a tool"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments[:1]) == ["call"]:
        gc.disable()  # it ends before there is garbage worth looking for
    gc.set_threshold(ALLOCATIONS_BEFORE_COLLECTION)
    atexit.register(gc.freeze)  # or Python scans everything again at exit
    if list(arguments[:1]) == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if arguments:
        _refuse_unknown(arguments[0])
    options = _parse(build_parser(arguments[0]), arguments) if arguments else argparse.Namespace(run=_print_short_help)
    sys.exit(_run(options))


def _print_short_help(_: argparse.Namespace) -> int:
    print(f"{DESCRIPTION}\n\n{BEGIN}\n\n`quorate --help` lists all commands.")
    return 0


def _run(options: argparse.Namespace) -> int:
    from quorate.cli.options import FAILED, USAGE  # which every command has imported, but --version has not
    from quorate.config import ConfigError

    try:
        code = int(options.run(options))
        sys.stdout.flush()  # here, where a closed pipe can be handled
    except ConfigError as error:
        print(f"quorate: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # so that the shell's prompt does not follow ^C
        return INTERRUPTED
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        if error.errno == errno.ENOSPC:
            print(f"quorate: the output cannot be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes again at exit
        return FAILED
    return code


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Like `parse_args`, but `key=value` pairs of a call may also follow options."""
    options, rest = parser.parse_known_args(arguments)
    stray = [one for one in rest if one.startswith("-") or not hasattr(options, "arguments")]
    if stray:
        parser.error(f"unrecognized arguments: {' '.join(stray)}; see `quorate {arguments[0]} --help`")
    if rest:
        options.arguments += rest
    return options


def _refuse_unknown(command: str) -> None:
    if command in COMMANDS or command.startswith("-"):
        return
    from quorate.operations.registry import find_operation
    from quorate.suggestions import suggest

    hint = suggest(command, COMMANDS, "`quorate --help` lists them all.")
    if find_operation(command):
        hint = f"It is a tool: quorate call {command}"
    print(f"quorate: There is no command {command!r}. {hint}", file=sys.stderr)
    sys.exit(2)


def build_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The parser with the chosen command, or with all commands if there is no such command."""
    parser = argparse.ArgumentParser(
        prog="quorate",
        description=DESCRIPTION,
        epilog=BEGIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"quorate {__version__}")
    commands = parser.add_subparsers(prog="quorate", title="commands", required=True, metavar="COMMAND")
    modules = [COMMANDS[chosen]] if chosen in COMMANDS else dict.fromkeys(COMMANDS.values())
    for name in () if chosen == "--version" else modules:
        importlib.import_module(f"quorate.cli.{name}").add(commands)
    return parser
