"""Nodes: hardware, logs, services and power."""

import pytest

from pve_simulator.routes.nodes.services import Services
from quorate.tools.ceph import summarize
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio

ASPECTS = [
    "services",
    "updates",
    "repositories",
    "versions",
    "disks",
    "disk_pools",
    "certificates",
    "time",
    "dns",
    "hosts",
    "options",
    "subscription",
    "pci",
    "usb",
]


@pytest.mark.parametrize("version", ["8.4.1", "9.1.8"])
async def test_every_aspect_of_a_node_is_shown(tmp_path, version):
    async with rig(tmp_path, version=version) as quorate:
        for aspect in ASPECTS:
            told = await quorate.facts("node_inspect", node="pve1", aspect=aspect)
            assert told.get("total", len(told)) > 0, aspect


async def test_aspects_say_what_the_node_says(tmp_path):
    async with rig(tmp_path) as quorate:
        services = await quorate.rows("node_inspect", node="pve1", aspect="services", limit=100)
        assert {row["service"] for row in services} == set(quorate.sim.world.part(Services).of("pve1"))
        disks = await quorate.rows("node_inspect", node="pve1", aspect="disks")
        assert {"/dev/nvme0n1", "/dev/sda"} <= {row["disk"] for row in disks}
        smart = await quorate.facts("node_inspect", node="pve1", aspect="smart", disk="/dev/sda")
        assert smart["health"] == "PASSED"
        assert smart["attributes"]["Power_On_Hours"].startswith("9000 ")
        certificates = await quorate.rows("node_inspect", node="pve1", aspect="certificates")
        assert all(row["days_left"] > 0 for row in certificates)
        assert "BEGIN CERTIFICATE" not in str(certificates)
        assert (await quorate.facts("node_inspect", node="pve1", aspect="time"))["timezone"] == "UTC"
        pools = await quorate.rows("node_inspect", node="pve1", aspect="disk_pools")
        assert {row["kind"] for row in pools} >= {"zfs", "lvm", "lvmthin"}
        updates = await quorate.facts("node_inspect", node="pve1", aspect="updates", limit=2)
        assert len(updates["rows"]) == 2
        assert updates["total"] > 2


