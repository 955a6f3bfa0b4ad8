"""Moving a guest to another cluster: it runs in one of them, never in both, and the source goes last."""

from __future__ import annotations

import random
import re

from pve_simulator.guests.guest import Guest, Kind
from quorate.runs.store import Run, RunState
from tests.simulation.evidence import Evidence, ToolCall
from tests.simulation.kinds import Scenario

VMID = 100
_DELETE = re.compile(rf"/nodes/pve\d/(?:qemu|lxc)/{VMID}")


class RemoteMove(Scenario):
    clusters = ("lab", "far")
    tasks = ("qmigrate", "vzmigrate", "qmdestroy", "vzdestroy")

    def begin(self, evidence: Evidence, chance: random.Random) -> list[ToolCall]:
        lab, far = evidence.labs.values()
        kind: Kind = chance.choice(("qemu", "qemu", "lxc"))
        self.running, self.deletes = chance.random() < 0.8, chance.random() < 0.5
        lab.builder.guest(
            kind, VMID, "web", "pve1", memory=1024, disk=4, storage="local-lvm", running=self.running
        )  # fmt: skip
        is_taken = chance.random() < 0.3
        if is_taken:
            far.builder.guest("qemu", VMID, "other", "pve1", memory=1024, disk=4, storage="local-lvm")
        evidence.lab.requests.observe = lambda method, path: self._watch(evidence, method, path)
        return [
            ToolCall("run_remote_move", {"guest": VMID, "to": "far", "delete_source": self.deletes, "cluster": "lab"})
        ]

    def follow_up(self, evidence: Evidence, call: ToolCall) -> ToolCall | None:
        return None

    def _watch(self, evidence: Evidence, method: str, path: str) -> None:
        """The source is deleted only if it is stopped and the target runs."""
        if method != "DELETE" or not _DELETE.fullmatch(path):
            return
        if self.running and not any(guest.running for guest in self._arrived(evidence)):
            evidence.seen.append("the source is deleted although the target does not run")

    def _arrived(self, evidence: Evidence) -> list[Guest]:
        far = evidence.labs["far"].world.guests.values()
        return [guest for guest in far if guest.name == "web"]

    def objections(self, evidence: Evidence, run: Run | None) -> list[str]:
        source, arrived = evidence.guests.get(VMID), self._arrived(evidence)
        objections = []
        if len(arrived) > 1:
            objections.append(f"it arrived {len(arrived)} times")
        copies = [*([source] if source else []), *arrived]
        running = [copy for copy in copies if copy.running]
        if not copies:
            return ["the guest is gone"]
        if len(running) > 1:
            objections.append("it runs in both clusters")
        if self.running and not running:
            objections.append("it runs nowhere")
        if any("lock" in copy.config for copy in copies):
            objections.append("it is left locked")
        writes = [path for method, path in evidence.labs["far"].requests if method != "GET"]
        objections += [f"the other cluster received {path}" for path in writes]
        if run is None:
            return objections
        if run.state is RunState.DONE:
            if not arrived:
                objections.append("the run says that it was moved")
            if self.deletes != (source is None):
                objections.append(f"delete_source={self.deletes}, and the source is {'there' if source else 'gone'}")
        elif source is None and run.state is not RunState.ABORTED:
            objections.append(f"the source is gone: {run.state} {run.reason}")
        if run.state is RunState.FAILED and "as it was" in run.reason and arrived:
            objections.append(f"it was moved, and the run says: {run.reason}")
        return objections
