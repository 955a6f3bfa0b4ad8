"""Which surfaces a server shows, and what holds for the tools of every other server."""

import json
import os

import pytest

from quorate.app import build
from quorate.cli import main
from quorate.config import Access, Approval, ConfigError, Settings, load
from quorate.operations.registry import Risk, operations
from quorate.pipeline.caller import Caller
from quorate.surfaces.compat import SYSTEMS, system
from tests import paths
from tests.rigs.compat_session import as_documented, documented, refused, surface
from tests.rigs.processes import completed
from tests.rigs.several_clusters import several_clusters
from tests.surfaces.compat import test_brynnjocelyn, test_bsahane, test_gilby125, test_solomonneas, test_washyu

pytestmark = pytest.mark.anyio

ROWS = {
    "brynnjocelyn": test_brynnjocelyn.ROWS,
    "bsahane": [*test_bsahane.READS, *test_bsahane.INSIDE, *test_bsahane.WRITES],
    "gilby125": test_gilby125.ROWS,
    "solomonneas": [
        *test_solomonneas.READS,
        *test_solomonneas.LOOKS_INSIDE,
        *test_solomonneas.CHANGES_INSIDE,
        *test_solomonneas.WRITES,
    ],
    "washyu": test_washyu.ROWS,
}
COUNTS = {"brynnjocelyn": 29, "bsahane": 53, "gilby125": 55, "solomonneas": 42, "washyu": 49}


def settings(tmp_path, *surfaces):
    return Settings(surfaces=surfaces, state=str(tmp_path / "state.sqlite"), audit_file=tmp_path / "audit.jsonl")


# -- choosing ----------------------------------------------------------------------------------------------------------


def test_every_system_has_its_documented_number_of_tools():
    assert {name: len(system(name).tools) for name in SYSTEMS} == COUNTS
    assert {name: len(documented(name)) for name in SYSTEMS} == COUNTS


@pytest.mark.parametrize("name", SYSTEMS)
async def test_the_tools_are_listed_exactly_as_documented(tmp_path, name):
    async with surface(tmp_path, name) as quorate:
        tools = (await quorate.client.list_tools()).tools
    assert {tool.name: as_documented(tool.input_schema) for tool in tools} == documented(name)


@pytest.mark.parametrize(("name", "rows"), ROWS.items())
def test_every_tool_is_called_and_its_effect_checked(name, rows):
    assert {row.tool for row in rows} == set(documented(name))


def test_the_documentation_states_how_many_tools_are_called():
    called = sum(len({row.tool for row in rows}) for rows in ROWS.values())
    assert called == 228
    stated = " + ".join(str(COUNTS[name]) for name in SYSTEMS)
    verified = " ".join((paths.DOCS / "verification.md").read_text().split())
    assert f"all {called} tools of the five servers ({stated})" in verified


