"""Proving backups: nothing of them is left, none reaches the network, and a damaged one is not proved."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from pve_simulator.storage.archives import open_archive
from quorate.runs.store import Run, RunState
from tests.simulation.evidence import Evidence, ToolCall
from tests.simulation.kinds import Scenario

_START = re.compile(r"/nodes/pve\d/(?:qemu|lxc)/(\d+)/status/start")
MIB = 1024**2


class RestoreDrill(Scenario):
    tasks = ("qmstart", "vzstart", "qmdestroy", "vzdestroy", "qmstop")

    def begin(self, evidence: Evidence, chance: random.Random) -> list[ToolCall]:
        lab = evidence.lab
        guests = lab.guests(chance, 1, 2)
        self.fates: dict[str, str] = {}
        for guest in guests:
            if guest.kind == "qemu":
                guest.config |= {"agent": "1", "vga": chance.choice(("serial0", "std"))}
            group = "qemu" if guest.kind == "qemu" else "lxc"
            fmt = "vma.zst" if guest.kind == "qemu" else "tar.zst"
            name = f"backup/vzdump-{group}-{guest.vmid}-2026_01_14-01_00_05.{fmt}"
            lab.builder.file("nas", "pve1", name, "backup", fmt, 900 * MIB, vmid=guest.vmid)
            volume = lab.world.storages["nas"].volume("pve1", f"nas:{name}")
            assert volume is not None
            archive = open_archive(lab.world, volume)
            fate = chance.choice(("good", "good", "damaged", "silent")) if guest.kind == "qemu" else "good"
            volume.damaged = fate == "damaged"
            if fate == "silent":
                volume.archive = replace(archive, system=replace(archive.system, agent_installed=False))
            self.fates[volume.volid] = fate
        evidence.lab.requests.observe = lambda method, path: _watch(evidence, method, path)
        check = chance.choice(({}, {}, {"check": "true"}))
        return [ToolCall("run_restore_drill", {"backups": list(self.fates), "boot_seconds": 15.0, **check})]

    def follow_up(self, evidence: Evidence, call: ToolCall) -> ToolCall | None:
        return None

    def objections(self, evidence: Evidence, run: Run | None) -> list[str]:
        objections: list[str] = []
        if run is None or run.state is RunState.ABORTED:
            return objections
        rows = run.report["backups"]
        for backup, fate in self.fates.items():
            verdict = str(rows.get(backup, {}).get("verdict")).partition(",")[0]  # also "passed, without all data"
            if verdict not in ("passed", "failed"):
                objections.append(f"{backup} has no verdict: {verdict}")
            if verdict == "passed" and fate != "good":
                objections.append(f"{backup} is {fate} and is said to be proved")
            if verdict == "failed" and fate == "good" and evidence.quiet:
                objections.append(f"{backup} is good and is said to have failed: {rows[backup].get('why')}")
        if run.state is RunState.DONE and set(self.fates.values()) != {"good"}:
            objections.append("the run says that all backups are proved")
        return objections


def _watch(evidence: Evidence, method: str, path: str) -> None:
    """What was restored never runs with a network."""
    start = _START.fullmatch(path)
    if method != "POST" or start is None or int(start[1]) in evidence.before:
        return
    guest = evidence.guests.get(int(start[1]))
    cards = [str(value) for key, value in guest.config.items() if re.fullmatch(r"net\d+", key)] if guest else []
    if any("link_down=1" not in card for card in cards):
        evidence.seen.append(f"guest {start[1]} is started with a network: {cards}")
