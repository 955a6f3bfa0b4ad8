"""Approval by a person: at the client, at the operator's terminal, or with a plan token. Never by the model."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from quorate.config import Approval as Mode
from quorate.config.files import usual_state
from quorate.hints import NAMED, Advice, CalledTool, Sentence
from quorate.operations.backend import Backend
from quorate.operations.registry import Risk
from quorate.pipeline.caller import Caller, Exchange, Question, Reply, ReplyKind
from quorate.problems import Conflict, Problem, ProblemCode, Refused
from quorate.state.approvals import DRY_RUN, Approval, Approvals, Request, State
from quorate.state.passphrase import SET_PASSPHRASE, Passphrase

if TYPE_CHECKING:
    from quorate.operations.plan import Plan
    from quorate.pipeline.approval_request import ApprovalRequest  # a call that reads does without it


READING_SECONDS = 2.0
"""How long a person takes at least to see a question and decline it. A faster refusal is the client's own."""
OPERATOR_SECONDS = 2.0
"""How long a call waits for an operator before it says that it does, unless the caller shows that in the meantime."""
ONE_APPROVAL = "One approval covers the whole call; a smaller call or another tool that does the same part asks again"
"""Whether splitting the call helps, which assistants try otherwise."""


class ApprovalPending(Problem):
    """Nobody has answered yet, and nothing was done."""

    code = ProblemCode.APPROVAL


@dataclass(frozen=True, slots=True)
class ApprovalGrant:
    """Why a call may proceed, for the audit trail."""

    how: str
    id: str = ""
    by: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.how, self.id, f"by {self.by}" if self.by else "") if part)


@dataclass(frozen=True, slots=True)
class ApprovalSettings:
    """What the operator wants to be asked about, and how."""

    mode: Mode
    also_changes: bool = False
    """Whether plain changes need approval as well."""
    opted_in: str = ""
    """What approved everything in advance, such as an environment variable of a system that Quorate replaces."""
    page: str = ""
    """The address of the page for operators, if this server has one."""
    state: str = ""
    """The state file or database."""

    @property
    def elsewhere(self) -> str:
        """The state file, if a plain `quorate approvals` would use another one."""
        return "" if "://" in self.state or self.state in ("", usual_state()) else self.state

    def ways(self, id: str) -> str:
        """How an operator can answer a request."""
        console = "" if self.elsewhere else " or `quorate console`"
        page = f", or open {self.page}" if self.page else ""
        return f"run `{self.command(f'quorate approvals approve {id}')}` (or `deny {id}`){console} at a terminal{page}"

    def command(self, text: str) -> str:
        return f"QUORATE_STATE={shlex.quote(self.elsewhere)} {text}" if self.elsewhere else text


