"""Switching guests on and off, followed until done."""

import asyncio

import pytest
from mcp.types import ElicitResult

from quorate.config import Access, Approval
from tests.pipeline.test_safety_table import tries
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio


def some_guest(quorate, kind, **attributes):
    return next(
        guest
        for guest in quorate.sim.world.guests.values()
        if guest.kind == kind
        and not guest.template
        and guest.system.obeys_shutdown
        and guest.sid not in quorate.sim.world.ha
        and all(getattr(guest, key) == value for key, value in attributes.items())
    )


@pytest.mark.parametrize("kind", ["qemu", "lxc"])
async def test_a_started_guest_runs_when_the_call_returns(tmp_path, kind):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, kind, running=False)
        facts = await quorate.facts("guest_power", guest=guest.vmid, action="start")
        assert facts["result"] == "done"
        assert guest.running
        assert facts["task"].startswith("UPID:")


async def test_progress_only_ever_goes_forward_and_ends_at_all_of_it(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=False)
        await quorate.facts("guest_power", guest=guest.vmid, action="start")
        shown = [done for done, _, _ in quorate.progress]
        assert shown == sorted(set(shown))
        assert shown[-1] == 100


@pytest.mark.parametrize("kind", ["qemu", "lxc"])
async def test_shutdown_and_reboot_reach_the_state_they_promise(tmp_path, kind):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, kind, running=True)
        assert (await quorate.facts("guest_power", guest=guest.vmid, action="reboot"))["result"] == "done"
        assert guest.running
        assert (await quorate.facts("guest_power", guest=guest.vmid, action="shutdown"))["result"] == "done"
        assert not guest.running


async def test_a_vm_is_suspended_and_resumed(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=True)
        await quorate.facts("guest_power", guest=guest.vmid, action="suspend")
        assert guest.paused
        assert "resume" in await quorate.refusal("guest_power", guest=guest.vmid, action="start")
        await quorate.facts("guest_power", guest=guest.vmid, action="resume")
        assert not guest.paused


async def test_a_hard_stop_stops_at_once(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=True)
        assert (await quorate.facts("guest_stop", guest=guest.vmid))["result"] == "done"
        assert not guest.running


async def test_starting_a_running_guest_says_so_and_sends_nothing(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "lxc", running=True)
        facts = await quorate.facts("guest_power", guest=guest.vmid, action="start")
        assert facts["result"] == "nothing to do"
        assert "already running" in facts["unchanged"][0]
        assert all(method == "GET" for method, _ in quorate.sim.requests)


RESET = ("guest_stop", {"reset": True})


def power(action):
    return ("guest_power", {"action": action})


@pytest.mark.parametrize(("tool", "options"), [power("reboot"), power("suspend"), RESET])
async def test_what_needs_a_running_guest_says_how_to_start_a_stopped_one(tmp_path, tool, options):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=False)
        text = await quorate.refusal(tool, guest=guest.vmid, **options)
        assert "is stopped" in text
        assert "action=start" in text


async def test_a_template_cannot_be_started(tmp_path):
    async with rig(tmp_path) as quorate:
        template = next(guest for guest in quorate.sim.world.guests.values() if guest.template)
        assert "template" in await quorate.refusal("guest_power", guest=template.vmid, action="start")


async def test_several_guests_are_switched_in_one_call_with_every_outcome(tmp_path):
    async with rig(tmp_path) as quorate:
        guests = [guest for guest in quorate.sim.world.guests.values() if not guest.running and not guest.template][:3]
        running = some_guest(quorate, "qemu", running=True)
        facts = await quorate.facts(
            "guest_power", guest=[*(guest.vmid for guest in guests), running.name], action="start"
        )
        assert [step["state"] for step in facts["steps"]] == ["done"] * len(guests)
        assert all(guest.running for guest in guests)
        assert len(facts["unchanged"]) == 1


async def test_one_failure_among_several_is_reported_and_the_others_continue(tmp_path):
    async with rig(tmp_path) as quorate:
        first, second = [
            guest for guest in quorate.sim.world.guests.values() if not guest.running and not guest.template
        ][:2]
        first.config["lock"] = "backup"
        answer = await quorate.call("guest_power", guest=[first.vmid, second.vmid], action="start")
        assert answer.is_error
        assert second.running
        states = {step["step"]: step for step in answer.structured_content["steps"]}
        assert sorted(step["state"] for step in states.values()) == ["done", "failed"]
        assert "is locked (backup)" in str(states)


