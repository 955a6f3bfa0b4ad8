"""Who may do what: one predicate decides both what is listed and what is run."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.config import Access
from quorate.operations.registry import DEFAULT_TOOLSETS, Operation, Risk
from quorate.pipeline.caller import Caller
from quorate.pipeline.policy import NO_RULES, Rulebook
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
    cluster: str = ""
    """The cluster that it stands before, empty if there is none yet."""
    own_level: bool = False
    """Whether the access level is that cluster's own."""
    rules: Rulebook = NO_RULES

    def objection(
        self, operation: Operation, caller: Caller, risk: Risk | None = None, now: float | None = None
    ) -> Refused | None:
        """Why this operation is neither listed nor run; None if it is. `risk` is that of one call, where it varies.

        Rules about hours count only at a given time: what is listed does not change with the clock.
        """
        risk = risk or operation.least_risk
        if operation.toolset not in self.toolsets:
            return Refused(
                f"{operation.name} is switched off",
                why=f"The toolset {operation.toolset!r} is not among {', '.join(sorted(self.toolsets))}",
                next_step=f"The operator can start Quorate with --toolsets {operation.toolset} or {_group(operation)}",
            )
        if caller.scope.toolsets is not None and operation.toolset not in caller.scope.toolsets:
            return Refused(
                f"{operation.name} is outside the scope of {caller.subject or 'this token'}",
                why=f"The token's toolsets are {', '.join(sorted(caller.scope.toolsets))}",
                next_step=wider_token(f"--toolsets {operation.toolset}"),
            )
        if caller.scope.clusters is not None and self.cluster and self.cluster not in caller.scope.clusters:
            return Refused(
                f"The cluster {self.cluster} is outside the scope of {caller.subject or 'this token'}",
                next_step=wider_token(f"--clusters {self.cluster}"),
            )
        needed = self.needed(risk)
        if not caller.scope.access.allows(needed):
            return Refused(
                f"{operation.name} is outside the scope of {caller.subject or 'this token'}",
                why=f"It can {_effect(risk)}, which needs {needed.value}; the token has {caller.scope.access.value}",
                next_step=wider_token(f"--access {needed.value}"),
            )
        if not self.access.allows(needed):
            return Refused(
                f"{operation.name} is refused at access level {self.access.value}",
                why=f"It can {_effect(risk)}, which needs {needed.value}",
                next_step=f"Only the operator can change that, {self._way_to(needed)}",
            )
        return self.rules.about_tool(operation, risk, now)

    def _way_to(self, needed: Access) -> str:
        if self.own_level:
            return f'by access = "{needed.value}" in [clusters.{self.cluster}]'
        return f"by starting Quorate with --access {needed.value}"

    def needed(self, risk: Risk) -> Access:
        return Access.READ if risk is Risk.LOOK_INSIDE and self.look_inside else NEEDED[risk]


def _group(operation: Operation) -> str:
    return "homelab" if operation.about_homelab else "all"


def wider_token(option: str) -> str:
    return f"The operator can make a token with a wider scope: `quorate tokens create NAME`, with {option}"


def _effect(risk: Risk) -> str:
    return {
        Risk.READ: "read",
        Risk.LOOK_INSIDE: "look inside guests and hosts",
        Risk.CHANGE: "change things",
        Risk.DESTROY: "destroy data, cut power, grant rights or do what cannot be undone",
    }[risk]
