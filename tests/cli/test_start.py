"""What a command imports before it does anything: a person waits for it."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

import pytest

from quorate.cli import COMMANDS, build_parser


def modules_after(*arguments: str) -> set[str]:
    """The modules that a command has imported when it ends."""
    program = (
        "import sys\nfrom quorate.cli import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit: pass\nprint(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_the_version_is_printed_without_importing_any_command() -> None:
    assert not {name for name in modules_after("--version") if name.startswith("quorate.")} - {"quorate.cli"}


def test_a_command_does_without_the_modules_of_the_others() -> None:
    imported = modules_after("call", "--help")
    assert "quorate.cli.call" in imported
    assert not imported & {"quorate.cli.init", "quorate.cli.serve", "mcp", "aiohttp"}


def test_one_tool_is_found_without_the_modules_of_others() -> None:
    imported = modules_after("call", "guest_list", "--help")
    assert "quorate.tools.guests" in imported
    assert not imported & {
        "quorate.tools.hosts",
        "quorate.tools.disks",
        "quorate.runs.evacuate",
        "quorate.operations.plan",
    }


def test_a_call_that_reads_does_without_the_modules_of_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROXMOX_URL", "https://127.0.0.1:9")
    monkeypatch.setenv("PROXMOX_TOKEN_ID", "root@pam!test")
    monkeypatch.setenv("PROXMOX_TOKEN_SECRET", "00000000-0000-0000-0000-000000000000")
    imported = modules_after("call", "guest_list")
    assert "quorate.pve.client" in imported
    assert not imported & {"quorate.pipeline.change", "quorate.pipeline.approval_request", "mcp"}


def subcommands(parser: argparse.ArgumentParser) -> list[str]:
    return [name for action in parser._actions if isinstance(action.choices, dict) for name in action.choices]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_of_commands_names_the_module_of_each(name: str) -> None:
    assert name in subcommands(build_parser(name))


def test_the_table_of_commands_is_complete() -> None:
    assert subcommands(build_parser()) == list(COMMANDS)


def test_help_lists_all_commands_without_importing_any() -> None:
    done = subprocess.run([sys.executable, "-m", "quorate", "--help"], capture_output=True, text=True, check=True)
    assert re.findall(r"^    (\w+)\b", done.stdout, re.MULTILINE) == list(COMMANDS)
    assert not modules_after("--help") & {f"quorate.cli.{entry.module}" for entry in COMMANDS.values()}