async def test_a_failed_task_is_an_error_with_its_reason_and_log(tmp_path):
    async with rig(tmp_path, faults=["task-fails:qmstart:start failed: org.qemu.broken"]) as quorate:
        guest = some_guest(quorate, "qemu", running=False)
        text = await quorate.refusal("guest_power", guest=guest.vmid, action="start")
        assert "start failed: org.qemu.broken" in text
        assert "UPID:" in text
        assert quorate.audit()[-1]["outcome"] == "failed"


async def test_a_locked_guest_is_explained(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=False)
        guest.config["lock"] = "backup"
        text = await quorate.refusal("guest_power", guest=guest.vmid, action="start")
        assert "VM is locked (backup)" in text
        assert "task_list" in text


async def test_a_task_that_outlasts_the_wait_is_handed_back_and_can_be_followed(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=True)
        facts = await quorate.facts("guest_power", guest=guest.vmid, action="shutdown", wait=0)
        assert facts["result"] == "running"
        assert "task_wait" in facts["next"]
        ended = await quorate.facts("task_wait", task=facts["task"])
        assert ended["status"] == "ok"
        assert ended["log"][-1] == "TASK OK"
        assert not guest.running


async def test_a_dry_run_shows_the_call_and_changes_nothing(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=False)
        facts = await quorate.facts("guest_power", guest=guest.name, action="start", dry_run=True)
        assert facts["steps"][0]["call"] == f"POST /nodes/{guest.node}/qemu/{guest.vmid}/status/start"
        assert not guest.running
        assert all(method == "GET" for method, _ in quorate.sim.requests)
        assert quorate.audit()[-1]["outcome"] == "dry run"


@pytest.mark.parametrize("cut", ["drop:after", "drop:mid"])
async def test_a_write_whose_answer_is_lost_is_found_and_followed_and_never_sent_twice(tmp_path, cut):
    async with rig(tmp_path, faults=[f"{cut}:POST:/nodes/*/qemu/*/status/*"]) as quorate:
        guest = some_guest(quorate, "qemu", running=False)
        facts = await quorate.facts("guest_power", guest=guest.vmid, action="start")
        assert facts["result"] == "done"
        assert "answer was lost" in facts["note"]
        assert guest.running
        assert [method for method, _ in quorate.sim.requests].count("POST") == 1


async def test_a_write_that_never_arrived_is_reported_as_unknown_and_not_repeated(tmp_path):
    async with rig(tmp_path, faults=["drop:before:POST:/nodes/*/qemu/*/status/*"]) as quorate:
        guest = some_guest(quorate, "qemu", running=False)
        text = await quorate.refusal("guest_power", guest=guest.vmid, action="start")
        assert "not known whether" in text
        assert "No task for it was found" in text
        assert not guest.running
        assert [method for method, _ in quorate.sim.requests].count("POST") == 1


async def test_every_attempt_leaves_one_audit_line(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "lxc", running=False)
        await quorate.facts("guest_power", guest=guest.vmid, action="start")
        await quorate.refusal("guest_power", guest=guest.vmid, action="fly")
        await quorate.refusal("guest_power", guest="nobody", action="start")
        entries = quorate.audit()
        assert [entry["outcome"] for entry in entries] == ["done", "failed", "failed"]
        assert entries[0]["tasks"][0].startswith("UPID:")
        assert entries[0]["calls"] == [f"POST /nodes/{guest.node}/lxc/{guest.vmid}/status/start"]
        assert entries[0]["caller"]["client"] != "unknown"
        assert quorate.audit_file.stat().st_mode & 0o777 == 0o600


async def test_without_a_writable_audit_trail_nothing_is_changed(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=False)
        quorate.audit_file.mkdir()
        text = await quorate.refusal("guest_power", guest=guest.vmid, action="start")
        assert "audit trail" in text
        assert not guest.running


async def test_at_access_read_a_change_is_neither_listed_nor_run(tmp_path):
    async with rig(tmp_path, access=Access.READ) as quorate:
        guest = some_guest(quorate, "qemu", running=False)
        assert "guest_power" not in [tool.name for tool in (await quorate.client.list_tools()).tools]
        text = await quorate.refusal("guest_power", guest=guest.vmid, action="start")
        assert "--access operate" in text
        assert not guest.running
        assert quorate.audit()[-1]["decision"] == "refused"
        assert quorate.sim.requests == []


async def test_at_access_operate_a_hard_stop_is_refused(tmp_path):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        guest = some_guest(quorate, "qemu", running=True)
        assert "--access admin" in await quorate.refusal("guest_stop", guest=guest.vmid)
        assert guest.running


async def test_a_switched_off_toolset_is_neither_listed_nor_run(tmp_path):
    async with rig(tmp_path, toolsets=("cluster",)) as quorate:
        names = [tool.name for tool in (await quorate.client.list_tools()).tools]
        assert names == ["cluster_status", "node_get", "node_list"]
        assert "--toolsets" in await quorate.refusal("guest_list")