def test_the_surface_is_chosen_by_flag_variable_or_file(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('surface = ["native", "bsahane"]\n')
    assert load(environ={}, tolerate=True).surfaces == ("native",)
    assert load(environ={}, file=file, tolerate=True).surfaces == ("native", "bsahane")
    by_variable = {"QUORATE_SURFACE": "gilby125, Native"}
    assert load(environ=by_variable, file=file, tolerate=True).surfaces == ("gilby125", "native")
    assert load(environ=by_variable, surface="solomonneas", tolerate=True).surfaces == ("solomonneas",)


def test_opt_ins_of_other_servers_are_read_from_the_environment_and_a_choice_of_ours_is_noticed():
    def read(**variables):
        loaded = load(environ=variables, tolerate=True)
        return sorted(loaded.opt_ins), loaded.gate_chosen

    assert read() == ([], False)
    assert read(PROXMOX_ALLOW_ELEVATED="true") == (["PROXMOX_ALLOW_ELEVATED"], False)
    assert read(PROXMOX_ENABLE_DESTRUCTIVE="1", QUORATE_ACCESS="read") == (["PROXMOX_ENABLE_DESTRUCTIVE"], True)
    assert read(PROXMOX_ENABLE_DESTRUCTIVE="0", PROXMOX_ALLOW_ELEVATED="no") == ([], False)
    assert read(QUORATE_APPROVAL="ask") == ([], True)


async def test_an_unknown_surface_is_refused_with_the_valid_ones(tmp_path):
    app = build(settings(tmp_path, "solomon"))
    with pytest.raises(
        ConfigError, match=r"There is no surface 'solomon': choose from native, .*brynnjocelyn, bsahane"
    ):
        app.surfaces()
    await app.close()


async def test_several_surfaces_are_listed_one_after_the_other(tmp_path):
    app = build(settings(tmp_path, "bsahane", "native", "solomonneas"))
    names = [tool.name for surface in app.surfaces() for tool in surface.tools(Caller())]
    assert len(names) == len(set(names))
    assert names[0] == "proxmox-list-nodes"
    assert {"guest_list", "proxmox-list-vms", "proxmox_list_vms"} <= set(names)
    await app.close()


async def test_surfaces_with_a_tool_name_in_common_are_refused_together(tmp_path):
    app = build(settings(tmp_path, "gilby125", "solomonneas"))
    with pytest.raises(ConfigError, match="gilby125 and solomonneas both have a tool proxmox_"):
        app.surfaces()
    await app.close()


def run_command(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code, capsys.readouterr()


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_command_lists_a_surface_as_it_goes_over_the_wire(capsys, name, monkeypatch, tmp_path):
    monkeypatch.setenv("QUORATE_STATE", str(tmp_path / "state.sqlite"))
    code, said = run_command(capsys, "tools", "--surface", name, "--json")
    assert code == 0
    tools = {tool["name"]: tool for tool in json.loads(said.out)}
    assert set(tools) == set(documented(name))
    for tool in tools.values():
        assert tool["description"].endswith(".")
        assert set(tool["annotations"]) == {"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}
    code, said = run_command(capsys, "tools", "--surface", name)
    assert code == 0
    assert {line.split()[0] for line in said.out.splitlines()} >= set(documented(name))


def test_the_command_refuses_surfaces_that_collide(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("QUORATE_STATE", str(tmp_path / "state.sqlite"))
    code, said = run_command(capsys, "tools", "--surface", "solomonneas,gilby125", "--json")
    assert code == 2
    assert "start a server for each of them" in said.err


# -- what holds for all of them ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_declared_risk_is_that_of_the_native_equivalent_at_least(name):
    order = list(Risk)
    for tool in system(name).tools.values():
        equivalent = operations()[tool.native.split()[0].rstrip(",")]
        assert order.index(tool.risk) >= order.index(equivalent.least_risk), tool.name
        if equivalent.risk_of is None and tool.risk is Risk.READ:
            assert equivalent.risk in (Risk.READ, Risk.LOOK_INSIDE), tool.name


@pytest.mark.parametrize("name", SYSTEMS)
async def test_the_server_says_whose_tools_they_are_and_how_far_they_go(tmp_path, name):
    async with surface(tmp_path, name, access=Access.OPERATE, mode="legacy") as quorate:
        text = quorate.client.instructions or ""
        assert f"the tools of {name}" in text
        assert "Access level: operate" in text
        assert len(text) < 2000


async def test_an_unknown_tool_is_refused_with_the_closest_name(tmp_path):
    async with surface(tmp_path, "bsahane") as quorate:
        assert "Did you mean 'proxmox-list-vms'?" in await refused(quorate, "proxmox-list-vm")
        assert "There is no tool 'guest_list'" in await refused(quorate, "guest_list")


async def test_with_several_clusters_the_tools_are_about_the_first(tmp_path):
    async with several_clusters(
        tmp_path, "lab", "prod", more={"surfaces": ("solomonneas",), "gate_chosen": True}
    ) as quorate:
        listed = await quorate.facts("proxmox_list_vms")
        assert {vm["vmid"] for vm in listed["vms"]} == {100, 302}
        await quorate.facts("proxmox_reboot_resource", vmid=100, confirm=True)
        assert quorate.writes_to("lab") == [("POST", "/nodes/lab1/qemu/100/status/reboot")]
        assert quorate.writes_to("prod") == []
        text = await quorate.refusal("proxmox_get_resource", vmid=203)
        assert "There is no guest 203" in text


async def test_a_long_timeout_for_tasks_does_not_prolong_the_wait_for_approval(tmp_path):
    async with surface(tmp_path, "bsahane", approval=Approval.ASK) as quorate:
        before = quorate.clock.now()
        text = await refused(quorate, "proxmox-rollback-snapshot", vmid=108, snapname="clean", confirm=True)
        assert "waits for an operator's approval" in text
        assert 0 < quorate.clock.now() - before <= 3  # of the 600 that this tool follows a task


@pytest.mark.parametrize(("flags", "told"), [((), True), (("--access", "admin"), False)])
def test_an_opt_in_that_opens_everything_is_announced_at_the_start(tmp_path, flags, told):
    environ = {**os.environ, "PROXMOX_ENABLE_DESTRUCTIVE": "1", "XDG_STATE_HOME": str(tmp_path)}
    ended = completed("serve", "--demo", "--surface", "solomonneas", *flags, environ=environ)
    assert ended.returncode == 0
    assert ("PROXMOX_ENABLE_DESTRUCTIVE lets the tools of solomonneas do everything" in ended.stderr) == told
