"""Several clusters in one server: found automatically where that is clear, asked for where it is not."""

import pytest

from quorate.config import Access
from quorate.operations.registry import TOOLSETS, Table, operations
from quorate.pipeline.caller import Caller, Exchange, Scope
from quorate.problems import Problem
from quorate.pve.lookup import GUEST_ARGUMENTS
from quorate.pve.tasks import OwnTasks
from tests.rigs.mcp_session import rig
from tests.rigs.several_clusters import several_clusters

pytestmark = pytest.mark.anyio


# -- what is shown -----------------------------------------------------------------------------------------------------


async def test_with_one_cluster_no_tool_takes_a_cluster(tmp_path):
    async with rig(tmp_path, toolsets=tuple(TOOLSETS)) as quorate:
        tools = (await quorate.client.list_tools()).tools
        assert not any("cluster" in tool.input_schema["properties"] for tool in tools)
        assert "has no argument 'cluster'" in await quorate.refusal("guest_list", cluster="demo")
        assert "cluster" not in await quorate.facts("guest_get", guest=100)
        assert "several clusters" not in (quorate.app.server().instructions or "")


async def test_with_several_clusters_every_tool_takes_one_of_them(tmp_path):
    async with several_clusters(tmp_path, more={"toolsets": tuple(TOOLSETS)}) as quorate:
        for tool in (await quorate.client.list_tools()).tools:
            assert tool.input_schema["properties"]["cluster"] == {"type": "string", "enum": ["prod", "lab"]}
            assert "cluster" not in tool.input_schema.get("required", [])
        text = quorate.app.server().instructions or ""
        assert "several clusters" in text
        assert len(text) < 2000


def test_every_argument_that_takes_a_guest_is_known_to_the_routing():
    for operation in operations().values():
        for name, part in operation.schema()["properties"].items():
            described = "vmid or name" in part.get("description", "") or "vmids or names" in part.get("description", "")
            assert not described or name in (*GUEST_ARGUMENTS, "of"), f"{operation.name}: {name}"


# -- guests ------------------------------------------------------------------------------------------------------------


