"""What a client sees of the tools before it calls any."""

import json

import pytest

from quorate.config import Access, Approval, load
from quorate.operations.registry import DEFAULT_TOOLS, TOOLSETS, Risk, operations
from quorate.pipeline.caller import Caller, Exchange, Scope
from quorate.problems import Problem
from quorate.surfaces.native import MAX_BYTES, as_json, budget_warning, describe
from tests import paths
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio

SNAPSHOTS = paths.SNAPSHOTS


def test_every_tool_has_a_schema_snapshot_that_is_up_to_date():
    current = {name: as_json([describe(operation)])[0] for name, operation in operations().items()}
    saved = {path.stem: json.loads(path.read_text()) for path in SNAPSHOTS.glob("*.json")}
    assert current == saved, "run `make docs` and look at the difference"


FIRST_SLICE = (
    "cluster_status",
    "guest_get",
    "guest_list",
    "guest_power",
    "guest_stop",
    "node_get",
    "node_list",
    "storage_list",
    "task_get",
    "task_list",
    "task_wait",
)


def size_of(chosen):
    tools = as_json([describe(operation) for operation in chosen])
    return len(json.dumps(tools, separators=(",", ":")).encode())


def test_the_tools_for_looking_around_and_power_stay_small():
    assert size_of([operations()[name] for name in FIRST_SLICE]) < 9000


async def test_the_default_tools_cover_a_homelabs_day_in_34_kilobytes(tmp_path):
    async with rig(tmp_path, toolsets=None) as quorate:
        tools = (await quorate.client.list_tools()).tools
    names = {tool.name for tool in tools}
    assert names >= {
        *("guest_list", "guest_power", "guest_configure", "vm_create", "container_create", "guest_clone"),
        *("backup_create", "backup_list", "backup_restore", "backup_coverage", "backup_job_set"),
        *("disk_add", "disk_change", "disk_destroy", "snapshot_create", "snapshot_rollback"),
        *("guest_exec", "guest_job", "guest_file_read", "metrics_get", "metrics_top", "cluster_health"),
    }
    assert len(names) <= 45
    assert len(json.dumps(as_json(tools), separators=(",", ":")).encode()) <= 34_000


async def test_the_lean_list_is_at_most_two_kilobytes(tmp_path):
    async with rig(tmp_path, toolsets=None, more={"surfaces": ("lean",)}) as quorate:
        tools = as_json((await quorate.client.list_tools()).tools)
    assert len(json.dumps(tools, separators=(",", ":")).encode()) <= 2000


def test_the_default_tools_exist():
    for toolset, names in DEFAULT_TOOLS.items():
        assert all(operations([toolset])[name] for name in names.split())


@pytest.mark.parametrize(
    ("flag", "listed", "unlisted"),
    [
        ("+firewall", {"guest_list", "backup_create", "firewall_get"}, {"ha_status", "guest_bulk"}),
        ("+guests,+hosts", {"backup_create", "guest_bulk", "host_list"}, {"firewall_get"}),
        ("default,backups", {"guest_list", "backup_prune"}, {"firewall_get"}),
        ("backups", {"backup_prune"}, {"guest_list"}),
        ("backups,+tasks", {"backup_prune", "task_list"}, {"guest_list"}),
        ("all,homelab", {"guest_list", "firewall_get", "host_list"}, set()),
        ("+homelab", {"guest_list", "host_list"}, {"firewall_get"}),
    ],
)
async def test_toolsets_are_added_to_the_default_tools_or_replace_them(tmp_path, flag, listed, unlisted):
    toolsets = load(environ={}, toolsets=flag, tolerate=True).toolsets
    async with rig(tmp_path, toolsets=toolsets) as quorate:
        names = {tool.name for tool in (await quorate.client.list_tools()).tools}
    assert listed <= names
    assert not unlisted & names


async def test_all_includes_the_default_tools(tmp_path):
    async with rig(tmp_path, toolsets=("all",)) as quorate:
        names = {tool.name for tool in (await quorate.client.list_tools()).tools}
    assert {name for tools in DEFAULT_TOOLS.values() for name in tools.split()} <= names
    assert "host_list" not in names


async def test_a_rarer_tool_of_a_toolset_in_use_is_said_not_to_be_among_the_default_tools(tmp_path):
    async with rig(tmp_path, toolsets=None) as quorate:
        refusal = await quorate.refusal("capacity_plan")
    assert "capacity_plan is switched off. It is not among the default tools." in refusal
    assert "config.toml" in refusal
    assert refusal.endswith("--toolsets +reports.")


@pytest.mark.parametrize(
    ("toolsets", "option"),
    [
        (None, "--toolsets +firewall"),
        (("default", "hosts"), "--toolsets +firewall,+hosts"),
        (("guests", "tasks"), "--toolsets guests,firewall,tasks"),
        (("homelab",), "--toolsets homelab,firewall"),
    ],
)
async def test_the_hint_to_enable_a_toolset_keeps_what_is_enabled(tmp_path, toolsets, option):
    async with rig(tmp_path, toolsets=toolsets) as quorate:
        refusal = await quorate.refusal("firewall_get")
    assert "firewall_get is switched off" in refusal
    assert refusal.endswith(f"{option}.")


