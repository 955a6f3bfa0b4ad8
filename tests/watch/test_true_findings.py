"""Findings that are true on real clusters: lists in random order, moves, restarts of the server, and fresh facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorate.config.watch import WatchSettings
from quorate.watch.finding_store import Findings, Observation
from tests.rigs.manual_clock import jump
from tests.rigs.mcp_session import second_server
from tests.rigs.receivers import http_receiver
from tests.watch.conftest import watching
from tests.watch.healthy import make_healthy
from tests.watch.test_channels import channel
from tests.watch.test_thirty_faults import full

pytestmark = pytest.mark.anyio


async def test_lists_in_another_order_are_no_drift(watched):
    await watched.cycle(2)
    await watched.cycle(10, every=1000)
    assert "config-drift" not in await watched.kinds()


async def test_planned_restarts_and_live_migrations_are_no_crashes(watched):
    watched.quorate.sim.world.guests[102].snapshots.clear()  # they would not migrate with it
    await watched.cycle(2)
    call = watched.quorate.facts
    for node in ("pve2", "pve1", "pve2", "pve1"):
        await call("guest_migrate", guest=102, node=node, with_local_disks=True)
        await watched.cycle(2, every=30)
    for _ in range(4):
        await call("guest_power", guest=104, action="reboot")
        await watched.cycle(2, every=30)
    assert "guest-crashing" not in await watched.kinds()


async def test_what_fails_before_and_after_a_restart_of_the_server_stays_open(watched, tmp_path):
    sim = watched.quorate.sim
    make_healthy(sim.world)
    sim.world.guests[102].system = replace(sim.world.guests[102].system, agent_installed=False)
    sim.faults.add("500:smartctl died:GET:/nodes/pve2/disks/list")
    for _ in range(3):
        await watched.cycle(2, every=2000)
    before = {finding.id for finding in await watched.watch.findings()}
    assert await watched.kinds() == {"agent-silent", "unchecked"}
    async with second_server(watched.quorate, tmp_path / "b.jsonl", in_memory=True) as restarted:
        assert restarted.app.watch is not None
        await watched.quorate.clock.advance(60)
        await restarted.app.watch.cycle()
    assert {finding.id for finding in await watched.watch.findings()} == before


async def test_a_full_storage_of_a_node_that_goes_offline_is_not_resolved(watched):
    await watched.cycle(2)
    sim = watched.quorate.sim
    full("local", 0.9, "pve3")(sim)
    await watched.cycle()
    (before,) = [row["id"] for row in await watched.rows(kind="storage-full") if "pve3" in row["finding"]]
    sim.faults.add("node-offline:pve3")
    await watched.cycle(2)
    assert before in {row["id"] for row in await watched.rows(kind="storage-full")}


async def test_a_backup_resolves_its_finding_in_the_next_cycle_and_a_new_guest_has_a_day(watched):
    await watched.cycle(2)
    (row,) = await watched.rows(kind="backup-missing")
    missing = (await watched.quorate.facts("finding_get", finding=row["id"]))["concerns"]
    assert "guest 103" in missing
    await watched.quorate.facts("backup_create", guest=103, storage="nas")
    await watched.quorate.facts("vm_create", name="fresh", vmid=150, node="pve1", storage="nas")
    await watched.watch.cycle()  # before any node has reported the new guest
    await watched.cycle()
    now = (await watched.quorate.facts("finding_get", finding=row["id"]))["concerns"]
    assert set(now) == set(missing) - {"guest 103"}
    for _ in range(26):
        await jump(watched.quorate.clock, 3600)
        await watched.cycle()
    assert "guest 150" in (await watched.quorate.facts("finding_get", finding=row["id"]))["concerns"]


async def test_a_subject_that_comes_and_goes_is_not_worse(watched):
    findings = Findings(watched.quorate.app.store)

    async def see(*subjects: str) -> tuple[str, int]:
        listed = Observation("backup-old", "", "warning", " ".join(subjects), subjects=subjects)
        await findings.observe("demo", [listed], lambda _: True)
        (finding,) = await findings.open("demo")
        return finding.event, finding.revision

    assert await see("guest 100", "guest 101") == ("opened", 1)
    assert await see("guest 101") == ("opened", 1)
    assert await see("guest 101", "guest 100") == ("opened", 1)
    assert await see("guest 102") == ("more", 2)
    assert await see("guest 100") == ("more", 2)


async def test_servers_with_different_clusters_on_one_store_watch_and_report_their_own(tmp_path):
    async with (
        http_receiver() as first,
        http_receiver() as second,
        watching(tmp_path, WatchSettings(channels=(channel("a", "slack", first),))) as watched,
    ):
        (target,) = watched.quorate.app.settings.clusters
        other = WatchSettings(channels=(channel("b", "slack", second),))
        there = replace(target, name="cabin")
        async with second_server(
            watched.quorate, tmp_path / "b.jsonl", in_memory=True, clusters=(there,), watch=other
        ) as cabin:
            watch = cabin.app.watch
            assert watch is not None
            for _ in range(3):
                await watched.quorate.clock.advance(60)
                assert await watched.watch.step()
                assert await watch.step()
    assert {finding.cluster for finding in await Findings(watched.quorate.app.store).open()} >= {"demo", "cabin"}
    for receiver, cluster in ((first, "demo"), (second, "cabin")):
        texts = [message.json["text"] for message in receiver.messages]
        assert texts
        assert all(f"{cluster}" in text and ("cabin" if cluster == "demo" else "demo") not in text for text in texts)
