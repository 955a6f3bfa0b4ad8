"""Findings: from a cycle of the watch to the tools, and back with an acknowledgment."""

from __future__ import annotations

import datetime
import re
from dataclasses import replace
from pathlib import Path

import pytest

from quorate.config import Approval
from quorate.config.policy import Policy, Rule
from quorate.runs.store import Run
from quorate.watch import watch
from tests.pipeline.test_policy import policy
from tests.rigs.mcp_session import second_server, text_of
from tests.runs.control import work_and_act_when
from tests.watch.conftest import Watched, watching

pytestmark = pytest.mark.anyio


async def test_a_node_that_goes_down_is_found_and_resolved_once_it_is_back(watched):
    await watched.cycle(2)
    fault = watched.quorate.sim.faults.add("node-offline:pve3")
    await watched.cycle()
    (row,) = await watched.rows(kind="node-down")
    assert (row["severity"], row["state"]) == ("critical", "open")
    assert "Node pve3 is offline; 6 guests are on it" in row["finding"]
    assert row["next"] == "capacity_plan fails=pve3"
    watched.quorate.sim.faults.remove(fault)
    await watched.cycle()
    assert "node-down" not in await watched.kinds()
    changes = await watched.quorate.rows("changes_since", since="1h")
    assert [row["event"] for row in changes if "pve3 is offline" in row["what"]] == ["resolved", "critical opened"]


async def test_what_cannot_be_seen_is_not_resolved(watched):
    await watched.cycle(2)
    assert "backup-old" in await watched.kinds()
    watched.quorate.sim.faults.add("node-offline:pve3")  # where the guest with the old backup is
    await watched.cycle(2)
    assert "backup-old" in await watched.kinds()
    for path in ("/cluster/status", "/nodes/*/disks/list"):
        watched.quorate.sim.faults.add(f"403:GET:{path}")
    await watched.cycle(2)
    await watched.cycle(2, every=6 * 3600)
    assert {row["finding"].split(":")[0] for row in await watched.rows(kind="unchecked")} == {
        "Could not look at the state of the cluster",
        "Could not look at disks of pve1, pve2",
    }
    assert "quorum-at-risk" in await watched.kinds()  # nobody has seen that it is over


async def test_an_unreachable_cluster_is_a_finding_and_resolves_nothing(watched):
    await watched.cycle(4)
    before = await watched.kinds()
    fault = watched.quorate.sim.faults.add("500:away:GET:/cluster/resources")
    await watched.cycle(2)
    assert await watched.kinds() == before | {"cluster-unreachable"}
    watched.quorate.sim.faults.remove(fault)
    await watched.cycle()
    assert await watched.kinds() == before


async def test_acknowledging_shows_who_and_why_and_a_worse_finding_is_open_again(watched):
    await watched.cycle(2)
    (row,) = await watched.rows(kind="backup-missing")
    await watched.quorate.facts("finding_acknowledge", finding=row["id"], note="next week")
    facts = await watched.quorate.facts("finding_get", finding=row["id"])
    assert (facts["state"], facts["note"]) == ("acknowledged", "next week")
    assert facts["answered_by"] == "mcp 0.1.0"
    assert facts["means"] == "These guests cannot be restored at all."
    assert facts["first_seen"] < facts["last_seen"]
    world = watched.quorate.sim.world
    for volume in [volume for space in world.storages["pbs"].spaces.values() for volume in space.volumes]:
        world.storages["pbs"].remove("pve1", volume)
    await watched.cycle(1, every=3700)
    (again,) = await watched.rows(kind="backup-missing")
    assert (again["id"], again["state"]) == (row["id"], "open")


async def test_a_silenced_finding_speaks_up_again_when_the_time_is_over(watched):
    await watched.cycle(2)
    (row,) = await watched.rows(kind="backup-missing")
    await watched.quorate.facts("finding_acknowledge", finding=row["id"], silence="2h")
    (silent,) = await watched.rows(kind="backup-missing")
    assert silent["state"] == "silenced"
    await watched.cycle(1, every=7300)
    (again,) = await watched.rows(kind="backup-missing")
    assert again["state"] == "open"
    refused = await watched.quorate.refusal("finding_acknowledge", finding=row["id"], silence="soon")
    assert "Write 30m, 8h or 7d" in refused


async def test_acknowledging_new_settings_accepts_them(watched):
    await watched.cycle(2)
    world = watched.quorate.sim.world
    world.access.grant("/", "Administrator", "alice@pve")
    world.access.invalidate_cache()
    await watched.cycle(1, every=700)
    (row,) = await watched.rows(kind="privileges-grown")
    assert "alice@pve has Administrator on /" in row["finding"]
    await watched.cycle(2, every=700)
    assert "privileges-grown" in await watched.kinds()
    await watched.quorate.facts("finding_acknowledge", finding=row["id"])
    await watched.cycle(2, every=700)
    assert "privileges-grown" not in await watched.kinds()


