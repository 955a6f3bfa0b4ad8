"""Changing options and undoing that: exactly, or not at all."""

from __future__ import annotations

import random
from typing import Any

from quorate.state.runs import Run
from tests.simulation.evidence import Evidence, Told
from tests.simulation.kinds import Scenario

OPTIONS: dict[str, tuple[Any, ...]] = {
    "description": ("one", "two"),
    "cores": (3, 5),
    "onboot": (True, False),
    "tags": (["a"], ["b", "c"]),
}


class Undo(Scenario):
    def begin(self, evidence: Evidence, chance: random.Random) -> list[Told]:
        guests = evidence.lab.guests(chance, 1, 3)
        self.before = {guest.vmid: dict(guest.config) for guest in guests}
        self.undoes = {guest.vmid: chance.random() < 0.8 for guest in guests}
        wanted = []
        for guest in guests:
            names = chance.sample(list(OPTIONS), chance.randint(1, 3))
            values = {name: chance.choice(OPTIONS[name]) for name in names}
            wanted.append(Told("guest_configure", {"guest": guest.vmid, **values}))
        return wanted

    def follow_up(self, evidence: Evidence, told: Told) -> Told | None:
        """The caller finds the change in the audit trail, even if its answer was lost."""
        if told.tool != "guest_configure" or not self.undoes[told.arguments["guest"]]:
            return None
        made = [entry for entry in evidence.entries() if entry["tool"] == "guest_configure" and "change" in entry]
        own = [entry for entry in made if entry["arguments"]["guest"] == told.arguments["guest"]]
        if not own:
            return None
        return Told("change_undo", {"change": own[-1]["change"]})

    def objections(self, evidence: Evidence, run: Run | None) -> list[str]:
        found = []
        for vmid, before in self.before.items():
            now = evidence.guests[vmid].config
            changed = {key for key in {*before, *now} - {"digest"} if before.get(key) != now.get(key)}
            made = [one for one in evidence.told if one.tool == "guest_configure" and one.arguments["guest"] == vmid]
            undone = self._undo(evidence, vmid)
            if undone is not None and undone.is_done and changed:
                found.append(f"guest {vmid} is said to be as before, and {sorted(changed)} differ")
            new = made[0].arguments.get("description")
            if undone is None and made[0].is_done and new and str(now.get("description", "")).strip() != new:
                found.append(f"guest {vmid} is said to be changed and is not")
        return found

    def _undo(self, evidence: Evidence, vmid: int) -> Told | None:
        own = {
            entry["change"]
            for entry in evidence.entries()
            if entry["tool"] == "guest_configure" and "change" in entry and entry["arguments"]["guest"] == vmid
        }
        undoing = (one for one in evidence.told if one.tool == "change_undo")
        return next((one for one in undoing if one.arguments["change"] in own), None)
