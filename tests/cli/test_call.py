"""The shell as a way to every tool: help, reference, exit codes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from mcp import Client

from pve_simulator.simulator import SimulatedCluster
from quorate.app import build, demo_settings
from quorate.cli.tools import example, explain_native
from quorate.config import Access, Approval, Settings
from quorate.operations.arguments import decode
from quorate.operations.registry import TOOLSETS, operations
from quorate.suggestions import similar_tools
from quorate.surfaces.arguments import example_pairs, parse_pairs
from tests.rigs import cli
from tests.rigs.mcp_session import rig, text_of
from tests.rigs.simulator import pointed_at, running_sim


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def quorate(environ: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return cli.quorate(*arguments, environ=environ, cwd=Path(environ["HOME"]))


@pytest.mark.parametrize("name", operations())
def test_the_help_of_every_tool_names_every_argument_and_its_example_fits(name: str) -> None:
    operation = operations()[name]
    text = explain_native(operation)
    for argument in operation.schema()["properties"]:
        assert f"\n  {argument}=" in text
    assert text.endswith(example(operation))
    words = shlex.split(example(operation))
    assert words[:3] == ["quorate", "call", name]
    pairs = [word for word in words[3:] if "=" in word]
    decode(operation, parse_pairs(pairs, operation.schema()))


def test_help_after_a_tool_explains_that_tool(environ: dict[str, str]) -> None:
    done = quorate(environ, "call", "guest_power", "--help")
    assert done.returncode == 0
    assert "reboot | resume | shutdown" in done.stdout
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


def test_a_call_that_waits_for_approval_says_at_once_how_to_give_it(environ: dict[str, str]) -> None:
    words = ["call", "guest_stop", "guest=100", "--access", "admin"]
    with running_sim() as sim:
        waiting = subprocess.Popen(
            [sys.executable, "-m", "quorate", *words],
            env={**environ, **pointed_at(sim)},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        with waiting:
            assert waiting.stderr is not None
            request, remedy = waiting.stderr.readline(), waiting.stderr.readline()
            waiting.kill()
    approval = request.removeprefix("quorate: waiting for approval ").partition(":")[0]
    assert "100" in request
    assert f"quorate approvals approve {approval}" in remedy


# -- examples ----------------------------------------------------------------------------------------------------------

NOT_IN_THE_DEMO = {
    "backup_job_delete": "no backup job", "backup_job_run": "no backup job",
    "firewall_delete": "no rule", "ha_rule_set": "not under HA",
    "image_upload": "No such file",
    "replication_delete": "no replication job", "replication_run": "no replication job",
    "change_undo": "There is no change", "vm_import": "have no appliance",
    **dict.fromkeys(("guest_remote_migrate", "run_remote_move"), "There is no cluster 'other'"),
    "run_rolling_update": "guests cannot be moved",
    **dict.fromkeys(("run_control", "run_get", "run_return", "run_wait"), "There is no run"),
    "task_get": "no such task", "task_stop": "no such task", "task_wait": "no such task",
}  # fmt: skip
"""Tools whose example names what the demo's cluster does not have, and what is said about it."""


@pytest.mark.anyio
async def test_every_example_about_a_cluster_runs_unchanged(tmp_path: Path) -> None:
    async with rig(tmp_path, ssh=True) as quorate:
        for operation in operations(TOOLSETS).values():
            if operation.name in OVER_THE_NETWORK:
                continue
            pairs = parse_pairs(example_pairs(operation), operation.schema())
            answer = await quorate.call(operation.name, **pairs | ({"dry_run": True} if operation.changes else {}))
            expected = NOT_IN_THE_DEMO.get(operation.name, "")
            assert answer.is_error is bool(expected), f"{operation.name}: {text_of(answer)}"
            assert expected in text_of(answer)


NOT_ON_THE_DEMOS_BACKUP_SERVER = {
    "pbs_backup_delete": "There is no backup", "pbs_job_run": "no verify job", "pbs_namespace_delete": "no namespace",
    "pbs_task_get": "did not find it", "pbs_task_stop": "lists no task",
}  # fmt: skip


