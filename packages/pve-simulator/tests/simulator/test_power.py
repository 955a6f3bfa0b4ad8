"""The power state machine: what is refused at once, what fails in the task, and what changes."""

from __future__ import annotations

import pytest

from pve_simulator.api_client import Api, simulated_api
from pve_simulator.nodes.tasks import TaskContext

VM = "/nodes/pve1/qemu/108/status"  # stopped
ROUTER = "/nodes/pve1/qemu/100/status"  # running, does not obey a shutdown
CT = "/nodes/pve3/lxc/206/status"  # stopped
PIHOLE = "/nodes/pve1/lxc/200/status"  # running


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/nodes/pve3/qemu/106/status/shutdown", "VM is paused - cannot shutdown"),
        ("/nodes/pve3/qemu/106/status/reboot", "VM is paused - cannot shutdown"),
    ],
)
async def test_refused_at_once(api: Api, path, text):
    reply = await api.post(path)
    assert (reply.status, reply.reason) == (500, text)
    assert reply.body == {"data": None, "message": f"{text}\n"}


@pytest.mark.parametrize(
    ("path", "type_", "text"),
    [
        (f"{ROUTER}/start", "qmstart", "VM 100 already running"),
        ("/nodes/pve1/qemu/9000/status/start", "qmstart", "you can't start a vm if it's a template"),
        ("/nodes/pve1/lxc/9001/status/start", "vzstart", "you can't start a CT if it's a template"),
        (
            "/nodes/pve1/qemu/999/status/start",
            "qmstart",
            "Configuration file 'nodes/pve1/qemu-server/999.conf' does not exist",
        ),
        ("/nodes/pve1/lxc/999/status/start", "vzstart", "Configuration file 'nodes/pve1/lxc/999.conf' does not exist"),
        (
            "/nodes/pve1/qemu/103/status/start",  # lives on pve2
            "qmstart",
            "Configuration file 'nodes/pve1/qemu-server/103.conf' does not exist",
        ),
        (
            "/nodes/pve1/qemu/999/status/stop",
            "qmstop",
            "unable to find configuration file for VM 999 on node 'pve1'",
        ),
        (f"{ROUTER}/shutdown", "qmshutdown", "VM quit/powerdown failed - got timeout"),
        (f"{VM}/stop", "qmstop", "OK"),
        (f"{VM}/shutdown", "qmshutdown", "OK"),
    ],
)
async def test_accepted_and_decided_in_the_task(api: Api, path, type_, text):
    reply = await api.post(path)
    assert f":{type_}:" in reply.data
    assert await api.finish_task(reply) == text
    last = (await api.log(reply.data)).data[-1]["t"]
    assert last == ("TASK OK" if text == "OK" else f"TASK ERROR: {text}")


async def test_starting_takes_time_and_shows_in_every_view(api: Api) -> None:
    reply = await api.post(f"{VM}/start")
    assert (await api.task(reply.data))["status"] == "running"
    assert (await api.get(f"{VM}/current")).data["status"] == "stopped"
    await api.clock.advance(1.5)
    task = await api.task(reply.data)
    assert (task["status"], task["exitstatus"]) == ("stopped", "OK")
    await api.clock.advance(30)
    current = (await api.get(f"{VM}/current")).data
    assert (current["status"], current["qmpstatus"], current["uptime"]) == ("running", "running", 30)
    rows = (await api.get("/cluster/resources", type="vm")).data
    assert next(row for row in rows if row["vmid"] == 108)["status"] == "running"


async def test_a_running_guest_can_be_stopped_and_shut_down(api: Api) -> None:
    assert await api.finish_task(await api.post(f"{PIHOLE}/shutdown")) == "OK"
    assert await api.finish_task(await api.post(f"{ROUTER}/stop")) == "OK"
    assert not api.cluster.world.guests[200].running
    assert not api.cluster.world.guests[100].running


async def test_a_shutdown_waits_for_its_timeout_and_may_kill(api: Api) -> None:
    reply = await api.post(f"{ROUTER}/shutdown", timeout=7, forceStop=1)
    await api.clock.advance(6)
    assert (await api.task(reply.data))["status"] == "running"
    assert await api.finish_task(reply, 2) == "OK"
    assert not api.cluster.world.guests[100].running


