"""What a shell offers for the next word: asked of bash, zsh and fish themselves, as far as they are installed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from pve_simulator.demo_world import build_demo_world
from pve_simulator.world import World
from quorate.homelab.host import Host, Hosts
from quorate.operations.registry import operations
from quorate.pve.connection import SystemClock
from quorate.state.store import open_store
from tests.rigs.cli import quorate
from tests.rigs.processes import running
from tests.rigs.simulator import pointed_at, running_sim

PACKAGES = ("fish", "zsh")
"""Debian's, for `python -m tests.cli.test_completion packages`; bash is everywhere."""

BASH = """\
eval "$(quorate completion bash)"
COMP_LINE=$1 COMP_POINT=${#1}
_quorate
printf '%s\\n' "${COMPREPLY[@]}"
"""
# Completion of zsh works at a terminal only, so the script gives one to a second zsh, types the line and a tab there,
# and tells what was found (a file holds it), what the line is then (between < and >), or all that is on the screen.
ZSH = """\
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PROMPT= RPROMPT=; autoload -U compinit; compinit -D -u; eval "$(quorate completion zsh)"
line() { zle -I; print -r -- "<$BUFFER>" }; zle -N line; bindkey "^X" line
compadd() { local -a hits; builtin compadd -O hits "$@"; print -rl -- $hits >> found; builtin compadd "$@" }
print -r -- "<""ready>"'
zpty -r -m shell said '*<ready>*'
zpty -w -n shell "$1"$'\\t\\x18'
zpty -r -m shell said '*<quorate*>*'
case $2 in
    line) print -r -- "${${said##*<}%%>*}|" ;;
    screen) print -r -- "$said" ;;
    *) cat found 2>/dev/null || true ;;
esac
"""
FISH = """\
quorate completion fish | source
complete -C "$argv[1]"
"""
SHELLS = {
    "bash": ("bash", "--norc", "--noprofile", "-c", BASH, "bash"),
    "zsh": ("zsh", "-f", "-c", ZSH, "zsh"),
    "fish": ("fish", "--no-config", "-c", FISH),
}


ONE_SHELL = pytest.mark.parametrize("shell", SHELLS, indirect=True)
"""For what Quorate does alike for all of them."""


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if shutil.which(name) is None:
        if os.environ.get("CI") and name in PACKAGES:
            pytest.fail(f"{name} is to be installed in CI")
        pytest.skip(f"{name} is not installed")
    return name


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb"}


