"""The shell as a way to every tool: help, reference, exit codes, completion."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from quorate.cli.call import key_values
from quorate.cli.reference import example, explained
from quorate.operations.registry import operations
from quorate.pipeline.arguments import decode
from quorate.sim.cluster import SimulatedCluster
from quorate.sim.demo_world import build_demo_world
from quorate.sim.world import World
from tests.running_sim import running_sim


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def quorate(environ: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quorate", *arguments],
        env=dict(environ),
        cwd=environ["HOME"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def pointed_at(sim: SimulatedCluster) -> dict[str, str]:
    return {
        "PROXMOX_URL": sim.url,
        "PROXMOX_TOKEN_ID": sim.token_id,
        "PROXMOX_TOKEN_SECRET": sim.token_secret,
        "PROXMOX_FINGERPRINT": sim.fingerprint,
    }


@pytest.mark.parametrize("name", operations())
def test_the_help_of_every_tool_names_every_argument_and_its_example_fits(name: str) -> None:
    operation = operations()[name]
    text = explained(operation)
    for argument in operation.schema()["properties"]:
        assert f"\n  {argument}=" in text
    assert text.endswith(example(operation))
    words = shlex.split(example(operation))
    assert words[:3] == ["quorate", "call", name]
    pairs = [word for word in words[3:] if "=" in word]
    decode(operation, key_values(pairs))


def test_help_after_a_tool_explains_that_tool(environ: dict[str, str]) -> None:
    done = quorate(environ, "call", "guest_power", "--help")
    assert done.returncode == 0
    assert "reboot | reset | resume" in done.stdout
    assert "--access operate" in done.stdout
    assert "Exit codes" in quorate(environ, "call", "--help").stdout


@pytest.mark.parametrize("arguments", [("call", "guest_lst", "--help"), ("tools", "guest_lst")])
def test_a_tool_that_there_is_not_is_a_usage_error_with_those_near_to_it(
    environ: dict[str, str], arguments: tuple[str, ...]
) -> None:
    done = quorate(environ, *arguments)
    assert done.returncode == 2
    assert "guest_list" in done.stderr


def test_tools_are_grouped_and_one_is_explained_by_its_name(environ: dict[str, str]) -> None:
    listed = quorate(environ, "tools").stdout.splitlines()
    assert listed.index("guests: finding guests, switching them on and off, changing their options") < next(
        number for number, line in enumerate(listed) if line.startswith("  guest_list ")
    )
    assert quorate(environ, "tools", "--access", "read", "guest_stop").stdout == (
        quorate(environ, "call", "guest_stop", "--help").stdout
    )


def test_a_call_that_waits_for_approval_has_an_exit_code_of_its_own(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        done = quorate({**environ, **pointed_at(sim)}, "call", "guest_stop", "guest=100", "wait=0", "--access", "admin")
    assert done.returncode == 4
    assert "quorate approvals approve" in done.stderr


# -- completion --------------------------------------------------------------------------------------------------------


def completed(environ: Mapping[str, str], line: str) -> list[str]:
    """What a real bash offers after this line."""
    script = (
        'eval "$(quorate completion bash)"; COMP_LINE=$1; COMP_POINT=${#1}; _quorate; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", script, "bash", line],
        env=dict(environ),
        cwd=environ["HOME"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("quorate doc", ["doctor"]),
        ("quorate serve --acc", ["--access"]),
        ("quorate serve --access ", ["read", "operate", "admin"]),
        ("quorate approvals a", ["approve"]),
        ("quorate call guest_po", ["guest_power"]),
        ("quorate tools snapshot_r", ["snapshot_rollback"]),
        ("quorate call guest_power act", ["action="]),
        ("quorate call guest_power guest=1 action=sh", ["shutdown"]),
        ("quorate call guest_power dry_run=", ["true", "false"]),
        ("quorate completion z", ["zsh"]),
        ("quorate nonsense ", []),
        ("quorate call no_such_tool a", []),
    ],
)
def test_bash_completes_commands_options_tools_arguments_and_choices(
    environ: dict[str, str], line: str, wanted: list[str]
) -> None:
    assert completed(environ, line) == wanted


def test_bash_completes_guests_nodes_and_storages_of_the_cluster(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        settings = {**environ, **pointed_at(sim)}
        assert completed(settings, "quorate call guest_get guest=homea") == ["homeassistant"]
        assert completed(settings, "quorate call node_get node=") == sorted(sim.world.nodes)
        assert "local" in completed(settings, "quorate call vm_create storage=lo")


def test_a_name_that_a_shell_would_run_is_not_offered(environ: dict[str, str]) -> None:
    def build(world: World) -> None:
        build_demo_world(world)
        world.guests[101].config["name"] = "home$(touch${IFS}owned)"

    with running_sim(build=build) as sim:
        offered = completed({**environ, **pointed_at(sim)}, "quorate call guest_get guest=")
    assert "router" in offered
    assert not any("home" in one for one in offered)


def test_a_cluster_that_does_not_answer_leaves_completion_silent(environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes connections and says nothing
        url = f"https://127.0.0.1:{mute.getsockname()[1]}"
        settings = {"PROXMOX_URL": url, "PROXMOX_TOKEN_ID": "quorate@pve!mcp", "PROXMOX_TOKEN_SECRET": "x"}
        assert completed({**environ, **settings}, "quorate call guest_get guest=") == []