async def test_a_tokens_toolsets_are_kept_in_its_hint(tmp_path):
    async with rig(tmp_path) as quorate:
        caller = Caller(subject="ci", scope=Scope(toolsets=frozenset({"guests", "tasks"})))
        with pytest.raises(Problem, match="--toolsets guests,firewall,tasks"):
            await quorate.app.pipeline.run("firewall_get", {}, Exchange(caller))


def test_the_tools_for_backup_servers_are_at_most_9_kilobytes():
    assert size_of(operations(["pbs"]).values()) <= 9000


def test_the_daily_tools_for_hosts_are_at_most_12_kilobytes():
    assert size_of(operations(["hosts"]).values()) <= 12_000


async def test_a_server_for_hosts_alone_is_introduced_without_a_cluster(tmp_path):
    async with rig(tmp_path, toolsets=("hosts",), mode="legacy") as quorate:
        text = quorate.client.instructions or ""
        assert "host_status" in text
        assert "guest_list" not in text
        assert "There is no Proxmox VE cluster" in text


async def test_a_long_tool_list_is_served_whole_and_what_access_hides_does_not_count(tmp_path):
    async with rig(tmp_path, toolsets=("all", "homelab")) as quorate:
        tools = (await quorate.client.list_tools()).tools
        assert len(tools) == len(operations())
        warning = budget_warning(tools) or ""
        assert f"{len(tools)} tools" in warning
        assert "--surface lean" in warning
    (tmp_path / "read").mkdir()
    async with rig(tmp_path / "read", toolsets=("all", "homelab"), access=Access.READ) as quorate:
        assert budget_warning((await quorate.client.list_tools()).tools) is None


def test_few_tools_with_large_schemas_are_above_the_budget_too():
    tool = describe(operations()["vm_create"])
    tool.input_schema["properties"]["name"] = {"type": "string", "description": "x" * MAX_BYTES}
    assert "list 1 tools in 9" in (budget_warning([tool]) or "")


def test_the_toolsets_of_clusters_are_within_the_budget_unless_runs_and_the_firewall_are_on_too():
    rarer = {"firewall", "runs"}
    for toolsets in (set(TOOLSETS) - rarer, rarer):
        assert budget_warning([describe(operation) for operation in operations(toolsets).values()]) is None


def test_all_four_hints_are_explicit_on_every_tool():
    for tool in as_json([describe(operation) for operation in operations().values()]):
        assert set(tool["annotations"]) == {"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}


def test_schemas_refuse_unknown_arguments_and_carry_no_noise():
    for tool in as_json([describe(operation) for operation in operations().values()]):
        assert tool["inputSchema"]["additionalProperties"] is False
        assert '"title"' not in json.dumps(tool["inputSchema"])
        assert "null" not in json.dumps(tool["inputSchema"])


def test_a_tool_of_which_some_calls_need_admin_says_so_beforehand():
    varying = [
        operation
        for operation in operations().values()
        if operation.risk is Risk.DESTROY and operation.least_risk is Risk.CHANGE
    ]
    assert {"pool_set", "firewall_rule_set", "backup_restore"} <= {tool.name for tool in varying}
    silent = [tool.name for tool in varying if "access admin" not in json.dumps(as_json([describe(tool)]))]
    assert silent == []


def test_every_change_takes_dry_run_and_wait():
    for operation in operations().values():
        assert (
            operation.changes == ({"dry_run", "wait"} <= set(operation.schema()["properties"])) or not operation.changes
        )


async def test_the_instructions_are_short_and_speak_of_what_is_on(tmp_path):
    async with rig(tmp_path, access=Access.READ, mode="legacy") as quorate:
        text = quorate.client.instructions
        assert text is not None
        assert len(text) < 2000
        assert "Access level: read" in text
        assert "dry_run" not in text
    async with rig(tmp_path, access=Access.OPERATE, mode="legacy") as quorate:
        assert "dry_run" in (quorate.client.instructions or "")


async def test_one_line_of_the_instructions_names_what_is_off_and_how_to_enable_it(tmp_path):
    async with rig(tmp_path, toolsets=None, mode="legacy") as quorate:
        text = quorate.client.instructions or ""
    (line,) = [line for line in text.splitlines() if line.startswith("Switched off:")]
    assert "access, firewall, ha, network" in line
    assert "rarer tools of guests" in line
    assert "host_list" not in text
    assert "--toolsets +" in line
    assert len(text) < 2000
    async with rig(tmp_path, toolsets=("all", "homelab"), mode="legacy") as quorate:
        assert "Switched off" not in (quorate.client.instructions or "")


async def test_what_one_server_takes_in_addition_does_not_show_in_the_list_of_another(tmp_path):
    (tmp_path / "other").mkdir()
    async with rig(tmp_path, approval=Approval.TOKEN) as asking, rig(tmp_path / "other") as plain:
        for quorate, shown in ((asking, True), (plain, False)):
            listed = {tool.name: tool.input_schema for tool in (await quorate.client.list_tools()).tools}
            assert ("plan_token" in listed["guest_delete"]["properties"]) == shown