@pytest.mark.anyio
async def test_every_example_about_backup_servers_runs_on_the_demo(tmp_path: Path) -> None:
    settings = Settings(access=Access.ADMIN, approval=Approval.NONE, state=str(tmp_path / "state"), toolsets=("pbs",))
    async with demo_settings(settings) as ready:
        app = build(ready)
        try:
            async with Client(app.server()) as client:
                for operation in operations(("pbs",)).values():
                    pairs = parse_pairs(example_pairs(operation), operation.schema())
                    more = {"dry_run": True} if operation.changes else {}
                    answer = await client.call_tool(operation.name, {**pairs, **more})
                    expected = NOT_ON_THE_DEMOS_BACKUP_SERVER.get(operation.name, "")
                    assert answer.is_error is bool(expected), f"{operation.name}: {text_of(answer)}"
                    assert expected in text_of(answer)
        finally:
            await app.close()


NO_ENGINE = "no container engine"
NOT_ON_ITS_HOSTS = {
    **dict.fromkeys(("ansible_check", "ansible_run"), "no host 'nas'"),
    **dict.fromkeys(("terraform_apply", "terraform_destroy", "terraform_plan", "terraform_refresh"), "no host 'nas'"),
    **dict.fromkeys(("workload_deploy", "workload_get", "workload_list", "workload_logs"), NO_ENGINE),
    **dict.fromkeys(("project_update", "workload_power", "workload_prune", "workload_remove"), NO_ENGINE),
    **dict.fromkeys(("service_uninstall", "service_upgrade"), "no Compose"),
}
"""The demo has no Docker, and no host outside its cluster."""
OVER_THE_NETWORK = {
    "image_to_template": "it fetches the published checksums",
    "script_run": "it fetches the script of the day",
}


@pytest.mark.anyio
async def test_every_example_about_workloads_services_and_scripts_runs_unchanged(tmp_path: Path) -> None:
    toolsets = ("workloads", "services", "scripts")
    async with rig(tmp_path, ssh=True, toolsets=toolsets) as quorate:
        for operation in operations(toolsets).values():
            if operation.name in OVER_THE_NETWORK:
                continue
            pairs = parse_pairs(example_pairs(operation), operation.schema())
            answer = await quorate.call(operation.name, **pairs | ({"dry_run": True} if operation.changes else {}))
            expected = NOT_ON_ITS_HOSTS.get(operation.name, "")
            assert answer.is_error is bool(expected), f"{operation.name}: {text_of(answer)}"
            assert expected in text_of(answer)


def test_numbers_in_the_help_are_written_out(environ: dict[str, str]) -> None:
    for operation in operations().values():
        assert "e+0" not in explain_native(operation), operation.name


# -- other surfaces ----------------------------------------------------------------------------------------------------


def test_the_tools_of_another_server_are_listed_with_the_access_that_each_needs(environ: dict[str, str]) -> None:
    listed = [
        line.split(maxsplit=3)[:3] for line in quorate(environ, "tools", "--surface", "gilby125").stdout.splitlines()
    ]
    assert ["proxmox_get_vms", "read", "read"] in listed
    assert ["proxmox_delete_vm", "destroy", "admin"] in listed
    text = quorate(environ, "tools", "--surface", "gilby125", "proxmox_delete_vm").stdout
    for words in ("needs --access admin", "PROXMOX_ALLOW_ELEVATED", "guest_delete", "vmid="):
        assert words in text
    assert quorate(environ, "call", "--surface", "gilby125", "proxmox_delete_vm", "--help").stdout == text
    (as_json,) = json.loads(quorate(environ, "tools", "--surface", "gilby125", "proxmox_delete_vm", "--json").stdout)
    assert as_json["name"] == "proxmox_delete_vm"


