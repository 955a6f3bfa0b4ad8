"""Who may do what: one predicate decides both what is listed and what runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quorate.config import Access
from quorate.hints import CalledTool, Sentence
from quorate.operations import toolsets
from quorate.operations.registry import EVERY, NEEDED, Operation, Risk
from quorate.pipeline.caller import Caller, Exposure, ToolsetChoice
from quorate.pipeline.policy import NO_RULES, Rulebook
from quorate.problems import Refused


@dataclass(frozen=True, slots=True)
class Gate:
    """The operator's settings for access and toolsets."""

    access: Access = Access.READ
    toolsets: frozenset[str] = frozenset({toolsets.DEFAULT})
    look_inside: bool = False
    """Whether access level read already allows looking inside guests."""
    cluster: str = ""
    """The cluster that it guards, empty if none is chosen yet."""
    own_level: bool = False
    """Whether the cluster has its own access level."""
    opt_ins: frozenset[str] = frozenset()
    """Other servers' opt-in variables that apply; none if the operator chose access or approval."""
    rules: Rulebook = NO_RULES

    def with_exposure(self, exposure: Exposure) -> Gate:
        """The gate of a surface."""
        if exposure == Exposure():
            return self
        by_default = exposure.toolsets is ToolsetChoice.ALL_BY_DEFAULT and toolsets.DEFAULT in self.toolsets
        every = by_default or exposure.toolsets is ToolsetChoice.ALL
        return replace(
            self,
            toolsets=frozenset(EVERY) if every else self.toolsets,
            access=Access.ADMIN if exposure.opt_in in self.opt_ins else self.access,
        )

    def objection(
        self, operation: Operation, caller: Caller, risk: Risk | None = None, now: float | None = None
    ) -> Refused | None:
        """Why this operation is neither listed nor run; None if it is. `risk` is the risk of one call, if it varies.

        Hours count only if `now` is given: the list of tools does not change with the clock.
        """
        risk = risk or operation.least_risk
        if not toolsets.includes(self.toolsets, operation):
            return Refused(
                Sentence("{tool} is switched off", tool=CalledTool(operation.name)),
                why=f"Its toolset {operation.toolset!r} is not enabled",
                next_step="The operator can add it to what is enabled by starting Quorate with "
                f"--toolsets {toolsets.option_adding(self.toolsets, operation.toolset)}",
            )
        if caller.scope.toolsets is not None and not toolsets.includes(caller.scope.toolsets, operation):
            return Refused(
                Sentence(
                    f"{{tool}} is outside the scope of {caller.subject or 'this token'}",
                    tool=CalledTool(operation.name),
                ),
                why=f"The token's toolsets are {', '.join(sorted(caller.scope.toolsets))}",
                next_step=wider_token(f"--toolsets {toolsets.option_adding(caller.scope.toolsets, operation.toolset)}"),
            )
        if caller.scope.clusters is not None and self.cluster and self.cluster not in caller.scope.clusters:
            return Refused(
                f"The cluster {self.cluster} is outside the scope of {caller.subject or 'this token'}",
                next_step=wider_token(f"--clusters {self.cluster}"),
            )
        needed = self.access_for(risk)
        if not caller.scope.access.allows(needed):
            return Refused(
                Sentence(
                    f"{{tool}} is outside the scope of {caller.subject or 'this token'}",
                    tool=CalledTool(operation.name),
                ),
                why=f"It can {_effect(risk)}, which needs {needed.value}; the token has {caller.scope.access.value}",
                next_step=wider_token(f"--access {needed.value}"),
            )
        if not self.access.allows(needed):
            return Refused(
                Sentence(f"{{tool}} is refused at access level {self.access.value}", tool=CalledTool(operation.name)),
                why=f"It can {_effect(risk)}, which needs {needed.value}",
                next_step=f"Only the operator can change that, {self._setting_for(needed)}",
            )
        return self.rules.tool_objection(operation, risk, now)

    def missing_access(self, operation: Operation, caller: Caller, risk: Risk) -> Access | None:
        """The access level that is all the call lacks; None if it is allowed, or if anything else forbids it."""
        if self.objection(operation, caller, risk) is None:
            return None
        unlimited = replace(caller, scope=replace(caller.scope, access=Access.ADMIN))
        beyond = replace(self, access=Access.ADMIN).objection(operation, unlimited, risk)
        return self.access_for(risk) if beyond is None else None

    def _setting_for(self, needed: Access) -> str:
        if self.own_level:
            return f'by access = "{needed.value}" in [clusters.{self.cluster}]'
        return f"by starting Quorate with --access {needed.value}"

    def access_for(self, risk: Risk) -> Access:
        return Access.READ if risk is Risk.LOOK_INSIDE and self.look_inside else NEEDED[risk]


def wider_token(option: str) -> str:
    return f"The operator can create a token with a wider scope: `quorate tokens create NAME`, with {option}"


def _effect(risk: Risk) -> str:
    return {
        Risk.READ: "read",
        Risk.LOOK_INSIDE: "look inside guests and hosts",
        Risk.CHANGE: "change things",
        Risk.DESTROY: "destroy data, cut power, grant privileges or make an irreversible change",
    }[risk]
