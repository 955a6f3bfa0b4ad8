"""What the other servers ask for before they act: an argument of the caller, a variable of the operator.

These gates stand before ours and never take their place: an argument that the model fills in is no approval.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from quorate.pve.errors import Refused


@dataclass(frozen=True, slots=True)
class OwnGate:
    """Arguments that must be true, and the variable that the operator must have set."""

    arguments: tuple[str, ...] = ()
    variable: str | None = None
    dry_run_by_default: bool = False
    """Unless told otherwise the tool only shows what it would do."""

    def objection(self, tool: str, given: Mapping[str, Any], opt_ins: Collection[str]) -> Refused | None:
        dry_run = given.get("dry_run")
        if self.dry_run_by_default if dry_run is None else dry_run:
            return None  # what changes nothing needs no yes
        for name in self.arguments:
            if given.get(name) is not True:
                return Refused(
                    f"{tool} does nothing without {name}=true",
                    next_step=f"Ask the person you work for; if they want it, call again with {name}=true",
                )
        if self.variable and self.variable not in opt_ins:
            return Refused(
                f"{tool} is switched off",
                why=f"{self.variable} is not set for the server",
                next_step=f"Only the operator can change that, by starting Quorate with {self.variable}={_yes(self)}",
            )
        return None


def _yes(gate: OwnGate) -> str:
    return "1" if gate.variable == DESTRUCTIVE_VARIABLE else "true"


ELEVATED_VARIABLE = "PROXMOX_ALLOW_ELEVATED"
DESTRUCTIVE_VARIABLE = "PROXMOX_ENABLE_DESTRUCTIVE"

OPEN = OwnGate()
CONFIRM = OwnGate(("confirm",))
DESTRUCTIVE = OwnGate(("confirm", "destructive"), DESTRUCTIVE_VARIABLE)
DESTRUCTIVE_WHEN_TOLD = OwnGate(("confirm", "destructive"), DESTRUCTIVE_VARIABLE, dry_run_by_default=True)
ELEVATED = OwnGate(variable=ELEVATED_VARIABLE)
