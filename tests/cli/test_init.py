"""quorate init, at a real terminal: from nothing to a cluster that a client can use, or an end that leaves nothing."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import stat
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from pve_simulator.simulator import SimulatedCluster
from tests.rigs.cli import quorate
from tests.rigs.expired_certificate import expired_server
from tests.rigs.simulator import pveum, run_script, running_sim
from tests.rigs.terminal import Terminal, terminal

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
    return quorate(*arguments, environ=environ, cwd=Path(environ["HOME"]))


def answer(screen: Terminal, *pairs: tuple[str, str]) -> None:
    for question, text in pairs:
        screen.expect(question)
        screen.type(text)


def script_shown(text: str) -> str:
    """All that has to be pasted into a shell on a node."""
    return re.search(r"^sh -e <<'END'\n.*?^END$", text, re.M | re.S)[0]  # type: ignore[index]


def secret_file(environ: Mapping[str, str], sim: SimulatedCluster) -> str:
    file = Path(environ["HOME"]) / "root-token"
    file.write_text(sim.token_secret + "\n")
    file.chmod(0o600)
    return str(file)


def init_arguments(environ: Mapping[str, str], sim: SimulatedCluster, *more: str) -> list[str]:
    """Every answer as an option."""
    return [*added(environ, sim), "--toolsets", "default", *more]


def added(environ: Mapping[str, str], sim: SimulatedCluster, *more: str) -> list[str]:
    """The same for a cluster that is added to a configuration."""
    return ["init", "--host", host_of(sim), "--access", "read", "--fingerprint", sim.fingerprint,
            "--token-id", sim.token_id, "--token-secret-file", secret_file(environ, sim), *more]  # fmt: skip


@pytest.mark.parametrize("access", ["read", "operate", "admin"])
@pytest.mark.parametrize("version", ["8.4.1", "9.1.8"])
def test_the_commands_it_shows_make_a_token_that_has_just_what_the_level_needs(
    environ: dict[str, str], version: str, access: str
) -> None:
    with running_sim(version=version) as sim, terminal("init", environ=environ) as screen:
        screen.expect("Address")
        screen.type(host_of(sim))
        assert sim.fingerprint in screen.expect("Do they match?")
        screen.type("yes")
        answer(screen, ("Access (", access), ("Toolsets [default]", "all"), ("API token", ""))
        answer(screen, ("Version of Proxmox VE", version[0]))
        secret, ran = run_script(sim, script_shown(screen.expect("shows the token's secret once.")))
        answer(screen, ("(not shown)", secret))
        screen.expect(f"runs PVE {version}")
        screen.expect(f"all privileges that access {access} needs")
        answer(screen, ("Which client", "none"))
        if access == "admin":
            answer(screen, ("New passphrase", ""))
        screen.expect("Done.")
        assert screen.end() == 0
        assert secret not in screen.text
        assert ("VM.Monitor" in str(ran)) is (version[0] == "8")

        config = config_of(environ)
        written = tomllib.loads(config.read_text())
        assert written["access"] == access
        assert written["toolsets"] == ["all"]
        assert written["clusters"]["home"]["token_id"] == TOKEN
        assert secret not in config.read_text()
        doctor = plainly(environ, "doctor", "--json")
        assert doctor.returncode == 0, doctor.stdout
    for private in (config, config.with_name("home.secret")):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(config.parent.stat().st_mode) == 0o700


def test_the_read_level_asks_for_nothing_that_changes(environ: dict[str, str]) -> None:
    from quorate.cli.grants import least_privileges
    from quorate.operations.registry import TOOLSETS

    needed = frozenset().union(*least_privileges("read", 9, list(TOOLSETS)).values())
    assert all(re.search(r"Audit$|^Sys\.Syslog$", privilege) for privilege in needed)


def test_every_answer_can_be_an_option_and_no_terminal_is_needed(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        done = plainly(environ, *init_arguments(environ, sim))
        assert done.returncode == 0, done.stdout + done.stderr
        assert sim.token_secret not in done.stdout + done.stderr
        written = config_of(environ).read_text()
        assert "root-token" in written  # the secret stays where it is
        assert sim.token_secret not in written
        assert plainly(environ, "call", "guest_list").returncode == 0


def test_plain_hosts_need_no_proxmox_ve_and_the_doctor_is_content(environ: dict[str, str]) -> None:
    done = plainly(environ, "init", "--toolsets", "hosts,map", "--yes")
    assert done.returncode == 0, done.stderr
    assert "quorate trust ADDRESS" in done.stdout
    assert tomllib.loads(config_of(environ).read_text()) == {"access": "read", "toolsets": ["hosts", "map"]}
    doctor = plainly(environ, "doctor")
    assert doctor.returncode == 0, doctor.stdout
    assert "No problems found." in doctor.stdout
    register = ("host=nas", "address=192.0.2.9:2222", "user=me", "verify=false", "--access", "operate")
    assert plainly(environ, "call", "host_register", *register).returncode == 0
    assert "nas" in plainly(environ, "call", "host_list").stdout
    assert "nas" in plainly(environ, "call", "network_map").stdout


def test_with_a_toolset_for_guests_a_node_is_asked_for(environ: dict[str, str]) -> None:
    done = plainly(environ, "init", "--toolsets", "hosts,guests")
    assert done.returncode == 2
    assert "--host" in done.stderr


def test_a_missing_answer_without_a_terminal_names_the_option(environ: dict[str, str]) -> None:
    done = plainly(environ, "init")
    assert done.returncode == 2
    assert "--host" in done.stderr


def test_without_a_terminal_an_unknown_certificate_is_never_trusted(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        arguments = init_arguments(environ, sim, "--yes")
        del arguments[arguments.index("--fingerprint") : arguments.index("--fingerprint") + 2]
        done = plainly(environ, *arguments)
        assert done.returncode == 1
        assert "--fingerprint" in done.stdout
        assert sim.requests == []
    assert not config_of(environ).exists()


def test_a_fingerprint_that_is_not_the_servers_ends_it_before_anything_is_sent(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        arguments = init_arguments(environ, sim)
        arguments[arguments.index("--fingerprint") + 1] = "AB" * 32
        with terminal(*arguments, environ=environ) as screen:
            assert screen.end() == 1
            assert "someone may be intercepting" in screen.text
        assert sim.requests == []
    assert not config_of(environ).exists()


@pytest.mark.parametrize("answers", [["no"], [""], ["y", "no"], ["y", "ok", "sure"]])
def test_anything_but_yes_does_not_trust_the_certificate(environ: dict[str, str], answers: list[str]) -> None:
    with running_sim() as sim, terminal("init", "--host", host_of(sim), "--access", "read", environ=environ) as screen:
        answer(screen, *(("Do they match?", reply) for reply in answers))
        assert screen.end() == 1
        assert "Nothing was written." in screen.text
        assert sim.requests == []
    assert not config_of(environ).parent.exists()


def test_an_expired_certificate_is_shown_as_such(environ: dict[str, str], tmp_path: Path) -> None:
    with (
        expired_server(tmp_path) as (port, _, _),
        terminal("init", "--host", f"localhost:{port}", "--access", "read", environ=environ) as screen,
    ):
        assert "HAS EXPIRED" in screen.expect("Do they match?")
        screen.type("no")
        assert screen.end() == 1


def test_a_host_name_that_cannot_be_resolved_is_reported(environ: dict[str, str]) -> None:
    with terminal("init", "--host", "pve.invalid", "--access", "read", environ=environ) as screen:
        assert screen.end() == 1
        assert "cannot be resolved on this machine" in screen.text


def test_a_refused_port_is_reported(environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with terminal("init", "--host", f"127.0.0.1:{port}", "--access", "read", environ=environ) as screen:
        assert screen.end() == 1
        assert f"refuses connections on port {port}" in screen.text


def test_a_wrong_secret_may_be_typed_again_and_three_are_enough(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        arguments = ["init", "--host", host_of(sim), "--access", "read", "--fingerprint", sim.fingerprint,
                     "--token-id", sim.token_id, "--toolsets", "default", "--pve", "9", "--client", "none"]  # fmt: skip
        with terminal(*arguments, environ=environ) as screen:
            for _ in range(3):
                answer(screen, ("(not shown)", "not-the-secret"))
            assert screen.end() == 1
            assert "pveum user token list" in screen.text
            assert "not-the-secret" not in screen.text
        assert not config_of(environ).exists()
        with terminal(*arguments, environ=environ) as screen:
            answer(screen, ("(not shown)", "not-the-secret"), ("(not shown)", sim.token_secret))
            assert screen.end() == 0
            assert sim.token_secret not in screen.text


def test_missing_privileges_are_shown_with_the_commands_and_need_a_yes(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        secret = pveum(sim, ["pveum user add quorate@pve", "pveum user token add quorate@pve mcp --privsep 0"])
        file = Path(environ["HOME"]) / "weak"
        file.write_text(secret)
        arguments = init_arguments(environ, sim, "--client", "none")
        arguments[arguments.index("--token-id") + 1] = TOKEN
        arguments[arguments.index("--token-secret-file") + 1] = str(file)
        with terminal(*arguments, environ=environ) as screen:
            shown = screen.expect("until these are granted.")
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
                     "--token-id", sim.token_id, "--toolsets", "default", "--pve", "9"]  # fmt: skip
        with terminal(*arguments, environ=environ) as screen:
            screen.expect("(not shown)")
            assert screen.interrupt() == 130
            assert "Traceback" not in screen.text
            assert f"quorate init --host {host_of(sim)} --access read" in screen.text
    assert not config_of(environ).parent.exists()


def test_a_token_of_root_needs_no_grants_and_comes_with_a_warning(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        arguments = ["init", "--host", host_of(sim), "--access", "read", "--fingerprint", sim.fingerprint,
                     "--token-id", "root@pam!mcp", "--toolsets", "default"]  # fmt: skip
        with terminal(*arguments, environ=environ) as screen:
            shown = screen.expect("(not shown)")
            assert screen.interrupt() == 130
    assert "has every privilege" in shown
    assert "pveum user token add root@pam mcp --privsep 0" in shown
    assert "pveum acl" not in shown


def test_an_existing_config_is_replaced_only_on_request_and_a_copy_is_kept(environ: dict[str, str]) -> None:
    config = config_of(environ)
    config.parent.mkdir(parents=True)
    config.write_text("# mine\n")
    with running_sim() as sim:
        refused = plainly(environ, *init_arguments(environ, sim))
        assert refused.returncode == 2
        assert "--overwrite" in refused.stderr
        assert config.read_text() == "# mine\n"
        assert sim.requests == []
        assert plainly(environ, *init_arguments(environ, sim, "--overwrite")).returncode == 0
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
        taken = plainly(environ, *added(environ, sim, "--name", "home"))
        assert taken.returncode == 2
        assert "--name" in taken.stderr
        assert config.read_text() == MINE
        done = plainly(environ, *added(environ, sim, "--name", "lab"))
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0]
        assert config.read_text().startswith(MINE)
        assert stat.S_IMODE(config.stat().st_mode) == 0o640
        assert config.with_name("config.toml.backup").read_text() == MINE
        before, after = tomllib.loads(MINE), tomllib.loads(config.read_text())
        lab = after["clusters"].pop("lab")
        assert after == before
        assert (lab["url"], lab["access"]) == (sim.url, "read")
        assert "ok" in plainly({**environ, "SECRET": "x"}, "doctor", "--cluster", "lab").stdout


def test_at_a_terminal_the_new_clusters_name_is_asked_for(environ: dict[str, str]) -> None:
    config = config_of(environ)
    config.parent.mkdir(parents=True)
    config.write_text(MINE)
    with running_sim() as sim, terminal(*added(environ, sim), environ=environ) as screen:
        screen.expect("Existing clusters: home.")
        answer(screen, ("Name of the new cluster", "lab"), ("Which client", "none"))
        assert screen.end() == 0
    assert set(tomllib.loads(config.read_text())["clusters"]) == {"home", "lab"}


@pytest.mark.parametrize("old", ['clusters = { home = { url = "https://192.0.2.1" } }\n', "not = = toml\n"])
def test_a_config_that_cannot_be_added_to_is_left_alone(environ: dict[str, str], old: str) -> None:
    config = config_of(environ)
    config.parent.mkdir(parents=True)
    config.write_text(old)
    with running_sim() as sim:
        refused = plainly(environ, *added(environ, sim, "--name", "lab"))
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
        done = plainly(environ, *init_arguments(environ, sim, "--client", client, "--write"))
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
        assert plainly(environ, *init_arguments(environ, sim, "--client", "codex", "--write")).returncode == 0
        assert file.read_text().startswith(old)
        servers = tomllib.loads(file.read_text())["mcp_servers"]
        assert set(servers) == {"other", "quorate"}
        assert file.with_name("config.toml.backup").read_text() == old
        again = plainly(environ, *init_arguments(environ, sim, "--client", "codex", "--write", "--overwrite"))
        assert "already has it" in again.stdout


@pytest.mark.parametrize("old", ['// mine\n{"mcpServers": {}}', '{"a": 1, "a": 2}', "[]", '{"mcpServers": 1}'])
def test_a_clients_file_that_would_lose_something_is_left_alone(environ: dict[str, str], old: str) -> None:
    file = Path(environ["HOME"]) / ".cursor" / "mcp.json"
    file.parent.mkdir()
    file.write_text(old)
    with running_sim() as sim:
        done = plainly(environ, *init_arguments(environ, sim, "--client", "cursor", "--write"))
    assert done.returncode == 2
    assert "by hand" in done.stderr
    assert '"quorate"' in done.stdout  # the lines to add
    assert file.read_text() == old
    assert list(file.parent.iterdir()) == [file]


def test_an_existing_quorate_entry_is_replaced_only_on_request_and_keeps_its_other_keys(
    environ: dict[str, str],
) -> None:
    file = Path(environ["HOME"]) / ".cursor" / "mcp.json"
    file.parent.mkdir()
    file.write_text('{"mcpServers": {"quorate": {"command": "old", "args": [], "env": {"A": "b"}}}}')
    with running_sim() as sim:
        refused = plainly(environ, *init_arguments(environ, sim, "--client", "cursor", "--write"))
        assert refused.returncode == 2
        assert "--overwrite" in refused.stderr
        assert (
            plainly(environ, *init_arguments(environ, sim, "--client", "cursor", "--write", "--overwrite")).returncode
            == 0
        )
    entry = json.loads(file.read_text())["mcpServers"]["quorate"]
    assert entry["env"] == {"A": "b"}
    assert entry["command"] != "old"


def test_at_a_terminal_the_client_is_chosen_and_its_file_written_after_a_yes(environ: dict[str, str]) -> None:
    with running_sim() as sim, terminal(*init_arguments(environ, sim), environ=environ) as screen:
        answer(screen, ("Which client", "gemini"), ("Write it there?", "yes"))
        assert screen.end() == 0
    assert "quorate" in json.loads((Path(environ["HOME"]) / ".gemini/settings.json").read_text())["mcpServers"]


def test_open_webui_gets_the_address_of_the_http_server(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        done = plainly(environ, *init_arguments(environ, sim, "--client", "open-webui"))
    assert done.returncode == 0
    assert "/mcp" in done.stdout
    assert f"--config {config_of(environ)}" in done.stdout


# -- the first hour ----------------------------------------------------------------------------------------------------


def test_a_wrong_address_is_asked_for_again_and_earlier_answers_are_kept(environ: dict[str, str]) -> None:
    config = config_of(environ)
    config.parent.mkdir(parents=True)
    config.write_text(MINE)
    with running_sim() as sim, terminal("init", environ=environ) as screen:
        answer(screen, ("Add a client or a cluster?", "cluster"), ("Name of the new cluster", "home"))
        screen.expect("There is already a cluster home")
        answer(screen, ("Name of the new cluster", "lab"), ("Address", "pve.invalid"))
        screen.expect("cannot be resolved on this machine")
        answer(screen, ("Address", host_of(sim)), ("Do they match?", "yes"), ("Access (", "read"))
        answer(screen, ("API token", "nonsense"))
        screen.expect("must look like user@realm!name")
        answer(screen, ("API token", sim.token_id), ("(not shown)", sim.token_secret))
        answer(screen, ("Which client", "none"))
        assert screen.end() == 0
    assert tomllib.loads(config.read_text())["clusters"]["lab"]["url"] == sim.url


def test_after_a_stop_one_command_continues_with_the_same_answers(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        with terminal("init", environ=environ) as screen:
            answer(screen, ("Address", host_of(sim)), ("Do they match?", "yes"), ("Access (", "operate"))
            answer(screen, ("Toolsets", "+firewall"), ("API token", sim.token_id))
            for _ in range(3):
                answer(screen, ("(not shown)", "wrong"))
            assert screen.end() == 1
        again = shlex.split(screen.text.split("To continue with the same answers:")[1].strip())
        assert "wrong" not in again
        with terminal(*again[1:], environ=environ) as screen:
            answer(screen, ("(not shown)", sim.token_secret), ("Which client", "none"))
            assert screen.end() == 0
    written = tomllib.loads(config_of(environ).read_text())
    assert (written["access"], written["toolsets"]) == ("operate", ["default", "firewall"])


def test_the_script_can_be_pasted_twice(environ: dict[str, str]) -> None:
    from quorate.cli.grants import grant_script

    script = grant_script("quorate@pve!mcp", "operate", 9, ["guests"])
    script = re.sub("^pveum user token add.*\n", "", script, flags=re.M)  # PVE has its own words for a second one
    with running_sim() as sim:
        _, ran = run_script(sim, script, times=2)
    assert [words[:2] for words in ran].count(["role", "modify"]) > 0
    assert ["user", "modify", "quorate@pve"] in ran  # of a user that exists, nothing is changed


def test_the_chosen_tools_decide_what_the_script_grants(environ: dict[str, str]) -> None:
    from quorate.cli.grants import least_privileges

    some, more = (least_privileges("operate", 9, names) for names in (["guests"], ["guests", "network"]))
    assert "VM.Console" in some["/vms"]
    assert "/sdn/zones" not in some
    assert "/sdn/zones" in more


def test_a_mistyped_toolset_is_refused_with_the_names_there_are(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        done = plainly(environ, *added(environ, sim, "--toolsets", "+firewal"))
    assert done.returncode == 2
    assert "There is no toolset 'firewal': did you mean 'firewall'? Choose from " in done.stderr
    assert "firewall" in done.stderr


def test_a_client_is_added_to_a_config_that_exists_and_nothing_else_is_asked(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        assert plainly(environ, *init_arguments(environ, sim)).returncode == 0
        before = config_of(environ).read_text()
        asked = len(sim.requests)
        done = plainly(environ, "init", "--client", "cursor", "--write")
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(sim.requests) == asked
        with terminal("init", environ=environ) as screen:
            answer(screen, ("Add a client or a cluster?", ""), ("Which client", "gemini"), ("Write it there?", "yes"))
            assert screen.end() == 0
    assert config_of(environ).read_text() == before
    for place in (".cursor/mcp.json", ".gemini/settings.json"):
        entry = json.loads((Path(environ["HOME"]) / place).read_text())["mcpServers"]["quorate"]
        assert entry["args"][-1] == str(config_of(environ))


def test_at_admin_the_passphrase_is_offered_and_can_be_used_at_once(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        arguments = init_arguments(environ, sim, "--client", "none")
        arguments[arguments.index("--access") + 1] = "admin"
        with terminal(*arguments, environ=environ) as screen:
            answer(screen, ("New passphrase", "too short"))
            screen.expect("it needs 12 characters or more")
            answer(screen, ("New passphrase", "correct horse battery"), ("Repeat it", "something else"))
            answer(screen, ("New passphrase", "correct horse battery"), ("Repeat it", "correct horse battery"))
            screen.expect("The passphrase is set.")
            assert screen.end() == 0
        findings = json.loads(plainly(environ, "doctor", "--json").stdout)["findings"]
    assert [finding["state"] for finding in findings if finding["check"] == "passphrase"] == ["ok"]


@pytest.mark.parametrize("toolsets", ["default", "nodes"])
def test_it_ends_with_commands_that_work_with_the_file_it_wrote(environ: dict[str, str], toolsets: str) -> None:
    elsewhere = Path(environ["HOME"]) / "some where" / "quorate.toml"
    with running_sim() as sim:
        done = plainly(environ, *added(environ, sim, "--toolsets", toolsets, "--config", str(elsewhere)))
        assert done.returncode == 0, done.stderr
        suggested = [line for line in done.stdout.splitlines() if line.startswith("  quorate ")]
        assert len(suggested) == 2
        for line in suggested:
            tried = plainly(environ, *shlex.split(line)[1:])
            assert tried.returncode == 0, f"{line}\n{tried.stdout}{tried.stderr}"