def test_a_tool_of_another_server_is_run_by_its_own_name_and_through_the_same_gates(environ: dict[str, str]) -> None:
    with running_sim() as sim:
        settings = {**environ, **pointed_at(sim)}
        assert "**router**" in quorate(settings, "call", "--surface", "gilby125", "proxmox_get_vms").stdout
        as_json = quorate(settings, "call", "--surface", "solomonneas", "proxmox_list_vms", "--json")
        assert as_json.returncode == 0, as_json.stderr
        assert json.loads(as_json.stdout)
        listed = quorate(settings, "call", "--surface", "lean", "pve_find", "words=list guests")
        assert "guest_list" in listed.stdout
        stop = ("call", "--surface", "gilby125", "proxmox_stop_vm", "node=pve1", "vmid=100")
        refused = quorate({**settings, "PROXMOX_ALLOW_ELEVATED": "true"}, *stop, "--access", "read")
        assert refused.returncode == 1
        assert sim.world.guests[100].status == "running"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("call", "proxmox_delete_vm"), ("gilby125", "guest_delete")),
        (("tools", "proxmox_delete_vm"), ("gilby125", "guest_delete")),
        (("call", "--surface", "gilby125", "proxmox_delte_vm"), ("proxmox_delete_vm",)),
        (("call", "--surface", "no-such", "guest_list"), ("choose from native",)),
        (("call", "--surface", "lean", "guest_list"), ("pve_find",)),
        (("call", "delete_guest"), ("guest_delete",)),
    ],
)
def test_a_name_of_another_surface_is_answered_with_the_way_to_it(
    environ: dict[str, str], arguments: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    done = quorate(environ, *arguments)
    assert done.returncode == 2
    for words in expected:
        assert words in done.stderr


@pytest.mark.parametrize("name", ["vm_delete", "destroy_everything", "delete", "backup_job_get", "proxmox_remove_disk"])
def test_no_tool_is_suggested_that_does_something_else(name: str) -> None:
    assert similar_tools(name, operations()) == []


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("geust_list", "Did you mean 'guest_list'?"),
        ("uest_list", "Did you mean 'guest_list'?"),
        ("guest_start", "guest_power"),
        ("vm_list", "guest_list"),
        ("snapshot", "snapshot_create"),
    ],
)
def test_a_mistyped_tool_gets_a_suggestion(environ: dict[str, str], name: str, suggestion: str) -> None:
    done = quorate(environ, "call", "--demo", name)
    assert done.returncode == 2
    assert suggestion in done.stderr
    assert "_delete" not in done.stderr
    assert "_destroy" not in done.stderr


def test_the_command_alone_prints_a_short_help(environ: dict[str, str]) -> None:
    done = quorate(environ)
    assert done.returncode == 0
    assert "quorate init" in done.stdout
    assert len(done.stdout.splitlines()) < 15


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["docker01"], {"guest": "docker01"}),
        (["docker01", "detail=true"], {"guest": "docker01", "detail": "true"}),
        (["guest=docker01"], {"guest": "docker01"}),
    ],
)
def test_the_obvious_argument_needs_no_key(words: list[str], meant: dict[str, str]) -> None:
    assert parse_pairs(words, operations()["guest_get"].schema()) == meant


@pytest.mark.parametrize(
    ("tool", "line", "meant"),
    [
        ("guest_power", "docker01 start", {"guest": "docker01", "action": "start"}),
        ("guest_exec", "docker01 'echo a=b'", {"guest": "docker01", "command": "echo a=b"}),
        ("guest_list", "web", {"name": "web"}),
        ("vm_create", "web memory=2G", {"name": "web", "memory": "2G"}),
        ("guest_clone", "docker01 twin", {"guest": "docker01", "name": "twin"}),
        ("snapshot_create", "docker01 before", {"guest": "docker01", "snapshot": "before"}),
        ("node_get", "pve1", {"node": "pve1"}),
        ("volume_list", "nas", {"storage": "nas"}),
        (
            "disk_change",
            "docker01 resize scsi1 size=+5G",
            {"guest": "docker01", "action": "resize", "disk": "scsi1", "size": "+5G"},
        ),
        ("changes_since", "2h", {"since": "2h"}),
        ("host_service", "nas ssh", {"host": "nas", "service": "ssh"}),
        ("host_logs", "nas smartd", {"host": "nas", "unit": "smartd"}),
    ],
)
def test_values_without_a_key_fill_the_obvious_arguments(tool: str, line: str, meant: dict[str, str]) -> None:
    assert parse_pairs(shlex.split(line), operations()[tool].schema()) == meant


