"""The `quorate` command. Each module adds one or two of its commands."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from quorate import __version__

INTERRUPTED = 130


class CommandEntry(NamedTuple):
    module: str
    """Its module here. Only the module of the command that runs is imported."""
    summary: str


COMMANDS = {
    "init": CommandEntry("init", "set up a cluster and a client; asks for what is not given as an option"),
    "doctor": CommandEntry(
        "doctor", "check settings, connection, certificate, token, privileges and SSH, and say how to fix problems"
    ),
    "completion": CommandEntry("completion", "print the completion script for your shell"),
    "serve": CommandEntry("serve", "run the MCP server (stdio unless --http is given)"),
    "call": CommandEntry("call", "run one tool from the shell"),
    "tools": CommandEntry("tools", "list the tools; needs no cluster"),
    "approvals": CommandEntry("approvals", "list and answer requests for approval"),
    "console": CommandEntry("console", "open the operator's console in the browser"),
    "runs": CommandEntry("runs", "list, follow and control durable runs"),
    "freeze": CommandEntry("freeze", "stop all changes on every replica at once; reads continue"),
    "unfreeze": CommandEntry("freeze", "allow changes again; asks for the operator's passphrase"),
    "watch": CommandEntry("watch", "watch clusters and hosts, and report what is wrong"),
    "policy": CommandEntry("policy", "show the rules in effect, and how they apply to a call"),
    "audit": CommandEntry("audit", "show, export or verify the audit trail"),
    "tokens": CommandEntry("tokens", "create, list and revoke bearer tokens of the HTTP server"),
    "certificate": CommandEntry(
        "certificate", "create a certificate for `serve --http` in your network, from your own CA"
    ),
    "secrets": CommandEntry("secrets", "store host passwords in an encrypted file, for vault:NAME"),
    "scripts": CommandEntry("scripts", "show or refresh the index of community scripts"),
    "trust": CommandEntry("trust", "trust the SSH key of a machine; show the certificate of a backup server"),
    "sim": CommandEntry("sim", "run a simulated Proxmox VE cluster"),
    "demo": CommandEntry("sim", "take a guided tour on a simulated cluster; needs no settings"),
}

HEADINGS = {
    "init": "set up",
    "serve": "use",
    "approvals": "supervise",
    "tokens": "serve a network",
    "secrets": "hosts",
    "sim": "try",
}
"""The first command of each group -> what the help calls the group."""
DESCRIPTION = "An MCP server for Proxmox VE and homelabs, and all of its tools at the shell."
BEGIN = """\
get started:
  quorate demo                      take a tour on a simulated cluster
  quorate init                      set up your cluster and your client
  quorate doctor                    check the setup
  quorate call guest_list           call a tool; add --demo for the simulated cluster
  quorate call guest_power --help   explain a tool"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    sys.exit(_run(sys.argv[1:] if arguments is None else arguments))


def _read_options(arguments: Sequence[str]) -> argparse.Namespace:
    if list(arguments[:1]) == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if not arguments:
        return argparse.Namespace(run=_print_short_help)
    _refuse_unknown(arguments[0])
    try:
        return _parse(build_parser(arguments[0]), arguments)
    except SystemExit:  # after printing the help, for example
        sys.stdout.flush()
        raise


def _print_short_help(_: argparse.Namespace) -> int:
    print(f"{DESCRIPTION}\n\n{BEGIN}\n\n`quorate --help` lists all commands.")
    return 0


def _run(arguments: Sequence[str]) -> int:
    try:
        code = _execute(_read_options(arguments))
        sys.stdout.flush()  # here, where a closed pipe can be handled
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
        from quorate.cli.options import FAILED

        return FAILED
    return code


def _execute(options: argparse.Namespace) -> int:
    from quorate.cli.options import USAGE  # which every command has imported
    from quorate.config import ConfigError

    try:
        return int(options.run(options))
    except ConfigError as error:
        print(f"quorate: {error}", file=sys.stderr)
        return USAGE


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Like `parse_args`, but `key=value` pairs of a call may also follow options."""
    options, rest = parser.parse_known_args(arguments)
    stray = [argument for argument in rest if argument.startswith("-") or not hasattr(options, "arguments")]
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


class _GroupedCommands(argparse.RawDescriptionHelpFormatter):
    def _format_action(self, action: argparse.Action) -> str:
        shown = super()._format_action(action)
        if action.option_strings or action.dest not in HEADINGS:
            return shown
        return f"  {HEADINGS[action.dest]}:\n{shown}"


def build_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The parser with all commands, with the chosen one, or with names and summaries if there is no such command."""
    parser = argparse.ArgumentParser(
        prog="quorate",
        description=DESCRIPTION,
        epilog=BEGIN,
        formatter_class=_GroupedCommands,
    )
    parser.add_argument("--version", action="version", version=f"quorate {__version__}")
    commands = parser.add_subparsers(prog="quorate", title="commands", required=True, metavar="COMMAND")
    if chosen is None or chosen in COMMANDS:
        entries = COMMANDS.values() if chosen is None else [COMMANDS[chosen]]
        for module in dict.fromkeys(entry.module for entry in entries):
            importlib.import_module(f"quorate.cli.{module}").add(commands)
    elif chosen != "--version":
        for name, entry in COMMANDS.items():
            commands.add_parser(name, help=entry.summary)
    return parser
