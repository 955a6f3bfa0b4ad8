"""Every kind of trouble, put into the simulated cluster: found within two cycles, and resolved once it is fixed."""

from __future__ import annotations

import datetime
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pve_simulator.nodes.disks import Disks
from pve_simulator.routes.cluster.ceph import Ceph
from pve_simulator.routes.nodes.apt import Packages
from pve_simulator.routes.nodes.settings import Settings
from pve_simulator.routes.replication import Replication
from pve_simulator.simulator import SimulatedCluster
from pve_simulator.storage.storages import Volume
from pve_simulator.world import HaResource, World
from quorate.config.watch import WatchSettings
from quorate.tools.health_findings import KINDS
from tests.rigs.manual_clock import jump
from tests.tools.test_cluster_health import certificate_until
from tests.watch.conftest import Watched, watching
from tests.watch.healthy import DAY, make_healthy

pytestmark = pytest.mark.anyio

SETTINGS = WatchSettings(requests=200, running_tags=("always-on",), firewall_tags=("critical",), pinned_tags=("prod",))
"""Enough requests to read everything that is due in one cycle."""
PERIOD = DAY + 60
"""Every slow fact is due again after this."""


@dataclass(frozen=True)
class Trouble:
    kind: str
    target: str
    """A part of what the finding is about."""
    cause: Callable[[SimulatedCluster], Callable[[], None]]
    """Brings it in and returns how it is fixed."""


def fault(text: str) -> Callable[[SimulatedCluster], Callable[[], None]]:
    def cause(sim: SimulatedCluster) -> Callable[[], None]:
        added = sim.faults.add(text)
        return lambda: sim.faults.remove(added)

    return cause


def setting(find: Callable[[World], Any], name: str, value: Any) -> Callable[[SimulatedCluster], Callable[[], None]]:
    """Set an attribute of something in the world."""

    def cause(sim: SimulatedCluster) -> Callable[[], None]:
        thing = find(sim.world)
        old = getattr(thing, name)
        setattr(thing, name, value)
        return lambda: setattr(thing, name, old)

    return cause


def entry(find: Callable[[World], Any], key: Any, value: Any) -> Callable[[SimulatedCluster], Callable[[], None]]:
    """Set an entry of a dictionary in the world."""

    def cause(sim: SimulatedCluster) -> Callable[[], None]:
        thing = find(sim.world)
        missing = object()
        old = thing.get(key, missing)
        thing[key] = value

        def undo() -> None:
            if old is missing:
                del thing[key]
            else:
                thing[key] = old

        return undo

    return cause


def stopped(vmid: int, **config: Any) -> Callable[[SimulatedCluster], Callable[[], None]]:
    def cause(sim: SimulatedCluster) -> Callable[[], None]:
        guest = sim.world.guests[vmid]
        guest.running = False
        guest.config.update(config)
        guest.touch()

        def undo() -> None:
            guest.running, guest.started_at = True, sim.clock.now()
            guest.touch()

        return undo

    return cause


def tasks_fail(type: str, id: str, times: int) -> Callable[[SimulatedCluster], Callable[[], None]]:
    def cause(sim: SimulatedCluster) -> Callable[[], None]:
        for minute in range(times):
            started = sim.clock.now() - 60 * minute - 5
            sim.world.tasks.add_finished("pve1", type, id, "root@pam", started=started, lasted=1, exitstatus="no space")

        def undo() -> None:  # it works again, and a day passes
            started = sim.clock.now() - 3
            sim.world.tasks.add_finished("pve1", type, id, "root@pam", started=started, lasted=1.0)

        return undo

    return cause


def full(storage: str, share: float, node: str = "pve1") -> Callable[[SimulatedCluster], Callable[[], None]]:
    def cause(sim: SimulatedCluster) -> Callable[[], None]:
        space = sim.world.storages[storage].space(node)
        old, space.base_used = space.base_used, int(space.total * share) - space.volumes_used
        return lambda: setattr(space, "base_used", old)

    return cause


