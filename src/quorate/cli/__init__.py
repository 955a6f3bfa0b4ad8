"""The `quorate` command; each of its commands is a module of this package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from quorate import __version__
from quorate.cli import (
    approvals,
    audit,
    call,
    completion,
    demo,
    doctor,
    init,
    policy,
    scripts,
    secrets,
    serve,
    sim,
    smoke,
    tokens,
    tools,
    trust,
)
from quorate.cli.options import FAILED, USAGE
from quorate.config import ConfigError

COMMANDS = (
    init,
    doctor,
    serve,
    call,
    tools,
    approvals,
    policy,
    audit,
    tokens,
    secrets,
    scripts,
    trust,
    sim,
    smoke,
    demo,
    completion,
)

BEGIN = """\
to begin:
  quorate demo                      see it at work, on a simulated cluster
  quorate init                      set up your own cluster and your client
  quorate doctor                    find out what is missing
  quorate call guest_list           use a tool; --demo for the simulated cluster
  quorate call guest_power --help   what a tool does and takes"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    options = _parse(parser_of_all(), arguments)
    try:
        code = options.run(options)
    except ConfigError as error:
        print(f"quorate: {error}", file=sys.stderr)
        code = USAGE
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        code = FAILED
    sys.exit(code)


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """As usual, but `key=value` pairs of a call may also stand after options."""
    options, rest = parser.parse_known_args(arguments)
    stray = [one for one in rest if one.startswith("-") or not hasattr(options, "arguments")]
    if stray:
        parser.error(f"unrecognized arguments: {' '.join(stray)}")
    if rest:
        options.arguments += rest
    return options


def parser_of_all() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="quorate",
        description="An MCP server for Proxmox VE clusters, and every one of its tools at the shell.",
        epilog=BEGIN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"quorate {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for one in COMMANDS:
        one.add(commands)
    return parser
