"""The lean surface: four small tools reach everything, and every gate holds behind them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import ElicitResult

from quorate.config import Access, Approval
from quorate.operations.registry import EVERY, operations
from quorate.pipeline.caller import Scope
from quorate.surfaces.native import as_json
from tests.rigs.mcp_session import Rig, rig, text_of
from tests.rigs.several_clusters import several_clusters

pytestmark = pytest.mark.anyio

ERAS = ("auto", "legacy")
LEAN = {"surfaces": ("lean",)}
VM, STOPPED_VM = 102, 108


@asynccontextmanager
async def lean(tmp_path: Path, **options: Any) -> AsyncIterator[Rig]:
    """The lean surface with the toolsets that it has by default."""
    async with rig(tmp_path, **{"toolsets": None, "more": LEAN, **options}) as quorate:
        yield quorate


# -- what is listed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ERAS)
async def test_there_are_at_most_four_tools_in_two_and_a_half_kilobytes(tmp_path, mode):
    async with lean(tmp_path, mode=mode) as quorate:
        tools = as_json((await quorate.client.list_tools()).tools)
        assert [tool["name"] for tool in tools] == ["pve_find", "pve_read", "pve_change", "pve_destroy"]
        assert len(json.dumps(tools, separators=(",", ":")).encode()) <= 2500


async def test_no_tool_has_operations_on_both_sides_of_a_risk(tmp_path):
    async with lean(tmp_path) as quorate:
        tools = (await quorate.client.list_tools()).tools
        hints = {tool.name: tool.annotations for tool in tools if tool.annotations}
        assert len(hints) == 4
        assert {name for name, hint in hints.items() if hint.read_only_hint} == {"pve_find", "pve_read"}
        assert {name for name, hint in hints.items() if hint.destructive_hint} == {"pve_destroy"}
        assert all(None not in hint.model_dump(exclude={"title"}).values() for hint in hints.values())


@pytest.mark.parametrize(
    ("access", "more"),
    [(Access.READ, []), (Access.OPERATE, ["pve_change"]), (Access.ADMIN, ["pve_change", "pve_destroy"])],
)
async def test_the_access_level_decides_which_tools_there_are(tmp_path, access, more):
    async with lean(tmp_path, access=access) as quorate:
        listed = [tool.name for tool in (await quorate.client.list_tools()).tools]
        assert listed == ["pve_find", "pve_read", *more]


async def test_a_caller_whose_credentials_only_read_sees_no_more(tmp_path):
    async with lean(tmp_path) as quorate:
        server = quorate.app.server(identify=lambda: ("phone", Scope(access=Access.READ)))
        async with Client(server) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["pve_find", "pve_read"]
            answer = await client.call_tool(
                "pve_change", {"operation": "guest_power", "arguments": {"guest": STOPPED_VM, "action": "start"}}
            )
            assert "outside the scope of phone" in text_of(answer)
        assert quorate.writes == []


async def test_the_instructions_are_short_and_tell_how_it_works(tmp_path):
    async with lean(tmp_path, mode="legacy") as quorate:
        text = quorate.client.instructions or ""
        assert "pve_find" in text
        assert len(text) < 2000


# -- what is reached ---------------------------------------------------------------------------------------------------


async def test_every_operation_of_every_toolset_is_reached(tmp_path):
    async with lean(tmp_path) as quorate:
        named = {name for names in (await quorate.facts("pve_find")).values() for name in names.split(", ")}
        assert named == set(operations())
        assert set(await quorate.facts("pve_find")) == set(EVERY)
        for operation in operations().values():
            described = await quorate.facts("pve_find", operation=operation.name)
            assert (
                described["run_with"].split(" or ")[-1]
                == {
                    "read": "pve_read",
                    "look_inside": "pve_read",
                    "change": "pve_change",
                    "destroy": "pve_destroy",
                }[operation.risk.value]
            )
            assert set(described.get("arguments", {})) == set(operation.schema()["properties"])


async def test_toolsets_that_the_operator_chose_are_all_there_is(tmp_path):
    async with lean(tmp_path, toolsets=("guests", "tasks")) as quorate:
        assert set(await quorate.facts("pve_find")) == {"guests", "tasks"}
        assert "switched off" in await quorate.refusal("pve_read", operation="node_list")
        answer = await quorate.facts("pve_find", words="take a snapshot of the db vm")
        assert "switched off" in answer["not_available"]
        assert not {"snapshot_create", "snapshot_list"} & {row[0] for row in answer["rows"]}


async def test_plain_words_lead_to_the_change_they_ask_for(tmp_path):
    async with lean(tmp_path) as quorate:
        best, *_ = await quorate.rows("pve_find", words="give the test VM more memory")
        assert (best["operation"], best["run_with"], best["needs"]) == ("guest_configure", "pve_change", "guest")
        described = await quorate.facts("pve_find", operation=best["operation"])
        assert described["arguments"]["guest"] == "integer or string, required: vmid or name"
        assert "memory" in described["arguments"]
        done = await quorate.facts(
            best["run_with"], operation=best["operation"], arguments={"guest": STOPPED_VM, "memory": "8G"}
        )
        assert done["result"] == "done"
        assert quorate.sim.world.guests[STOPPED_VM].config["memory"] == "8192"
        assert quorate.audit()[-1]["tool"] == "guest_configure"


async def test_search_results_are_short(tmp_path):
    async with lean(tmp_path) as quorate:
        answer = await quorate.call("pve_find", words="why did last night's backup fail")
        assert "task_list" in text_of(answer)
        assert len(text_of(answer).encode()) < 1000
        assert len(answer.structured_content["rows"]) <= 5


async def test_the_words_may_be_called_a_query(tmp_path):
    async with lean(tmp_path) as quorate:
        assert await quorate.facts("pve_find", query="add a disk") == await quorate.facts(
            "pve_find", words="add a disk"
        )
        assert "has no argument 'query'" in await quorate.refusal("pve_find", query="add", words="a disk")


async def test_words_that_fit_nothing_are_answered_with_a_way_on(tmp_path):
    async with lean(tmp_path) as quorate:
        assert "without any" in (await quorate.facts("pve_find", words="xyzzy"))["next"]


async def test_what_the_level_forbids_is_not_found_but_explained(tmp_path):
    async with lean(tmp_path, access=Access.READ) as quorate:
        answer = await quorate.facts("pve_find", words="delete the old vm")
        assert {row[1] for row in answer["rows"]} == {"pve_read"}
        assert "--access" in answer["not_available"]
        described = await quorate.facts("pve_find", operation="guest_delete")
        assert "--access admin" in described["not_available"]


async def test_pictures_come_through(tmp_path):
    async with lean(tmp_path) as quorate:
        answer = await quorate.call("pve_read", operation="guest_screenshot", arguments={"guest": VM})
        assert [block.type for block in answer.content] == ["text", "image"]


# -- the line between reading, changing and destroying -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "operation", "arguments", "right"),
    [
        ("pve_read", "guest_power", {"guest": STOPPED_VM, "action": "start"}, "pve_change"),
        ("pve_read", "guest_delete", {"guest": STOPPED_VM}, "pve_destroy"),
        ("pve_read", "guest_delete", {"guest": STOPPED_VM, "dry_run": True}, "pve_destroy"),
        ("pve_change", "guest_delete", {"guest": STOPPED_VM}, "pve_destroy"),
        ("pve_read", "api_call", {"method": "PUT", "path": "/nodes/pve1/qemu/108/config"}, "pve_change"),
        ("pve_change", "api_call", {"method": "DELETE", "path": "/nodes/pve1/qemu/108"}, "pve_destroy"),
    ],
)
async def test_a_tool_never_does_worse_than_its_annotations_say(tmp_path, tool, operation, arguments, right):
    async with lean(tmp_path) as quorate:
        text = await quorate.refusal(tool, operation=operation, arguments=arguments)
        assert f"Make the same call with {right}" in text
        assert quorate.writes == []


async def test_the_raw_api_runs_by_the_tool_that_fits_the_call(tmp_path):
    async with lean(tmp_path) as quorate:
        described = await quorate.facts("pve_find", operation="api_call")
        assert described["run_with"] == "pve_read or pve_change or pve_destroy"
        version = await quorate.facts("pve_read", operation="api_call", arguments={"method": "GET", "path": "/version"})
        assert version["data"]["version"] == "9.1.8"
    async with lean(tmp_path, access=Access.READ) as quorate:
        assert (await quorate.facts("pve_find", operation="api_call"))["run_with"] == "pve_read"


@pytest.mark.parametrize("mode", ERAS)
async def test_what_destroys_still_waits_for_a_person(tmp_path, mode):
    questions: list[str] = []

    async def person(_: Any, params: Any) -> ElicitResult:
        questions.append(params.message)
        return ElicitResult(action="accept", content={"typed": "test-vm"})

    async with lean(tmp_path, mode=mode, approval=Approval.ASK, elicitation=person) as quorate:
        done = await quorate.facts("pve_destroy", operation="guest_delete", arguments={"guest": STOPPED_VM})
        assert done["result"] == "done"
        assert len(questions) == 1
        assert STOPPED_VM not in quorate.sim.world.guests


async def test_nobody_to_ask_means_no(tmp_path):
    async with lean(tmp_path, approval=Approval.ASK) as quorate:
        text = await quorate.refusal(
            "pve_destroy", operation="guest_delete", arguments={"guest": STOPPED_VM, "wait": 0}
        )
        assert "approv" in text
        assert STOPPED_VM in quorate.sim.world.guests


async def test_a_plan_token_is_described_and_taken(tmp_path):
    async with lean(tmp_path, approval=Approval.TOKEN) as quorate:
        described = await quorate.facts("pve_find", operation="guest_delete")
        assert "dry run" in described["arguments"]["plan_token"]
        plan = await quorate.facts(
            "pve_destroy", operation="guest_delete", arguments={"guest": STOPPED_VM, "dry_run": True}
        )
        await quorate.facts(
            "pve_destroy",
            operation="guest_delete",
            arguments={"guest": STOPPED_VM, "plan_token": plan["plan_token"]},
        )
        assert STOPPED_VM not in quorate.sim.world.guests


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"gest": 100}, "has no argument 'gest'. Did you mean 'guest'?"),
        ({}, "needs the argument 'guest'"),
        ({"guest": [1]}, "cannot take guest"),
    ],
)
async def test_wrong_arguments_are_answered_with_those_there_are(tmp_path, arguments, said):
    async with lean(tmp_path) as quorate:
        text = await quorate.refusal("pve_read", operation="guest_get", arguments=arguments)
        assert said in text
        assert "guest: integer or string, required: vmid or name" in text
        assert "detail: boolean" in text


async def test_wrong_arguments_of_a_call_whose_risk_varies_are_explained_as_well(tmp_path):
    async with lean(tmp_path) as quorate:
        text = await quorate.refusal("pve_read", operation="api_call", arguments={"method": "GTE", "path": "/version"})
        assert "Did you mean 'GET'?" in text
        assert "path: string, required" in text


async def test_other_problems_come_without_the_schema(tmp_path):
    async with lean(tmp_path) as quorate:
        text = await quorate.refusal("pve_read", operation="guest_get", arguments={"guest": "nope"})
        assert "There is no guest 'nope'" in text
        assert "takes:" not in text


async def test_arguments_beside_the_operation_are_shown_their_place(tmp_path):
    async with lean(tmp_path) as quorate:
        assert "into arguments" in await quorate.refusal("pve_read", operation="guest_get", guest=100)


async def test_arguments_may_be_an_object_in_a_text(tmp_path):
    async with lean(tmp_path) as quorate:
        facts = await quorate.facts("pve_read", operation="guest_get", arguments='{"guest": 100}')
        assert facts["name"] == "router"
        assert "cannot take arguments" in await quorate.refusal("pve_read", operation="guest_get", arguments="{oops")


async def test_an_operation_that_there_is_not_is_answered_with_those_like_it(tmp_path):
    async with lean(tmp_path) as quorate:
        assert "guest_list" in await quorate.refusal("pve_read", operation="guests_list")
        assert "disk_change" in await quorate.refusal("pve_change", operation="make the disk bigger")
        assert "pve_find" in await quorate.refusal("pve_find", operation="xyzzy")


async def test_a_tool_that_there_is_not_is_refused(tmp_path):
    async with lean(tmp_path) as quorate:
        assert "Call pve_read operation=guest_list." in await quorate.refusal("guest_list")
    async with lean(tmp_path, access=Access.OPERATE) as quorate:
        assert (await quorate.refusal("xyzzy")).endswith("Available: pve_find, pve_read, pve_change.")
        text = await quorate.refusal("guest_delete", guest=STOPPED_VM)
        assert text.endswith("guest_delete is an operation that needs access level admin.")


async def test_what_the_level_forbids_is_refused_by_every_tool_for_that_reason(tmp_path):
    async with lean(tmp_path, access=Access.OPERATE) as quorate:
        for tool in ("pve_read", "pve_change", "pve_destroy"):
            text = await quorate.refusal(tool, operation="guest_delete", arguments={"guest": STOPPED_VM})
            assert "guest_delete is refused at access level operate" in text
            assert "--access admin" in text
        text = await quorate.refusal("pve_change", operation="guest_power", arguments={"guest": VM, "action": "stop"})
        assert "guest_stop does that, which needs access level admin." in text


# -- together with others ----------------------------------------------------------------------------------------------


async def test_lean_can_be_combined_with_other_surfaces(tmp_path):
    async with rig(tmp_path, toolsets=("guests",), more={"surfaces": ("lean", "native")}) as quorate:
        listed = {tool.name for tool in (await quorate.client.list_tools()).tools}
        assert {"pve_find", "pve_destroy", "guest_list"} <= listed
        assert (await quorate.facts("guest_get", guest=100))["name"] == "router"
        facts = await quorate.facts("pve_read", operation="guest_get", arguments={"guest": 100})
        assert facts["name"] == "router"


async def test_with_several_clusters_an_operation_takes_one_of_them(tmp_path):
    async with several_clusters(tmp_path, more=LEAN) as quorate:
        described = await quorate.facts("pve_find", operation="guest_get")
        assert described["arguments"]["cluster"] == "prod | lab"
        facts = await quorate.facts("pve_read", operation="guest_get", arguments={"guest": 100, "cluster": "lab"})
        assert facts["name"] == "playground"
        done = await quorate.facts(
            "pve_change", operation="guest_power", arguments={"guest": "lab/scratch", "action": "start"}
        )
        assert done["cluster"] == "lab"
        assert quorate.writes_to("prod") == []


@pytest.mark.parametrize("name", ["tool", "name", "operation_name", "op", "command"])
async def test_another_name_for_the_operation_is_refused_with_the_right_one(tmp_path, name):
    async with lean(tmp_path) as quorate:
        text = await quorate.refusal("pve_read", **{name: "guest_list"})
        assert "Give the operation as operation=guest_list" in text