def backups_of(vmid: int, change: Callable[[list[Volume]], None]) -> Callable[[SimulatedCluster], Callable[[], None]]:
    """Change the backups of a guest, oldest first; what is fixed has them as before."""

    def cause(sim: SimulatedCluster) -> Callable[[], None]:
        pbs = sim.world.storages["pbs"]
        own = sorted((volume for volume in pbs.volumes("pve1") if volume.vmid == vmid), key=lambda volume: volume.ctime)
        before = {volume.volid: (volume.size, volume.verified) for volume in own}
        change(own)
        for volume in own:
            if volume.size < 0:
                pbs.space("pve1").volumes.pop(volume.volid)

        def undo() -> None:
            for volume in own:
                volume.size, volume.verified = before[volume.volid]
                pbs.space("pve1").volumes[volume.volid] = volume

        return undo

    return cause


def remove_all(volumes: list[Volume]) -> None:
    for volume in volumes:
        volume.size = -1


def only_the_oldest(volumes: list[Volume]) -> None:
    for volume in volumes[1:]:
        volume.size = -1


def unverified(volumes: list[Volume]) -> None:
    for volume in volumes:
        volume.verified = None


def damaged(volumes: list[Volume]) -> None:
    volumes[-1].verified = False


def exploded(volumes: list[Volume]) -> None:
    volumes[-1].size *= 5


def granted(sim: SimulatedCluster) -> Callable[[], None]:
    sim.world.access.grant("/", "Administrator", "alice@pve")
    sim.world.access.invalidate_cache()

    def undo() -> None:
        sim.world.access.revoke("/", "Administrator", "user", "alice@pve")
        sim.world.access.invalidate_cache()

    return undo


def node_of(name: str) -> Callable[[World], Any]:
    return lambda world: world.nodes[name]


def disk_of(node: str, path: str) -> Callable[[World], Any]:
    return lambda world: world.part(Disks).of(node).disks[path]


def packages(sim: SimulatedCluster) -> Callable[[], None]:
    part = sim.world.part(Packages)
    old = part.updates
    row = {"Package": "openssl", "Version": "3.5.1-1+deb13u2", "OldVersion": "3.5.1-1", "Origin": "Debian"}
    part.updates = lambda node: [row]  # type: ignore[method-assign]
    return lambda: setattr(part, "updates", old)


def ha_error(sim: SimulatedCluster) -> Callable[[], None]:
    sim.world.ha["vm:103"] = HaResource("vm:103", crm_state="error", shown_state="error")

    def undo() -> None:
        del sim.world.ha["vm:103"]

    return undo


def down_under_ha(sim: SimulatedCluster) -> Callable[[], None]:
    """HA gave up on it after too many starts."""
    sim.world.ha["vm:104"] = HaResource("vm:104", crm_state="error", shown_state="error")
    start = stopped(104, onboot=0)(sim)

    def undo() -> None:
        del sim.world.ha["vm:104"]
        start()

    return undo


def late_replication(sim: SimulatedCluster) -> Callable[[], None]:
    job = sim.world.part(Replication)._jobs["102-0"]
    job.fail_count, job.error = 4, "command 'zfs send' failed: exit code 255"
    job.next_sync = sim.clock.now() + 10 * DAY

    def undo() -> None:
        job.fail_count, job.error = 0, None

    return undo


def old_snapshot(sim: SimulatedCluster) -> Callable[[], None]:
    from pve_simulator.guests.guest import Snapshot

    guest = sim.world.guests[102]
    guest.snapshots["forgotten"] = Snapshot("forgotten", int(sim.clock.now() - 90 * DAY), {}, "", None, False)
    return lambda: guest.snapshots.clear()


def soon(days: float) -> str:
    at = datetime.datetime(2026, 1, 15, tzinfo=datetime.UTC) + datetime.timedelta(days=days)
    return at.strftime("%Y-%m-%d")


def exclude(sim: SimulatedCluster) -> Callable[[], None]:
    from pve_simulator.storage.backup_jobs import BackupJobs

    job = sim.world.part(BackupJobs).all()["nightly"]
    job["exclude"] = "100"
    return lambda: job.pop("exclude") and None


def excluded_disk(sim: SimulatedCluster) -> Callable[[], None]:
    guest = sim.world.guests[104]
    disk = next(name for name in guest.config if name.startswith(("scsi", "virtio")) and name[-1].isdecimal())
    old = str(guest.config[disk])
    guest.config[disk] = f"{old},backup=0"
    return lambda: guest.config.update({disk: old})


def certificate(sim: SimulatedCluster) -> Callable[[], None]:
    settings = sim.world.part(Settings).of("pve1")
    settings.custom_certificate = certificate_until(sim.clock.now() + 9 * DAY)
    return lambda: setattr(settings, "custom_certificate", None)