@pytest.mark.parametrize(
    ("tool", "line", "meant"),
    [
        ("storage_cleanup", "what=[orphans,detached]", {"what": ["orphans", "detached"]}),
        ("storage_cleanup", 'what=["orphans","detached"]', {"what": ["orphans", "detached"]}),
        ("storage_cleanup", "what=orphans,detached", {"what": ["orphans", "detached"]}),
        ("storage_cleanup", "what=orphans what=[detached]", {"what": ["orphans", "detached"]}),
        ("guest_power", "guest=[win11,100]", {"guest": ["win11", "100"]}),
        ("guest_configure", "add_tags=a,b", {"add_tags": ["a,b"]}),
        ("guest_exec", "command='[ -f /etc/hosts ]'", {"command": "[ -f /etc/hosts ]"}),
    ],
)
def test_a_list_is_accepted_without_the_quotes_that_a_shell_removes(
    tool: str, line: str, meant: dict[str, object]
) -> None:
    assert parse_pairs(shlex.split(line.replace('"', '\\"')), operations()[tool].schema()) == meant


def test_a_value_that_is_not_obvious_is_a_usage_error(environ: dict[str, str]) -> None:
    done = quorate(environ, "call", "--demo", "guest_get", "docker01", "now")
    assert done.returncode == 2
    assert "'now'" in done.stderr
    assert "It takes guest, detail." in done.stderr
    assert quorate(environ, "call", "--demo", "guest_get", "docker01").returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        "call --demo guest_list", "call guest_power --help", "call pve_read --surface lean --help", "serve --help",
        "tools", "tools --json", "help", "--help", "--version", "completion bash", "",
    ],
)  # fmt: skip
def test_a_closed_pipe_leaves_no_traceback(environ: dict[str, str], words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "quorate", *shlex.split(words)]
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, env=environ, check=False)
    finally:
        os.close(writer)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "ignored" not in done.stderr


@pytest.mark.parametrize("words", ["call --demo guest_list", "tools --json"])
def test_a_full_disk_leaves_one_sentence_and_no_traceback(environ: dict[str, str], words: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m quorate {words} >/dev/full"],
        capture_output=True, text=True, env=environ, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "quorate: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize(
    ("arguments", "name", "begins"),
    [
        (("network_map",), "map.svg", b"<svg"),
        (("metrics_get", "docker01"), "chart.png", b"\x89PNG"),
        (("metrics_get", "docker01"), "chart.svg", b"<?xml"),
        (("metrics_get", "docker01", "chart=true"), "chart.svg", b"<?xml"),
    ],
)
def test_output_writes_svg_as_well_as_png(
    environ: dict[str, str], arguments: tuple[str, ...], name: str, begins: bytes
) -> None:
    file = Path(environ["HOME"]) / name
    done = quorate(environ, "call", "--demo", *arguments, "--output", str(file))
    assert done.returncode == 0, done.stderr
    assert file.read_bytes().startswith(begins)
    assert "<svg" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(("guest_get", "docker01"), "no.png"), (("guest_screenshot", "docker01", "--access", "operate"), "screen.svg")],
)
def test_output_that_was_not_written_is_a_failure(
    environ: dict[str, str], arguments: tuple[str, ...], name: str
) -> None:
    file = Path(environ["HOME"]) / name
    done = quorate(environ, "call", "--demo", *arguments, "--output", str(file))
    assert done.returncode == 1
    assert "was not written" in done.stderr
    assert not file.exists()