async def test_a_guest_under_ha_is_done_only_when_the_ha_manager_has_done_it(tmp_path):
    async with rig(tmp_path) as quorate:
        from pve_simulator.world import HaResource

        guest = some_guest(quorate, "qemu", running=False)
        quorate.sim.world.ha[guest.sid] = HaResource(guest.sid, state="stopped")
        facts = await quorate.facts("guest_power", guest=guest.vmid, action="start")
        assert ":hastart:" in facts["task"]
        assert facts["result"] == "done"
        assert guest.running


@pytest.mark.parametrize(("tool", "options"), [power("reboot"), RESET])
async def test_a_lost_reboot_does_not_count_as_done_because_the_guest_runs_as_before(tmp_path, tool, options):
    async with rig(tmp_path, faults=["drop:before:POST:/nodes/*/qemu/*/status/*"]) as quorate:
        guest = some_guest(quorate, "qemu", running=True)
        text = await quorate.refusal(tool, guest=guest.vmid, **options)
        assert "not known whether" in text
        assert "not done" not in text
        assert quorate.audit()[-1]["outcome"] == "unknown"


async def test_a_reboot_is_done_when_the_vm_runs_again_not_when_its_task_ends(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=True)
        began = guest.started_at
        assert (await quorate.facts("guest_power", guest=guest.vmid, action="reboot"))["result"] == "done"
        assert guest.running
        assert guest.started_at > began


async def test_progress_lines_are_clean_and_without_secrets(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=False)
        quorate.sim.faults.add(f"task-fails:qmstart:leaked {quorate.sim.token_secret} \x1b[31m\u202ered")
        await quorate.refusal("guest_power", guest=guest.vmid, action="start")
        shown = " ".join(line or "" for _, _, line in quorate.progress)
        assert "leaked ***" in shown
        assert quorate.sim.token_secret not in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown


async def test_one_of_several_guests_that_cannot_be_switched_makes_the_call_a_failure(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=False)
        template = next(guest for guest in quorate.sim.world.guests.values() if guest.template)
        answer = await quorate.call("guest_power", guest=[guest.vmid, template.vmid], action="start")
        assert answer.is_error
        assert answer.structured_content["result"] == "1 of 2 done"
        assert "is a template" in answer.structured_content["failures"][0]
        assert guest.running


async def test_stopping_a_hibernated_vm_is_refused(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=False)
        guest.config["lock"] = "suspended"
        assert "is hibernated" in await quorate.refusal("guest_stop", guest=guest.vmid)


async def test_a_task_whose_node_goes_silent_is_reported_as_started_not_as_failed(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=True)
        quorate.sim.faults.add("595:GET:/nodes/*/tasks/*")
        facts = await quorate.facts("guest_power", guest=guest.vmid, action="shutdown", wait=5)
        assert facts["result"] == "running"
        assert "its current state is unknown" in facts["note"]
        assert "task_wait" in facts["next"]


@pytest.mark.parametrize("fault", ["500:out of luck", "403", "garbage:json"])
async def test_a_task_that_cannot_be_read_is_reported_as_started_not_as_failed(tmp_path, fault):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=True)
        quorate.sim.faults.add(f"{fault}:GET:/nodes/*/tasks/*")
        facts = await quorate.facts("guest_stop", guest=guest.vmid)
        assert facts["result"] == "running"
        assert "its current state is unknown" in facts["note"]
        quorate.sim.faults.clear()
        assert (await quorate.facts("task_wait", task=facts["task"]))["status"] == "ok"
        assert not guest.running


async def test_an_error_now_and_then_while_a_task_is_followed_does_not_matter(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=True)
        quorate.sim.faults.add("500:out of luck:GET:/nodes/*/tasks/*;count=2")
        assert (await quorate.facts("guest_stop", guest=guest.vmid))["result"] == "done"


async def test_a_write_whose_answer_cannot_be_read_is_looked_for_like_a_lost_one(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=True)
        quorate.sim.faults.add("garbage:json:POST:*")
        facts = await quorate.facts("guest_stop", guest=guest.vmid)
        assert facts["result"] == "done"
        assert "The answer was lost" in facts["note"]
        assert not guest.running


@pytest.mark.parametrize("lost", ["drop:after", "596:after", "garbage:json"])
async def test_a_lost_answer_whose_effect_cannot_be_looked_at_is_unknown_not_failed(tmp_path, lost):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=True)
        config = f"/nodes/{guest.node}/qemu/{guest.vmid}/config"
        quorate.sim.faults.add(f"{lost}:PUT:{config}")
        change = asyncio.create_task(quorate.refusal("guest_configure", guest=guest.vmid, tags=["new"]))
        while ("PUT", config) not in quorate.sim.requests:
            await asyncio.sleep(0)
        quorate.sim.faults.add(f"500:out of luck:GET:{config}")
        assert "It is not known whether" in await change
        assert guest.config["tags"] == "new"


