"""What the README tells people to type does what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest

from quorate.cli import build_parser
from quorate.config import Access
from quorate.operations.registry import expand, operations
from quorate.pipeline.caller import Caller, Gate
from quorate.surfaces.arguments import parse_pairs
from tests import paths
from tests.rigs.cli import quorate
from tests.rigs.processes import completed
from tests.rigs.simulator import pointed_at, running_sim

ROOT = paths.ROOT
README = (ROOT / "README.md").read_text()
SERVERS = ("serve", "console", "sim")
ANSWERS = {
    "tools": "guest_list",
    "guest_list": "homeassistant",
    "guest_power": "result: done",
    "vm_create": "web02",
    "metrics_get": "docker01.png",
    "guest_screenshot": "screen.png",
    "guest_exec": "Filesystem",
    "policy": "guest_delete needs admin",
    "approvals": "No requests are waiting",
    "freeze": "Changes are frozen",
    "audit": "Start vm 107 win11",
}
"""Command or tool -> a word of what it shows."""


def commands(page: str, section: str) -> list[str]:
    """The lines that begin with `quorate` in the first block of commands below a heading."""
    _, _, text = (ROOT / page).read_text().partition(f"# {section}\n")
    block = text.split("```sh\n", 1)[1].split("```", 1)[0]
    return [line.partition(" #")[0].strip() for line in block.splitlines() if line.startswith("quorate ")]


def test_the_commands_for_the_shell_do_what_they_say_one_after_the_other(tmp_path: Path) -> None:
    with running_sim() as sim:
        environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **pointed_at(sim)}
        for line in commands("docs/shell.md", "From the shell"):
            words = shlex.split(line)[1:]
            if words[0] in SERVERS:
                continue
            done = quorate(*words, environ=environ, cwd=tmp_path)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            assert ANSWERS[words[1] if words[0] == "call" else words[0]] in done.stdout + done.stderr, line
            if "--output" in words:
                assert (tmp_path / words[words.index("--output") + 1]).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "line", [*commands("docs/shell.md", "From the shell"), *commands("README.md", "Connect a client")]
)
def test_every_command_of_the_readme_is_one_that_there_is(line: str) -> None:
    build_parser().parse_args(shlex.split(line)[1:])


def test_the_entries_for_clients_start_a_server() -> None:
    blocks = re.findall(r"```json\n(.+?)```", README + (ROOT / "docs" / "install.md").read_text(), re.S)
    entries = [json.loads(block)["mcpServers"]["quorate"] for block in blocks]
    assert len(entries) == 2
    for entry in entries:
        assert entry["command"] == "quorate"
        assert build_parser().parse_args(entry["args"]).run.__module__ == "quorate.cli.serve"


def test_the_picture_shows_a_call_that_a_person_stops_and_one_that_is_agreed_to() -> None:
    drawn = ElementTree.parse(ROOT / "docs" / "session.svg").getroot()
    shown = [text.text or "" for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    stopped = next(place for place, text in enumerate(shown) if "denied by the person" in text)
    agreed = shown.index("result: done")
    assert "Decline" in shown[:stopped]
    assert shown.count("dev-sandbox") == 1, "typed once, by the person"
    assert stopped < shown.index("dev-sandbox") < agreed


def test_the_tour_shows_what_the_first_screen_says(tmp_path: Path) -> None:
    shown = completed("demo", environ={"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, cwd=tmp_path).stdout
    promised = README.split("The tour shows what an assistant sees:\n\n```\n", 1)[1].split("```", 1)[0]
    for part in promised.split("\n\n"):
        heading, _, text = part.partition("\n")
        assert heading in shown
        assert " ".join(text.split()) in " ".join(shown.split())


def test_the_pictures_render_anywhere() -> None:
    for name in re.findall(r"!\[[^]]*\]\((\S+)\)", README):
        content = (ROOT / name).read_bytes()
        if name.endswith(".svg"):
            assert not re.search(rb"foreignObject|@import|@font-face|<script|href=.http", content), name
        else:
            assert content.startswith(b"\x89PNG"), name
            assert len(content) < 100_000, name


def test_the_page_on_installation_names_every_place_that_a_backup_needs() -> None:
    from quorate.config import files

    page = (ROOT / "docs" / "install.md").read_text()
    environ = {"HOME": "/home/me"}
    places = [files.usual_state(environ), str(files.usual_audit_file(environ))]
    for place in places:
        assert place.replace("/home/me", "~") in page
    for file in (files.usual_pins(environ), files.state_folder(environ) / "secrets.json"):
        assert file.parent == Path(places[0]).parent
        assert f"`{file.name}`" in page


def test_the_page_on_tools_names_every_toolset() -> None:
    page = (ROOT / "docs" / "access.md").read_text()
    assert {operation.toolset for operation in operations().values() if f"`{operation.toolset}`" not in page} == set()


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)", index.read_text())}
    pages = {page for page in (ROOT / "docs").rglob("*.md") if "decisions" not in page.parts and page != index}
    of_runs = {page for page in (ROOT / "docs" / "runs").glob("*.md") if page.stem not in ("README", "undo")}
    assert pages - of_runs <= listed


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "packages").rglob("*.md")])


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere() -> None:
    for page in PAGES:
        for target, _, anchor in re.findall(r"\]\(([^)#\s]*)(#([^)\s]+))?\)", page.read_text()):
            if "://" not in target:
                path = page.parent / target if target else page
                assert path.exists(), f"{page.name}: {target}"
                assert not anchor or anchor in anchors(path), f"{page.name}: {target}#{anchor}"


def test_every_module_that_a_page_mentions_exists() -> None:
    files = {
        "/" + str(path.relative_to(ROOT))
        for part in ("bench", "packages", "src", "tests", "tools")
        for path in (ROOT / part).rglob("*.py")
    }
    for page in PAGES:
        for module in re.findall(r"[\w/]+\.py\b", page.read_text()):
            assert any(path.endswith("/" + module) for path in files), f"{page.name}: {module}"


def test_targets_of_make_that_are_named_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    pages = "".join(page.read_text() for page in PAGES)
    for target in re.findall(r"(?:^|`)(?:\w+=\S+ )?make (\w+)", pages, re.M):
        assert f"\n{target}:" in makefile, target


def calls_on(page: Path) -> list[str]:
    """The `quorate call` commands in the blocks of a page."""
    text = re.sub(r"\\\n\s*", "", page.read_text())
    return re.findall(r"^(?:\$ )?(quorate call .+?)(?: +#.*| 2>&1.*| [|>] .*)?$", text, re.M)


@pytest.mark.parametrize("page", [page for page in PAGES if calls_on(page)], ids=lambda page: page.stem)
def test_every_call_on_a_page_names_a_tool_its_arguments_and_the_access_it_needs(page: Path) -> None:
    for line in calls_on(page):
        options = build_parser().parse_args(shlex.split(line)[1:])
        operation = operations()[options.tool]
        parsed = parse_pairs(options.arguments, operation.schema())
        common = {"dry_run", "wait", "safely", "cluster"}
        assert parsed.keys() - common <= operation.schema()["properties"].keys(), f"{page.name}: {line}"
        gate = Gate(
            access=Access(options.access or "read"),
            toolsets=expand((options.toolsets or "all,homelab").split(",")),
        )
        assert gate.objection(operation, Caller()) is None, f"{page.name}: {line}"
