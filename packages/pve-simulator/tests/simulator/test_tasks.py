"""Tasks as the API shows them."""

from __future__ import annotations

from urllib.parse import quote

from pve_simulator.api_client import Api
from pve_simulator.nodes.tasks import TaskContext, parse_upid


async def _count_to_three(context: TaskContext) -> None:
    for number in range(1, 4):
        context.log(f"step {number}")
        await context.sleep(1)


async def test_a_upid_can_be_parsed_and_names_node_type_id_and_token(api: Api) -> None:
    upid = (await api.post("/nodes/pve1/qemu/108/status/start")).data
    parsed = parse_upid(upid)
    assert parsed is not None
    assert str(parsed) == upid
    assert (parsed.node, parsed.type, parsed.id) == ("pve1", "qmstart", "108")
    assert (parsed.owner, parsed.tokenid) == ("root@pam", "simulator")
    status = await api.task(upid)
    assert (status["user"], status["tokenid"], status["status"]) == ("root@pam", "simulator", "running")
    assert "exitstatus" not in status


async def test_running_tasks_are_listed_only_on_request(api: Api) -> None:
    upid = (await api.post("/nodes/pve1/qemu/108/status/start")).data
    archive = (await api.get("/nodes/pve1/tasks")).body
    assert upid not in [row["upid"] for row in archive["data"]]
    active = (await api.get("/nodes/pve1/tasks", source="active")).body
    assert active["total"] == 1
    assert active["data"][0]["status"] == "RUNNING"
    assert active["data"][0]["user"] == "root@pam!simulator"
    await api.clock.advance(2)
    newest = (await api.get("/nodes/pve1/tasks")).data[0]
    assert (newest["upid"], newest["status"], newest["user"]) == (upid, "OK", "root@pam")


async def test_the_list_can_be_filtered_and_paged(api: Api) -> None:
    failed = (await api.get("/nodes/pve3/tasks", errors=1)).data
    assert [row["type"] for row in failed] == ["qmshutdown"]
    of_guest = (await api.get("/nodes/pve2/tasks", vmid=203)).body
    assert (of_guest["total"], {row["id"] for row in of_guest["data"]}) == (3, {"203"})
    page = (await api.get("/nodes/pve2/tasks", start=1, limit=2)).body
    assert (len(page["data"]), page["total"]) == (2, 6)
    assert (await api.get("/nodes/pve2/tasks", typefilter="qmstart")).body["total"] == 1
    assert (await api.get("/nodes/pve1/tasks", statusfilter="warning")).data[0]["type"] == "aptupdate"
    assert (await api.get("/nodes/pve1/tasks", userfilter="carol")).body["total"] == 3


async def test_the_log_is_paged_and_ends_with_the_result(api: Api) -> None:
    upid = api.cluster.world.tasks.start("pve1", "test", "", "root@pam", _count_to_three)
    await api.clock.advance(1)
    assert [line["t"] for line in (await api.log(upid)).data] == ["step 1", "step 2"]
    await api.clock.advance(5)
    page = (await api.log(upid, start=1, limit=2)).body
    assert page == {"data": [{"n": 2, "t": "step 2"}, {"n": 3, "t": "step 3"}], "total": 4}
    assert (await api.log(upid, limit=0)).data[-1] == {"n": 4, "t": "TASK OK"}


async def test_warnings_show_in_the_exit_status(api: Api) -> None:
    async def work(context: TaskContext) -> None:
        context.warn("something is odd")

    upid = api.cluster.world.tasks.start("pve1", "test", "", "root@pam", work)
    await api.clock.advance(0)
    assert (await api.task(upid))["exitstatus"] == "WARNINGS: 1"
    assert [line["t"] for line in (await api.log(upid)).data] == ["WARN: something is odd", "TASK WARNINGS: 1"]


async def test_a_running_task_can_be_interrupted_and_a_finished_one_stays_as_it_is(api: Api) -> None:
    upid = api.cluster.world.tasks.start("pve1", "test", "", "root@pam", _count_to_three)
    path = f"/nodes/pve1/tasks/{quote(upid, safe='')}"
    assert (await api.delete(path)).data is None
    assert (await api.task(upid))["exitstatus"] == "received interrupt"
    assert (await api.delete(path)).data is None


async def test_unknown_and_malformed_upids(api: Api) -> None:
    unknown = "UPID:pve1:00000001:00000001:60000000:qmstart:100:root@pam:"
    assert (await api.get(f"/nodes/pve1/tasks/{unknown}/status")).errors == {"upid": "no such task"}
    missing = (await api.get(f"/nodes/pve1/tasks/{unknown}/log")).body
    assert missing == {"data": [{"n": 1, "t": "unable to open file - No such file or directory"}], "total": 1}
    malformed = await api.get("/nodes/pve1/tasks/UPID:foo/status")
    assert malformed.errors == {"upid": "unable to parse worker upid"}
    other = next(iter(api.cluster.world.tasks.newest_first("pve2")))
    elsewhere = await api.get(f"/nodes/pve1/tasks/{quote(str(other.upid), safe='')}/status")
    assert elsewhere.errors == {"upid": "no such task"}


async def test_the_cluster_list_has_the_tasks_of_all_nodes(api: Api) -> None:
    await api.post("/nodes/pve1/qemu/108/status/start")
    rows = (await api.get("/cluster/tasks")).data
    assert {row["node"] for row in rows} == {"pve1", "pve2", "pve3"}
    running = [row for row in rows if "endtime" not in row]
    assert [row["saved"] for row in running] == ["0"]
    assert {row["saved"] for row in rows if "endtime" in row} == {"1"}


async def test_without_audit_privilege_only_own_tasks_are_listed(api: Api) -> None:
    alice = api.as_token("alice@pve!ci")
    assert (await alice.get("/nodes/pve1/tasks")).data == []
    upid = (await alice.post("/nodes/pve1/qemu/108/status/start")).data
    assert [row["upid"] for row in (await alice.get("/nodes/pve1/tasks", source="all")).data] == [upid]
    foreign = next(task for task in api.cluster.world.tasks.newest_first("pve1") if task.upid.owner != "alice@pve")
    refused = await alice.get(f"/nodes/pve1/tasks/{quote(str(foreign.upid), safe='')}/status")
    assert refused.reason == "Permission check failed (/nodes/pve1, Sys.Audit)"
