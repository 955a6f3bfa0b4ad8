"""UPIDs, task lists, logs and progress."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.problems import BadArgument
from quorate.pve.tasks import Upid, last_percent
from tests.rigs.mcp_session import rig


def obedient(guest, quorate):
    """A running VM that shuts down when asked, without the HA manager in between."""
    return (
        guest.kind == "qemu" and guest.running and guest.system.obeys_shutdown and guest.sid not in quorate.sim.world.ha
    )


WORD = st.from_regex(r"[a-z][a-z0-9]{0,9}", fullmatch=True)


@given(node=WORD, start=st.integers(0, 2**32 - 1), kind=WORD, target=st.from_regex(r"[0-9a-z]{0,6}", fullmatch=True))
def test_a_upid_gives_back_what_it_was_made_of(node, start, kind, target):
    upid = Upid.parse(f"UPID:{node}:0001ABCD:0FF00FF0:{start:08X}:{kind}:{target}:root@pam!t:")
    assert (upid.node, upid.started, upid.type, upid.id, upid.user) == (node, start, kind, target, "root@pam!t")


@given(st.text(max_size=80))
def test_anything_else_is_refused_as_a_task_id(text):
    if not Upid.looks_like(text):
        with pytest.raises(BadArgument):
            Upid.parse(text)


@pytest.mark.parametrize(
    ("line", "percent"),
    [
        ("INFO:  42% (3.4 GiB of 8.0 GiB) in 12s", 42.0),
        ("transferred 1.0 GiB of 4.0 GiB (25.50%)", 25.5),
        ("drive-scsi0: transferred 512.0 MiB of 1.0 GiB (50.00%) in 3s", 50.0),
        ("creating vzdump archive", None),
    ],
)
def test_progress_is_read_from_the_lines_pve_writes(line, percent):
    assert last_percent(["start", line]) == percent


@pytest.mark.anyio
async def test_recent_tasks_are_listed_newest_first_and_by_outcome(tmp_path):
    async with rig(tmp_path, faults=["task-fails:qmstart:no such luck"]) as quorate:
        guest = next(
            g for g in quorate.sim.world.guests.values() if g.kind == "qemu" and not g.running and not g.template
        )
        await quorate.refusal("guest_power", guest=guest.vmid, action="start")
        failed = await quorate.rows("task_list", guest=guest.vmid, status="failed")
        assert failed[0]["status"] == "no such luck"
        everything = await quorate.rows("task_list", limit=200)
        assert [row["started"] for row in everything] == sorted((row["started"] for row in everything), reverse=True)
        assert all(row["node"] == "pve1" for row in await quorate.rows("task_list", node="pve1"))
        assert {row["type"] for row in await quorate.rows("task_list", user="carol@pve")} == {
            "qmsnapshot",
            "qmshutdown",
            "vzdump",
            "vzsnapshot",
        }
        assert {row["type"] for row in await quorate.rows("task_list", user="alice@pve")} == {"vzstop"}


@pytest.mark.anyio
async def test_a_running_task_is_listed_as_running_and_read_with_its_log(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = next(g for g in quorate.sim.world.guests.values() if obedient(g, quorate))
        handed_back = await quorate.facts("guest_power", guest=guest.vmid, action="shutdown", wait=0)
        running = await quorate.rows("task_list", status="running")
        assert [row["task"] for row in running] == [handed_back["task"]]
        assert (await quorate.facts("task_get", task=handed_back["task"]))["status"] == "running"
        await quorate.facts("task_wait", task=handed_back["task"])
        ended = await quorate.facts("task_get", task=handed_back["task"], log_lines=1)
        assert (ended["status"], ended["log"]) == ("ok", ["TASK OK"])


@pytest.mark.anyio
async def test_waiting_for_a_task_survives_a_bad_connection(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = next(g for g in quorate.sim.world.guests.values() if obedient(g, quorate))
        handed_back = await quorate.facts("guest_power", guest=guest.vmid, action="shutdown", wait=0)
        quorate.sim.faults.add("drop:before:GET:/nodes/*/tasks/*;count=5")
        assert (await quorate.facts("task_wait", task=handed_back["task"]))["status"] == "ok"


@pytest.mark.anyio
async def test_a_running_task_is_stopped_and_its_outcome_is_shown(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = next(g for g in quorate.sim.world.guests.values() if obedient(g, quorate))
        handed_back = await quorate.facts("guest_power", guest=guest.vmid, action="shutdown", wait=0)
        stopped = await quorate.facts("task_stop", task=handed_back["task"])
        assert (stopped["result"], stopped["exit"]) == ("done", "received interrupt")
        assert guest.running
        again = await quorate.facts("task_stop", task=handed_back["task"])
        assert again["unchanged"] == ["The task has already ended"]


@pytest.mark.anyio
async def test_the_end_of_a_very_long_log_is_its_end(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = next(g for g in quorate.sim.world.guests.values() if obedient(g, quorate))
        handed_back = await quorate.facts("guest_power", guest=guest.vmid, action="shutdown", wait=0)
        task = quorate.sim.world.tasks.find(handed_back["task"])
        assert task is not None
        task.log += [f"line {number}" for number in range(1, 3000)]
        ended = await quorate.facts("task_wait", task=handed_back["task"], log_lines=2)
        assert ended["log"] == ["line 2999", "TASK OK"]
        assert ended["log_lines_in_all"] == len(task.log)


@pytest.mark.anyio
async def test_the_log_of_a_short_task_is_read_only_if_it_fails(tmp_path):
    async with rig(tmp_path) as quorate:
        vm = next(guest for guest in quorate.sim.world.guests.values() if obedient(guest, quorate))
        mark = len(quorate.sim.requests)
        await quorate.facts("guest_power", guest=vm.vmid, action="suspend")
        paths = [path for _, path in quorate.requests_since(mark)]
        assert any(path.endswith("/status") and "/tasks/" in path for path in paths)
        assert not any(path.endswith("/log") for path in paths)


@pytest.mark.anyio
async def test_tasks_of_a_guest_come_from_every_node_and_only_since_it_exists(quorate):
    await quorate.facts("guest_power", guest=108, action="start")
    await quorate.facts("guest_stop", guest=108)
    await quorate.facts("guest_delete", guest=108)
    created = await quorate.facts("vm_create", name="successor", vmid=108, node="pve2", cores=1, memory=512)
    assert created["result"] == "done"
    facts = await quorate.facts("task_list", guest=108)
    types = [row[facts["columns"].index("type")] for row in facts["rows"]]
    assert types == ["qmcreate"]
    assert facts["left_out"].endswith("of an earlier guest 108")
    assert facts["outcomes"] == {"ok": 1}
    await quorate.facts("guest_migrate", guest=108, node="pve1")
    moved = await quorate.rows("task_list", guest=108)
    assert [row["type"] for row in moved] == ["qmigrate", "qmcreate"]
    assert [row["node"] for row in moved] == ["pve2", "pve2"]


@pytest.mark.anyio
async def test_the_token_of_a_task_is_shown_and_counted(quorate):
    await quorate.facts("guest_power", guest=108, action="start")
    facts = await quorate.facts("task_list", node="pve1", limit=200)
    users = {row[facts["columns"].index("user")] for row in facts["rows"]}
    assert "root@pam!simulator" in users
    assert facts["users"]["root@pam!simulator"] == 1
    assert sum(facts["outcomes"].values()) == facts["total"]
    mine = await quorate.rows("task_list", user="root@pam!simulator")
    assert [row["type"] for row in mine] == ["qmstart"]