async def test_settings_that_quorate_changed_are_not_drift(watched):
    await watched.cycle(2)
    job = {"job": "weekly", "schedule": "sun 02:00", "storage": "pbs", "guests": [102]}
    await watched.quorate.facts("backup_job_set", **job)
    await watched.cycle(3, every=1000)
    assert "config-drift" not in await watched.kinds()
    watched.quorate.sim.world.storages["nas"].content = ("iso",)
    await watched.cycle(2, every=1000)
    (row,) = await watched.rows(kind="config-drift")
    assert "The storages settings changed: nas.content was 'backup,images,iso,vztmpl' and is 'iso'" in row["finding"]


async def test_findings_about_hidden_guests_stay_hidden(tmp_path):
    hidden = Rule("hidden", allows=False, level="read", vmids=(range(108, 109),))
    async with watching(tmp_path, more={"policy": Policy((hidden,))}) as watched:
        await watched.cycle(2)
        (own,) = [finding for finding in await watched.watch.findings() if finding.kind == "snapshot-old"]
        assert own.seen_as.target == "guest 108"
        assert await watched.rows(kind="snapshot-old") == []
        listed = text_of(await watched.quorate.call("finding_list"))
        changes = text_of(await watched.quorate.call("changes_since", since="1d"))
        assert "test-vm" not in listed + changes
        assert "There is no finding" in await watched.quorate.refusal("finding_get", finding=own.id)
        assert "There is no finding" in await watched.quorate.refusal("finding_acknowledge", finding=own.id)


async def test_changes_since_lists_guests_that_came_went_moved_and_changed(watched):
    await watched.cycle(2)
    call = watched.quorate.facts
    await call("vm_create", name="fresh", vmid=150, node="pve1", storage="nas")
    await call("guest_delete", guest=108)
    await call("guest_configure", guest=107, memory=4096)
    await call("guest_stop", guest=104)
    await watched.cycle(2)
    rows = await watched.quorate.rows("changes_since", since="10m")
    events = {(row["event"], row["what"].split(":")[0]) for row in rows}
    assert ("created", "vm 150 fresh on pve1") in events
    assert ("gone", "vm 108 test-vm, last on pve1") in events
    assert ("changed", "vm 107 win11") in events
    assert ("stopped", "vm 104 k3s-server") in events


KINDS = {"created", "cloned", "restored", "moved", "gone", "changed", "started", "stopped"}


async def events(watched: Watched, *vmids: int) -> list[tuple[str, str]]:
    """What happened to these guests, oldest first, without failed tasks and findings."""
    rows = await watched.quorate.rows("changes_since", since="2h", limit=200)
    own = [(row["event"], row["what"]) for row in reversed(rows) if row["event"] in KINDS]
    return [(event, what) for event, what in own if set(re.findall(r"[\w.-]+", what)) & set(map(str, vmids))]


async def wait_until_idle(watched: Watched) -> None:
    await watched.quorate.clock.advance(600)


@pytest.mark.parametrize("is_watched", [True, False], ids=["watched", "from tasks"])
async def test_a_clone_is_not_a_change_of_its_source(watched, is_watched):
    await watched.cycle(2 if is_watched else 0)
    await watched.quorate.write("POST", "/nodes/pve1/qemu/9000/clone", {"newid": 110, "name": "copy", "full": 1})
    if is_watched:
        await watched.watch.cycle()
        assert await events(watched, 110) == []  # half of it exists
    await wait_until_idle(watched)
    if is_watched:
        await watched.cycle(2)
        assert await events(watched, 110, 9000) == [("created", "vm 110 copy on pve1")]
    else:
        cloned = [("cloned", "guest 9000 into a new guest, on pve1 (qmclone by root@pam)")]
        assert await events(watched, 110, 9000) == cloned


@pytest.mark.parametrize("kind", ["qemu", "lxc"])
async def test_a_vmid_that_is_used_again_is_another_guest(watched, kind):
    await watched.cycle(2)
    await watched.quorate.facts("guest_delete", guest=108)
    template = (await watched.quorate.rows("volume_list", content="vztmpl"))[0]["volume"]
    options = {
        "qemu": {"name": "second"},
        "lxc": {"hostname": "second", "ostemplate": template, "rootfs": "local-lvm:4"},
    }
    await watched.quorate.write("POST", f"/nodes/pve2/{kind}", {"vmid": 108, **options[kind]})
    await wait_until_idle(watched)
    await watched.cycle(2)
    word = {"qemu": "vm", "lxc": "ct"}[kind]
    assert sorted(await events(watched, 108)) == [
        ("created", f"{word} 108 second on pve2"), ("gone", "vm 108 test-vm, last on pve1"),
    ]  # fmt: skip
    await watched.quorate.write("PUT", f"/nodes/pve2/{kind}/108/config", {
        "name" if kind == "qemu" else "hostname": "third"
    })  # fmt: skip
    await watched.cycle(2)
    assert (await events(watched, 108))[-1] == ("changed", f"{word} 108 third: renamed from second")


async def test_a_restore_over_a_guest_is_a_restore(watched):
    await watched.quorate.facts("backup_create", guest=108, storage="nas")
    await watched.cycle(2)
    (backup, *_) = await watched.quorate.rows("backup_list", guest=108, storage="nas")
    await watched.quorate.facts("backup_restore", backup=backup["backup"], vmid=108, overwrite=True)
    await watched.cycle(2)
    assert await events(watched, 108) == [("restored", "vm 108 test-vm from a backup")]