@dataclass(frozen=True, slots=True)
class Approver:
    approvals: Approvals
    passphrase: Passphrase
    settings: Callable[[], ApprovalSettings]
    """Returns the current settings, which can change while the server runs."""

    @property
    def mode(self) -> Mode:
        return self.settings().mode

    def needed(self, risk: Risk) -> bool:
        return risk is Risk.DESTROY or (self.settings().also_changes and risk is Risk.CHANGE)

    async def obtain(
        self, request: ApprovalRequest, backend: Backend, exchange: Exchange, *, token: str | None, seconds: float
    ) -> ApprovalGrant:
        """Return if an authorized person agreed to exactly this; otherwise raise what is missing."""
        if self.mode is Mode.NONE:
            return self._switched_off
        row = request.as_row(exchange.caller, backend.name, request.judged)
        if self.mode is Mode.TOKEN:
            return await self._redeem_token(row, token, request.change)
        answered = await self._obtain_answer(row, request, exchange, seconds)
        await request.confirm_identity(backend)  # the person took their time: the target may have changed
        used = await self.approvals.use(answered.id, row.caller, row.digest, row.identity, request.change)
        if not used:
            raise Conflict(
                f"The approval {answered.id} cannot be used: {used}",
                next_step="Nothing was done; call again to ask again",
            )
        return ApprovalGrant("approved", answered.id, answered.answered_by or "")

    @property
    def asks(self) -> bool:
        return self.mode is Mode.ASK

    @property
    def takes_tokens(self) -> bool:
        return self.mode is Mode.TOKEN

    @property
    def default_note(self) -> str:
        """What the audit trail says if nobody has to be asked."""
        return str(self._switched_off) if self.mode is Mode.NONE else "not asked for"

    @property
    def _switched_off(self) -> ApprovalGrant:
        return ApprovalGrant("none", by=self.settings().opted_in or "the operator, who switched approvals off")

    def announces(self, risk: Risk, plan: Plan) -> bool:
        """Whether a dry run says something about approval."""
        return self.needed(risk) and bool(plan.calls) and self.mode is not Mode.NONE

    async def announce(self, request: ApprovalRequest, backend: Backend, caller: Caller) -> dict[str, Any]:
        """Facts for the result of a dry run: how approval works, or in token mode the token, shown once."""
        if not self.announces(request.risk, request.plan):
            return {}
        denial = await self.approvals.last_denial(request.targets)
        before = {"denied_before": denial.describe("A person")} if denial else {}
        if self.mode is Mode.ASK:
            word = request.word(backend.name)
            asked = f"A person will be asked before it is done, and types {word} to approve. {ONE_APPROVAL}"
            return {**before, "approval": asked}
        identity = await request.identity(backend)
        row = await self.approvals.ask(request.as_row(caller, backend.name, identity))
        if row.state is State.PENDING:
            row = await self.approvals.answer(row.id, True, DRY_RUN)
        return {
            **before,
            "plan_token": row.id,
            "next": Advice("Read the plan; to do exactly this, call again with this {plan_token}", plan_token=NAMED),
        }

    async def _redeem_token(self, request: Request, token: str | None, change: str) -> ApprovalGrant:
        if token is None:
            raise Refused(
                Sentence("{tool} needs the plan token of its dry run", tool=CalledTool(request.tool)),
                why="The operator chose --approval token: the plan of a destructive call is read before it runs",
                next_step=Advice(
                    "Call it with {dry_run}, read the plan, then call again with the {plan_token} it gives",
                    dry_run=True,
                    plan_token=NAMED,
                ),
            )
        used = await self.approvals.use(token, request.caller, request.digest, request.identity, change)
        if not used:
            raise Refused(
                f"The plan token is not valid for this call: {used}",
                next_step=Advice(
                    "Call again with {dry_run}; the new plan comes with a new token. Nothing was done", dry_run=True
                ),
            )
        return ApprovalGrant("plan token", token)

    async def _obtain_answer(
        self, asked: Request, request: ApprovalRequest, exchange: Exchange, seconds: float
    ) -> Approval:
        """The approval, once granted."""
        row, unanswered = await self.approvals.ask(asked), ""
        if row.state is State.PENDING and exchange.ask is not None:
            row, unanswered = await self._put_to_person(row, request, exchange, seconds)
        elif row.state is State.PENDING:
            row = await self._wait(row, exchange, seconds)
        if row.state is State.PENDING:
            raise await self._pending(row, unanswered)
        if row.state not in (State.APPROVED, State.DENIED):
            raise Conflict(
                f"{request.summary}: the request {row.id} is closed ({row.standing})",
                next_step="Nothing was done by this call; if it is still needed, call again to ask again",
            )
        if row.state is State.DENIED:
            raise Refused(
                f"{request.summary}: denied by {row.answered_by or 'nobody'}",
                why=row.reason or "",
                next_step="Nothing was done. Do not try again unless the person asks for it; smaller calls or another "
                "tool for the same would be asked about, too",
            )
        return row

    async def _wait(self, row: Approval, exchange: Exchange, seconds: float) -> Approval:
        """The request after an operator has had time to answer, while most clients show nothing."""
        if exchange.on_wait is None:
            seconds = min(seconds, OPERATOR_SECONDS)
        if exchange.on_wait is not None and seconds > 0:
            exchange.on_wait(Question(row.id, row.summary, "", self.settings().ways(row.id)))
        if exchange.report is not None and seconds > 0:
            await exchange.report(0.0, 100.0, f"Waiting for an operator, who can {self.settings().ways(row.id)}")
        return await self.approvals.wait(row.id, seconds) or row

    async def _put_to_person(
        self, row: Approval, request: ApprovalRequest, exchange: Exchange, seconds: float
    ) -> tuple[Approval, str]:
        """The request after the person at the client was asked and, if it is still pending, why.

        If nobody can have seen the question, the call waits for an operator, as it does for a client that cannot ask.
        """
        assert exchange.ask is not None
        begun = self.approvals.clock.time()
        question = request.question(row, begun)
        try:
            reply = await exchange.ask(question)
        except TimeoutError:
            return await self._wait(row, exchange, 0.0), ""
        match reply.kind:
            case ReplyKind.TYPED if reply.typed.strip() == question.word:
                return await self._answer(row, exchange, approve=True), ""
            case ReplyKind.TYPED:
                self._refuse_mistyped(row)
            case ReplyKind.UNREADABLE:
                seconds, unanswered = 0.0, "The client's answer to the question is malformed, so it counts as none"
            case ReplyKind.NOT_SHOWN:
                unanswered = "The client could not show the question to anyone"
            case ReplyKind.DECLINED if self._by_person(reply, begun):
                return await self._answer(row, exchange, approve=False), ""
            case ReplyKind.DISMISSED if self._by_person(reply, begun):
                seconds, unanswered = 0.0, "The question was closed without an answer"
            case _:
                unanswered = "The client refused before anyone can have read the question, so that counts as no answer"
        return await self._wait(row, exchange, seconds), unanswered

    def _by_person(self, reply: Reply, begun: float) -> bool:
        """Whether a person can have given it: they had the time to read the question."""
        asked = begun if reply.asked is None else reply.asked
        return reply.at_terminal or self.approvals.clock.time() - asked >= READING_SECONDS

    async def _answer(self, row: Approval, exchange: Exchange, *, approve: bool) -> Approval:
        return await self.approvals.answer(row.id, approve, f"the person at {exchange.caller.client}")

    def _refuse_mistyped(self, row: Approval) -> NoReturn:
        raise Refused(
            f"{row.summary}: not done, because something other than {row.word!r} was typed",
            next_step=f"To approve it, the person types exactly {row.word}. Call again and they are asked again, or "
            f"the operator can {self.settings().ways(row.id)}",
            facts={"approval": row.id},
        )

    async def _pending(self, row: Approval, unanswered: str) -> ApprovalPending:
        """`unanswered`: why what the client sent back is not an answer."""
        settings = self.settings()
        provable = await self.passphrase.is_set()
        first = "" if provable else f"first sets a passphrase with `{settings.command(SET_PASSPHRASE)}`, and then "
        before = f"{row.denial.describe('A person')}. " if row.denial else ""
        return ApprovalPending(
            f"{before}{row.summary}: waits for an operator's approval {row.id}",
            why=". ".join(filter(None, (unanswered, "Nothing destructive happens at an assistant's request alone"))),
            next_step=(
                f"Nothing was done. The operator {first}can {settings.ways(row.id)}; then repeat exactly the same "
                f"call. {ONE_APPROVAL}"
            ),
            facts={"approval": row.id},
        )
