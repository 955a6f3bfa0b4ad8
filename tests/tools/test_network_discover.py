"""Discovering many machines at once: their facts, those that do not answer, and only real changes in the history."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from tests.rigs.homelab import House, house
from tests.rigs.recorded_machines import paper_machines
from tests.rigs.silent_host import free_port, listening, silent
from tests.rigs.ssh_server import HOST

pytestmark = pytest.mark.anyio


async def changes(built: House, **more: Any) -> list[tuple[str, str, Any, Any]]:
    rows = await built.quorate.rows("network_changes", **more)
    return sorted((row["name"], row["what"], row.get("old"), row.get("new")) for row in rows if row["what"] != "device")


@pytest.mark.thorough
async def test_the_history_shows_exactly_what_has_changed(tmp_path):
    paper = paper_machines(tmp_path, "nas", "pi", "desk")
    async with house(tmp_path, {name: machine.options for name, machine in paper.items()}) as built:
        quorate, names = built.quorate, list(paper)
        first = await quorate.facts("network_discover", hosts=names)
        assert (first["discovered"], first["failed"]) == (3, 0)
        again = await quorate.rows("network_discover", hosts=names)
        assert [row["device"] for row in again] == [row[1] for row in first["rows"]]
        assert not any(row.get("changed") for row in again)
        assert await changes(built) == []

        paper["nas"].fills(93)
        paper["pi"].listens(22, 8080)
        paper["desk"].addresses("192.168.1.99/24")
        paper["desk"].failed("smartd.service")
        rows = await quorate.rows("network_discover", hosts=names)
        assert [row["device"] for row in rows] == [row["device"] for row in again]
        assert all(row["changed"] == "yes" for row in rows)
        assert await changes(built) == [
            ("desk", "network.eth0.addresses", "192.168.1.7/24", "192.168.1.99/24"),
            ("desk", "services.smartd", None, "failed"),
            ("nas", "filesystems./.used%", 40, 93),
            ("pi", "ports.tcp/8080", None, "*"),
        ]
        assert [name for name, *_ in await changes(built, device="nas")] == ["nas"]


async def test_a_host_that_falls_silent_is_away_and_comes_back(tmp_path):
    paper = paper_machines(tmp_path, "nas")
    async with house(tmp_path, {"nas": paper["nas"].options}) as built:
        quorate, port = built.quorate, built.hosts["nas"].port
        await quorate.facts("network_discover", hosts=["nas"])
        with silent() as dead:
            await quorate.facts("host_update", host="nas", port=dead)
            (row,) = await quorate.rows("network_discover", hosts=["nas"])
            assert "Nothing answers" in row["why_not"]
        await quorate.facts("host_update", host="nas", port=port)
        await quorate.facts("network_discover", hosts=["nas"])
        assert await changes(built) == [("nas", "state", "away", "up"), ("nas", "state", "up", "away")]


@pytest.mark.thorough
async def test_a_host_that_rejects_the_login_is_distinguished_from_an_absent_one(tmp_path):
    async with house(tmp_path, {"nas": {}, "pi": {}}, register=False) as built:
        await built.register("nas")
        await built.register("pi", key=str(built.hosts["nas"].key_file))
        await built.quorate.facts("network_discover", hosts=["nas"])
        rows = {row["host"]: row for row in await built.quorate.rows("network_discover", hosts=["nas", "pi", "nix"])}
        assert rows["nas"]["device"]
        assert rows["pi"]["why_not"]
        assert "no host 'nix'" in rows["nix"]["why_not"]
        assert not [row for row in await changes(built) if row[1] == "state"]


@pytest.mark.parametrize("dead", [2, pytest.param(30, marks=pytest.mark.thorough)])
async def test_a_farm_of_which_a_third_is_dead_is_discovered_with_partial_results(tmp_path, dead):
    alive = 70 * dead // 30
    machines = min(alive, 7)
    paper = paper_machines(tmp_path, *(f"m{number}" for number in range(machines)))
    async with house(tmp_path, {name: machine.options for name, machine in paper.items()}, register=False) as built:
        doors = [(host.port, str(host.key_file)) for host in built.hosts.values()]
        with ExitStack() as stack:
            quiet = [stack.enter_context(silent()) for _ in range(dead // 2)]
            gone = [(port, doors[0][1]) for port in (*quiet, *(free_port() for _ in range(dead // 2)))]
            for number, (port, key) in enumerate([*(doors[index % machines] for index in range(alive)), *gone]):
                await built.quorate.facts(
                    "host_register", host=f"h{number:02}", address=HOST, port=port, user="tester", key=key,
                    labels=["farm"], verify=False,
                )  # fmt: skip
            facts = await built.quorate.facts("network_discover", labels=["farm"], concurrency=12, seconds=45)
        rows = [dict(zip(facts["columns"], row, strict=True)) for row in facts["rows"]]
        assert (facts["discovered"], facts["failed"]) == (alive, dead)
        assert len({row["device"] for row in rows if row["device"]}) == machines  # the others are names of the same
        reasons = [row["why_not"] for row in rows if row["why_not"]]
        assert sum("Nothing answers" in why for why in reasons) == dead // 2
        assert sum("refuses the connection" in why for why in reasons) == dead // 2


async def test_when_time_is_up_the_other_hosts_are_still_shown(tmp_path):
    paper = paper_machines(tmp_path, "nas")
    async with house(tmp_path, {"nas": paper["nas"].options}) as built:
        with listening(HOST) as tarpit:
            await built.quorate.facts("host_register", host="tarpit", address=HOST, port=tarpit, verify=False)
            rows = await built.quorate.rows("network_discover", hosts=["nas", "tarpit"], seconds=10)
        rows_by_host = {row["host"]: row for row in rows}
        assert rows_by_host["nas"]["device"]
        assert "in time" in rows_by_host["tarpit"]["why_not"]


@pytest.mark.thorough
async def test_without_a_choice_hosts_nodes_and_running_guests_are_looked_into(tmp_path):
    paper = paper_machines(tmp_path, "nas")
    async with house(tmp_path, {"nas": paper["nas"].options}) as built:
        rows = await built.quorate.rows("network_discover")
        asked = {row["host"] for row in rows}
        world = built.quorate.sim.world
        cluster = built.quorate.app.settings.clusters[0].name
        assert {"nas", *(f"{cluster}/{node}" for node in world.nodes)} <= asked
        stopped = await built.quorate.rows("guest_list", status="stopped")
        assert not {f"{cluster}/{row['vmid']}" for row in stopped} & asked


async def test_nothing_to_discover_says_what_to_do(tmp_path):
    async with house(tmp_path, {}) as built:
        assert "host_register" in await built.quorate.refusal("network_discover", labels=["none"])