async def test_a_stop_waits_for_the_lock_of_a_shutdown_unless_it_overrules_it(api: Api) -> None:
    shutdown = await api.post(f"{ROUTER}/shutdown")
    await api.clock.advance(4)
    blocked = await api.post(f"{ROUTER}/stop")
    text = "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout"
    assert await api.finish_task(blocked, 11) == text
    overruling = await api.post(f"{ROUTER}/stop", **{"overrule-shutdown": 1})
    assert await api.finish_task(overruling, 5) == "OK"
    assert (await api.task(shutdown.data))["exitstatus"] == "received interrupt"


async def test_pause_and_resume_keep_the_vm_running(api: Api) -> None:
    assert await api.finish_task(await api.post(f"{ROUTER}/suspend")) == "OK"
    current = (await api.get(f"{ROUTER}/current")).data
    assert (current["status"], current["qmpstatus"]) == ("running", "paused")
    assert await api.finish_task(await api.post(f"{ROUTER}/resume")) == "OK"
    assert (await api.get(f"{ROUTER}/current")).data["qmpstatus"] == "running"


async def test_suspend_to_disk_stops_with_a_lock_and_a_start_brings_it_back(api: Api) -> None:
    world = api.cluster.world
    before = world.storages["local-lvm"].space("pve1").used
    reply = await api.post(f"{ROUTER}/suspend", todisk=1)
    assert ":qmsuspend:" in reply.data
    assert await api.finish_task(reply) == "OK"
    assert (world.guests[100].running, world.guests[100].lock) == (False, "suspended")
    assert world.storages["local-lvm"].space("pve1").used > before
    woken = await api.post(f"{ROUTER}/resume")
    assert await api.finish_task(woken) == "OK"
    assert (world.guests[100].running, world.guests[100].lock) == (True, None)
    assert world.storages["local-lvm"].space("pve1").used == before


async def test_a_reboot_applies_what_was_pending(api: Api) -> None:
    path = "/nodes/pve2/qemu/104"
    assert (await api.get(f"{path}/config", current=1)).data["memory"] == "6144"
    assert (await api.get(f"{path}/config")).data["memory"] == "8192"
    pending = {row["key"]: row for row in (await api.get(f"{path}/pending")).data}
    assert pending["memory"] == {"key": "memory", "value": "6144", "pending": "8192"}
    assert await api.finish_task(await api.post(f"{path}/status/reboot")) == "OK"
    assert (await api.get(f"{path}/config", current=1)).data["memory"] == "8192"


@pytest.mark.parametrize(
    ("fault", "path", "text"),
    [
        ("locked:108:backup", f"{VM}/start", "VM is locked (backup)"),
        ("locked:100:migrate", f"{ROUTER}/stop", "VM is locked (migrate)"),
        ("locked:206:snapshot", f"{CT}/start", "CT is locked (snapshot)"),
        ("locked:206:mounted", f"{CT}/start", "OK"),
    ],
)
async def test_a_locked_guest_is_left_alone(fault, path, text):
    async with simulated_api(faults=[fault]) as api:
        assert await api.finish_task(await api.post(path)) == text


async def test_options_of_root_are_refused_for_its_token(api: Api) -> None:
    reply = await api.post(f"{VM}/start", skiplock=1)
    assert reply.errors == {"skiplock": "Only root may use this option."}
    root = await api.as_user("root@pam", "simulated-root")
    assert (await root.post(f"{VM}/start", skiplock=1)).status == 200


async def test_a_guest_under_ha_is_handed_to_the_ha_manager(api: Api) -> None:
    reply = await api.post("/nodes/pve1/qemu/101/status/stop")
    assert ":hastop:" in reply.data
    assert await api.finish_task(reply, 1) == "OK"
    assert api.cluster.world.guests[101].running
    await api.clock.advance(20)
    assert not api.cluster.world.guests[101].running


async def test_a_guest_is_locked_while_a_task_works_on_it_and_free_after_an_interrupt(api: Api) -> None:
    guest = api.cluster.world.guests[108]

    async def backup(context: TaskContext) -> None:
        with guest.hold_lock("backup"):
            await context.sleep(100)

    upid = api.cluster.world.tasks.start("pve1", "vzdump", "108", "root@pam", backup)
    await api.clock.advance(1)
    assert (await api.get(f"{VM}/current")).data["lock"] == "backup"
    await api.cluster.world.tasks.cancel(upid)
    assert guest.lock is None
