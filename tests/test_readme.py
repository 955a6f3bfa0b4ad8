"""What the README tells people to type does what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from quorate.cli import parser_of_all
from quorate.operations.registry import operations
from tests.running_sim import pointed_at, running_sim

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SERVERS = ("serve", "sim")
ANSWERS = {
    "tools": "guest_list",
    "guest_list": "homeassistant",
    "guest_power": "result: done",
    "vm_create": "web02",
    "metrics_get": "docker01.png",
    "guest_screenshot": "screen.png",
    "guest_exec": "Filesystem",
    "policy": "guest_delete needs admin",
    "approvals": "Nothing waits",
    "audit": "Start vm 107 win11",
}
"""Command or tool -> a word of what it shows."""


def commands(section: str) -> list[str]:
    """The lines that begin with `quorate` in the first block of commands below a heading."""
    _, _, text = README.partition(f"## {section}\n")
    block = text.split("```sh\n", 1)[1].split("```", 1)[0]
    return [line.partition(" #")[0].strip() for line in block.splitlines() if line.startswith("quorate ")]


def test_the_commands_for_the_shell_do_what_they_say_one_after_the_other(tmp_path: Path) -> None:
    with running_sim() as sim:
        environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **pointed_at(sim)}
        for line in commands("From the shell"):
            words = shlex.split(line)[1:]
            if words[0] in SERVERS:
                continue
            done = subprocess.run(
                [sys.executable, "-m", "quorate", *words],
                env=environ,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            assert ANSWERS[words[1] if words[0] == "call" else words[0]] in done.stdout + done.stderr, line
            if "--output" in words:
                assert (tmp_path / words[words.index("--output") + 1]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("line", [*commands("From the shell"), *commands("Connect a client")])
def test_every_command_of_the_readme_is_one_that_there_is(line: str) -> None:
    parser_of_all().parse_args(shlex.split(line)[1:])


def test_the_entries_for_clients_start_a_server() -> None:
    entries = [json.loads(one)["mcpServers"]["quorate"] for one in re.findall(r"```json\n(.+?)```", README, re.S)]
    assert entries
    for entry in entries:
        assert entry["command"] == "quorate"
        assert parser_of_all().parse_args(entry["args"]).run.__module__ == "quorate.cli.serve"


def test_the_picture_shows_a_call_that_a_person_stops_and_one_that_is_agreed_to() -> None:
    drawn = ElementTree.parse(ROOT / "docs" / "session.svg").getroot()
    shown = [text.text or "" for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    stopped = next(place for place, text in enumerate(shown) if "denied by the person" in text)
    agreed = shown.index("result: done")
    assert "Decline" in shown[:stopped]
    assert shown.count("dev-sandbox") == 1, "typed once, by the person"
    assert stopped < shown.index("dev-sandbox") < agreed


def test_every_toolset_is_named() -> None:
    assert {one.toolset for one in operations().values() if f"`{one.toolset}`" not in README} == set()


def test_every_link_leads_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_targets_of_make_that_are_named_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake (\w+)", README + (ROOT / "docs" / "install.md").read_text()):
        if target not in ("a", "and"):
            assert f"\n{target}:" in makefile, target
