"""Who calls, what they are allowed, and what they therefore see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from quorate.config import Access
from quorate.hints import CalledTool, Sentence
from quorate.operations.registry import DEFAULT, EVERY, NEEDED, Operation, Risk, in_use, includes, option_adding
from quorate.pipeline.policy import NO_RULES, Rulebook
from quorate.problems import Refused
from quorate.pve.tasks import Report

if TYPE_CHECKING:
    from quorate.homelab.machines import Login
    from quorate.pipeline.approval import Approver


@dataclass(frozen=True, slots=True)
class Scope:
    """The most that a caller's credentials allow; the operator's settings may allow less. None means no limit."""

    access: Access = Access.ADMIN
    toolsets: frozenset[str] | None = None
    clusters: frozenset[str] | None = None
    token: str = ""
    """The id of the Quorate token, if that is the credential."""

    def within(self, other: Scope) -> Scope:
        """What both allow."""
        return replace(
            self,
            access=min(self.access, other.access, key=Access.rank),
            toolsets=_common(self.toolsets, other.toolsets),
            clusters=_common(self.clusters, other.clusters),
        )


def _common(own: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    return own & other if own is not None and other is not None else own if other is None else other


class ToolsetChoice(Enum):
    """Which toolsets a surface offers."""

    CONFIGURED = "as configured; without a choice, the default tools"
    ALL_BY_DEFAULT = "all, unless the operator chose some"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Exposure:
    """How much a surface offers of what the operator's gate leaves open. Only ALL disregards a choice of toolsets."""

    toolsets: ToolsetChoice = ToolsetChoice.CONFIGURED
    opt_in: str = ""
    """Another server's environment variable that allows everything on its surface, so that its setups keep working."""


ALL_BY_DEFAULT = Exposure(ToolsetChoice.ALL_BY_DEFAULT)
"""The default tools save a client's tokens. This is for surfaces where more tools cost none."""
ALL_TOOLSETS = Exposure(ToolsetChoice.ALL)
"""For Quorate's own calls, such as the steps of a run."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The client program, its transport, and the subject of its credentials (none on stdio)."""

    client: str = "unknown"
    transport: str = "stdio"
    subject: str = ""
    scope: Scope = field(default_factory=Scope)
    exposure: Exposure = field(default_factory=Exposure)
    """Set by the surface that takes the call."""

    @property
    def is_local(self) -> bool:
        """Whether the caller is a program of this machine, which can open its files without Quorate."""
        return self.transport in ("stdio", "cli")

    def with_exposure(self, exposure: Exposure) -> Caller:
        return self if exposure == self.exposure else replace(self, exposure=exposure)

    def as_origin(self) -> dict[str, Any]:
        """As plain data, for a run that acts for this caller later."""
        scope = self.scope
        return {
            "client": self.client,
            "transport": self.transport,
            "subject": self.subject,
            "access": scope.access.value,
            "clusters": None if scope.clusters is None else sorted(scope.clusters),
            "token": scope.token,
        }

    @classmethod
    def of_run(cls, run: str, origin: Mapping[str, Any]) -> Caller:
        """A run acts with the scope of its caller. Which toolsets that covers was decided when the run started."""
        clusters = origin.get("clusters")
        limited = None if clusters is None else frozenset(clusters)
        scope = Scope(Access(origin["access"]), None, limited, str(origin.get("token", "")))
        return cls(f"run {run}", "run", str(origin.get("subject", "")), scope, ALL_TOOLSETS)


@dataclass(frozen=True, slots=True)
class Question:
    """A question for the person at the client, not for the model."""

    id: str
    text: str
    word: str
    """What the person types to approve, such as the guest's name."""
    ways: str = ""
    """How an operator answers instead."""
    asked: float = 0.0
    """When it was asked, for an answer that comes with a second call."""


class ReplyKind(Enum):
    """What a client sent back for a question."""

    TYPED = "typed"
    DECLINED = "declined"
    DISMISSED = "dismissed"
    """Closed without a choice."""
    UNREADABLE = "unreadable"
    """Not an answer that the protocol knows."""
    NOT_SHOWN = "not shown"
    """The client says that it cannot ask anyone."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for a question. Whether a person gave it is for the pipeline to decide."""

    kind: ReplyKind
    typed: str = ""
    asked: float | None = None
    """When the question was asked, if that was in an earlier call."""
    at_terminal: bool = False
    """It was typed at a terminal, after the question appeared: a person gave it, however fast."""


Ask = Callable[[Question], Awaitable[Reply]]
"""Asks the person. Raises AnswerLater if the answer comes with a second call, and TimeoutError if nobody answers."""


class AnswerLater(Exception):
    """The person is being asked; the client repeats the call with the answer."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.text)
        self.question = question


@dataclass(frozen=True, slots=True)
class Exchange:
    """How a call came in: who calls, where progress goes, and how to ask the person."""

    caller: Caller = field(default_factory=Caller)
    report: Report | None = None
    ask: Ask | None = None
    wait_seconds: float | None = None
    """How long to follow tasks; None means as configured."""
    on_wait: Callable[[Question], None] | None = None
    """Called when the call starts to wait for an operator's approval."""
    change: str | None = None
    """The id for its journal entry, if the caller needs to find it again."""
    approver: Approver | None = None
    """Decides about this call instead of the pipeline's approver."""
    login: Login | None = None
    """The caller's credentials for hosts, for operations that take none."""
    in_full: bool = False
    """Whether a program reads the answer: a raw API answer is then returned whole."""

    def with_exposure(self, exposure: Exposure) -> Exchange:
        return replace(self, caller=self.caller.with_exposure(exposure))

    @property
    def secrets(self) -> tuple[str, ...]:
        """What to redact from this call alone."""
        return (self.login.password.reveal(),) if self.login and self.login.password else ()


@dataclass(frozen=True, slots=True)
class Gate:
    """The operator's settings for access and toolsets."""

    access: Access = Access.READ
    toolsets: frozenset[str] = frozenset({DEFAULT})
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
        by_default = exposure.toolsets is ToolsetChoice.ALL_BY_DEFAULT and DEFAULT in self.toolsets
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
        if not includes(self.toolsets, operation):
            return Refused(
                Sentence("{tool} is switched off", tool=CalledTool(operation.name)),
                why="It is not among the default tools"
                if operation.toolset in in_use(self.toolsets)
                else f"Its toolset {operation.toolset!r} is not enabled",
                next_step="The operator can add it to `toolsets` in config.toml and restart the client, or start "
                f"Quorate with --toolsets {option_adding(self.toolsets, operation.toolset)}",
            )
        if caller.scope.toolsets is not None and not includes(caller.scope.toolsets, operation):
            return Refused(
                Sentence(
                    f"{{tool}} is outside the scope of {caller.subject or 'this token'}",
                    tool=CalledTool(operation.name),
                ),
                why=f"The token's toolsets are {', '.join(sorted(caller.scope.toolsets))}",
                next_step=wider_token(f"--toolsets {option_adding(caller.scope.toolsets, operation.toolset)}"),
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
