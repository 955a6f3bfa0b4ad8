"""The command line as other programs use it: real processes, real pipes."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from quorate.cli import main
from tests.rigs.mcp_session import text_of
from tests.rigs.processes import completed, running

QUORATE = [sys.executable, "-m", "quorate"]

pytestmark = pytest.mark.anyio


def run(*arguments, cwd, **environment):
    return completed(*arguments, environ={**os.environ, **environment}, cwd=cwd)


@pytest.fixture(scope="module")
def simulator(tmp_path_factory):
    """A `quorate sim` process and the settings that lead to it."""
    folder = tmp_path_factory.mktemp("simulator")
    with running("sim", cwd=folder) as process:
        ready = json.loads(process.stdout.readline())
        yield (
            ready,
            {
                "PROXMOX_URL": ready["url"],
                "PROXMOX_TOKEN_ID": ready["token_id"],
                "PROXMOX_TOKEN_SECRET": ready["token_secret"],
                "PROXMOX_CA_FILE": ready["ca_file"],
            },
        )
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == 0


@pytest.mark.thorough
def test_the_command_is_installed_and_a_module(tmp_path):
    for command in ([str(Path(sys.executable).with_name("quorate"))], QUORATE):
        ended = subprocess.run([*command, "tools"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert "guest_list" in ended.stdout


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("docter", "Did you mean 'doctor'?"),
        ("guest_list", "It is a tool: quorate call guest_list"),
        ("xyzzy", "`quorate --help` lists them all."),
    ],
)
def test_a_command_that_does_not_exist_gets_a_hint(tmp_path, command: str, hint: str):
    ended = run(command, cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr == f"quorate: There is no command '{command}'. {hint}\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["call", "guest_list", "nonsense=1"], 2),
        (["call", "guest_list", "limit=abc"], 2),
        (["call", "guest_get"], 2),
        (["call", "no_such_tool"], 2),
        (["call", "--surface", "lean", "pve_read", "operation=nonsense"], 2),
        (["call", "guest_get", "guest=nonsense"], 1),
        (["call", "guest_delete", "guest=100"], 1),
    ],
)
def test_wrong_usage_ends_with_2_and_a_refusal_with_1(simulator, tmp_path, arguments: list[str], code: int):
    _, settings = simulator
    assert run(*arguments, cwd=tmp_path, **settings).returncode == code


def test_help_shows_the_commands_in_groups(tmp_path):
    shown = run("--help", cwd=tmp_path).stdout
    groups = re.findall(r"^  ([a-z ]+):$", shown, re.MULTILINE)
    assert groups == ["set up", "use", "supervise", "serve a network", "hosts", "try"]
    assert shown.index("supervise:") < shown.index("    approvals") < shown.index("serve a network:")


def test_help_is_a_command_too(tmp_path):
    assert run("help", cwd=tmp_path).stdout == run("--help", cwd=tmp_path).stdout
    assert run("help", "doctor", cwd=tmp_path).stdout == run("doctor", "--help", cwd=tmp_path).stdout


def test_sim_prints_one_line_with_all_that_a_client_needs(simulator):
    ready, _ = simulator
    assert set(ready) == {"url", "ca_file", "fingerprint", "token_id", "token_secret", "node"}


def test_call_prints_a_table_or_json_and_ends_with_zero(simulator, tmp_path):
    _, settings = simulator
    table = run("call", "guest_list", "limit=3", cwd=tmp_path, **settings)
    assert table.returncode == 0, table.stderr
    assert table.stdout.splitlines()[0].split()[:2] == ["vmid", "name"]
    data = run("call", "guest_list", "limit=3", "--json", cwd=tmp_path, **settings)
    assert len(json.loads(data.stdout)["items"]) == 3


def test_call_reaches_every_toolset_unless_the_operator_chose_some(simulator, tmp_path):
    _, settings = simulator
    assert run("call", "backup_list", cwd=tmp_path, **settings).returncode == 0
    chosen = run("call", "backup_list", "--toolsets", "guests", cwd=tmp_path, **settings)
    assert chosen.returncode == 1
    assert "switched off" in chosen.stderr


def test_call_follows_a_change_to_its_end(simulator, tmp_path):
    _, settings = simulator
    stopped = json.loads(
        run(
            "call", "guest_list", "status=stopped", "template=false", "type=ct", "--json", cwd=tmp_path, **settings
        ).stdout
    )
    vmid = stopped["items"][0]["vmid"]
    started = run(
        "call",
        "guest_power",
        f"guest={vmid}",
        "action=start",
        "--access",
        "operate",
        "--json",
        cwd=tmp_path,
        **settings,
    )
    assert started.returncode == 0, started.stderr
    assert json.loads(started.stdout)["result"] == "done"


def test_call_that_fails_says_why_on_stderr_and_ends_with_one(simulator, tmp_path):
    _, settings = simulator
    failed = run("call", "guest_get", "guest=nobody", cwd=tmp_path, **settings)
    assert failed.returncode == 1
    assert "There is no guest 'nobody'" in failed.stderr
    assert failed.stdout == ""
    as_json = run("call", "guest_get", "guest=nobody", "--json", cwd=tmp_path, **settings)
    assert as_json.returncode == 1
    assert json.loads(as_json.stdout)["error"]["kind"] == "not_found"


def test_a_change_is_refused_at_the_default_access_level(simulator, tmp_path):
    _, settings = simulator
    refused = run("call", "guest_power", "guest=100", "action=start", cwd=tmp_path, **settings)
    assert refused.returncode == 1
    assert "--access operate" in refused.stderr


def test_missing_settings_are_one_sentence_and_exit_code_two(tmp_path):
    for command in (["serve"], ["call", "guest_list"]):
        ended = run(*command, cwd=tmp_path)
        assert ended.returncode == 2
        assert len(ended.stderr.strip().splitlines()) == 1
        assert "PROXMOX_URL" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_contradictory_settings_are_one_sentence_and_exit_code_two(tmp_path):
    ended = run(
        "serve",
        cwd=tmp_path,
        PROXMOX_URL="https://pve:8006",
        PROXMOX_TOKEN_ID="root@pam!down",
        PROXMOX_TOKEN_SECRET="s3cret-value",
        PROXMOX_PASSWORD="p4ss-value",
    )
    assert ended.returncode == 2
    assert len(ended.stderr.strip().splitlines()) == 1
    assert "value" not in ended.stderr.replace("value of", "")


def test_an_unknown_toolset_is_a_usage_error(tmp_path):
    ended = run("tools", "--toolsets", "gusts", cwd=tmp_path)
    assert ended.returncode == 2
    assert "guests" in ended.stderr


def test_tools_needs_no_cluster_and_prints_the_mcp_array(tmp_path):
    listed = run("tools", "--json", "--access", "admin", cwd=tmp_path)
    assert listed.returncode == 0
    tools = json.loads(listed.stdout)
    assert "guest_stop" in {tool["name"] for tool in tools}
    assert "guest_stop" not in run("tools", cwd=tmp_path).stdout


async def test_serve_speaks_mcp_on_stdio_even_while_the_cluster_is_down(tmp_path):
    settings = {
        "PROXMOX_URL": "https://127.0.0.1:9",
        "PROXMOX_TOKEN_ID": "root@pam!down",
        "PROXMOX_TOKEN_SECRET": "00000000-0000-0000-0000-000000000000",
        "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
    }
    command = StdioServerParameters(command=sys.executable, args=["-m", "quorate", "serve"], env=settings, cwd=tmp_path)
    async with Client(stdio_client(command)) as client:
        assert "guest_list" in [tool.name for tool in (await client.list_tools()).tools]
        answer = await client.call_tool("guest_list", {})
        assert answer.is_error
        assert "No connection" in text_of(answer)


async def test_serve_speaks_streamable_http_on_loopback(tmp_path):
    with running("serve", "--demo", "--http", "127.0.0.1:0", cwd=tmp_path) as server:
        line = await asyncio.to_thread(server.stderr.readline)
        url = line.partition(" listening on ")[2].strip()
        for mode in ("auto", "legacy"):
            async with Client(url, mode=mode) as client:
                answer = await client.call_tool("cluster_status", {})
                assert answer.structured_content["quorate"] is True


def test_serve_starts_with_more_tools_than_clients_handle_well_and_warns_once(tmp_path):
    ended = run(
        "serve", "--demo", "--access", "admin", "--toolsets", "all,homelab", cwd=tmp_path
    )  # stdin is at its end
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("--surface lean") == 1
    assert "--surface lean" not in run("serve", "--demo", "--toolsets", "all,homelab", cwd=tmp_path).stderr


def test_serve_refuses_to_listen_beyond_loopback(tmp_path):
    ended = run("serve", "--demo", "--http", "0.0.0.0:8000", cwd=tmp_path)
    assert ended.returncode == 2
    assert "does not listen on '0.0.0.0' without authentication" in ended.stderr


@pytest.mark.thorough
def test_the_demo_shows_the_main_job_and_ends(tmp_path):
    ended = run("demo", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    for words in ("refused:", "dry run", "result: done", '"mcpServers"', "guest_list"):
        assert words in ended.stdout


def test_a_fault_that_does_not_exist_is_a_usage_error(tmp_path):
    ended = run("sim", "--fault", "earthquake", cwd=tmp_path)
    assert ended.returncode == 2
    assert "earthquake" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_fault_with_a_part_missing_is_refused_with_how_it_is_written(tmp_path):
    ended = run("sim", "--fault", "locked:102", cwd=tmp_path)
    assert ended.returncode == 2
    assert "is written: locked:VMID:LOCK, such as locked:102:backup" in " ".join(ended.stderr.split())


@pytest.mark.thorough
def test_a_server_that_starts_imports_nothing_of_the_simulator(tmp_path: Path) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    sent = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}) + "\n"
    connection = {
        "PROXMOX_URL": "https://127.0.0.1:1",
        "PROXMOX_TOKEN_ID": "root@pam!quorate",
        "PROXMOX_TOKEN_SECRET": "0",
    }
    served = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "quorate", "serve"],
        input=sent, capture_output=True, text=True, timeout=60, cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **connection},
    )  # fmt: skip
    assert '"serverInfo"' in served.stdout
    assert "quorate.pipeline" in served.stderr
    assert "pve_simulator" not in served.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["demo"],
        ["sim"],
        ["sim", "--nodes", "3", "--ssh"],
        ["sim", "--help"],
        ["serve", "--demo"],
        ["call", "guest_list", "--demo"],
        ["doctor", "--demo"],
        ["policy", "explain", "guest_list", "--demo"],
    ],
    ids=" ".join,
)
def test_without_the_simulator_a_command_says_what_to_install(arguments, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == "pve_simulator"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pve_simulator", None)  # what Python does for a module that may not be imported
    with pytest.raises(SystemExit) as ended:  # in the main thread, where `serve` handles signals
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "quorate: The simulated cluster is not installed; install it with `pip install 'quorate[demo]'`.\n"
    )
