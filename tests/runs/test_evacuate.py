"""Evacuating a node: every guest to the best other node, within what was approved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pve_simulator.cluster.ha_manager import HaManager
from quorate.config import Approval
from quorate.config.policy import Limits, Policy
from quorate.runs.store import RunState
from quorate.units import moment
from tests.pipeline.test_policy import policy
from tests.rigs.mcp_session import Rig, rig, second_server
from tests.runs.control import work_and_abort_when

pytestmark = pytest.mark.anyio


async def finished(quorate: Rig, tool: str, **arguments: Any) -> dict[str, Any]:
    """Start a run, let it work, and return what run_get says."""
    started = await quorate.facts(tool, **arguments)
    await quorate.app.runs.work()
    return await quorate.facts("run_get", run=started["run"], lines=200, inside=True)


def homes(quorate: Rig, *vmids: int) -> list[str]:
    return [quorate.sim.world.guests[vmid].node for vmid in vmids]


async def test_every_running_guest_leaves_the_node_and_keeps_running(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        run = await finished(quorate, "run_evacuate", node="pve3", with_local_disks=True)
        assert run["state"] == "done", run
        world = quorate.sim.world
        assert "pve3" not in homes(quorate, 105, 106, 109, 204, 205)
        assert all(world.guests[vmid].running for vmid in (105, 109, 204, 205))
        assert world.guests[206].node == "pve3", "it was stopped and stays"
        moves = [entry for entry in quorate.audit() if entry["tool"] == "guest_migrate"]
        assert len(moves) == 5
        assert {entry["caller"]["client"] for entry in moves} == {f"run {run['run']}"}
        assert all(entry["approval"].startswith("within run") for entry in moves)


async def test_a_dry_run_shows_where_each_guest_would_go_and_what_cannot_move(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        plan = await quorate.facts("run_evacuate", node="pve3", dry_run=True)
        assert any("ct 204 grafana to pve" in line for line in plan["moves"])
        (line,) = [line for line in plan["cannot_move"] if line.startswith("vm 105 k3s-agent")]
        assert line.endswith("; with_local_disks=true copies it")
        assert await quorate.app.runs.store.list() == []
        assert homes(quorate, 204, 205) == ["pve3", "pve3"]


async def would_move(quorate: Rig, node: str, **arguments: Any) -> tuple[dict[int, str], dict[int, str]]:
    """By vmid: where each guest would go, and why another cannot."""
    plan = await quorate.facts("run_evacuate", node=node, dry_run=True, **{"with_local_disks": True, **arguments})
    moves = {int(line.split()[1]): line.split(" to ")[1].split()[0] for line in plan["moves"]}
    return moves, {int(line.split()[1].rstrip(":")): line for line in plan.get("cannot_move", ())}


async def test_devices_linked_clones_and_snapshots_that_keep_a_guest_are_reported_beforehand(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        quorate.sim.world.guests[104].config["hostpci0"] = "0000:01:00"
        await quorate.facts("vm_create", name="base", vmid=900, node="pve2", storage="tank", disks=["1G"])
        await quorate.facts("guest_template", guest=900)
        await quorate.facts("guest_clone", guest=900, vmid=901, name="clone", full=False)
        await quorate.facts("guest_power", guest=901, action="start")
        _, stuck = await would_move(quorate, "pve2")
        assert "devices of pve2: hostpci0" in stuck[104]
        assert "is a linked clone" in stuck[901]
        assert "snapshots (pre-migration)" in stuck[203]


async def test_memory_and_the_reach_of_storages_decide_where_a_guest_goes(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        world = quorate.sim.world
        moves, stuck = await would_move(quorate, "pve2")
        assert (moves[103], stuck.get(103)) == ("pve1", None), "pve3 has no tank"
        world.guests[105].config["memory"] = str(200 * 1024)
        world.guests[105].touch()
        await quorate.clock.advance(15)
        moves, stuck = await would_move(quorate, "pve3")
        assert "of memory free, it needs 200G" in stuck[105]
        assert set(moves) >= {106, 109, 204, 205}
        assert len(set(moves.values())) == 2, "none of the others gets all of them"


async def test_ha_and_affinity_rules_decide_where_a_guest_goes(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        for guest in (200, 204, 205):
            await quorate.facts("ha_set", guest=guest, state="started")
        free, _ = await would_move(quorate, "pve3")
        assert free[204] == "pve1"
        await quorate.facts("ha_rule_set", rule="two", kind="nodes", guests=[204], nodes=["pve3", "pve2"])
        await quorate.facts("ha_rule_set", rule="away", kind="apart", guests=[205, 200])
        moves, _ = await would_move(quorate, "pve3")
        assert (moves[204], moves[205]) == ("pve2", "pve2")
        await quorate.facts("ha_rule_set", rule="two", kind="nodes", guests=[204], nodes=["pve3"], strict=True)
        moves, stuck = await would_move(quorate, "pve3", to=["pve1", "pve2"])
        assert "The HA rule two keeps ct 204 grafana on pve3" in stuck[204]
        assert 204 not in moves


async def test_a_guest_that_ha_takes_back_is_not_reported_as_moved(tmp_path: Path) -> None:
    """Its rule is new: it did not exist when the move was planned."""
    async with rig(tmp_path, in_memory=True) as quorate:
        await quorate.facts("ha_set", guest=105)
        world = quorate.sim.world

        async def pin_it_on_the_way() -> None:
            while not world.tasks.active(kind="qmigrate", target="105"):
                await quorate.clock.sleep(1)
            pin = {"type": "node-affinity", "resources": "vm:105", "nodes": "pve3"}
            world.part(HaManager).rules.rules.sections["pin"] = pin

        world.tasks.in_background(pin_it_on_the_way())
        run = await finished(quorate, "run_evacuate", node="pve3", with_local_disks=True)
        assert run["state"] == "failed", run
        assert "is on pve3: the HA manager did not leave it on" in run["report"]["not_moved"]["105"]
        assert homes(quorate, 105) == ["pve3"]


async def test_guests_under_ha_are_not_evacuated_to_a_node_in_maintenance(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        for vmid in (204, 205):
            await quorate.facts("ha_set", guest=vmid)
        quorate.sim.world.part(HaManager).request_maintenance("pve2", enable=True)
        await quorate.clock.advance(30)
        moves, _ = await would_move(quorate, "pve3")
        assert (moves[204], moves[205]) == ("pve1", "pve1")
        _, stuck = await would_move(quorate, "pve3", to=["pve2"])
        assert "pve2 is in maintenance" in stuck[204]
        run = await finished(quorate, "run_evacuate", node="pve3", with_local_disks=True)
        assert run["state"] == "done", run
        assert homes(quorate, 204, 205) == ["pve1", "pve1"]


async def test_a_node_in_maintenance_is_evacuated_together_with_the_ha_manager_and_takes_nothing_back(
    tmp_path: Path,
) -> None:
    """The manager moves what is under HA, the run moves the rest, and both count."""
    async with rig(tmp_path, in_memory=True) as quorate:
        await quorate.facts("ha_set", guest=204)
        manager = quorate.sim.world.part(HaManager)
        manager.request_maintenance("pve3", enable=True)
        run = await finished(quorate, "run_evacuate", node="pve3", with_local_disks=True)
        assert run["state"] == "done", run
        assert "pve3" not in homes(quorate, 105, 204, 205)
        plan = await quorate.facts("run_return", run=run["run"], dry_run=True)
        (line,) = plan["cannot_move"]
        assert "ct 204 grafana" in line
        assert "pve3 is in maintenance" in line
        manager.request_maintenance("pve3", enable=False)
        await quorate.clock.advance(90)
        assert homes(quorate, 204) == ["pve3"], "the manager takes its own back"
        back = await finished(quorate, "run_return", run=run["run"])
        assert back["state"] == "done", back
        assert homes(quorate, 105, 204, 205) == ["pve3"] * 3


async def test_a_move_that_ha_makes_after_an_outage_is_part_of_the_run_and_of_the_return(tmp_path: Path) -> None:
    """PVE has accepted the request when the quorum is lost; the step looks as if it had failed."""
    async with rig(tmp_path, in_memory=True) as quorate:
        await quorate.facts("ha_set", guest=204)
        world, began = quorate.sim.world, quorate.clock.now()

        async def lose_the_quorum() -> None:
            while not world.tasks.active(kind="hamigrate"):
                await quorate.clock.sleep(0.1)
            await quorate.clock.sleep(1)
            world.quorate_override = False
            await quorate.clock.sleep(900)
            world.quorate_override = None

        world.tasks.in_background(lose_the_quorum())
        run = await finished(quorate, "run_evacuate", node="pve3", with_local_disks=True)
        assert quorate.clock.now() - began >= 900
        assert (run["state"], homes(quorate, 204)[0]) == ("done", run["report"]["moved"]["204 grafana"]), run
        back = await finished(quorate, "run_return", run=run["run"])
        assert (back["state"], homes(quorate, 204)) == ("done", ["pve3"]), str(back)


async def test_a_run_whose_cluster_is_gone_pauses_and_can_be_aborted(tmp_path: Path) -> None:
    async with rig(tmp_path) as quorate:
        started = await quorate.facts("run_evacuate", node="pve3", with_local_disks=True, parallel=1)

        async def lose_the_cluster() -> None:
            while not quorate.sim.world.tasks.active(kind="vzmigrate"):
                await quorate.clock.sleep(0.1)
            await quorate.sim.stop_endpoint(0)

        quorate.sim.world.tasks.in_background(lose_the_cluster())
        await quorate.app.runs.work()
        run = await quorate.app.runs.get(started["run"])
        assert run.state is RunState.PAUSED, run.log
        assert "Its cluster has not answered for 30m" in run.reason
        aborted = await quorate.app.runs.store.abort(run.id, "the operator")
        began = quorate.clock.now()
        await quorate.app.runs.work()
        aborted = await quorate.app.runs.get(run.id)
        assert aborted.state is RunState.ABORTED, aborted.log
        assert "what is left is not known: No connection to" in aborted.reason
        assert quorate.clock.now() - began < 600


async def test_guests_return_where_they_came_from(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        away = await finished(quorate, "run_evacuate", node="pve3", with_local_disks=True)
        back = await finished(quorate, "run_return", run=away["run"])
        assert back["state"] == "done", back
        assert set(homes(quorate, 105, 106, 109, 204, 205)) == {"pve3"}


async def test_a_guest_that_arrives_later_is_not_moved_without_asking(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        started = await quorate.facts("run_evacuate", node="pve3", with_local_disks=True)
        await quorate.facts("guest_migrate", guest=201, node="pve3")
        await quorate.app.runs.work()
        run = await quorate.facts("run_get", run=started["run"])
        assert run["state"] == "paused"
        assert any("/lxc/201/migrate" in line for line in run["asks_for"])
        assert homes(quorate, 201) == ["pve3"]
        await quorate.facts("run_control", run=started["run"], action="resume")
        await quorate.app.runs.work()
        assert (await quorate.app.runs.get(started["run"])).state is RunState.DONE
        assert homes(quorate, 201) != ["pve3"]


async def test_a_frozen_run_pauses_and_continues_when_it_is_resumed(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        started = await quorate.facts("run_evacuate", node="pve3", with_local_disks=True)
        freeze = quorate.app.pipeline.journal.freeze
        await freeze.set("the operator", "smoke", quorate.app.audit)
        await quorate.app.runs.work()
        run = await quorate.app.runs.get(started["run"])
        assert (run.state, "frozen" in run.reason) == (RunState.PAUSED, True)
        assert set(homes(quorate, 105, 204, 205)) == {"pve3"}
        await freeze.lift("the operator", quorate.app.audit)
        await quorate.facts("run_control", run=run.id, action="resume")
        await quorate.app.runs.work()
        assert (await quorate.app.runs.get(run.id)).state is RunState.DONE


async def test_a_limit_that_no_later_attempt_could_meet_pauses_the_run(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        started = await quorate.facts("run_evacuate", node="pve3", with_local_disks=True)
        app = quorate.app
        app.adopt(replace(app.settings, policy=Policy(limits=Limits(guests_per_call=0))))
        await app.runs.work()
        run = await app.runs.get(started["run"])
        assert (run.state, "guests_per_call" in run.reason) == (RunState.PAUSED, True)
        app.adopt(replace(app.settings, policy=Policy()))
        await quorate.facts("run_control", run=run.id, action="resume")
        await app.runs.work()
        assert (await app.runs.get(run.id)).state is RunState.DONE


async def test_a_run_waits_until_a_limit_lets_its_steps_pass(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        started = await quorate.facts("run_evacuate", node="pve3", with_local_disks=True, parallel=4)
        app = quorate.app
        app.adopt(replace(app.settings, policy=Policy(limits=Limits(concurrent_changes=1))))
        await app.runs.work()
        run = await app.runs.get(started["run"])
        limited = [line.text.split(" from ")[0] for line in run.log if "concurrent_changes" in line.text]
        assert limited
        assert len(limited) == len(set(limited)), "once for each guest, however often it is tried again"
        assert run.state is RunState.DONE


async def test_an_abort_is_not_held_up_by_a_step_that_was_about_to_ask(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        started = await quorate.facts("run_evacuate", node="pve3", with_local_disks=True, parallel=1)
        await quorate.facts("guest_migrate", guest=201, node="pve3")
        arrived = await quorate.facts("guest_get", guest=201)
        run = await work_and_abort_when(
            quorate, started["run"], lambda run: any(step.arguments["guest"] == 201 for step in run.current.values())
        )
        assert run.state is RunState.ABORTED, run.reason
        assert any("not approved with it" in line.text for line in run.log)
        assert (await quorate.facts("guest_get", guest=201))["node"] == arrived["node"]


async def test_an_aborted_run_says_what_is_left(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        started = await quorate.facts("run_evacuate", node="pve3", with_local_disks=True)
        await quorate.facts("run_control", run=started["run"], action="abort")
        await quorate.app.runs.work()
        run = await quorate.facts("run_get", run=started["run"])
        assert run["state"] == "aborted"
        assert run["reason"].endswith("; 5 things are left")
        assert len(run["report"]["left"]) == 5


async def test_a_run_that_is_aborted_on_the_way_says_what_it_has_moved(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        started = await quorate.facts("run_evacuate", node="pve3", with_local_disks=True, parallel=4)
        run = await work_and_abort_when(quorate, started["run"], lambda run: len(run.current) == 4)
        assert run.reason.endswith("; 1 thing is left")
        assert {name.split()[0] for name in run.report["moved"]} == {*map(str, run.memory["moved"])}
        assert len(run.report["moved"]) == 4


async def test_a_run_waits_for_its_time_and_its_window(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        soon = moment(quorate.clock.now() + 1800)
        started = await quorate.facts(
            "run_evacuate", node="pve3", with_local_disks=True, at=soon, window="Mon-Sun 00:00-24:00"
        )
        await quorate.app.runs.work()
        assert (await quorate.app.runs.get(started["run"])).state is RunState.WAITING
        await quorate.clock.advance(1801)
        await quorate.app.runs.work()
        assert (await quorate.app.runs.get(started["run"])).state is RunState.DONE


async def test_a_failed_migration_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        quorate.sim.faults.add("task-fails:vzmigrate:storage 'nas' is not online;count=1")
        run = await finished(quorate, "run_evacuate", node="pve3", with_local_disks=True)
        assert run["state"] == "failed"
        (stuck,) = run["report"]["not_moved"]
        assert "is not online" in run["report"]["not_moved"][stuck]
        assert homes(quorate, int(stuck)) == ["pve3"]
        assert homes(quorate, 105, 106, 109, 204, 205).count("pve3") == 1


async def test_an_approval_covers_the_whole_run(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True, approval=Approval.ASK, approve_changes=True) as quorate:
        waiting = await quorate.refusal("run_evacuate", node="pve3", with_local_disks=True, wait=0)
        assert "quorate approvals approve" in waiting
        (asked,) = await quorate.app.pipeline.approver.approvals.list()
        assert any("204" in remark.text for remark in asked.remarks)
        await quorate.app.pipeline.approver.approvals.answer(asked.id, True, "the operator")
        run = await finished(quorate, "run_evacuate", node="pve3", with_local_disks=True)
        assert run["state"] == "done", run
        assert asked.id in run["approval"]


async def test_what_was_approved_as_a_change_does_not_become_a_destruction_on_the_way(tmp_path: Path) -> None:
    """A container under HA is stopped by force in the end. Nobody had agreed to that."""
    async with rig(tmp_path, in_memory=True, approval=Approval.ASK) as quorate:
        soon = moment(quorate.clock.now() + 1800)
        started = await quorate.facts("run_evacuate", node="pve3", to=["pve1"], at=soon)
        await quorate.facts("ha_set", guest=204, state="started")
        await quorate.clock.advance(1801)
        await quorate.app.runs.work()
        run = await quorate.facts("run_get", run=started["run"])
        assert run["state"] == "paused"
        (asked,) = run["asks_for"]
        assert "/lxc/204/migrate" in asked
        assert "target=pve1" in asked
        assert homes(quorate, 204) == ["pve3"]
        waiting = await quorate.refusal("run_control", run=started["run"], action="resume", wait=0)
        assert "quorate approvals approve" in waiting
        (question,) = await quorate.app.pipeline.approver.approvals.list()
        assert question.risk == "destroy"
        assert any("target=pve1" in line for line in question.plan)
        await quorate.app.pipeline.approver.approvals.answer(question.id, True, "the operator")
        await quorate.facts("run_control", run=started["run"], action="resume")
        await quorate.app.runs.work()
        assert (await quorate.app.runs.get(started["run"])).state is RunState.DONE
        assert homes(quorate, 204) == ["pve1"]


async def test_a_run_tells_nobody_of_a_guest_that_is_hidden_from_them(tmp_path: Path) -> None:
    rule = policy('[[rules]]\nname = "not for you"\ndeny = "read"\nvmids = [204]\n')
    async with (
        rig(tmp_path, in_memory=True) as quorate,
        second_server(quorate, tmp_path / "b.jsonl", policy=rule) as veiled,
    ):
        run = (await finished(quorate, "run_evacuate", node="pve3", with_local_disks=True))["run"]
        for tool, arguments in (
            ("run_get", {"run": run, "lines": 1000}),
            ("run_wait", {"run": run, "lines": 1000}),
            ("run_list", {"state": "all"}),
        ):
            assert "grafana" in str(await quorate.facts(tool, **arguments)) or tool == "run_list"
            shown = str(await veiled.facts(tool, **arguments))
            assert "grafana" not in shown, tool
            assert "204" not in shown, tool


async def test_a_run_is_not_put_off_forever(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        later = moment(quorate.clock.now() + 40 * 86_400)
        assert "more than 30 days ahead" in await quorate.refusal("run_evacuate", node="pve3", at=later)


async def test_a_run_starts_in_two_hours(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        assert "2h for in two hours" in await quorate.refusal("run_evacuate", node="pve3", at="yesterday")
        started = await quorate.facts("run_evacuate", node="pve3", at="2h")
        run = await quorate.app.runs.get(started["run"])
        assert 7200 - 60 < run.starts - run.created <= 7200


async def test_another_guest_under_the_same_id_is_not_moved(tmp_path: Path) -> None:
    async with rig(tmp_path, in_memory=True) as quorate:
        soon = moment(quorate.clock.now() + 1800)
        started = await quorate.facts("run_evacuate", node="pve3", to=["pve1"], at=soon)
        quorate.sim.world.guests[204].config["hostname"] = "somebody-else"
        quorate.sim.world.guests[204].touch()
        await quorate.clock.advance(1801)
        await quorate.app.runs.work()
        assert (await quorate.app.runs.get(started["run"])).state is RunState.PAUSED
        assert homes(quorate, 204) == ["pve3"]