def asked(shell: str, environ: Mapping[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [*SHELLS[shell], *arguments],
        env=dict(environ),
        cwd=environ["HOME"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def offered(shell: str, environ: Mapping[str, str], line: str) -> set[str]:
    """The words, without the `key=` that is typed already: bash does not get it, the others do."""
    (Path(environ["HOME"]) / "found").unlink(missing_ok=True)
    typed = line.rpartition(" ")[2]
    key = typed[: typed.find("=") + 1]
    return {word.partition("\t")[0].removeprefix(key) for word in asked(shell, environ, line).splitlines() if word}


FORMS: tuple[tuple[str, set[str]], ...] = (
    ("quorate doc", {"doctor"}),
    ("quorate serve --acc", {"--access"}),
    ("quorate serve --access ", {"read", "operate", "admin"}),
    ("quorate serve --toolsets guests,ho", {"guests,homelab", "guests,host_admin", "guests,hosts"}),
    ("quorate call guest_power act", {"action="}),
    ("quorate call guest_power guest=1 action=sh", {"shutdown"}),
    ("quorate nonsense ", set()),
)
"""One line for each form of word that a shell splits, completes or leaves alone in its own way."""

LINES: tuple[tuple[str, set[str]], ...] = (
    *FORMS,
    ("quorate approvals a", {"approve"}),
    ("quorate call guest_po", {"guest_power"}),
    ("quorate tools snapshot_r", {"snapshot_rollback"}),
    ("quorate call guest_power dry_run=", {"true", "false"}),
    ("quorate policy explain guest_del", {"guest_delete"}),
    ("quorate completion z", {"zsh"}),
    ("quorate serve --toolsets ho", {"homelab", "host_admin", "hosts"}),
    ("quorate serve --toolsets +host_", {"+host_admin"}),
    ("quorate tools --surface l", {"lean"}),
    ("quorate call no_such_tool a", set()),
)


@pytest.mark.parametrize(("line", "words"), LINES)
def test_commands_options_tools_arguments_and_choices_are_completed(
    environ: dict[str, str], line: str, words: set[str]
) -> None:
    done = quorate("completion", "words", "--", *line.split(" ")[1:], environ=environ)
    assert {word if word.endswith("=") else word.rpartition("=")[2] for word in done.stdout.splitlines()} == words


@pytest.mark.parametrize(("line", "words"), FORMS)
def test_shells_offer_what_quorate_completes(shell: str, environ: dict[str, str], line: str, words: set[str]) -> None:
    assert offered(shell, environ, line) == words


@ONE_SHELL
def test_guests_nodes_and_storages_of_the_cluster_are_completed(shell: str, environ: dict[str, str]) -> None:
    with running_sim() as sim:
        settings = {**environ, **pointed_at(sim)}
        assert offered(shell, settings, "quorate call guest_get guest=homea") == {"homeassistant"}
        assert offered(shell, settings, "quorate call node_get node=") == set(sim.world.nodes)
        assert "local" in offered(shell, settings, "quorate call vm_create storage=lo")


@pytest.mark.thorough
@ONE_SHELL
def test_hosts_are_completed_by_name_wherever_a_tool_takes_one(shell: str, environ: dict[str, str]) -> None:
    async def register() -> None:
        place = Path(environ["HOME"]) / ".local" / "state" / "quorate" / "state.sqlite"
        async with open_store(str(place), clock=SystemClock()) as store:
            for name in ("nas", "pi"):
                await Hosts(store).add(Host(name, "192.0.2.7"))

    asyncio.run(register())
    assert offered(shell, environ, "quorate call host_verify host=") == {"nas", "pi"}
    assert offered(shell, environ, "quorate trust n") == {"nas"}
    with running_sim() as sim:
        names = offered(shell, {**environ, **pointed_at(sim)}, "quorate call host_exec host=p")
        assert {"pi", "pve1", "pihole"} <= names


def test_ids_of_runs_findings_requests_and_tokens_are_completed_with_what_they_are_about(
    environ: dict[str, str],
) -> None:
    def completed(*words: str) -> dict[str, str]:
        done = quorate("completion", "described", "--", *words, "", environ=settings)
        return dict(line.split("\t", 1) for line in done.stdout.splitlines())

    with running_sim() as sim:
        settings = {**environ, **pointed_at(sim), "QUORATE_ACCESS": "admin"}
        assert completed("runs", "show") == {}, "nothing is stored yet"
        quorate("call", "run_evacuate", "node=pve1", environ=settings)
        quorate("watch", "--once", environ=settings)
        quorate("tokens", "create", "alice", environ=settings)
        with running("call", "guest_delete", "guest=test-vm", environ=settings) as waiting:
            request = waiting.stderr.readline().split()[4].rstrip(":")
    (run,) = json.loads(quorate("runs", "--json", environ=settings).stdout)
    findings = {finding["id"] for finding in json.loads(quorate("watch", "list", "--json", environ=settings).stdout)}
    for words in (("runs", "show"), ("runs", "abort")):
        assert completed(*words) == {run["id"]: f"running: {run['title']}"}
    assert {*completed("watch", "acknowledge")} == findings != set()
    assert "test-vm" in completed("approvals", "approve")[request]
    assert completed("tokens", "revoke") == {"alice": "read"}
    done = quorate("completion", "words", "--", "call", "run_get", "run=", environ=settings)
    assert done.stdout == f"run={run['id']}\n"


@ONE_SHELL
def test_a_name_that_a_shell_would_run_is_not_offered(shell: str, environ: dict[str, str]) -> None:
    def build(world: World) -> None:
        build_demo_world(world)
        world.guests[101].config["name"] = "home$(touch${IFS}owned)"

    with running_sim(build=build) as sim:
        names = offered(shell, {**environ, **pointed_at(sim)}, "quorate call guest_get guest=")
    assert "router" in names
    assert not any("home" in name for name in names)
    assert not (Path(environ["HOME"]) / "owned").exists()


@pytest.mark.thorough
@ONE_SHELL
def test_a_cluster_that_does_not_answer_leaves_completion_silent(shell: str, environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes connections and says nothing
        url = f"https://127.0.0.1:{mute.getsockname()[1]}"
        settings = {"PROXMOX_URL": url, "PROXMOX_TOKEN_ID": "quorate@pve!mcp", "PROXMOX_TOKEN_SECRET": "x"}
        assert offered(shell, {**environ, **settings}, "quorate call guest_get guest=") == set()


@pytest.mark.thorough
@pytest.mark.parametrize("shell", ["zsh", "fish"], indirect=True)
def test_words_are_shown_with_what_they_are_about(shell: str, environ: dict[str, str]) -> None:
    shown = asked(shell, environ, "quorate call guest_p", *(["screen"] if shell == "zsh" else []))
    assert operations()["guest_power"].summary[:40] in shown
    assert operations()["guest_path_stat"].summary[:40] in shown


@pytest.mark.thorough
@pytest.mark.parametrize("line", ["quorate serve --config sett", "quorate call image_upload file=sett"])
@pytest.mark.parametrize("shell", ["zsh", "fish"], indirect=True)
def test_where_quorate_knows_no_word_files_are_offered(shell: str, environ: dict[str, str], line: str) -> None:
    """By our scripts; bash does it natively (`-o default`)."""
    (Path(environ["HOME"]) / "settings.toml").touch()
    assert offered(shell, environ, line) == {"settings.toml"}


@pytest.mark.parametrize("shell", ["zsh"], indirect=True)
def test_zsh_goes_on_after_a_word_and_stays_at_a_value(shell: str, environ: dict[str, str]) -> None:
    assert asked(shell, environ, "quorate doc", "line") == "quorate doctor |\n"
    assert asked(shell, environ, "quorate call guest_power act", "line") == "quorate call guest_power action=|\n"


if __name__ == "__main__" and sys.argv[1:] == ["packages"]:
    sys.stdout.write(" ".join(PACKAGES) + "\n")