async def test_what_cannot_be_inspected_is_explained(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "pve1 has /dev/nvme0n1" in await quorate.refusal("node_inspect", node="pve1", aspect="smart")
        assert "Valid values: certificates, disk_pools" in await quorate.refusal(
            "node_inspect", node="pve1", aspect="colour"
        )


async def test_a_node_that_is_away_cannot_be_inspected(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.nodes["pve3"].online = False
        assert "is offline" in await quorate.refusal("node_inspect", node="pve3", aspect="disks")


async def test_the_newest_lines_of_the_journal_are_shown(tmp_path):
    async with rig(tmp_path) as quorate:
        told = await quorate.facts("log_read", node="pve1", limit=3)
        assert len(told["lines"]) == 3
        assert all(" pve1 " in line for line in told["lines"])
        assert told["lines"][-1].startswith("Jan 15 07:17:00")


async def test_the_journal_is_filtered_by_text_time_and_service(tmp_path):
    async with rig(tmp_path) as quorate:
        log = await quorate.facts("log_read", node="pve1", contains="cron.hourly", since="3h")
        assert len(log["lines"]) == 3
        assert all("cron.hourly" in line for line in log["lines"])
        early = await quorate.facts("log_read", node="pve1", until="2026-01-14 12:00", since="2026-01-14 10:00")
        assert all(line.startswith(("Jan 14 10:", "Jan 14 11:", "Jan 14 12:00")) for line in early["lines"])
        unit = await quorate.facts("log_read", node="pve1", service="pvedaemon", since="60d")
        assert unit["lines"]
        assert all("pvedaemon" in line for line in unit["lines"])
        nothing = await quorate.facts("log_read", node="pve1", service="pveproxy", since="1h")
        assert "lines" not in nothing
        assert "widen since" in nothing["next"]


async def test_the_time_of_a_unit_s_log_is_the_node_s_own(tmp_path):
    async with rig(tmp_path) as quorate:
        await quorate.facts("api_call", method="PUT", path="/nodes/pve1/time", params={"timezone": "Europe/Berlin"})
        mark = len(quorate.sim.requests)
        await quorate.facts("log_read", node="pve1", service="pvedaemon", since="2026-01-15 06:00")
        assert ("GET", "/nodes/pve1/time") in quorate.requests_since(mark)


async def test_times_that_make_no_sense_are_refused(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "is not a time" in await quorate.refusal("log_read", node="pve1", since="yesterday-ish")
        assert "later than until" in await quorate.refusal("log_read", node="pve1", since="1h", until="2h")


async def test_the_cluster_log_is_listed_and_filtered(tmp_path):
    async with rig(tmp_path) as quorate:
        rows = await quorate.rows("log_read")
        assert rows == sorted(rows, key=lambda row: row["time"], reverse=True)
        mine = await quorate.rows("log_read", contains=["PVE2", "vzdump"])
        assert mine
        assert all(row["node"] == "pve2" and "vzdump" in row["message"] for row in mine)
        who = rows[0]["user"]
        assert {row["user"] for row in await quorate.rows("log_read", user=who)} == {who}
        middle = rows[len(rows) // 2]["time"]
        early = await quorate.rows("log_read", until=middle, limit=500)
        assert early
        assert all(row["time"] <= middle for row in early)
        assert len(early) < (await quorate.facts("log_read"))["total"]
        trouble = await quorate.rows("log_read", problems=True)
        assert {row["severity"] for row in trouble} <= {"error", "warning", "critical"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"service": "pvedaemon"}, "service needs node"),
        ({"node": "pve1", "user": "root@pam"}, "user cannot be combined with node"),
        ({"node": "pve1", "problems": True}, "problems cannot be combined with node"),
        ({"node": "pve1", "offset": 50}, "offset cannot be combined with node"),
    ],
)
async def test_what_belongs_to_the_other_log_is_refused(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        assert words in await quorate.refusal("log_read", **arguments)


async def test_without_ceph_the_answer_says_so_in_clear_words(tmp_path):
    async with rig(tmp_path) as quorate:
        assert (await quorate.facts("ceph_status"))["ceph"] == "not set up on this cluster"


def test_the_state_of_ceph_is_summed_up_in_few_facts():
    told = summarize(
        {
            "fsid": "f1",
            "health": {
                "status": "HEALTH_WARN",
                "checks": {"OSD_DOWN": {"severity": "HEALTH_WARN", "summary": {"message": "1 osds down"}}},
            },
            "quorum_names": ["a", "b"],
            "monmap": {"mons": [{"name": "a"}, {"name": "b"}, {"name": "c"}]},
            "mgrmap": {"active_name": "a"},
            "osdmap": {"num_osds": 3, "num_up_osds": 2, "num_in_osds": 3},
            "pgmap": {
                "bytes_used": 1 << 40, "bytes_total": 3 << 40,
                "pgs_by_state": [{"state_name": "active+clean", "count": 128}],
            },
        }
    )  # fmt: skip
    assert told["health"] == "HEALTH_WARN"
    assert told["reasons"] == ["OSD_DOWN (HEALTH_WARN): 1 osds down"]
    assert told["osds"] == "2 up, 3 in, of 3"
    assert told["used"] == "1T/3T"


async def test_a_service_is_stopped_started_and_restarted(tmp_path):
    async with rig(tmp_path) as quorate:
        service = quorate.sim.world.part(Services).of("pve2")["chrony"]
        stopped = await quorate.facts("node_service_control", node="pve2", service="chrony", action="stop")
        assert (stopped["result"], stopped["state"]) == ("done", "dead")
        assert not service.running
        again = await quorate.facts("node_service_control", node="pve2", service="chrony", action="stop")
        assert again["result"] == "nothing to do"
        await quorate.facts("node_service_control", node="pve2", service="chrony", action="start")
        assert service.running
        told = await quorate.facts("node_service_control", node="pve2", service="pveproxy", action="restart")
        assert "unavailable for some seconds" in told["warnings"][0]


@pytest.mark.parametrize(
    ("service", "action", "words"),
    [
        ("pveproxy", "stop", "is not stopped"),
        ("pvedaemon", "stop", "is not stopped"),
        ("pve-cluster", "stop", "lose its configuration"),
        ("corosync", "stop", "leave the cluster"),
        ("crony", "restart", "Did you mean 'chrony'"),
        ("syslog", "start", "is not installed"),
        ("cron", "reload", "not applicable"),
    ],
)
async def test_services_that_must_not_or_cannot_are_explained(tmp_path, service, action, words):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("node_service_control", node="pve1", service=service, action=action)
        assert words in text


async def test_package_lists_are_refreshed(tmp_path):
    async with rig(tmp_path) as quorate:
        told = await quorate.facts("node_updates_refresh", node="pve1")
        assert ":aptupdate:" in told["task"]
        assert told["updates"] > 0


async def test_a_node_that_goes_down_names_the_guests_that_go_with_it(tmp_path):
    async with rig(tmp_path) as quorate:
        told = await quorate.facts("node_power", node="pve1", action="reboot", dry_run=True)
        running = [guest for guest in quorate.sim.world.guests_on("pve1") if guest.running]
        assert len(told["guests_going_down"]) == len(running)
        assert "vm 101 homeassistant (under HA)" in told["guests_going_down"]
        assert f"{len(running)} running guests" in told["warnings"][0]
        assert quorate.sim.world.nodes["pve1"].online


async def test_a_node_is_shut_down(tmp_path):
    async with rig(tmp_path) as quorate:
        told = await quorate.facts("node_power", node="pve3", action="shutdown")
        assert told["result"] == "done"
        assert "node_list" in told["next"]
        await quorate.clock.advance(600)
        assert not quorate.sim.world.nodes["pve3"].online
        assert "is offline" in await quorate.refusal("node_power", node="pve3", action="reboot")


async def test_losing_the_quorum_is_warned_of(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.nodes["pve2"].online = False
        told = await quorate.facts("node_power", node="pve3", action="shutdown", dry_run=True)
        assert any("loses its quorum" in warning for warning in told["warnings"])
