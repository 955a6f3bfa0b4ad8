"""Resources under their addresses, and names that complete themselves."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS, PromptReference, ResourceTemplateReference, TextResourceContents

from quorate.config import Access
from quorate.pipeline.caller import Scope
from tests.rigs.mcp_session import Rig, rig
from tests.rigs.several_clusters import several_clusters

pytestmark = pytest.mark.anyio

ERAS = {"auto": INVALID_PARAMS, "legacy": -32002}
"""And the code by which each says that there is no such resource."""
FAILED_TASK = "UPID:pve3:00000504:107AC000:695E1280:qmshutdown:109:carol@pve:"
GUEST = ResourceTemplateReference(uri="pve://guests/{guest}")


async def text_at(quorate: Rig, uri: str) -> str:
    (content,) = (await quorate.client.read_resource(uri)).contents
    assert isinstance(content, TextResourceContents)
    assert (str(content.uri), content.mime_type) == (uri, "text/plain")
    return content.text


async def names(quorate: Rig, argument: str, typed: str, ref: Any = GUEST, **chosen: str) -> list[str]:
    answer = await quorate.client.complete(ref, {"name": argument, "value": typed}, context_arguments=chosen or None)
    return answer.completion.values


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ERAS)
async def test_the_cluster_is_listed_and_the_rest_has_templates(tmp_path, mode):
    async with rig(tmp_path, mode=mode) as quorate:
        listed = (await quorate.client.list_resources()).resources
        templates = (await quorate.client.list_resource_templates()).resource_templates
        assert [resource.uri for resource in listed] == ["pve://cluster"]
        assert [template.uri_template for template in templates] == [
            "pve://nodes/{node}",
            "pve://guests/{guest}",
            "pve://tasks/{upid}",
            "pve://storage/{storage}",
        ]
        assert quorate.sim.requests == []  # a list costs nothing


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("pve://cluster", "quorate: yes"),
        ("pve://nodes/pve1", "kernel: 6.17.2-1-pve"),
        ("pve://guests/router", "vmid: 100"),
        ("pve://guests/100", "name: router"),
        (f"pve://tasks/{FAILED_TASK}", "got timeout"),
        ("pve://tasks/" + FAILED_TASK.replace(":", "%3A").replace("@", "%40"), "got timeout"),
        ("pve://storage/nas", "nas:iso/"),
    ],
)
async def test_every_address_is_read(tmp_path, mode, uri, told):
    async with rig(tmp_path, mode=mode) as quorate:
        assert told in await text_at(quorate, uri)


async def test_a_storage_is_shown_on_each_of_its_nodes_without_other_storages(tmp_path):
    async with rig(tmp_path) as quorate:
        uses, volumes = (await text_at(quorate, "pve://storage/tank")).split("\n\n")
        assert [line.split("\t")[:2] for line in uses.splitlines()[1:3]] == [["tank", "pve1"], ["tank", "pve2"]]
        assert "2 of 2" in uses
        assert all(line.startswith("tank:") for line in volumes.splitlines() if ":vm-" in line or ":subvol-" in line)


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize(
    "uri",
    [
        "pve://guests/nope",
        "pve://nodes/nope",
        "pve://storage/nope",
        "pve://tasks/UPID:pve1:00000000:00000000:00000000:x::root@pam:",
        "pve://nothing",
        "pve://nothing/here",
        "pve://elsewhere/guests/100",
        "pve://guests/",
        "pve://",
        "pve://a/b/c/d",
        "https://cluster/",
    ],
)
async def test_what_there_is_not_is_an_error_of_the_protocol(tmp_path, mode, uri):
    async with rig(tmp_path, mode=mode) as quorate:
        with pytest.raises(MCPError) as raised:
            await quorate.client.read_resource(uri)
        assert raised.value.error.code == ERAS[mode]
        assert raised.value.error.data == {"uri": uri}


async def test_a_cluster_that_refuses_our_token_is_another_error(tmp_path):
    async with rig(tmp_path, faults=["401"]) as quorate:
        with pytest.raises(MCPError) as raised:
            await quorate.client.read_resource("pve://cluster")
        assert raised.value.error.code == INTERNAL_ERROR


async def test_a_caller_sees_and_reads_only_what_its_scope_allows(tmp_path):
    async with rig(tmp_path) as quorate:
        scope = Scope(access=Access.READ, toolsets=frozenset({"guests"}))
        async with Client(quorate.app.server(identify=lambda: ("phone", scope))) as client:
            assert (await client.list_resources()).resources == []
            templates = (await client.list_resource_templates()).resource_templates
            assert [template.uri_template for template in templates] == ["pve://guests/{guest}"]
            assert (await client.read_resource("pve://guests/100")).contents
            with pytest.raises(MCPError, match="outside the scope of phone") as raised:
                await client.read_resource("pve://nodes/pve1")
            assert raised.value.error.code == INVALID_PARAMS
            nodes = await client.complete(
                ResourceTemplateReference(uri="pve://nodes/{node}"), {"name": "node", "value": ""}
            )
            assert nodes.completion.values == []


async def test_toolsets_that_are_off_have_no_resources(tmp_path):
    async with rig(tmp_path, toolsets=("tasks",)) as quorate:
        templates = (await quorate.client.list_resource_templates()).resource_templates
        assert [template.name for template in templates] == ["upid"]


async def test_with_several_clusters_the_address_begins_with_one(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        listed = [resource.uri for resource in (await quorate.client.list_resources()).resources]
        assert listed == ["pve://prod/cluster", "pve://lab/cluster"]
        templates = (await quorate.client.list_resource_templates()).resource_templates
        assert templates[1].uri_template == "pve://{cluster}/guests/{guest}"
        assert "name: playground" in await text_at(quorate, "pve://lab/guests/100")
        assert "name: router" in await text_at(quorate, "pve://prod/guests/100")
        assert "nodes: 2 of 2 online" in await text_at(quorate, "pve://lab/cluster")
        assert "name: scratch" in await text_at(quorate, "pve://guests/scratch")  # only one cluster has it


async def test_a_cluster_outside_the_scope_has_no_resources(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        scope = Scope(clusters=frozenset({"lab"}))
        async with Client(quorate.app.server(identify=lambda: ("phone", scope))) as client:
            assert [resource.uri for resource in (await client.list_resources()).resources] == ["pve://lab/cluster"]
            with pytest.raises(MCPError) as raised:
                await client.read_resource("pve://prod/guests/100")
            assert raised.value.error.code == INVALID_PARAMS
            assert "router" not in raised.value.error.message


# -- names that complete themselves ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize(
    ("argument", "typed", "expected"),
    [
        ("guest", "dock", ["docker01", "docker02"]),
        ("guest", "108", ["108"]),
        ("node", "", ["pve1", "pve2", "pve3"]),
        ("node", "2", ["pve2"]),
        ("storage", "lo", ["local", "local-lvm"]),
        ("upid", "UPID:pve3:00000504", [FAILED_TASK]),
        ("task", "qmshutdown", [FAILED_TASK]),
        ("words", "x", []),
    ],
)
async def test_names_are_completed(tmp_path, mode, argument, typed, expected):
    async with rig(tmp_path, mode=mode) as quorate:
        assert await names(quorate, argument, typed) == expected
        assert await names(quorate, argument, typed, PromptReference(name="diagnose_guest")) == expected


async def test_names_that_begin_so_come_before_those_that_hold_it(tmp_path):
    async with rig(tmp_path) as quorate:
        completed = await names(quorate, "guest", "d")
        begins = [name.startswith("d") for name in completed]
        assert True in begins
        assert False in begins
        assert begins == sorted(begins, reverse=True)


async def test_a_large_cluster_is_completed_in_part(tmp_path):
    async with rig(tmp_path, nodes=4, guests=300) as quorate:
        answer = await quorate.client.complete(GUEST, {"name": "guest", "value": ""})
        assert len(answer.completion.values) == 100
        assert answer.completion.has_more is True
        assert answer.completion.total is not None
        assert answer.completion.total >= 300


async def test_where_nothing_can_be_asked_there_are_no_names(tmp_path):
    async with rig(tmp_path, faults=["401"]) as quorate:
        assert await names(quorate, "guest", "") == []


async def test_with_several_clusters_names_say_which_one(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        assert await names(quorate, "cluster", "") == ["prod", "lab"]
        assert await names(quorate, "guest", "grafana") == ["prod/grafana", "lab/grafana"]
        assert await names(quorate, "guest", "lab/gra") == ["lab/grafana"]
        assert await names(quorate, "guest", "gra", cluster="lab") == ["grafana"]
        assert await names(quorate, "node", "", cluster="lab") == ["lab1", "lab2"]


# -- the start ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_listing_tools_loads_nothing_of_it():
    listing = (
        "import asyncio, sys, tempfile; from quorate.app import build; from quorate.config import Settings;"
        "app = build(Settings(state=tempfile.mkdtemp() + '/state.sqlite')); asyncio.run(app.server().list_tools());"
        "print([name for name in ('resources', 'prompts', 'completions', 'finding', 'words', 'lean')"
        " if 'quorate.surfaces.' + name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
