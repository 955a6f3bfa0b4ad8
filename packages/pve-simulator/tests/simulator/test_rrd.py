"""RRD data: number of points, fields, and values consistent with the current status."""

from __future__ import annotations

import itertools
from statistics import mean

import pytest

from pve_simulator.api_client import Api, simulated_api

NODE_FIELDS = {
    "time", "loadavg", "maxcpu", "cpu", "iowait", "memtotal", "memused", "memavailable", "swaptotal", "swapused",
    "roottotal", "rootused", "netin", "netout", "arcsize", "pressurecpusome", "pressureiosome", "pressureiofull",
    "pressurememorysome", "pressurememoryfull",
}  # fmt: skip


@pytest.mark.parametrize(
    ("version", "timeframe", "count", "step"),
    [
        ("9.1.8", "hour", 60, 60),
        ("9.1.8", "day", 1440, 60),
        ("9.1.8", "week", 336, 1800),
        ("9.1.8", "month", 1440, 1800),
        ("9.1.8", "year", 1440, 21600),
        ("9.1.8", "decade", 570, 604800),
        ("8.4.1", "hour", 60, 60),
        ("8.4.1", "day", 70, 1800),
        ("8.4.1", "week", 70, 10800),
        ("8.4.1", "month", 70, 43200),
        ("8.4.1", "year", 70, 604800),
    ],
)
async def test_every_time_frame_has_its_points(version: str, timeframe: str, count: int, step: int):
    async with simulated_api(version=version) as api:
        rows = (await api.get("/nodes/pve1/rrddata", timeframe=timeframe)).data
        assert len(rows) == count
        assert {after["time"] - before["time"] for before, after in itertools.pairwise(rows)} == {step}
        assert api.clock.now() - rows[-1]["time"] < step


async def test_a_node_has_all_fields(api: Api):
    assert (await api.get("/nodes/pve1/rrddata", timeframe="hour")).data[-1].keys() == NODE_FIELDS


@pytest.mark.api(version="8.4.1")
async def test_an_older_node_has_fewer_fields(api: Api):
    older = (await api.get("/nodes/pve1/rrddata", timeframe="hour")).data[-1].keys()
    assert older < NODE_FIELDS
    assert "arcsize" not in older


async def test_the_end_of_a_series_agrees_with_the_status(api: Api):
    last = (await api.get("/nodes/pve1/qemu/102/rrddata", timeframe="hour")).data[-1]
    now = (await api.get("/nodes/pve1/qemu/102/status/current")).data
    assert last["maxmem"] == now["maxmem"]
    assert last["cpu"] == pytest.approx(now["cpu"], rel=0.05)
    assert last["mem"] == pytest.approx(now["mem"], rel=0.05)
    node = (await api.get("/nodes/pve1/status")).data
    point = (await api.get("/nodes/pve1/rrddata", timeframe="hour")).data[-1]
    assert point["cpu"] == pytest.approx(node["cpu"], rel=0.05)
    assert point["memused"] == pytest.approx(node["memory"]["used"], rel=0.05)


async def test_rates_are_the_slope_of_the_counters(api: Api):
    before = (await api.get("/nodes/pve1/qemu/102/status/current")).data["netin"]
    await api.clock.advance(60)
    after = (await api.get("/nodes/pve1/qemu/102/status/current")).data["netin"]
    rate = (await api.get("/nodes/pve1/qemu/102/rrddata", timeframe="hour")).data[-1]["netin"]
    assert rate == pytest.approx((after - before) / 60, rel=0.01)


async def test_nights_are_quieter_than_afternoons(api: Api):
    rows = (await api.get("/nodes/pve1/rrddata", timeframe="week")).data
    by_hour = {hour: [row["cpu"] for row in rows if row["time"] // 3600 % 24 == hour] for hour in (3, 15)}
    assert mean(by_hour[15]) > 1.2 * mean(by_hour[3])


async def test_the_peak_is_not_below_the_average(api: Api):
    average = (await api.get("/nodes/pve1/rrddata", timeframe="month", cf="AVERAGE")).data
    peak = (await api.get("/nodes/pve1/rrddata", timeframe="month", cf="MAX")).data
    assert all(high["cpu"] >= low["cpu"] for low, high in zip(average, peak, strict=True))


async def test_a_stopped_guest_has_only_its_limits_and_a_new_one_no_past(api: Api):
    stopped = (await api.get("/nodes/pve1/qemu/108/rrddata", timeframe="hour")).data
    assert stopped[-1].keys() == {"time", "maxcpu", "maxmem", "maxdisk", "disk"}
    await api.post("/nodes/pve1/qemu", vmid=500)
    await api.clock.advance(600)
    fresh = (await api.get("/nodes/pve1/qemu/500/rrddata", timeframe="hour")).data
    assert fresh[0].keys() == {"time"}
    assert "maxcpu" in fresh[-1]


async def test_a_guest_that_was_just_started_did_not_run_before(api: Api):
    await api.post("/nodes/pve1/qemu/108/status/start")
    await api.clock.advance(600)
    rows = (await api.get("/nodes/pve1/qemu/108/rrddata", timeframe="hour")).data
    assert "cpu" not in rows[0]
    assert "cpu" in rows[-1]


async def test_what_was_never_recorded_is_refused(api: Api):
    unknown = await api.get("/nodes/pve1/qemu/999/rrddata", timeframe="hour")
    assert "opening '/var/lib/rrdcached/db/pve-vm-9.0/999'" in unknown.reason
    assert (await api.get("/nodes/nope/rrddata", timeframe="hour")).status == 500
    wrong = await api.get("/nodes/pve1/rrddata", timeframe="minute")
    assert "hour, day, week, month, year, decade" in wrong.errors["timeframe"]


async def test_a_picture_is_only_named(api: Api):
    named = (await api.get("/nodes/pve1/qemu/102/rrd", timeframe="hour", ds="cpu,mem")).data
    assert named["filename"].endswith("102_cpu_mem.png")
    unknown = await api.get("/nodes/pve1/rrd", timeframe="hour", ds="nothing")
    assert "No DS called 'nothing'" in unknown.reason


async def test_a_new_storage_has_no_past(api: Api):
    assert (await api.post("/storage", storage="new", type="dir", path="/srv/new")).status == 200
    await api.clock.advance(300)
    rows = (await api.get("/nodes/pve1/storage/new/rrddata", timeframe="hour")).data
    assert {"total" in row for row in rows[:50]} == {False}
    assert "total" in rows[-1]