@pytest.mark.parametrize(
    ("arguments", "fitting"),
    [
        (("network_map", "format=png"), "End the name in .png or .svg."),
        (("guest_screenshot", "docker01", "--access", "operate"), "End the name in .png."),
    ],
)
def test_an_image_is_not_written_under_an_ending_of_another_kind(
    environ: dict[str, str], arguments: tuple[str, ...], fitting: str
) -> None:
    file = Path(environ["HOME"]) / "picture.jpg"
    done = quorate(environ, "call", "--demo", *arguments, "--output", str(file))
    assert done.returncode == 2
    assert fitting in done.stderr
    assert not file.exists()


# -- demo and clusters -------------------------------------------------------------------------------------------------


def test_what_is_tried_out_on_the_demo_leaves_nothing_behind(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    started = ("guest_power", "guest=test-vm", "action=start", "--access", "operate")
    assert quorate(environ, "call", *started, "--demo").returncode == 0
    asked = quorate(environ, "call", "guest_stop", "guest=100", "--demo", "--access", "admin")
    assert asked.returncode == 4
    assert "--approval none" in asked.stderr
    done = quorate(environ, "call", "guest_stop", "guest=100", "--demo", "--access", "admin", "--approval", "none")
    assert done.returncode == 0, done.stderr
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_one_of_several_clusters_is_chosen_at_the_start_for_every_surface(environ: dict[str, str]) -> None:
    with running_sim() as prod, running_sim(nodes=1, guests=2) as lab:
        config = Path(environ["HOME"]) / "config.toml"
        config.write_text("".join(described(name, sim) for name, sim in (("prod", prod), ("lab", lab))))
        config.chmod(0o600)
        environ |= {"QUORATE_CONFIG": str(config)}
        for surface in ((), ("--surface", "gilby125")):
            tool = "proxmox_get_vms" if surface else "guest_list"
            assert "router" in quorate(environ, "call", *surface, tool).stdout
            chosen = quorate(environ, "call", *surface, tool, "--cluster", "lab")
            assert chosen.returncode == 0, chosen.stderr
            assert "router" not in chosen.stdout
        wrong = quorate(environ, "call", "guest_list", "--cluster", "lap")
    assert wrong.returncode == 2
    assert "prod, lab" in wrong.stderr


def described(name: str, sim: SimulatedCluster) -> str:
    return (
        f'[clusters.{name}]\nurl = "{sim.url}"\ntoken_id = "{sim.token_id}"\n'
        f'token_secret = "{sim.token_secret}"\nfingerprint = "{sim.fingerprint}"\n'
    )


def test_nothing_configured_names_the_ways_on(environ: dict[str, str]) -> None:
    done = quorate(environ, "call", "guest_list")
    assert done.returncode == 2
    for words in ("quorate init", "quorate call guest_list --demo"):
        assert words in done.stderr


@pytest.mark.parametrize(
    ("words", "result", "status"),
    [
        ("guest_exec docker01 command='exit 127'", "command failed (exit 127)", 1),
        ("host_exec host=pve1 command='sleep 60' timeout=3", "stopped after 3 s", 1),
        ("host_exec host=pve1 host=pve2 command='sleep 60' timeout=3", "stopped after 3 s", 1),
        ("host_exec host=pve1 host=pve2 command='test $(hostname) = pve1'", "1 of 2 done", 1),
        ("host_exec host=pve1 host=pve2 command=true", "done", 0),
    ],
)
def test_the_exit_status_is_that_of_a_failed_command(
    environ: dict[str, str], words: str, result: str, status: int
) -> None:
    arguments = ["--demo", *shlex.split(words), "--access", "admin", "--approval", "none", "--json"]
    done = quorate(environ, "call", *arguments)
    assert (json.loads(done.stdout)["result"], done.returncode) == (result, status)
