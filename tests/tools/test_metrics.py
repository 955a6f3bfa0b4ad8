"""The history of load in numbers, compared with what the simulated world computes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pve_simulator.routes import rrd
from quorate.tools.metric_series import downsample, statistics, unit_of
from tests.rigs.mcp_session import rig

pytestmark = pytest.mark.anyio

MIB, GIB = 1024**2, 1024**3


def by_field(facts):
    return {row[0]: dict(zip(facts["columns"], row, strict=True)) for row in facts["rows"]}


def recorded(quorate, vmid, field, timeframe, cf="AVERAGE"):
    world = quorate.sim.world
    return [row[field] for row in rrd.guest_points(world, world.guests[vmid], timeframe, cf) if field in row]


async def test_the_statistics_of_a_guest_are_those_of_its_recorded_points(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("metrics_get", guest="docker01", timeframe="day")
        values = sorted(recorded(quorate, 102, "mem", "day"))
        mem = by_field(facts)["mem"]
        assert mem["unit"] == "GiB"
        assert mem["min"] == pytest.approx(values[0] / GIB, abs=0.01)
        assert mem["mean"] == pytest.approx(math.fsum(values) / len(values) / GIB, abs=0.01)
        assert mem["p95"] == pytest.approx(values[int(len(values) * 0.95) - 1] / GIB, abs=0.02)
        assert mem["max"] == pytest.approx(values[-1] / GIB, abs=0.01)
        assert mem["last"] == pytest.approx(recorded(quorate, 102, "mem", "day")[-1] / GIB, abs=0.01)
        assert facts["limits"]["maxmem"] == "8 GiB"


async def test_cpu_is_shown_in_percent_and_traffic_in_bytes_a_second(tmp_path):
    async with rig(tmp_path) as quorate:
        rows = by_field(await quorate.facts("metrics_get", guest=203))
        assert rows["cpu"]["unit"] == "%"
        assert rows["cpu"]["max"] == pytest.approx(100 * max(recorded(quorate, 203, "cpu", "hour")), abs=0.1)
        assert rows["netin"]["unit"] == "kB/s"


async def test_peaks_are_at_least_as_high_as_averages(tmp_path):
    async with rig(tmp_path) as quorate:
        average = by_field(await quorate.facts("metrics_get", guest=102, timeframe="month"))
        peak = by_field(await quorate.facts("metrics_get", guest=102, timeframe="month", cf="MAX"))
        assert peak["cpu"]["max"] == pytest.approx(100 * max(recorded(quorate, 102, "cpu", "month", "MAX")), abs=0.01)
        assert peak["cpu"]["mean"] > average["cpu"]["mean"]


async def test_no_points_unless_asked_for_and_then_never_more_than_that(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "points" not in await quorate.facts("metrics_get", guest=102, timeframe="day")
        facts = await quorate.facts("metrics_get", guest=102, timeframe="day", points=24, show=["cpu", "mem"])
        points = facts["points"]
        assert points["columns"] == ["time", "cpu %", "mem GiB"]
        assert len(points["rows"]) == 24
        first_hour = recorded(quorate, 102, "cpu", "day")[:60]
        assert points["rows"][0][1] == pytest.approx(100 * sum(first_hour) / 60, abs=0.01)
        assert "at most 300" in await quorate.refusal("metrics_get", guest=102, points=100_000)


async def test_only_nodes_of_pve_9_have_a_decade_of_history(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("metrics_get", node="pve1", timeframe="decade")
        assert facts["step"] == 7 * 86400
        assert "for nodes only" in await quorate.refusal("metrics_get", guest=102, timeframe="decade")


async def test_pve_8_has_no_decade_and_fewer_points_but_the_same_numbers(tmp_path):
    async with rig(tmp_path, version="8.4.1") as quorate:
        assert "keeps no decade" in await quorate.refusal("metrics_get", node="pve1", timeframe="decade")
        facts = await quorate.facts("metrics_get", guest=102, timeframe="day")
        assert facts["step"] == 1800
        assert "pressurecpusome" not in by_field(facts)


async def test_a_shared_storage_needs_no_node_and_a_local_one_does(tmp_path):
    async with rig(tmp_path) as quorate:
        used = by_field(await quorate.facts("metrics_get", storage="nas", timeframe="week"))["used"]
        space = quorate.sim.world.storages["nas"].space("pve1")
        assert used["last"] == pytest.approx(space.used / 1024**4, abs=0.02)
        text = await quorate.refusal("metrics_get", storage="local-lvm")
        assert "3 nodes have a storage 'local-lvm' of their own" in text
        assert "pve1/local-lvm" in text
        for given_so in ({"storage": "pve2/local-lvm"}, {"storage": "local-lvm", "node": "pve2"}):
            assert (await quorate.facts("metrics_get", **given_so))["of"] == "pve2/local-lvm"


async def test_a_growing_storage_is_shown_with_the_time_when_it_would_be_full(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("metrics_get", storage="nas", timeframe="year")
        assert by_field(facts)["used"]["trend"].startswith("+")
        assert "days at this pace" in facts["forecast"]["used"]


async def test_a_stopped_guest_has_limits_but_no_load(tmp_path):
    async with rig(tmp_path) as quorate:
        facts = await quorate.facts("metrics_get", guest="win11")
        assert facts["rows"] == []
        assert "did not run" in facts["note"]


@pytest.mark.parametrize("given_so", [{"guest": [102, 103]}, {"guest": 102, "node": "pve1"}])
async def test_one_thing_at_a_time_is_measured(tmp_path, given_so):
    async with rig(tmp_path) as quorate:
        text = await quorate.refusal("metrics_get", **given_so)
        assert "one at a time, not for 2" in text
        assert "chart=true" in text
        assert "was specified" in await quorate.refusal("metrics_get")
        assert "timezone cannot be combined with numbers" in await quorate.refusal(
            "metrics_get", guest=102, timezone="UTC"
        )


async def test_what_is_shown_is_named_as_people_say_it_or_as_pve_records_it(tmp_path):
    async with rig(tmp_path) as quorate:
        rows = by_field(await quorate.facts("metrics_get", guest=102, show=["memory", "network", "netin"]))
        assert list(rows) == ["mem", "netin", "netout"]
        assert list(by_field(await quorate.facts("metrics_get", node="pve1", show="memory"))) == ["memused"]
        assert list(by_field(await quorate.facts("metrics_get", storage="nas", show="disk"))) == ["used"]


async def test_what_is_not_there_is_named_with_what_is(tmp_path):
    async with rig(tmp_path) as quorate:
        assert "Available: local, local-lvm, nas" in await quorate.refusal("metrics_get", storage="attic")
        assert "It is on pve1, pve2" in await quorate.refusal("metrics_get", storage="tank", node="pve3")
        assert "The nodes are pve1, pve2, pve3" in await quorate.refusal("metrics_get", node="pve9")
        text = await quorate.refusal("metrics_get", guest=102, show=["cpu", "humidity"])
        assert "Nothing is recorded as humidity" in text
        assert "netin" in text


# -- who uses most -----------------------------------------------------------------------------------------------------


async def test_the_top_by_cpu_is_in_the_order_of_cores_that_are_kept_busy(tmp_path):
    async with rig(tmp_path) as quorate:
        rows = await quorate.rows("metrics_top", by="cpu", limit=5)
        busy = [row["cores_used"] for row in rows]
        assert busy == sorted(busy, reverse=True)
        assert len(rows) == 5
        assert rows[0]["name"] == "postgres"
        assert all(quorate.sim.world.guests[row["vmid"]].running for row in rows)


async def test_the_top_by_memory_of_a_node_has_only_its_guests(tmp_path):
    async with rig(tmp_path) as quorate:
        rows = await quorate.rows("metrics_top", by="memory", node="pve2")
        assert {row["node"] for row in rows} == {"pve2"}
        assert rows[0]["vmid"] == 103


async def test_the_top_by_traffic_is_that_of_the_recorded_hour(tmp_path):
    async with rig(tmp_path) as quorate:
        world = quorate.sim.world

        def mean(vmid):
            return sum(
                sum(values) / len(values)
                for field in ("netin", "netout")
                if (values := recorded(quorate, vmid, field, "hour"))
            )

        running = [vmid for vmid, guest in world.guests.items() if guest.running]
        expected = sorted(running, key=mean, reverse=True)[:3]
        rows = await quorate.rows("metrics_top", by="network", limit=3)
        assert [row["vmid"] for row in rows] == expected
        assert rows[0]["together"] == pytest.approx(mean(expected[0]), abs=1)


async def test_a_guest_that_cannot_be_asked_does_not_hide_the_others(tmp_path):
    async with rig(tmp_path, faults=["595:GET:/nodes/pve3/qemu/105/rrddata"]) as quorate:
        facts = await quorate.facts("metrics_top", by="diskio", limit=50)
        shown = {row[0] for row in facts["rows"]}
        assert 105 not in shown
        assert 109 in shown
        assert facts["no_answer_for"] == ["105"]


@pytest.mark.thorough
async def test_in_a_large_cluster_only_the_likeliest_are_asked_and_the_rest_is_counted(tmp_path):
    async with rig(tmp_path, nodes=2, guests=300) as quorate:
        facts = await quorate.facts("metrics_top", by="diskio", limit=3)
        running = sum(guest.running for guest in quorate.sim.world.guests.values())
        assert facts["left_out"].startswith(f"{running - 200} guests")
        assert sum(path.endswith("/rrddata") for _, path in quorate.sim.requests) == 200


async def test_the_top_by_disk_separates_used_from_assigned(tmp_path):
    async with rig(tmp_path) as quorate:
        rows = {row["vmid"]: row for row in await quorate.rows("metrics_top", by="disk", limit=50)}
        assert rows[107]["disk"] == {"total": 120 * 1024**3}
        assert rows[202]["disk"]["total"] == 40 * 1024**3


# -- numbers alone -----------------------------------------------------------------------------------------------------

numbers = st.floats(0, 1e15)


@given(st.lists(numbers, min_size=1, max_size=200))
def test_the_statistics_are_in_order(values):
    numbers = statistics([(60.0 * index, value) for index, value in enumerate(values)])
    slack = 1e-9 * (1 + numbers.max)
    assert numbers.min <= numbers.mean + slack
    assert numbers.mean <= numbers.max + slack
    assert numbers.min <= numbers.p95 <= numbers.max
    assert numbers.last == values[-1]


@given(st.floats(-1e6, 1e6), st.floats(-1e3, 1e3), st.integers(3, 100))
def test_a_straight_line_is_found_as_it_is(start, rise, count):
    points = [(60.0 * index, start + rise * index) for index in range(count)]
    numbers = statistics(points)
    assert numbers.change == pytest.approx(rise * (count - 1), abs=1e-3)


@given(st.integers(1, 2000), st.integers(1, 300))
def test_thinning_keeps_the_end_and_never_exceeds_what_was_asked(length, count):
    rows = [{"time": float(index), "cpu": 0.5} for index in range(length)]
    thin = downsample(rows, count, peak=False)
    assert len(thin) <= count
    assert thin[-1]["time"] == length - 1
    assert all(row["cpu"] == pytest.approx(0.5) for row in thin)


def test_thinning_by_peak_keeps_the_highest():
    rows = [{"time": float(index), "cpu": float(index == 7)} for index in range(100)]
    assert max(row["cpu"] for row in downsample(rows, 5, peak=True)) == 1.0


@pytest.mark.parametrize(
    ("field", "largest", "name"),
    [
        ("cpu", 0.5, "%"),
        ("mem", 3 * GIB, "GiB"),
        ("used", 2 * 1024 * GIB, "TiB"),
        ("mem", 300 * MIB, "MiB"),
        ("netin", 2_500_000, "MB/s"),
        ("pressureiosome", 3.0, "%"),
        ("loadavg", 2.0, ""),
    ],
)
def test_every_field_has_the_unit_people_expect(field, largest, name):
    assert unit_of(field, largest).name == name
