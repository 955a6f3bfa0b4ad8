"""Services inside guests: systemd by the agent and by pct, OpenRC on Alpine."""

import pytest

from pve_simulator.guest_os.machine import Unit
from tests.rigs.mcp_session import rig
from tests.rigs.simulated_guests import ALPINE, CONTAINER, VM, machine, was_injected

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize("guest", [VM, CONTAINER], ids=["agent", "pct"])


def with_alpine(quorate, vmid=103):
    quorate.sim.world.guests[vmid].system = ALPINE
    return machine(quorate, vmid).services


# -- looking -----------------------------------------------------------------------------------------------------------


@BOTH
async def test_one_service_is_described_with_the_end_of_its_log(tmp_path, guest):
    async with rig(tmp_path, ssh=True) as quorate:
        unit = machine(quorate, guest).services["cron"]
        unit.log = [f"line {number}" for number in range(20)]
        facts = await quorate.facts("guest_service", guest=guest, service="cron", log_lines=3)
        assert (facts["service"], facts["manager"]) == ("cron.service", "systemd")
        assert (facts["state"], facts["enabled"], facts["pid"]) == ("active (running)", "enabled", unit.pid)
        assert facts["log"] == ["line 17", "line 18", "line 19"]
        same = await quorate.facts("guest_service", guest=guest, service="cron.service", log_lines=0)
        assert same["service"] == "cron.service"
        assert "log" not in same


@BOTH
async def test_services_are_listed_by_name(tmp_path, guest):
    async with rig(tmp_path, ssh=True) as quorate:
        units = machine(quorate, guest).services
        units["ssh"].active, units["cron"].enabled = False, False
        units["sick"] = Unit("sick", "A sick one", active=False, failed=True)
        rows = await quorate.rows("guest_service", guest=guest)
        assert [row["service"] for row in rows] == sorted(f"{name}.service" for name in units)
        states = {row["service"]: (row["state"], row["enabled"]) for row in rows}
        assert states["ssh.service"] == ("inactive (dead)", "enabled")
        assert states["cron.service"] == ("active (running)", "disabled")
        failed = await quorate.rows("guest_service", guest=guest, state="failed")
        assert [row["service"] for row in failed] == ["sick.service"]
        assert len(await quorate.rows("guest_service", guest=guest, limit=2, offset=1)) == 2


@BOTH
async def test_a_service_that_is_not_there_is_not_found(tmp_path, guest):
    async with rig(tmp_path, ssh=True) as quorate:
        assert "There is no service 'nope'" in await quorate.refusal("guest_service", guest=guest, service="nope")
        refusal = await quorate.refusal("guest_service_control", guest=guest, service="nope", action="start")
        assert "There is no service 'nope'" in refusal


HOSTILE = ("", "-p", "--help", "a b", "cron;id", "$(touch owned)", "`touch owned`", "cron\n", "*", "c?on", "[a]",
           "cron\0", "../cron", "/etc/passwd", "cron'", 'cron"', "|id", "x" * 300)  # fmt: skip


@pytest.mark.parametrize("service", HOSTILE)
async def test_names_that_are_none_are_refused(tmp_path, service):
    async with rig(tmp_path) as quorate:
        for tool, more in (("guest_service", {}), ("guest_service_control", {"action": "restart"})):
            assert "is not a service name" in await quorate.refusal(tool, guest=VM, service=service, **more)
        assert not was_injected(quorate, VM)


# -- changing ----------------------------------------------------------------------------------------------------------


@BOTH
async def test_services_are_stopped_started_and_restarted(tmp_path, guest):
    async with rig(tmp_path, ssh=True) as quorate:
        unit = machine(quorate, guest).services["cron"]
        first = unit.pid
        stopped = await quorate.facts("guest_service_control", guest=guest, service="cron", action="stop")
        assert not unit.active
        assert (stopped["before"], stopped["now"]) == ("active (running)", "inactive (dead)")
        started = await quorate.facts("guest_service_control", guest=guest, service="cron", action="start")
        assert unit.active
        assert started["pid"] == unit.pid != first
        again = unit.pid
        await quorate.facts("guest_service_control", guest=guest, service="cron", action="restart")
        assert unit.active
        assert unit.pid != again
        await quorate.facts("guest_service_control", guest=guest, service="cron", action="reload")
        assert unit.log[-1].endswith("Reloaded cron.service - Regular background program processing daemon.")


@BOTH
async def test_services_are_enabled_and_disabled_and_stay_as_they_run(tmp_path, guest):
    async with rig(tmp_path, ssh=True) as quorate:
        unit = machine(quorate, guest).services["cron"]
        done = await quorate.facts("guest_service_control", guest=guest, service="cron", action="disable")
        assert (unit.enabled, unit.active) == (False, True)
        assert done["enabled"] == "disabled"
        done = await quorate.facts("guest_service_control", guest=guest, service="cron", action="enable")
        assert (unit.enabled, unit.active) == (True, True)
        assert done["enabled"] == "enabled"