@pytest.mark.parametrize("is_watched", [True, False], ids=["watched", "from tasks"])
async def test_the_copies_of_a_restore_drill_are_no_news(watched, is_watched):
    await watched.cycle(2 if is_watched else 0)
    drill = await watched.quorate.facts("run_restore_drill", guest=109)
    world, before, copies = watched.quorate.sim.world, set(watched.quorate.sim.world.guests), set()

    async def look() -> None:
        copies.update(set(world.guests) - before)
        await watched.cycle(2 if is_watched else 0)

    def is_restored(run: Run) -> bool:
        return bool(run.memory.get("items", {}).get("0", {}).get("restored"))

    await work_and_act_when(watched.quorate, drill["run"], is_restored, look)
    await watched.cycle(2 if is_watched else 0)
    (copy,) = copies
    assert copy not in world.guests
    assert await events(watched, copy) == []


async def test_without_a_watch_changes_come_from_the_tasks_and_the_answer_says_so(watched):
    await watched.quorate.facts("guest_stop", guest=104)
    facts = await watched.quorate.facts("changes_since", since="1h")
    assert any("guest 104 on pve2 (qmstop" in row[-1] for row in facts["rows"])
    now = watched.quorate.sim.world.clock.now()
    for minutes, days in ((-1, 0), (1, 1)):  # the last such time: today's, or yesterday's
        then = datetime.datetime.fromtimestamp(now + 60 * minutes, datetime.UTC)
        facts = await watched.quorate.facts("changes_since", since=f"{then:%H:%M}")
        assert facts["since"] == f"{then - datetime.timedelta(days=days):%Y-%m-%dT%H:%M}:00Z"
    assert "demo was not watched: " in facts["not_watched"]
    assert "Nothing is watched" in (await watched.quorate.facts("finding_list"))["watch"]


async def test_neither_the_next_step_nor_a_note_names_a_hidden_guest(tmp_path: Path) -> None:
    rule = policy('[[rules]]\nname = "not for you"\ndeny = "read"\nvmids = [100]\n')
    async with (
        watching(tmp_path) as watched,
        second_server(watched.quorate, tmp_path / "b.jsonl", policy=rule) as veiled,
    ):
        await watched.cycle(3)
        rows = await watched.rows()
        assert any("guest=100" in row["next"] for row in rows)
        for row in rows:
            await watched.quorate.facts("finding_acknowledge", finding=row["id"], note="router is fine, so is vm 100")
        shown = [str(await veiled.facts("changes_since"))]
        for row in await veiled.rows("finding_list"):
            shown += [str(row), str(await veiled.facts("finding_get", finding=row["id"]))]
        assert len(shown) > 5
        assert not [text for text in shown if "router" in text or re.search(r"(guest=|guest |vm |ct )100\b", text)]


async def test_a_waiting_approval_names_no_guest_that_is_hidden_from_the_caller(tmp_path: Path) -> None:
    rule = policy('[[rules]]\nname = "not for you"\ndeny = "read"\nvmids = [108]\n')
    async with (
        watching(tmp_path, approval=Approval.ASK) as watched,
        second_server(watched.quorate, tmp_path / "b.jsonl", policy=rule) as veiled,
    ):
        name = str(watched.quorate.sim.world.guests[108].config["name"])
        assert "waits for" in await watched.quorate.refusal("guest_delete", guest=108, wait=0)
        await watched.cycle()
        assert name in str(await watched.rows(kind="approval-waiting"))
        (row,) = await veiled.rows("finding_list", kind="approval-waiting")
        facts = await veiled.facts("finding_get", finding=row["id"])
        for text in (str(row), str(facts), str(await veiled.facts("changes_since"))):
            assert name not in text
            assert "108" not in text, text


async def test_a_restore_drill_is_proof_of_a_backup_that_nobody_verified(watched):
    guest = watched.quorate.sim.world.guests[109]
    guest.config["agent"] = "1"  # without one, that it started proves nothing
    guest.system = replace(guest.system, agent_installed=True)
    await watched.cycle(2)
    (row,) = await watched.rows(kind="backup-unproven")
    assert row["next"] == "run_restore_drill guest=109 dry_run=true"
    drill = await watched.quorate.facts("run_restore_drill", guest=109)
    await watched.quorate.app.runs.work()
    ended = await watched.quorate.facts("run_get", run=drill["run"], lines=200)
    assert ended["state"] == "done", str(ended)
    await watched.cycle(2)
    assert await watched.rows(kind="backup-unproven") == []


async def test_a_cluster_that_is_too_slow_to_be_read_is_a_finding(watched, monkeypatch):
    await watched.cycle(2)
    before = await watched.kinds()
    monkeypatch.setattr(watch, "CYCLE_SECONDS", 0.0)
    await watched.cycle(2)
    assert await watched.kinds() == before | {"cluster-unreachable"}
    monkeypatch.undo()
    await watched.cycle()
    assert await watched.kinds() & (before | {"cluster-unreachable"}) == before
