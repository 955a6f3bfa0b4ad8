"""Changing options and undoing that: exactly, or not at all."""

from __future__ import annotations

import random
from typing import Any

from quorate.runs.store import Run
from tests.simulation.evidence import Evidence, ToolCall
from tests.simulation.kinds import Scenario

OPTIONS: dict[str, tuple[Any, ...]] = {
    "description": ("one", "two"),
    "cores": (3, 5),
    "onboot": (True, False),
    "tags": (["a"], ["b", "c"]),
}


class Undo(Scenario):
    def begin(self, evidence: Evidence, chance: random.Random) -> list[ToolCall]:
        guests = evidence.lab.guests(chance, 1, 3)
        self.before = {guest.vmid: dict(guest.config) for guest in guests}
        self.undoes = {guest.vmid: chance.random() < 0.8 for guest in guests}
        calls = []
        for guest in guests:
            names = chance.sample(list(OPTIONS), chance.randint(1, 3))
            values = {name: chance.choice(OPTIONS[name]) for name in names}
            calls.append(ToolCall("guest_configure", {"guest": guest.vmid, **values}))
        return calls

    def follow_up(self, evidence: Evidence, call: ToolCall) -> ToolCall | None:
        """The caller finds the change in the audit trail, even if its answer was lost."""
        if call.tool != "guest_configure" or not self.undoes[call.arguments["guest"]]:
            return None
        changes = [entry for entry in evidence.entries() if entry["tool"] == "guest_configure" and "change" in entry]
        own = [entry for entry in changes if entry["arguments"]["guest"] == call.arguments["guest"]]
        if not own:
            return None
        return ToolCall("change_undo", {"change": own[-1]["change"]})

    def objections(self, evidence: Evidence, run: Run | None) -> list[str]:
        objections = []
        for vmid, before in self.before.items():
            now = evidence.guests[vmid].config
            changed = {key for key in {*before, *now} - {"digest"} if before.get(key) != now.get(key)}
            calls = [
                call for call in evidence.calls if call.tool == "guest_configure" and call.arguments["guest"] == vmid
            ]
            undone = self._undo(evidence, vmid)
            if undone is not None and undone.is_done and changed:
                objections.append(f"guest {vmid} is said to be as before, and {sorted(changed)} differ")
            new = calls[0].arguments.get("description")
            if undone is None and calls[0].is_done and new and str(now.get("description", "")).strip() != new:
                objections.append(f"guest {vmid} is said to be changed and is not")
        return objections

    def _undo(self, evidence: Evidence, vmid: int) -> ToolCall | None:
        own = {
            entry["change"]
            for entry in evidence.entries()
            if entry["tool"] == "guest_configure" and "change" in entry and entry["arguments"]["guest"] == vmid
        }
        undoing = (call for call in evidence.calls if call.tool == "change_undo")
        return next((call for call in undoing if call.arguments["change"] in own), None)
