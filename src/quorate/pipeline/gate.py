"""Who may do what: one predicate decides both what is listed and what is run."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.config import Access
from quorate.operations.registry import DEFAULT_TOOLSETS, Operation, Risk
from quorate.pipeline.caller import Caller
from quorate.pve.errors import Refused

NEEDED = {
    Risk.READ: Access.READ,
    Risk.LOOK_INSIDE: Access.OPERATE,
    Risk.CHANGE: Access.OPERATE,
    Risk.DESTROY: Access.ADMIN,
}


@dataclass(frozen=True, slots=True)
class Gate:
    """The operator's choices at start."""

    access: Access = Access.READ
    toolsets: frozenset[str] = DEFAULT_TOOLSETS
    look_inside: bool = False
    """Whether looking inside guests is allowed at access read already."""

    def objection(self, operation: Operation, caller: Caller, risk: Risk | None = None) -> Refused | None:
        """Why this operation is neither listed nor run; None if it is. `risk` is that of one call, where it varies."""
        risk = risk or operation.least_risk
        if operation.toolset not in self.toolsets:
            return Refused(
                f"{operation.name} is switched off",
                why=f"The toolset {operation.toolset!r} is not among {', '.join(sorted(self.toolsets))}",
                next_step=f"The operator can start Quorate with --toolsets {operation.toolset} or all",
            )
        if caller.scope.toolsets is not None and operation.toolset not in caller.scope.toolsets:
            return Refused(
                f"{operation.name} is outside the scope of {caller.subject or 'this token'}",
                why=f"The token's toolsets are {', '.join(sorted(caller.scope.toolsets))}",
                next_step="The operator can make a token with a wider scope",
            )
        needed = self._needed(risk)
        if not caller.scope.access.allows(needed):
            return Refused(
                f"{operation.name} is outside the scope of {caller.subject or 'this token'}",
                why=f"It can {_effect(risk)}, which needs {needed.value}; the token has {caller.scope.access.value}",
                next_step="The operator can make a token with a wider scope",
            )
        if not self.access.allows(needed):
            return Refused(
                f"{operation.name} is refused at access level {self.access.value}",
                why=f"It can {_effect(risk)}, which needs {needed.value}",
                next_step=f"Only the operator can change that, by starting Quorate with --access {needed.value}",
            )
        return None

    def _needed(self, risk: Risk) -> Access:
        return Access.READ if risk is Risk.LOOK_INSIDE and self.look_inside else NEEDED[risk]


def _effect(risk: Risk) -> str:
    return {
        Risk.READ: "read",
        Risk.LOOK_INSIDE: "look inside guests",
        Risk.CHANGE: "change things",
        Risk.DESTROY: "destroy data, cut power, grant rights or do what cannot be undone",
    }[risk]