@BOTH
async def test_a_service_that_dies_of_its_start_fails_with_its_last_words(tmp_path, guest):
    async with rig(tmp_path, ssh=True) as quorate:
        unit = machine(quorate, guest).services["cron"]
        unit.fails_with = "bind() to 0.0.0.0:80 failed (98: Address already in use)"
        refusal = await quorate.refusal("guest_service_control", guest=guest, service="cron", action="restart")
        assert "not done. After restart, cron.service is failed" in refusal
        assert "exit-code, status 1" in refusal
        assert "Address already in use" in refusal
        entry = quorate.audit()[-1]
        assert (entry["outcome"], entry["decision"]) == ("failed", "allowed")
        assert "After restart, cron.service is failed" in entry["error"]


async def test_a_reload_of_what_does_not_run_says_so(tmp_path):
    async with rig(tmp_path) as quorate:
        machine(quorate, VM).services["cron"].active = False
        refusal = await quorate.refusal("guest_service_control", guest=VM, service="cron", action="reload")
        assert "is not active, cannot reload" in refusal


async def test_a_slow_start_is_waited_for(tmp_path):
    async with rig(tmp_path) as quorate:
        unit = machine(quorate, VM).services["cron"]
        unit.active, unit.start_seconds = False, 12.0
        done = await quorate.facts("guest_service_control", guest=VM, service="cron", action="start")
        assert unit.active
        assert (done["result"], done["now"]) == ("done", "active (running)")


async def test_a_start_that_outlasts_the_wait_is_handed_back(tmp_path):
    async with rig(tmp_path) as quorate:
        unit = machine(quorate, VM).services["cron"]
        unit.active, unit.start_seconds = False, 60.0
        begun = quorate.clock.now()
        done = await quorate.facts("guest_service_control", guest=VM, service="cron", action="start", wait=5)
        assert quorate.clock.now() - begun < 15
        assert done["result"] == "running"
        assert done["now"] == "activating (start)"
        assert "guest_service guest=102 service=cron.service" in done["next"]
        await quorate.clock.advance(60)
        assert unit.active


async def test_a_dry_run_changes_nothing(tmp_path):
    async with rig(tmp_path) as quorate:
        before = len(quorate.sim.requests)
        plan = await quorate.facts("guest_service_control", guest=VM, service="cron", action="stop", dry_run=True)
        assert {method for method, _ in quorate.requests_since(before)} == {"GET"}
        assert plan["steps"] == [
            {"step": "Stop the service cron", "call": "guest agent of vm 102 docker01: stop service cron"}
        ]
        assert machine(quorate, VM).services["cron"].active


# -- OpenRC ------------------------------------------------------------------------------------------------------------


async def test_openrc_runs_the_services_of_alpine(tmp_path):
    async with rig(tmp_path) as quorate:
        units = with_alpine(quorate)
        rows = await quorate.rows("guest_service", guest=103)
        assert [row["service"] for row in rows if row["service"] in ("crond", "sshd")] == ["crond", "sshd"]
        facts = await quorate.facts("guest_service", guest=103, service="sshd")
        assert (facts["manager"], facts["state"], facts["enabled"]) == ("openrc", "active (started)", "enabled")
        stopped = await quorate.facts("guest_service_control", guest=103, service="sshd", action="stop")
        assert not units["sshd"].active
        assert (stopped["before"], stopped["now"]) == ("active (started)", "inactive (stopped)")
        await quorate.facts("guest_service_control", guest=103, service="sshd.service", action="start")
        assert units["sshd"].active
        await quorate.facts("guest_service_control", guest=103, service="sshd", action="disable")
        assert not units["sshd"].enabled
        await quorate.facts("guest_service_control", guest=103, service="sshd", action="disable")
        await quorate.facts("guest_service_control", guest=103, service="sshd", action="enable")
        assert units["sshd"].enabled


async def test_failures_of_openrc_are_reported_in_its_words(tmp_path):
    async with rig(tmp_path) as quorate:
        units = with_alpine(quorate)
        machine(quorate, 103).files.write("/var/log/messages", b"sshd[77]: no hostkeys available\ncrond[3]: x\n")
        units["sshd"].active, units["sshd"].fails_with = False, "sshd: no hostkeys available -- exiting."
        refusal = await quorate.refusal("guest_service_control", guest=103, service="sshd", action="start")
        assert "ERROR: sshd failed to start" in refusal
        assert "sshd[77]: no hostkeys available" in refusal
        assert "crond[3]" not in refusal
        refusal = await quorate.refusal("guest_service_control", guest=103, service="crond", action="reload")
        assert "unknown function `reload'" in refusal
        assert "There is no service 'nope'" in await quorate.refusal("guest_service", guest=103, service="nope")


async def test_a_guest_without_a_known_manager_says_so(tmp_path):
    async with rig(tmp_path) as quorate:
        with_alpine(quorate)
        for name in ("rc-service", "rc-status", "rc-update"):
            machine(quorate, 103).files.remove(f"/usr/bin/{name}")
        for service in ({}, {"service": "sshd"}):
            assert "neither systemd nor OpenRC" in await quorate.refusal("guest_service", guest=103, **service)
