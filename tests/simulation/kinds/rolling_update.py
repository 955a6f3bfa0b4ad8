"""Updating and rebooting nodes: an empty node at a time, each at most once."""

from __future__ import annotations

import random
import re
from collections import Counter

from pve_simulator.nodes.shell import NodeShells
from pve_simulator.routes.nodes.apt import Packages
from quorate.runs.store import Run, RunState
from tests.simulation.evidence import Evidence, ToolCall
from tests.simulation.kinds import Scenario
from tests.simulation.kinds.evacuate import too_many_at_once

_REBOOT = re.compile(r"/nodes/(pve\d)/status")


class RollingUpdate(Scenario):
    tasks = ("qmigrate", "vzmigrate", "stopall", "qmshutdown", "qmstart")
    lasts = 240.0

    def begin(self, evidence: Evidence, chance: random.Random) -> list[ToolCall]:
        world = evidence.lab.world
        for guest in evidence.lab.guests(chance, 1, 3):
            guest.config["onboot"] = int(guest.running)  # else a reboot starts it, as on any node
            if guest.kind == "qemu" and chance.random() < 0.4:
                guest.config["hostpci0"] = "0000:01:00.0"  # cannot move: it is shut down and started again
        order = chance.sample(list(world.nodes), chance.choice((1, 1, 2)))
        self.reboots = {node: chance.random() < 0.7 for node in order}
        for node, needed in self.reboots.items():
            world.nodes[node].new_kernel = "6.17.4-1-pve" if needed else ""
        evidence.lab.requests.observe = lambda method, path: _watch(evidence, method, path)
        how = {"with_local_disks": True, "shutdown_rest": True, "parallel": chance.choice((1, 2))}
        return [ToolCall("run_rolling_update", {"nodes": order, **how})]

    def follow_up(self, evidence: Evidence, call: ToolCall) -> ToolCall | None:
        return None

    def objections(self, evidence: Evidence, run: Run | None) -> list[str]:
        reboots = Counter(evidence.received(lambda method, path: method == "POST" and bool(_REBOOT.fullmatch(path))))
        objections = [f"{path} was received {count} times" for path, count in reboots.items() if count > 1]
        if run is None:
            return objections
        objections += too_many_at_once(evidence, run)
        if run.state is not RunState.DONE:
            return objections
        world = evidence.lab.world
        for node, needed in self.reboots.items():
            if len(reboots) and f"/nodes/{node}/status" in reboots and not needed:
                objections.append(f"{node} was rebooted for nothing")
            if needed and world.nodes[node].kernel != "6.17.4-1-pve":
                objections.append(f"{node} is said to be done and runs its old kernel")
            if world.part(Packages).updates(node) and world.part(NodeShells).of(world.nodes[node]).updates:
                objections.append(f"{node} is said to be done and has updates left")
        for vmid, (home, running) in evidence.before.items():
            guest = evidence.guests[vmid]
            if (guest.node, guest.running) != (home, running):
                objections.append(f"guest {vmid} was {home} {running} and is {guest.node} {guest.running}")
        return objections


def _watch(evidence: Evidence, method: str, path: str) -> None:
    """A node goes down only if it is empty and all others are up."""
    reboot = _REBOOT.fullmatch(path)
    if method != "POST" or reboot is None:
        return
    world, node = evidence.lab.world, reboot[1]
    if there := [guest.vmid for guest in world.guests_on(node) if guest.running]:
        evidence.seen.append(f"{node} is rebooted under {there}")
    if down := [other.name for other in world.nodes.values() if not other.online and other.name != node]:
        evidence.seen.append(f"{node} is rebooted while {down} are down")