async def test_a_cancelled_change_leaves_its_task_in_the_audit_trail(tmp_path):
    from quorate.pipeline.caller import Exchange

    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=True)
        begun = asyncio.Event()

        async def note(*_: object) -> None:
            begun.set()

        quorate.sim.faults.add("latency:3600:GET:/nodes/*/tasks/*/log")
        change = asyncio.create_task(
            quorate.app.pipeline.run("guest_power", {"guest": guest.vmid, "action": "shutdown"}, Exchange(report=note))
        )
        while not any(path.endswith("/log") for _, path in quorate.sim.requests):
            await asyncio.sleep(0)
        change.cancel()
        with pytest.raises(asyncio.CancelledError):
            await change
        entry = quorate.audit()[-1]
        assert entry["outcome"] == "interrupted"
        assert entry["tasks"][0].startswith("UPID:")


async def test_a_trail_that_cannot_be_opened_is_the_reported_reason_why_nothing_is_changed(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=False)
        quorate.audit_file.unlink(missing_ok=True)
        quorate.audit_file.mkdir()
        assert "so nothing is changed" in await quorate.refusal("guest_power", guest=guest.vmid, action="start")
        assert not guest.running


async def test_a_full_disk_stops_changes_before_they_are_made(tmp_path, monkeypatch):
    import os
    from types import SimpleNamespace

    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=False)
        monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=1, f_frsize=4096))
        text = await quorate.refusal("guest_power", guest=guest.vmid, action="start")
        assert "so nothing is changed" in text
        assert "disk is full" in text
        assert not guest.running


@tries("a VM's power is cut by its reset button, its monitor or its keyboard")
@pytest.mark.parametrize(
    ("method", "path", "params"),
    [
        ("POST", "status/reset", {}),
        ("PUT", "sendkey", {"key": "alt-sysrq-b"}),
        ("PUT", "sendkey", {"key": "Alt-Print-B"}),
        ("PUT", "sendkey", {"key": "alt-0x54-b"}),
        ("POST", "monitor", {"command": "system_reset"}),
        ("POST", "status/shutdown", {"forceStop": 1}),
        ("POST", "status/stop", {}),
    ],
)
async def test_whatever_loses_unsaved_data_needs_access_admin(tmp_path, method, path, params):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        guest = some_guest(quorate, "qemu", running=True)
        began = guest.started_at
        text = await quorate.refusal("api_call", method=method, path=guest_path(guest, path), params=params)
        assert "admin" in text
        assert all(method == "GET" for method, _ in quorate.sim.requests)
        assert (guest.running, guest.started_at) == (True, began)


@pytest.mark.parametrize(
    ("method", "path", "params"),
    [
        ("POST", "status/reboot", {}),
        ("POST", "status/suspend", {}),
        ("PUT", "sendkey", {"key": "ctrl-alt-delete"}),
        ("POST", "agent/shutdown", {}),
    ],
)
async def test_what_asks_the_guest_or_keeps_its_memory_needs_only_operate(tmp_path, method, path, params):
    async with rig(tmp_path, access=Access.OPERATE) as quorate:
        guest = some_guest(quorate, "qemu", running=True)
        await quorate.facts("api_call", method=method, path=guest_path(guest, path), params=params, dry_run=True)


async def test_the_reset_button_belongs_to_the_power_switch_and_asks_a_person(tmp_path):
    questions = []

    async def person(context, params):
        questions.append(params.message)
        return ElicitResult(action="decline")

    async with rig(tmp_path, approval=Approval.ASK, elicitation=person) as quorate:
        guest = some_guest(quorate, "qemu", running=True)
        text = await quorate.refusal("guest_power", guest=guest.vmid, action="reset")
        assert "guest_stop" in text
        assert "reset=true" in text
        await quorate.refusal("guest_stop", guest=guest.vmid, reset=True)
        assert "unsaved data is lost" in questions[0]
        assert all(method == "GET" for method, _ in quorate.sim.requests)
    async with rig(tmp_path) as quorate:
        guest = some_guest(quorate, "qemu", running=True)
        assert (await quorate.facts("guest_stop", guest=guest.vmid, reset=True))["result"] == "done"
        assert ("POST", guest_path(guest, "status/reset")) in quorate.sim.requests
        assert guest.running


def guest_path(guest, sub):
    return f"/nodes/{guest.node}/{guest.kind}/{guest.vmid}/{sub}"
