"""quorate init, at a real terminal: from nothing to a cluster that a client can use, or an end that leaves nothing."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from quorate.sim.cluster import SimulatedCluster
from tests.expired import expired_server
from tests.running_sim import pveum, running_sim
from tests.terminal import Terminal, terminal

TOKEN = "quorate@pve!mcp"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}


def config_of(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) / ".config" / "quorate" / "config.toml"


def host_of(sim: SimulatedCluster) -> str:
    return sim.url.removeprefix("https://")


def plainly(environ: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Without a terminal, as a script would."""
    return subprocess.run(
        [sys.executable, "-m", "quorate", *arguments],
        env=dict(environ),
        cwd=environ["HOME"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def answer(screen: Terminal, *pairs: tuple[str, str]) -> None:
    for question, text in pairs:
        screen.expect(question)
        screen.type(text)


def commands_shown(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.startswith("  pveum ")]


def secret_file(environ: Mapping[str, str], sim: SimulatedCluster) -> str:
    file = Path(environ["HOME"]) / "root-token"
    file.write_text(sim.token_secret + "\n")
    file.chmod(0o600)
    return str(file)


def given(environ: Mapping[str, str], sim: SimulatedCluster, *more: str) -> list[str]:
    """Every answer as an option."""
    return ["init", "--host", host_of(sim), "--access", "read", "--fingerprint", sim.fingerprint,
            "--token-id", sim.token_id, "--token-secret-file", secret_file(environ, sim), *more]  # fmt: skip


@pytest.mark.parametrize("access", ["read", "operate", "admin"])
@pytest.mark.parametrize("version", ["8.4.1", "9.1.8"])
def test_the_commands_it_shows_make_a_token_that_has_just_what_the_level_needs(
    environ: dict[str, str], version: str, access: str
) -> None:
    with running_sim(version=version) as sim, terminal("init", environ=environ) as screen:
        answer(screen, ("Address", host_of(sim)), ("Access", access))
        assert sim.fingerprint in screen.expect("Is it the same?")
        screen.type("yes")
        answer(screen, ("API token", ""), ("Version of Proxmox VE", version[0]))
        commands = commands_shown(screen.expect("shows the token's secret, once."))
        secret = pveum(sim, commands)
        answer(screen, ("(is not shown)", secret))
        screen.expect(f"runs PVE {version}")
        screen.expect(f"all privileges that access {access} needs")
        answer(screen, ("Which client", "none"))
        screen.expect("Done.")
        assert screen.end() == 0
        assert secret not in screen.text
        assert ("VM.Monitor" in " ".join(commands)) is (version[0] == "8")

        config = config_of(environ)
        written = tomllib.loads(config.read_text())
        assert written["access"] == access
        assert written["clusters"]["home"]["token_id"] == TOKEN
        assert secret not in config.read_text()
        doctor = plainly(environ, "doctor", "--toolsets", "cluster,guests,storage,access,network,nodes", "--json")
        assert doctor.returncode == 0, doctor.stdout
    for private in (config, config.with_name("home.secret")):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(config.parent.stat().st_mode) == 0o700


def test_the_read_level_asks_for_nothing_that_changes(environ: dict[str, str]) -> None:
    from quorate.cli.granting import least_privileges
    from quorate.operations.registry import TOOLSETS

    needed = frozenset().union(*least_privileges("read", 9, list(TOOLSETS)).values())
    assert all(re.search(r"Audit$|^Sys\.Syslog$", one) for one in needed)


def test_every_answer_can_be_an_option_and_no_terminal_is_needed(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        done = plainly(environ, *given(environ, sim))
        assert done.returncode == 0, done.stdout + done.stderr
        assert sim.token_secret not in done.stdout + done.stderr
        written = config_of(environ).read_text()
        assert "root-token" in written  # the secret stays where it is
        assert sim.token_secret not in written
        assert plainly(environ, "call", "guest_list").returncode == 0


def test_a_missing_answer_without_a_terminal_names_the_option(environ: dict[str, str]) -> None:
    done = plainly(environ, "init")
    assert done.returncode == 2
    assert "--host" in done.stderr


def test_without_a_terminal_an_unknown_certificate_is_never_trusted_by_itself(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        arguments = given(environ, sim, "--yes")
        del arguments[arguments.index("--fingerprint") : arguments.index("--fingerprint") + 2]
        done = plainly(environ, *arguments)
        assert done.returncode == 1
        assert "--fingerprint" in done.stdout
        assert sim.requests == []
    assert not config_of(environ).exists()


def test_a_fingerprint_that_is_not_the_servers_ends_it_before_anything_is_sent(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        arguments = given(environ, sim)
        arguments[arguments.index("--fingerprint") + 1] = "AB" * 32
        with terminal(*arguments, environ=environ) as screen:
            assert screen.end() == 1
            assert "someone may be in between" in screen.text
        assert sim.requests == []
    assert not config_of(environ).exists()


def test_anything_but_yes_does_not_trust_the_certificate(environ: dict[str, str]) -> None:
    with running_sim() as sim, terminal("init", "--host", host_of(sim), "--access", "read", environ=environ) as screen:
        answer(screen, ("Is it the same?", "y"))
        assert screen.end() == 1
        assert "Nothing was written." in screen.text
        assert sim.requests == []
    assert not config_of(environ).parent.exists()


def test_an_expired_certificate_is_shown_as_such(environ: dict[str, str], tmp_path: Path) -> None:
    with (
        expired_server(tmp_path) as (port, _, _),
        terminal("init", "--host", f"localhost:{port}", "--access", "read", environ=environ) as screen,
    ):
        assert "HAS EXPIRED" in screen.expect("Is it the same?")
        screen.type("no")
        assert screen.end() == 1


def test_a_host_that_nobody_knows_is_told(environ: dict[str, str]) -> None:
    with terminal("init", "--host", "pve.invalid", "--access", "read", environ=environ) as screen:
        assert screen.end() == 1
        assert "is not known to this machine" in screen.text


def test_a_refused_port_is_told(environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with terminal("init", "--host", f"127.0.0.1:{port}", "--access", "read", environ=environ) as screen:
        assert screen.end() == 1
        assert f"refuses connections at port {port}" in screen.text


def test_a_wrong_secret_may_be_typed_again_and_three_are_enough(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        arguments = ["init", "--host", host_of(sim), "--access", "read", "--fingerprint", sim.fingerprint,
                     "--token-id", sim.token_id, "--pve", "9", "--client", "none"]  # fmt: skip
        with terminal(*arguments, environ=environ) as screen:
            for _ in range(3):
                answer(screen, ("(is not shown)", "not-the-secret"))
            assert screen.end() == 1
            assert "pveum user token list" in screen.text
            assert "not-the-secret" not in screen.text
        assert not config_of(environ).exists()
        with terminal(*arguments, environ=environ) as screen:
            answer(screen, ("(is not shown)", "not-the-secret"), ("(is not shown)", sim.token_secret))
            assert screen.end() == 0
            assert sim.token_secret not in screen.text


def test_missing_privileges_are_shown_with_the_commands_and_need_a_yes(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        secret = pveum(sim, ["pveum user add quorate@pve", "pveum user token add quorate@pve mcp --privsep 0"])
        file = Path(environ["HOME"]) / "weak"
        file.write_text(secret)
        arguments = given(environ, sim, "--client", "none")
        arguments[arguments.index("--token-id") + 1] = TOKEN
        arguments[arguments.index("--token-secret-file") + 1] = str(file)
        with terminal(*arguments, environ=environ) as screen:
            shown = screen.expect("until that is granted.")
            assert "VM.Audit" in shown
            assert "pveum acl modify /vms" in shown
            screen.type("no")
            assert screen.end() == 1
        assert not config_of(environ).exists()
        assert plainly(environ, *arguments, "--yes").returncode == 0
    assert config_of(environ).exists()


def test_ctrl_c_leaves_nothing_behind(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        arguments = ["init", "--host", host_of(sim), "--access", "read", "--fingerprint", sim.fingerprint,
                     "--token-id", sim.token_id, "--pve", "9"]  # fmt: skip
        with terminal(*arguments, environ=environ) as screen:
            screen.expect("(is not shown)")
            assert screen.interrupt() == 130
            assert "Traceback" not in screen.text
    assert not config_of(environ).parent.exists()


def test_a_config_that_exists_is_only_replaced_when_told_and_a_copy_is_kept(environ: dict[str, str]) -> None:
    config = config_of(environ)
    config.parent.mkdir(parents=True)
    config.write_text("# mine\n")
    with running_sim() as sim:
        refused = plainly(environ, *given(environ, sim))
        assert refused.returncode == 2
        assert "--overwrite" in refused.stderr
        assert config.read_text() == "# mine\n"
        assert sim.requests == []
        assert plainly(environ, *given(environ, sim, "--overwrite")).returncode == 0
    assert config.with_name("config.toml.backup").read_text() == "# mine\n"
    assert "clusters" in tomllib.loads(config.read_text())


MINE = """\
# what I wrote
access = "operate"   # for all

[clusters.home]  # the old one
url = "https://192.0.2.1:8006"
token_id = "quorate@pve!mcp"
token_secret = { env = "SECRET" }

[[rules]]
name = "stays"
deny = "destroy"
tags = "prod"
"""


def test_a_cluster_is_added_to_a_config_that_exists_and_all_else_stays(environ: dict[str, str]) -> None:
    config = config_of(environ)
    config.parent.mkdir(parents=True)
    config.write_text(MINE)
    config.chmod(0o640)
    with running_sim() as sim:
        taken = plainly(environ, *given(environ, sim, "--name", "home"))
        assert taken.returncode == 2
        assert "--name" in taken.stderr
        assert config.read_text() == MINE
        done = plainly(environ, *given(environ, sim, "--name", "lab"))
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0]
        assert config.read_text().startswith(MINE)
        assert stat.S_IMODE(config.stat().st_mode) == 0o640
        assert config.with_name("config.toml.backup").read_text() == MINE
        before, after = tomllib.loads(MINE), tomllib.loads(config.read_text())
        added = after["clusters"].pop("lab")
        assert after == before
        assert (added["url"], added["access"]) == (sim.url, "read")
        assert "ok" in plainly({**environ, "SECRET": "x"}, "doctor", "--cluster", "lab").stdout


def test_at_a_terminal_the_new_clusters_name_is_asked_for(environ: dict[str, str]) -> None:
    config = config_of(environ)
    config.parent.mkdir(parents=True)
    config.write_text(MINE)
    with running_sim() as sim, terminal(*given(environ, sim), environ=environ) as screen:
        screen.expect("It has home.")
        answer(screen, ("Name of the new cluster", "lab"), ("Which client", "none"))
        assert screen.end() == 0
    assert set(tomllib.loads(config.read_text())["clusters"]) == {"home", "lab"}


@pytest.mark.parametrize("old", ['clusters = { home = { url = "https://192.0.2.1" } }\n', "not = = toml\n"])
def test_a_config_that_cannot_be_added_to_is_left_alone(environ: dict[str, str], old: str) -> None:
    config = config_of(environ)
    config.parent.mkdir(parents=True)
    config.write_text(old)
    with running_sim() as sim:
        refused = plainly(environ, *given(environ, sim, "--name", "lab"))
    assert refused.returncode == 2
    assert "TOML" in refused.stderr or "[clusters.lab]" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert config.read_text() == old


# -- clients -----------------------------------------------------------------------------------------------------------

JSON_CLIENTS = {
    "claude-desktop": (".config/Claude/claude_desktop_config.json", "mcpServers"),
    "claude-code": (".claude.json", "mcpServers"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "vscode": (".config/Code/User/mcp.json", "servers"),
    "gemini": (".gemini/settings.json", "mcpServers"),
}


@pytest.mark.parametrize("client", JSON_CLIENTS)
def test_a_clients_file_gets_our_entry_and_loses_nothing(environ: dict[str, str], client: str) -> None:
    place, key = JSON_CLIENTS[client]
    file = Path(environ["HOME"]) / place
    file.parent.mkdir(parents=True, exist_ok=True)
    old = {"theme": "dark", key: {"other": {"command": "x", "env": {"Ä": "ö"}}}, "n": [1, 2.5, None]}
    file.write_text(json.dumps(old))
    file.chmod(0o640)
    with running_sim() as sim:
        done = plainly(environ, *given(environ, sim, "--client", client, "--write"))
        assert done.returncode == 0, done.stdout + done.stderr
        new = json.loads(file.read_text())
        entry = new[key].pop("quorate")
        assert new == old
        assert json.loads(file.with_name(f"{file.name}.backup").read_text()) == old
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
        assert sim.token_secret not in file.read_text()
        assert entry["args"][-3:] == ["serve", "--config", str(config_of(environ))]
        started = subprocess.run(
            [entry["command"], *entry["args"][:-3], "call", "guest_list", "--config", entry["args"][-1]],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert started.returncode == 0, started.stderr


def test_codex_gets_a_table_at_the_end_and_its_comments_stay(environ: dict[str, str]) -> None:
    file = Path(environ["HOME"]) / ".codex" / "config.toml"
    file.parent.mkdir()
    old = '# mine\nmodel = "x"\n[mcp_servers.other]\ncommand = "y"\n'
    file.write_text(old)
    with running_sim() as sim:
        assert plainly(environ, *given(environ, sim, "--client", "codex", "--write")).returncode == 0
        assert file.read_text().startswith(old)
        servers = tomllib.loads(file.read_text())["mcp_servers"]
        assert set(servers) == {"other", "quorate"}
        assert file.with_name("config.toml.backup").read_text() == old
        again = plainly(environ, *given(environ, sim, "--client", "codex", "--write", "--overwrite"))
        assert "has it already" in again.stdout


@pytest.mark.parametrize("old", ['// mine\n{"mcpServers": {}}', '{"a": 1, "a": 2}', "[]", '{"mcpServers": 1}'])
def test_a_clients_file_that_would_lose_something_is_left_alone(environ: dict[str, str], old: str) -> None:
    file = Path(environ["HOME"]) / ".cursor" / "mcp.json"
    file.parent.mkdir()
    file.write_text(old)
    with running_sim() as sim:
        done = plainly(environ, *given(environ, sim, "--client", "cursor", "--write"))
    assert done.returncode == 2
    assert "by hand" in done.stderr
    assert '"quorate"' in done.stdout  # the lines to add
    assert file.read_text() == old
    assert list(file.parent.iterdir()) == [file]


def test_another_entry_of_ours_is_replaced_only_when_told_and_keeps_what_else_it_holds(environ: dict[str, str]) -> None:
    file = Path(environ["HOME"]) / ".cursor" / "mcp.json"
    file.parent.mkdir()
    file.write_text('{"mcpServers": {"quorate": {"command": "old", "args": [], "env": {"A": "b"}}}}')
    with running_sim() as sim:
        refused = plainly(environ, *given(environ, sim, "--client", "cursor", "--write"))
        assert refused.returncode == 2
        assert "--overwrite" in refused.stderr
        assert plainly(environ, *given(environ, sim, "--client", "cursor", "--write", "--overwrite")).returncode == 0
    entry = json.loads(file.read_text())["mcpServers"]["quorate"]
    assert entry["env"] == {"A": "b"}
    assert entry["command"] != "old"


def test_at_a_terminal_the_client_is_chosen_and_its_file_written_after_a_yes(environ: dict[str, str]) -> None:
    with running_sim() as sim, terminal(*given(environ, sim), environ=environ) as screen:
        answer(screen, ("Which client", "gemini"), ("It can be written there", "yes"))
        assert screen.end() == 0
    assert "quorate" in json.loads((Path(environ["HOME"]) / ".gemini/settings.json").read_text())["mcpServers"]


def test_open_webui_is_told_how_to_reach_the_http_server(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        done = plainly(environ, *given(environ, sim, "--client", "open-webui"))
    assert done.returncode == 0
    assert "/mcp" in done.stdout
    assert f"--config {config_of(environ)}" in done.stdout