def unfiltered(sim: SimulatedCluster) -> Callable[[], None]:
    guest = sim.world.guests[200]
    old = str(guest.config["net0"])
    guest.config["net0"] = old.replace("firewall=1", "firewall=0")
    guest.touch()
    return lambda: guest.config.update(net0=old)


TROUBLES = (
    Trouble("node-down", "node pve3", fault("node-offline:pve3")),
    Trouble("quorum-lost", "", fault("no-quorum")),
    Trouble("quorum-at-risk", "", fault("node-offline:pve2")),
    Trouble("clock-skew", "node pve2", setting(node_of("pve2"), "clock_offset", 42.0)),
    Trouble("guest-down", "guest 200", stopped(200)),
    Trouble("guest-down", "guest 205", stopped(205, onboot=0, tags="always-on")),
    Trouble("guest-down", "guest 104", down_under_ha),
    Trouble("ha-trouble", "vm:103", ha_error),
    Trouble("agent-silent", "guest 102", setting(lambda w: w.guests[102].system, "agent_installed", False)),
    Trouble("storage-full", "storage local on pve1", full("local", 0.9)),
    Trouble("storage-full", "storage local on pve2", full("local", 0.97, "pve2")),
    Trouble("storage-away", "storage nas", setting(lambda w: w.storages["nas"].space("pve1"), "total", 0)),
    Trouble("thin-metadata", "pve/data of pve2", entry(lambda w: w.part(Disks).of("pve2").metadata_used, "data", 0.9)),
    Trouble("zfs-degraded", "tank of pve1", entry(lambda w: w.part(Disks).of("pve1").pool_health, "tank", "DEGRADED")),
    Trouble("ceph-unhealthy", "", setting(lambda world: world.part(Ceph), "health", "HEALTH_WARN")),
    Trouble("disk-failing", "/dev/sda of pve1", setting(disk_of("pve1", "/dev/sda"), "health", "FAILED")),
    Trouble("disk-worn", "/dev/nvme0n1 of pve3", setting(disk_of("pve3", "/dev/nvme0n1"), "wearout", 4)),
    Trouble("backup-uncovered", "", exclude),
    Trouble("backup-missing", "", backups_of(103, remove_all)),
    Trouble("backup-incomplete", "guest 104", excluded_disk),
    Trouble("backup-old", "", backups_of(104, only_the_oldest)),
    Trouble("backup-failed", "guest 102", tasks_fail("vzdump", "102", 1)),
    Trouble("backup-unproven", "", backups_of(105, unverified)),
    Trouble("backup-unproven", "damaged", backups_of(106, damaged)),
    Trouble("backup-odd", "guest 202", backups_of(202, exploded)),
    Trouble("replication-late", "replication 102-0", late_replication),
    Trouble("task-failing", "qmstart 107 on pve1", tasks_fail("qmstart", "107", 4)),
    Trouble("snapshot-old", "guest 102", old_snapshot),
    Trouble("certificate-ending", "pveproxy-ssl.pem of pve1", certificate),
    Trouble(
        "subscription-ending",
        "node pve1",
        setting(lambda w: w.part(Settings).of("pve1"), "subscription_due", soon(20)),
    ),
    Trouble("updates-security", "node pve1", packages),
    Trouble("firewall-missing", "guest 200", unfiltered),
    Trouble("privileges-grown", "", granted),
    Trouble("config-drift", "storages", setting(lambda w: w.storages["nas"], "content", ("images", "iso"))),
    Trouble("config-drift", "guest 103", entry(lambda w: w.guests[103].config, "memory", "1024")),
    Trouble("unchecked", "disks", fault("500:smartctl died:GET:/nodes/pve2/disks/list")),
    Trouble("cluster-unreachable", "", fault("500:away:GET:/cluster/resources")),
)


ELSEWHERE = {
    "node-flapping", "guest-crashing", "storage-filling",  # below
    "pbs-unreachable", "pbs-gc-late", "pbs-job-failing", "backup-damaged",  # test_backup_servers.py
    "backup-locked", "backup-unpruned",  # there, too
    "host-unreachable", "host-disk-full", "service-down",  # test_homelab.py
    "approval-waiting", "changes-frozen", "run-paused", "channel-failing", "watch-test",  # test_channels.py
}  # fmt: skip
ALONE = {"node-down", "quorum-lost", "quorum-at-risk", "cluster-unreachable"}
"""Troubles that keep others from being seen."""
TOGETHER = tuple(trouble for trouble in TROUBLES if trouble.kind not in ALONE)