async def test_a_guest_that_only_one_cluster_has_is_found_there(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        assert (await quorate.facts("guest_get", guest="playground"))["cluster"] == "lab"
        assert (await quorate.facts("guest_get", guest=101))["cluster"] == "prod"
        facts = await quorate.facts("guest_power", guest="scratch", action="start")
        assert facts["cluster"] == "lab"
        assert quorate.sims["lab"].world.guests[302].running
        assert quorate.writes_to("prod") == []
        assert quorate.audit()[-1]["cluster"] == "lab"


@pytest.mark.parametrize("ref", [100, "100", " 100 ", "grafana"])
async def test_a_guest_that_several_have_is_refused_with_the_candidates(tmp_path, ref):
    async with several_clusters(tmp_path) as quorate:
        for tool in ("guest_get", "guest_stop", "snapshot_list"):
            text = await quorate.refusal(tool, guest=ref)
            assert "Several clusters" in text
            assert f"prod/{str(ref).strip()}" in text.replace("prod/ ", "prod/")
            assert "lab/" in text
        assert quorate.writes_to("prod") == quorate.writes_to("lab") == []


@pytest.mark.parametrize("named", [{"guest": "lab/100"}, {"guest": 100, "cluster": "lab"}, {"guest": " lab/lab1/100 "}])
async def test_a_guest_may_be_named_with_its_cluster(tmp_path, named):
    async with several_clusters(tmp_path) as quorate:
        facts = await quorate.facts("guest_get", **named)
        assert (facts["cluster"], facts["name"]) == ("lab", "playground")


async def test_node_and_type_before_the_guest_still_work(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        assert (await quorate.facts("guest_get", guest="pve1/100"))["cluster"] == "prod"
        assert (await quorate.facts("guest_get", guest="lxc/grafana", cluster="lab"))["cluster"] == "lab"


async def test_guests_of_two_clusters_in_one_call_are_refused(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        text = await quorate.refusal("guest_power", guest=["playground", "docker01"], action="shutdown")
        assert "several clusters" in text
        assert "lab/playground" in text
        text = await quorate.refusal("guest_power", guest=["lab/100", "prod/100"], action="shutdown")
        assert "A call acts on one cluster" in text
        text = await quorate.refusal("guest_power", guest="lab/100", cluster="prod", action="shutdown")
        assert "A call acts on one cluster" in text
        assert quorate.writes_to("prod") == quorate.writes_to("lab") == []


async def test_a_guest_or_cluster_that_does_not_exist_is_refused_as_such(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        assert "No cluster has a guest 'nowhere'" in await quorate.refusal("guest_get", guest="nowhere")
        assert "There is no cluster 'prd'. Did you mean 'prod'?" in await quorate.refusal("guest_list", cluster="prd")


async def test_the_guest_of_a_firewall_is_found_as_well(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        facts = await quorate.facts("firewall_get", scope="guest", of="lab/100", show="rules")
        assert facts["cluster"] == "lab"
        assert "Several clusters" in await quorate.refusal("firewall_get", scope="guest", of=100)


# -- lists and reads ---------------------------------------------------------------------------------------------------


async def test_lists_span_all_clusters_page_by_page(tmp_path):
    async with several_clusters(tmp_path, "prod", "lab", "edge") as quorate:
        whole = await quorate.rows("guest_list", limit=200)
        expected = {(name, vmid) for name, sim in quorate.sims.items() for vmid in sim.world.guests}
        assert {(row["cluster"], row["vmid"]) for row in whole} == expected
        seen: list[tuple[str, int]] = []
        offset: int | None = 0
        while offset is not None:
            facts = await quorate.facts("guest_list", limit=4, offset=offset)
            assert facts["total"] == len(expected)
            seen += [(row[0], row[1]) for row in facts["rows"]]
            offset = facts.get("next_offset")
        assert seen == [(row["cluster"], row["vmid"]) for row in whole]


async def test_what_is_sorted_by_size_or_time_is_sorted_over_all_clusters(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        rows = await quorate.rows("guest_list", sort="name", limit=200)
        assert [row["name"] for row in rows] == sorted(row["name"] for row in rows)
        assert {row["cluster"] for row in rows} == {"prod", "lab"}
        await quorate.facts("guest_power", guest="lab/scratch", action="start")
        newest = (await quorate.rows("task_list", limit=1))[0]
        assert (newest["cluster"], newest["type"]) == ("lab", "qmstart")


async def test_other_reads_answer_with_one_part_for_each_cluster(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        facts = await quorate.facts("cluster_status")
        assert set(facts) == {"prod", "lab"}
        assert facts["lab"] != facts["prod"]
        alone = await quorate.facts("cluster_status", cluster="lab")
        assert alone == {"cluster": "lab", **facts["lab"]}


async def test_clusters_without_the_node_that_is_asked_for_are_left_out(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        facts = await quorate.facts("node_get", node="lab2")
        assert set(facts) == {"lab"}
        assert "pve9" in await quorate.refusal("node_get", node="pve9")


async def test_what_is_the_same_everywhere_is_shown_once_and_the_raw_api_needs_a_cluster(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        rows = await quorate.rows("api_search", words="snapshot")
        assert "cluster" not in rows[0]
        assert "Give cluster: prod, lab" in await quorate.refusal("api_call", method="GET", path="/nodes")
        nodes = await quorate.rows("api_call", method="GET", path="/nodes", cluster="lab")
        assert {row["node"] for row in nodes} == {"lab1", "lab2"}


# -- changes and tasks -------------------------------------------------------------------------------------------------


async def test_a_change_without_guest_and_cluster_is_refused_with_the_names(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        text = await quorate.refusal("vm_create", name="new")
        assert "needs to know on which cluster" in text
        assert "prod, lab" in text
        assert (await quorate.facts("vm_create", name="new", cluster="lab"))["cluster"] == "lab"
        assert quorate.writes_to("prod") == []
        assert [entry["cluster"] for entry in quorate.audit()] == ["", "lab"]


async def test_tasks_are_found_by_the_node_that_they_name(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        task = (await quorate.facts("guest_power", guest="lab/302", action="start"))["task"]
        assert (await quorate.facts("task_get", task=task))["cluster"] == "lab"
        assert (await quorate.facts("task_wait", task=task))["cluster"] == "lab"


async def test_a_task_on_a_node_whose_name_occurs_twice_is_found_by_who_knows_it(tmp_path):
    async with several_clusters(tmp_path, "prod", "edge") as quorate:
        task = (await quorate.facts("guest_power", guest="sensor", action="shutdown"))["task"]
        assert (await quorate.facts("task_get", task=task))["cluster"] == "edge"
        edge = next(site.cluster for site in quorate.app.pipeline.sites if site.name == "edge")
        edge.own_tasks = OwnTasks()  # as after a new start
        assert (await quorate.facts("task_get", task=task))["cluster"] == "edge"


# -- one of them is down -----------------------------------------------------------------------------------------------


async def test_a_cluster_that_is_down_is_reported_and_does_not_disturb_the_others(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        await quorate.sims["lab"].__aexit__(None, None, None)
        facts = await quorate.facts("guest_list", limit=200)
        assert {row[0] for row in facts["rows"]} == {"prod"}
        assert "lab" in facts["no_answer"]
        status = await quorate.facts("cluster_status")
        assert status["prod"]["quorate"]
        assert "no_answer" in status["lab"]
        facts = await quorate.facts("guest_get", guest="docker01")
        assert facts["name"] == "docker01"
        assert "lab" in facts["no_answer"]


async def test_a_cluster_that_only_keeps_silent_holds_nobody_up_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr("quorate.pipeline.sites.SECONDS", 0.5)
    async with several_clusters(tmp_path) as quorate:
        await quorate.facts("cluster_status")  # both connections stand
        await quorate.clock.advance(3)  # what was read is out of date
        quorate.sims["lab"].faults.add("latency:100000")
        facts = await quorate.facts("node_list")
        assert {row[0] for row in facts["rows"]} == {"prod"}
        assert "within 0.5 s" in facts["no_answer"]["lab"]


async def test_a_change_of_a_guest_that_the_silent_cluster_may_have_too_needs_its_cluster(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        await quorate.sims["lab"].__aexit__(None, None, None)
        text = await quorate.refusal("guest_power", guest="test-vm", action="start")
        assert "not certain that prod/test-vm is the right guest" in text
        assert quorate.writes_to("prod") == []
        await quorate.facts("guest_power", guest="prod/test-vm", action="start")
        assert quorate.sims["prod"].world.guests[108].running


async def test_when_nobody_answers_that_is_the_answer(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        for sim in quorate.sims.values():
            await sim.__aexit__(None, None, None)
        text = await quorate.refusal("guest_list")
        assert "prod:" in text
        assert "lab:" in text


# -- each has its own level and scope ----------------------------------------------------------------------------------


async def test_each_cluster_has_its_own_access_level(tmp_path):
    own = {"lab": {"access": Access.ADMIN}}
    async with several_clusters(tmp_path, own=own, access=Access.READ) as quorate:
        assert "guest_delete" in {tool.name for tool in (await quorate.client.list_tools()).tools}
        text = await quorate.refusal("guest_stop", guest="prod/docker01")
        assert "access level read" in text
        assert "--access admin" in text
        await quorate.facts("guest_stop", guest="lab/playground")
        assert not quorate.sims["lab"].world.guests[100].running
        assert quorate.sims["prod"].world.guests[102].running
        assert [(entry["cluster"], entry["access"]) for entry in quorate.audit()] == [
            ("prod", "read"),
            ("lab", "admin"),
        ]
    own = {"prod": {"access": Access.READ}}
    async with several_clusters(tmp_path, own=own) as quorate:
        text = await quorate.refusal("guest_stop", guest="docker01", cluster="prod")
        assert 'access = "admin" in [clusters.prod]' in text


async def test_a_caller_sees_no_more_clusters_than_its_token_allows(tmp_path):
    async with several_clusters(tmp_path) as quorate:
        only_lab = Exchange(Caller(subject="bob", scope=Scope(clusters=frozenset({"lab"}))))
        run = quorate.app.pipeline.run
        listed = (await run("guest_list", {}, only_lab)).data
        assert isinstance(listed, Table)
        assert {row[0] for row in listed.rows} == {100, 301, 302}
        with pytest.raises(Problem, match="There is no cluster 'prod'"):
            await run("guest_list", {"cluster": "prod"}, only_lab)
        with pytest.raises(Problem, match="There is no cluster 'prod'"):
            await run("guest_stop", {"guest": "prod/102"}, only_lab)
        with pytest.raises(Problem, match="There is no guest"):
            await run("guest_stop", {"guest": "docker01"}, only_lab)
        shown = (await run("guest_get", {"guest": 100}, only_lab)).data
        assert isinstance(shown, dict)
        assert shown["name"] == "playground"
        assert quorate.sims["prod"].requests == []
