"""What a client sees of the tools before it calls any."""

import json
from pathlib import Path

import pytest

from quorate.config import Approval, ConfigError
from quorate.operations.registry import DEFAULT_TOOLSETS, HOMELAB, MOST_TOOLS, TOOLSETS, operations
from quorate.surfaces.native import as_json, describe
from tests.driving import rig

pytestmark = pytest.mark.anyio

SNAPSHOTS = Path(__file__).parent / "snapshots"


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


def test_the_default_tools_are_at_most_thirty_and_24_kilobytes():
    chosen = [operation for operation in operations().values() if operation.toolset in DEFAULT_TOOLSETS]
    assert len(chosen) <= 30
    assert size_of(chosen) <= 24_000


def test_the_toolsets_of_clusters_and_of_the_homelab_are_at_most_a_hundred_tools_each():
    assert len(operations(TOOLSETS)) <= MOST_TOOLS
    assert len(operations(HOMELAB)) <= MOST_TOOLS


async def test_more_tools_than_a_client_can_use_are_refused_at_the_start(tmp_path):
    with pytest.raises(ConfigError, match="leave some out, or start Quorate with --surface lean"):
        async with rig(tmp_path, toolsets=("all", "homelab")):
            pass


def test_all_four_hints_are_explicit_on_every_tool():
    for tool in as_json([describe(operation) for operation in operations().values()]):
        assert set(tool["annotations"]) == {"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}


def test_schemas_refuse_unknown_arguments_and_carry_no_noise():
    for tool in as_json([describe(operation) for operation in operations().values()]):
        assert tool["inputSchema"]["additionalProperties"] is False
        assert '"title"' not in json.dumps(tool["inputSchema"])
        assert "null" not in json.dumps(tool["inputSchema"])


def test_every_change_takes_dry_run_and_wait():
    for operation in operations().values():
        assert (
            operation.changes == ({"dry_run", "wait"} <= set(operation.schema()["properties"])) or not operation.changes
        )


async def test_the_instructions_are_short_and_speak_of_what_is_on(tmp_path):
    from quorate.config import Access

    async with rig(tmp_path, access=Access.READ, mode="legacy") as quorate:
        text = quorate.client.instructions
        assert text is not None
        assert len(text) < 2000
        assert "Access level: read" in text
        assert "dry_run" not in text
    async with rig(tmp_path, access=Access.OPERATE, mode="legacy") as quorate:
        assert "dry_run" in (quorate.client.instructions or "")


async def test_what_one_server_takes_in_addition_does_not_show_in_the_list_of_another(tmp_path):
    (tmp_path / "other").mkdir()
    async with rig(tmp_path, approval=Approval.TOKEN) as asking, rig(tmp_path / "other") as plain:
        for quorate, shown in ((asking, True), (plain, False)):
            listed = {tool.name: tool.input_schema for tool in (await quorate.client.list_tools()).tools}
            assert ("plan_token" in listed["guest_delete"]["properties"]) == shown
