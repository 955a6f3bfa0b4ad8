"""Every tool that names a host takes several: workloads, services, playbooks, accounts, the registry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from quorate.config import Approval
from quorate.homelab import selection
from quorate.operations.plan import Action, ActionResult, Plan, StepContext, Target
from quorate.operations.registry import HOMELAB, Table, operations
from quorate.ssh.settings import Login, SshSettings
from quorate.tools.several_hosts import join_answers, join_plans
from tests.homelab.test_services_terraform import catalogue
from tests.homelab.test_services_terraform import pytestmark as with_terraform
from tests.homelab.test_several_hosts import THREE, approving, hosts_of, with_a_dead_one
from tests.rigs.compose_host import ComposeHost
from tests.rigs.docker_command import OLD, DockerCommand
from tests.rigs.docker_engine import DockerEngine, docker_engine
from tests.rigs.homelab import House, house
from tests.rigs.host_tools import plain_tools
from tests.rigs.mcp_session import Rig, text_of
from tests.rigs.own_system import OwnSystem, own_system
from tests.rigs.ssh_server import HOST

pytestmark = pytest.mark.anyio

NAMES_A_NEW_HOST = {"host_register"}


@asynccontextmanager
async def two_engines(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[House, DockerEngine, DockerEngine]]:
    """Quorate, and hosts `one` and `two` with an engine each, and a dead one."""
    path = plain_tools(tmp_path / "tools")
    async with AsyncExitStack() as stack:
        engines, hosts = [], {}
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            engine = await stack.enter_async_context(docker_engine(tmp_path / name))
            engines.append(engine)
            hosts[name] = {"environment": {"PATH": path, "DOCKER_HOST": f"unix://{engine.socket}"}}
        (tmp_path / "house").mkdir()
        toolsets = ("hosts", "host_admin", "workloads")
        built = await stack.enter_async_context(house(tmp_path / "house", hosts, toolsets=toolsets, **options))
        await with_a_dead_one(built)
        first, second = engines
        yield built, first, second


def test_wherever_a_host_is_named_several_may_be():
    lonely = [
        name
        for name, operation in operations([*HOMELAB]).items()
        for argument, part in operation.schema()["properties"].items()
        if argument in ("host", "hosts") and {"type": "array", "items": {"type": "string"}} not in part.get("anyOf", ())
    ]
    assert set(lonely) == NAMES_A_NEW_HOST


async def test_a_workload_is_deployed_shown_stopped_and_removed_on_all_hosts_that_answer(tmp_path):
    async with two_engines(tmp_path) as (built, first, second):
        quorate = built.quorate
        arguments = {"host": "all", "name": "web"}
        answer = await quorate.call("workload_deploy", **arguments, image="nginx:1.27")
        assert answer.is_error
        rows = hosts_of(answer.structured_content)
        assert [row["host"] for row in rows] == ["host dead", "host one", "host two"]
        assert "refuses the connection" in rows[0]["why"]
        assert answer.structured_content["result"] == "2 of 3 done"
        assert first.running() == second.running() == {"web": "nginx:1.27"}

        listed = await quorate.facts("workload_list", host="all")
        rows = [dict(zip(listed["columns"], row, strict=True)) for row in listed["rows"]]
        assert [(row["host"], row["name"]) for row in rows] == [
            ("host dead", ""),
            ("host one", "web"),
            ("host two", "web"),
        ]
        assert (listed["hosts"], listed["failed"]) == (3, 1)
        paged = await quorate.facts("workload_list", host="all", limit=1, offset=1)
        assert (paged["rows"][0][0], paged["next_offset"], paged["total"]) == ("host one", 2, 3)
        workloads = await quorate.rows("workload_get", **arguments)
        assert [row["state"] for row in workloads] == ["", "running", "running"]
        printed = await quorate.rows("workload_logs", **arguments)
        assert {(row["host"], row["line"]) for row in printed[1:]} == {
            (f"host {name}", line) for name in ("one", "two") for line in ("first", "no such file")
        }

        await quorate.facts("workload_power", host="one", name="web", action="stop")
        stopped = await quorate.facts("workload_power", host=["one", "two"], name="web", action="stop")
        assert stopped["unchanged"] == ["host one: docker web is already exited"]
        assert [(row["host"], row["now"]) for row in hosts_of(stopped)] == [("host two", "exited")]
        gone = await quorate.facts("workload_remove", host=["one", "two"], name="web")
        assert {row["host"]: row["removed"] for row in hosts_of(gone)} == {"host one": "web", "host two": "web"}
        assert first.containers == second.containers == {}


async def test_what_a_host_does_not_have_is_said_of_that_host(tmp_path):
    async with two_engines(tmp_path) as (built, _, second):
        quorate = built.quorate
        await quorate.facts("workload_deploy", host="two", name="web", image="nginx:1.27")
        workloads = await quorate.rows("workload_get", host=["one", "two"], name="web")
        assert [(row["host"], row["state"]) for row in workloads] == [("host one", ""), ("host two", "running")]
        assert "web" in workloads[0]["why_not"]
        refusal = await quorate.refusal("workload_remove", host=["one", "dead"], name="web")
        assert "2 hosts: not possible on any of them, so nothing was changed" in refusal
        removed = await quorate.call("workload_remove", host=["one", "two"], name="web")
        rows = hosts_of(removed.structured_content)
        assert [(row["host"], row["state"]) for row in rows] == [("host one", "not tried"), ("host two", "done")]
        assert removed.is_error
        assert second.containers == {}


async def test_one_question_is_asked_for_all_hosts_and_names_each_of_them(tmp_path):
    asked: list[str] = []
    async with two_engines(tmp_path, approval=Approval.ASK, elicitation=approving(asked)) as (built, first, second):
        await built.quorate.facts("workload_deploy", host=["one", "two"], name="web", image="nginx:1.27")
        assert asked == []
        await built.quorate.facts("workload_remove", host=["one", "two"], name="web")
        [question] = asked
        for engine in (first, second):
            assert engine.containers == {}
        assert all(f"host {name}: docker remove web" in question for name in ("one", "two"))


async def test_a_project_is_updated_on_several_hosts_and_each_keeps_its_way_back(tmp_path):
    machines = {name: DockerCommand(tmp_path / f"{name}-machine") for name in ("one", "two")}
    hosts = {name: machine.options for name, machine in machines.items()}
    async with house(tmp_path, hosts, toolsets=("hosts", "workloads")) as built:
        new = machines["one"].publish("app:1", "healthy")
        machines["two"].publish("app:1", "unhealthy")
        answer = await built.quorate.call("project_update", host=["one", "two"], project="shop", services=["one"])
        rows = {row["host"]: row for row in hosts_of(answer.structured_content)}
        assert (rows["host one"]["state"], rows["host one"]["updated"]) == ("done", ["app:1"])
        assert rows["host two"]["state"] == "failed"
        assert machines["one"].running()["one"] == new
        assert machines["two"].running()["one"] == OLD


async def test_a_service_is_checked_installed_shown_and_removed_where_that_is_possible(tmp_path):
    box = ComposeHost(tmp_path / "box-machine")
    async with box.page() as port, house(tmp_path, {"box": box.options, "bare": {}}, homelab=box.settings) as built:
        await with_a_dead_one(built)
        quorate, arguments = built.quorate, {"service": "page", "host": ["box", "dead"]}
        checked = await quorate.rows("service_check", **arguments)
        assert [(row["host"], row["fits"]) for row in checked] == [("host dead", ""), ("host box", "yes")]
        done = hosts_of(
            (await quorate.call("service_install", **arguments, settings={"web_port": port})).structured_content
        )
        assert [(row["host"], row["state"]) for row in done] == [("host dead", "not tried"), ("host box", "done")]
        status = await quorate.rows("service_status", host="all")
        assert [(row["host"], row["state"], row["drift"]) for row in status] == [
            ("host dead", "", ""), ("host box", "running", "none"),
        ]  # fmt: skip
        upgraded = await quorate.call("service_upgrade", **arguments, to="1.1")
        assert [row["state"] for row in hosts_of(upgraded.structured_content)] == ["not tried", "done"]
        assert box.version == "1.1"
        removed = await quorate.call("service_uninstall", **arguments, data=True)
        assert [row["state"] for row in hosts_of(removed.structured_content)] == ["not tried", "done"]
        assert not (box.services / "page").exists()


@with_terraform[1]
async def test_each_host_has_its_own_plan_and_exactly_those_plans_are_applied(tmp_path):
    hosts: dict[str, dict[str, Any]] = {"nas": {}, "pi": {}}
    async with house(tmp_path, hosts, homelab={"catalogue": catalogue(tmp_path)}) as built:
        quorate, arguments = built.quorate, {"service": "records", "host": ["nas", "pi"]}
        planned = await quorate.rows("terraform_plan", **arguments)
        plans = [row["plan"] for row in planned]
        assert [row["counts"] for row in planned] == [{"create": 2}] * 2
        assert len(set(plans)) == 2
        shown = await quorate.facts("terraform_apply", **arguments, plan=[plans[0], "0" * len(plans[0])], dry_run=True)
        assert "host pi: None of the plans is for host pi" in shown["failures"][0]
        done = hosts_of(await quorate.facts("terraform_apply", **arguments, plan=plans))
        assert [row["state"] for row in done] == ["done", "done"]
        drifted = await quorate.rows("terraform_refresh", **arguments)
        assert [row["drifted"] for row in drifted] == [False, False]
        gone = hosts_of(await quorate.facts("terraform_destroy", **arguments))
        assert [row["state"] for row in gone] == ["done", "done"]


async def test_the_registry_is_changed_tried_and_emptied_for_several_hosts_at_once(tmp_path):
    async with house(tmp_path, THREE) as built:
        quorate = built.quorate
        await with_a_dead_one(built)
        changed = hosts_of(await quorate.facts("host_update", host=["nas", "pi"], labels=["role=store"]))
        assert [(row["host"], row["state"]) for row in changed] == [("host nas", "done"), ("host pi", "done")]
        again = await quorate.facts("host_update", host="role=store", labels=["role=store"])
        assert again["result"] == "nothing to do"
        assert "same address" in await quorate.refusal("host_update", host="role=store", address="10.0.0.1")
        rows = await quorate.rows("host_list", host="role=store")
        assert [row["name"] for row in rows] == ["nas", "pi"]
        exported = await quorate.facts("host_export", hosts="role=store")
        assert exported["hosts"] == 2

        tried = await quorate.rows("host_verify", host="all")
        assert (tried[0]["host"], tried[0]["verified"]) == ("host dead", False)
        assert {row["verified"] for row in tried[1:]} == {True}
        assert (await quorate.facts("host_list", host="dead"))["verdict"] != ""

        await quorate.facts("host_update", host="role=store", active=False)
        assert {row["host"] for row in await quorate.rows("host_status")} == {"host dead", "host web"}
        await quorate.facts("host_update", host="role=store", active=True)
        gone = hosts_of(await quorate.facts("host_remove", host=["nas", "role=store", "dead"]))
        assert {row["host"] for row in gone} == {"host nas", "host pi", "host dead"}
        assert [row["name"] for row in await quorate.rows("host_list", clusters=False)] == ["web"]


async def test_several_hosts_are_discovered_in_one_short_table(tmp_path):
    async with house(tmp_path, THREE) as built:
        await with_a_dead_one(built)
        answer = await built.quorate.call("host_discover", host="all")
        table = answer.structured_content
        assert table["columns"][0] == "host"
        assert {"system", "cpu", "memory"} <= set(table["columns"])
        assert "ports" not in table["columns"]
        assert [row[0] for row in table["rows"]] == ["host dead", "host nas", "host pi", "host web"]
        text = text_of(answer)
        assert "{" not in text.splitlines()[2], "facts in a cell are written out, not as a program would"
        ports = await built.quorate.facts("host_discover", host=["nas", "pi"], sections=["uptime"])
        assert ports["columns"] == ["host", "uptime"]
        few = await built.quorate.rows("network_discover", hosts=["nas", "web"])
        assert {row["host"] for row in few} == {"nas", "web"}


@asynccontextmanager
async def two_systems(tmp_path: Path, **second: Any) -> AsyncIterator[tuple[Rig, OwnSystem, OwnSystem]]:
    """Quorate, and hosts `one` and `two` with accounts of their own; `second` are options of the latter."""
    async with own_system(tmp_path / "one") as first, own_system(tmp_path / "two", **second) as other:
        known = (first.known_hosts, other.known_hosts)
        ssh = SshSettings(Login(user="root"), known_hosts=known, pins=tmp_path / "pins")
        async with house(tmp_path, {}, homelab={"ssh": ssh}) as built:
            for name, box in (("one", first), ("two", other)):
                login = {"address": "127.0.0.1", "port": box.port, "user": "root", "key": str(box.key_file)}
                await built.quorate.facts("host_register", host=name, **login)
            yield built.quorate, first, other


async def test_the_administration_account_is_made_on_several_hosts_step_by_step_on_each(tmp_path):
    async with two_systems(tmp_path) as (quorate, box, other):
        before = box.accounts()
        planned = await quorate.facts("host_admin_setup", host="all", dry_run=True)
        first = [step["step"] for step in planned["steps"] if step["step"].startswith("host one: ")]
        assert first[0] == "host one: Create the account quorate"
        assert len(first) * 2 == len(planned["steps"])
        facts = await quorate.facts("host_admin_setup", host="all", register=True)
        assert facts["result"] == "done"
        rows = hosts_of(facts)
        assert [(row["host"], row["state"]) for row in rows] == [("host one", "done"), ("host two", "done")]
        assert all(row["verified"]["sudo"] == "without a password" for row in rows)
        assert box.accounts() == before | {"quorate"}
        tried = await quorate.rows("host_admin_verify", host="all")
        assert [row["logged_in_as"] for row in tried] == ["quorate", "quorate"]
        gone = hosts_of(await quorate.facts("host_admin_remove", host="all"))
        assert [row["state"] for row in gone] == ["done", "done"]
        assert box.accounts() == other.accounts() == before


async def test_a_step_that_fails_stops_its_host_and_no_other(tmp_path):
    async with two_systems(tmp_path, programs={"visudo": "#!/bin/sh\nexit 1\n"}) as (quorate, _, _):
        answer = await quorate.call("host_admin_setup", host="all", register=True)
        assert answer.is_error
        rows = hosts_of(answer.structured_content)
        assert [(row["host"], row["state"]) for row in rows] == [("host two", "failed"), ("host one", "done")]
        assert answer.structured_content["result"] == "1 of 2 done"
        [entry] = [entry for entry in quorate.audit() if entry["tool"] == "host_admin_setup"]
        states = [step["state"] for step in entry["steps"]]
        assert states.count("failed") == 1
        assert "not tried" in states
        assert (await quorate.facts("host_list", host="two"))["user"] == "root"
        assert (await quorate.facts("host_list", host="one"))["user"] == "quorate"


def test_an_answer_about_many_hosts_is_bounded_and_says_what_is_left_out():
    answers = [(f"host h{number}", Table(("line",), [["x"]] * 10, 10)) for number in range(150)]
    table = join_answers(answers, {})
    assert (len(table.rows), table.facts["hosts"], table.facts["not_shown"]) == (1000, 150, 500)
    assert "fewer hosts" in table.facts["next"]


async def test_a_label_never_takes_the_place_of_an_address_a_node_or_a_guest(tmp_path):
    async with house(tmp_path, THREE) as built:
        quorate = built.quorate
        await quorate.facts("host_update", host="web", labels=["docker01", "pve1", "10.9.9.9", "root@10.9.9.9"])
        for name in ("docker01", "pve1"):
            refusal = await quorate.refusal("service_status", host=name)
            assert "is ambiguous. It is a label of web, and the name of" in refusal
            assert "Use demo/" in refusal
            assert "ambiguous" in await quorate.refusal("host_exec", host=["nas", name], command="true")
        for address in ("10.9.9.9", "root@10.9.9.9"):
            shown = await quorate.call("host_exec", host=address, command="true", dry_run=True)
            assert "host web" not in text_of(shown)
        assert [row["name"] for row in await quorate.rows("host_list", host=["docker01"])] == ["web"]


async def test_hosts_separated_by_commas_are_a_list_and_the_limit_counts_groups_too(tmp_path, monkeypatch):
    async with house(tmp_path, THREE) as built:
        rows = await built.quorate.rows("host_status", host="nas, web")
        assert {row["host"] for row in rows} == {"host nas", "host web"}
        monkeypatch.setattr(selection, "MAX_HOSTS", 2)
        assert "3 hosts are too many for one call" in await built.quorate.refusal("host_status", host="all")


async def test_next_steps_name_all_hosts_and_failures_are_counted(tmp_path):
    async with house(tmp_path, THREE) as built:
        quorate = built.quorate
        await with_a_dead_one(built)
        changed = await quorate.facts("host_update", host=["nas", "pi"], user="root")
        assert changed["next"] == 'Try the login: host_verify host=["nas", "pi"]'
        tried = await quorate.facts("host_verify", host=["dead", "web"])
        assert tried["failed"] == 1
        await quorate.facts("host_update", host=["web"], address=HOST)
        await quorate.facts("host_update", host="pi", jump="nas")
        gone = hosts_of(await quorate.facts("host_remove", host="all"))
        assert {row["state"] for row in gone} == {"done"}


async def test_a_host_without_workloads_is_named_and_long_lines_say_that_they_are_cut(tmp_path):
    async with two_engines(tmp_path) as (built, first, second):
        quorate = built.quorate
        for host in ("one", "two"):
            await quorate.facts("workload_deploy", host=host, name="web", image="nginx:1.27")
        first.log = [b"x" * 5000 + b"\n"]
        second.log = []
        printed = await quorate.facts("workload_logs", host=["one", "two"], name="web")
        assert printed["nothing_on"] == ["host two"]
        assert printed["rows"][0][-1].endswith("… (5000 characters)")
        alone = await quorate.facts("workload_logs", host="one", name="web")
        assert len(alone["log"][0]) > 4000
        partly = await quorate.facts("workload_logs", host="two", name=["web", "nope"])
        assert "nope" in partly["no_answer"]


def test_an_approval_is_for_the_steps_of_each_host():
    def step(host: str, number: int) -> Action:
        return Action(f"Step {number}", "useradd quorate", nothing, Target("host", host))

    async def nothing(_: StepContext) -> ActionResult:
        return ActionResult()

    def joined(*sizes: int) -> Plan:
        plans = [
            (f"host {host}", Plan("", tuple(step(host, number) for number in range(size))))
            for host, size in zip("ab", sizes, strict=True)
        ]
        return join_plans("Set up", plans, {}, ("verified",))

    assert joined(2, 1).digest != joined(1, 2).digest
