"""What the other servers require before they act: an argument of the caller, a variable of the operator.

These checks come before ours and never replace them: an argument that the model fills in is not an approval.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from quorate.problems import Refused


class ConfirmationMissing(Refused):
    """An argument that confirms the call is missing."""


class OptInMissing(Refused):
    """The operator has not set the variable that allows the tool."""


@dataclass(frozen=True, slots=True)
class OwnGate:
    """Arguments that must be true, and the variable that the operator must have set."""

    arguments: tuple[str, ...] = ()
    variable: str | None = None
    dry_run_by_default: bool = False
    """Without `dry_run`, the tool only shows what it would do."""

    def objection(self, tool: str, given: Mapping[str, Any], opt_ins: Collection[str]) -> Refused | None:
        dry_run = given.get("dry_run")
        if self.dry_run_by_default if dry_run is None else dry_run:
            return None  # a dry run needs no confirmation
        for name in self.arguments:
            if given.get(name) is not True:
                return ConfirmationMissing(
                    f"{tool} does nothing without {name}=true",
                    next_step=f"Ask the person you work for; if they agree, call again with {name}=true",
                )
        if self.variable and self.variable not in opt_ins:
            return OptInMissing(
                f"{tool} is disabled",
                why=f"{self.variable} is not set for the server",
                next_step=f"Only the operator can enable it: start Quorate with {self.variable}={_enabling(self)}",
            )
        return None


def _enabling(gate: OwnGate) -> str:
    return "1" if gate.variable == DESTRUCTIVE_VARIABLE else "true"


ELEVATED_VARIABLE = "PROXMOX_ALLOW_ELEVATED"
DESTRUCTIVE_VARIABLE = "PROXMOX_ENABLE_DESTRUCTIVE"

OPEN = OwnGate()
GATES = {
    "confirm": OwnGate(("confirm",)),
    "destructive": OwnGate(("confirm", "destructive"), DESTRUCTIVE_VARIABLE),
    "destructive_unless_dry_run": OwnGate(("confirm", "destructive"), DESTRUCTIVE_VARIABLE, dry_run_by_default=True),
    "elevated": OwnGate(variable=ELEVATED_VARIABLE),
}
"""As `tools.toml` names them."""