def test_no_kind_of_finding_is_left_out() -> None:
    assert {trouble.kind for trouble in TROUBLES} | ELSEWHERE == set(KINDS)


async def healthy(watched: Watched) -> SimulatedCluster:
    """Settle down with nothing to find, then wait until every fact is due again."""
    sim = watched.quorate.sim
    make_healthy(sim.world)
    await watched.cycle(4)
    assert await watched.kinds() == set()
    await jump(watched.quorate.clock, DAY + 60)
    return sim


def missing(troubles: tuple[Trouble, ...], reported: set[tuple[str, str]]) -> list[str]:
    return [
        f"{trouble.kind} {trouble.target}"
        for trouble in troubles
        if not any(kind == trouble.kind and trouble.target in target for kind, target in reported)
    ]


async def found_by(watched: Watched) -> set[tuple[str, str]]:
    return {(finding.kind, finding.seen_as.target) for finding in await watched.watch.findings()}


@pytest.fixture
async def watched(tmp_path) -> AsyncIterator[Watched]:
    async with watching(tmp_path, SETTINGS) as session:
        yield session


async def test_thirty_troubles_at_once_are_found_within_two_cycles_and_resolved_once_fixed(watched):
    sim = await healthy(watched)
    fixes = [trouble.cause(sim) for trouble in TOGETHER]
    assert len(TOGETHER) + len(ALONE) >= 30
    await watched.cycle(2)
    reported = await found_by(watched)
    assert missing(TOGETHER, reported) == []
    assert {kind for kind, _ in reported} <= {trouble.kind for trouble in TROUBLES}
    for finding in await watched.watch.findings():
        assert KINDS[finding.kind]
        assert finding.seen_as.next.tool or finding.seen_as.next.text
    for fix in fixes:
        fix()
    await jump(watched.quorate.clock, DAY + 60)
    await watched.cycle(2)
    assert await found_by(watched) == set()


@pytest.mark.parametrize(
    "trouble", [trouble for trouble in TROUBLES if trouble.kind in ALONE], ids=lambda trouble: trouble.kind
)
async def test_trouble_that_hides_others_is_found_and_resolved(watched, trouble):
    sim = await healthy(watched)
    fix = trouble.cause(sim)
    await watched.cycle(2)
    assert missing((trouble,), await found_by(watched)) == []
    fix()
    await jump(watched.quorate.clock, 2000)  # a replication that failed runs again
    await watched.cycle(2)
    assert await found_by(watched) == set()


async def test_a_node_that_comes_and_goes_is_flapping(watched):
    sim = await healthy(watched)
    for _ in range(3):
        fault = sim.faults.add("node-offline:pve3")
        await watched.cycle(2)
        sim.faults.remove(fault)
        await watched.cycle(2)
    assert ("node-flapping", "node pve3") in await found_by(watched)
    await jump(watched.quorate.clock, 3700)
    await watched.cycle(2)
    assert await found_by(watched) == set()


async def test_a_guest_that_restarts_again_and_again_is_crashing(watched):
    sim = await healthy(watched)
    guest = sim.world.guests[104]
    await watched.cycle()
    for _ in range(3):
        guest.started_at = sim.clock.now()
        guest.touch()
        await watched.cycle(5)
    assert ("guest-crashing", "guest 104") in await found_by(watched)
    await jump(watched.quorate.clock, 3700)
    await watched.cycle(2)
    assert await found_by(watched) == set()


@pytest.mark.thorough
async def test_a_storage_that_fills_up_steadily_is_reported_with_the_time_left(watched):
    sim = await healthy(watched)
    space = sim.world.storages["nas"].space("pve1")
    space.base_used = space.total // 2
    for _ in range(70):
        space.base_used += space.total // 500
        await jump(watched.quorate.clock, 3600)
        await watched.cycle(1, every=15)
    (row,) = await watched.rows(kind="storage-filling")
    assert re.match(r"Storage nas is 71% full, grows by 3\d\dG a day and will be full in 5d", row["finding"])
    space.base_used = space.total // 3
    await watched.cycle(2)
    assert "storage-filling" not in await watched.kinds()
