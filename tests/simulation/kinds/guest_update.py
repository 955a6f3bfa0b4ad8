"""Updating a guest: it is healthy afterwards, or back to where it was, with the snapshot that the rule says."""

from __future__ import annotations

import random

from pve_simulator.guest_os.machine import Machines
from pve_simulator.guests.guest import Kind
from quorate.runs.store import Run, RunState
from tests.simulation.evidence import Evidence, ToolCall
from tests.simulation.kinds import Scenario

VMID = 100


class GuestUpdate(Scenario):
    tasks = ("qmsnapshot", "vzsnapshot", "qmrollback", "vzrollback", "qmdelsnapshot", "vzdump", "qmstart")

    def begin(self, evidence: Evidence, chance: random.Random) -> list[ToolCall]:
        lab = evidence.lab
        kind: Kind = chance.choice(("qemu", "qemu", "lxc"))
        guest = lab.builder.guest(kind, VMID, "web", "pve1", memory=1024, disk=4, storage="local-lvm")
        if kind == "qemu":
            guest.config["agent"] = "1"
        self.healthy, self.keep = chance.random() < 0.6, chance.choice(("failure", "always", "never"))
        self.updates = chance.random() < 0.8
        lab.world.part(Machines).of(guest).updates = ["openssl", "nginx"] if self.updates else None
        self.by_backup = chance.random() < 0.2
        if self.by_backup:
            lab.world.storages["local-lvm"].type = "lvm"
        arguments = {
            "guest": VMID,
            "check": "true" if self.healthy else "false",
            "health_seconds": chance.choice((0, 10)),
            "keep": self.keep,
            **({"backup_storage": "nas"} if self.by_backup else {}),
        }
        return [ToolCall("run_guest_update", arguments)]

    def follow_up(self, evidence: Evidence, call: ToolCall) -> ToolCall | None:
        return None

    def objections(self, evidence: Evidence, run: Run | None) -> list[str]:
        if run is None or run.state is RunState.ABORTED:
            return []
        objections = []
        report, guest = run.report, evidence.guests[VMID]
        back = [
            task
            for task in evidence.tasks("qmrollback", "vzrollback", "qmrestore", "vzrestore")
            if task.exitstatus == "OK"
        ]
        good = self.healthy and self.updates
        if (report["verdict"] == "healthy") != (run.state is RunState.DONE):
            objections.append(f"the run ended as {run.state}, its verdict is {report['verdict']}")
        if run.state is RunState.DONE and not good:
            objections.append("the guest is not healthy, and the run says that it is")
        if run.state is RunState.FAILED and good and evidence.quiet:
            objections.append(f"the guest is healthy, and the run says: {run.reason}")
        if run.state is RunState.DONE and back:
            objections.append("a healthy guest was rolled back")
        if run.state is RunState.DONE and evidence.lab.world.part(Machines).of(guest).updates:
            objections.append("the guest is said to be updated and is not")
        untouched = "nothing was changed" in report.get("why", "")
        if run.state is RunState.FAILED and not back and not untouched:
            objections.append(f"the guest failed and was not rolled back: {run.reason}")
        if len(back) > 1:
            objections.append(f"it was rolled back {len(back)} times")
        return objections + self._kept(evidence, run, untouched=untouched)

    def _kept(self, evidence: Evidence, run: Run, *, untouched: bool) -> list[str]:
        """Snapshots or backups of the run, by the rule."""
        if self.by_backup:
            volumes = evidence.lab.world.storages["nas"].volumes("pve1")
            kept = [
                volume.volid
                for volume in volumes
                if volume.content == "backup" and f"run {run.id}" in (volume.notes or "")
            ]
        else:
            kept = [name for name in evidence.guests[VMID].snapshots if name == f"update-{run.id}"]
        expected = self.keep == "always" or (self.keep == "failure" and run.state is RunState.FAILED)
        if untouched or run.report.get("not_removed"):
            return []
        if expected != bool(kept):
            return [f"keep={self.keep}, {run.state}, and these are there: {kept}"]
        return [f"there are {len(kept)} of them"] if len(kept) > 1 else []
