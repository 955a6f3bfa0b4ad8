"""A month of a healthy, busy cluster: nothing is reported, whatever people and schedules do."""

from __future__ import annotations

import random

import pytest

from pve_simulator.builder import Builder
from pve_simulator.guests.guest import Snapshot
from pve_simulator.world import World
from quorate.config.watch import WatchSettings
from tests.rigs.manual_clock import jump
from tests.watch.conftest import Watched, watching
from tests.watch.healthy import back_up, make_healthy

pytestmark = pytest.mark.anyio

HOUR = 3600.0
SETTINGS = WatchSettings(requests=80, running_tags=("always-on",), firewall_tags=("critical",))


class BusyDays:
    """What happens in a household and a small company, hour by hour."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = random.Random(7)
        self.visitors: list[int] = []
        self.usage = {name: space.base_used for name, space in self._places().items()}

    def _places(self):
        return {name: storage.space("pve1") for name, storage in self.world.storages.items() if name != "rbd"}

    def hour(self, number: int) -> None:
        now, tasks = self.world.clock.now(), self.world.tasks
        for name, space in self._places().items():  # files come and go, and the nightly backups grow and are pruned
            swing = 0.05 * self.chance.random() + 0.08 * (number % 24) / 24
            space.base_used = int(self.usage[name] + space.total * swing)
        if number % 24 == 1:
            back_up(self.world, now, grow=1 + 0.1 * self.chance.random())
            for vmid, guest in self.world.guests.items():
                if not guest.template:
                    tasks.add_finished(guest.node, "vzdump", str(vmid), "root@pam", started=now - 300, lasted=200)
        if number % 5 == 2:  # one task in a while fails, as they do
            chosen = str(self.chance.choice((102, 103, 107)))
            status = "VM is locked (backup)"
            tasks.add_finished("pve2", "qmsnapshot", chosen, "carol@pve", started=now - 60, lasted=1, exitstatus=status)
            tasks.add_finished("pve2", "qmsnapshot", chosen, "carol@pve", started=now - 30, lasted=1)
        if number % 12 == 3:
            self._guests_come_and_go()
        if number % 8 == 4:  # lab guests are started and stopped; nothing says that they should run
            guest = self.world.guests[self.chance.choice((107, 108, 206))]
            guest.running = not guest.running
            guest.started_at = now
            guest.touch()
        if number % 24 == 9:  # a person restarts a service
            guest = self.world.guests[self.chance.choice((102, 201, 202))]
            guest.started_at = now
            guest.touch()
        if number % 48 == 30:
            self._move(self.world.guests[103])
        if number % 72 == 10:
            self._snapshots(now)

    def _guests_come_and_go(self) -> None:
        if len(self.visitors) > 3:
            gone = self.world.guests[self.visitors.pop(0)]
            self.world.remove_guest(gone)
            return
        vmid = self.world.next_free_vmid()
        Builder(self.world).guest("lxc", vmid, f"visitor-{vmid}", "pve2", running=True, onboot=0)
        self.world.add_guest(self.world.guests[vmid])
        self.visitors.append(vmid)

    def _move(self, guest) -> None:
        guest.node = "pve1" if guest.node == "pve2" else "pve2"
        guest.touch()

    def _snapshots(self, now: float) -> None:
        guest = self.world.guests[102]
        guest.snapshots.clear()
        guest.snapshots["before"] = Snapshot("before", int(now), {}, "before the update", None, False)


async def live(watched: Watched, hours: int, pause: float) -> set[str]:
    """Everything that was found in that time, with a cycle after every pause."""
    days, clock = BusyDays(watched.quorate.sim.world), watched.quorate.clock
    begun = last = clock.now()
    for number in range(hours):
        days.hour(number)
        while clock.now() < begun + (number + 1) * HOUR:
            await jump(clock, min(pause, HOUR))
            if clock.now() - last >= pause:
                await watched.watch.cycle()
                last = clock.now()
    opened = await watched.watch._findings.opened_since(begun)
    return {f"{finding.kind}: {finding.seen_as.what}" for finding in opened}


@pytest.mark.parametrize(
    "pause", [17 * HOUR, pytest.param(300.0, marks=pytest.mark.thorough)], ids=["every 17 hours", "every 5 minutes"]
)
async def test_a_healthy_busy_month_passes_without_a_finding(tmp_path, pause):
    async with watching(tmp_path, SETTINGS) as watched:
        make_healthy(watched.quorate.sim.world)
        await watched.cycle(3)
        assert await live(watched, 31 * 24, pause) == set()
        assert len(await watched.quorate.rows("changes_since", since="30d", limit=200)) == 200


async def test_the_same_days_with_one_fault_are_not_silent(tmp_path):
    async with watching(tmp_path, SETTINGS) as watched:
        make_healthy(watched.quorate.sim.world)
        await watched.cycle(3)
        watched.quorate.sim.world.guests[200].running = False
        watched.quorate.sim.world.guests[200].touch()
        assert len(await live(watched, 3, HOUR)) == 1
