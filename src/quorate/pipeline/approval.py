"""Whether a person agrees: asked at the client, at the operator's terminal, or by a plan token. Never by the model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quorate.config import Approval as Mode
from quorate.homelab.home import Homelab
from quorate.homelab.registry import jumps
from quorate.operations.plan import Plan, Target
from quorate.operations.registry import Risk
from quorate.pipeline.caller import Caller, Exchange, Question
from quorate.pipeline.remarks import GUESTS, targets_of
from quorate.pipeline.sanitise import clean_text, shortened, spelled_out
from quorate.pipeline.telling import call_line
from quorate.pve.cluster import Cluster
from quorate.pve.errors import Conflict, NotFound, Problem, Refused
from quorate.pve.reach import HOST
from quorate.state.approvals import DRY_RUN, Approval, Approvals, Request, State, request_digest
from quorate.state.passphrase import SET_PASSPHRASE, Passphrase

PIPELINE_ARGUMENTS = ("dry_run", "wait", "plan_token")
"""What the pipeline itself takes; two calls that differ only in these are the same call."""
MOST_STEPS_SHOWN, MOST_REMARKS_SHOWN = 5, 12
LONGEST_STEP, LONGEST_REMARK, LONGEST_WORD = 500, 300, 100


class ApprovalPending(Problem):
    """Nobody has answered yet. Nothing was done."""

    kind = "approval"


@dataclass(frozen=True, slots=True)
class Consent:
    """Why a call may go on: for the audit."""

    how: str
    id: str = ""
    by: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (self.how, self.id, f"by {self.by}" if self.by else "") if part)


@dataclass(frozen=True, slots=True)
class Wish:
    """What the operator wants to be asked about, and how."""

    mode: Mode
    also_changes: bool = False
    """Whether plain changes need a yes as well."""
    opted_in: str = ""
    """Where the operator has said yes beforehand, such as a variable of a system that Quorate stands in for."""


@dataclass(frozen=True, slots=True)
class Approver:
    approvals: Approvals
    passphrase: Passphrase
    wish: Callable[[], Wish]
    """As it is now: the settings may be read anew while the server runs."""

    @property
    def mode(self) -> Mode:
        return self.wish().mode

    def needed(self, risk: Risk) -> bool:
        return risk is Risk.DESTROY or (self.wish().also_changes and risk is Risk.CHANGE)

    async def consent(
        self, wanted: Wanted, cluster: Cluster, exchange: Exchange, *, token: str | None, seconds: float
    ) -> Consent:
        """Come back if somebody who may has agreed to exactly this; otherwise raise what is missing."""
        if self.mode is Mode.NONE:
            return self._switched_off
        request = wanted.request(exchange.caller, cluster.name, await identity_of(cluster, wanted.plan))
        if self.mode is Mode.TOKEN:
            return await self._by_token(request, token)
        row = await self._answered(request, wanted.plan, exchange, seconds)
        now = await identity_of(cluster, wanted.plan)  # the person took their time: what they agreed to may be gone
        used = await self.approvals.use(row.id, request.caller, request.digest, now)
        if not used:
            raise Conflict(
                f"The approval {row.id} cannot be used: {used}", next_step="Nothing was done; call again to ask anew"
            )
        return Consent("approved", row.id, row.answered_by or "")

    @property
    def asks(self) -> bool:
        return self.mode is Mode.ASK

    @property
    def takes_tokens(self) -> bool:
        return self.mode is Mode.TOKEN

    @property
    def standing(self) -> str:
        """What the audit says where nobody has to agree."""
        return str(self._switched_off) if self.mode is Mode.NONE else "not asked for"

    @property
    def _switched_off(self) -> Consent:
        return Consent("none", by=self.wish().opted_in or "the operator, who switched approvals off")

    async def announced(self, wanted: Wanted, cluster: Cluster, caller: Caller) -> dict[str, Any]:
        """For the answer of a dry run: how consent will be had; in mode token, what has to be given back, once."""
        if not self.needed(wanted.risk) or not wanted.plan.calls or self.mode is Mode.NONE:
            return {}
        if self.mode is Mode.ASK:
            return {"approval": "A person will be asked before it is done"}
        request = wanted.request(caller, cluster.name, await identity_of(cluster, wanted.plan))
        row = await self.approvals.ask(request)
        if row.state is State.PENDING:
            row = await self.approvals.answer(row.id, True, DRY_RUN)
        return {"plan_token": row.id, "next": "Read the plan; to do exactly this, call again with this plan_token"}

    async def _by_token(self, request: Request, token: str | None) -> Consent:
        if token is None:
            raise Refused(
                f"{request.tool} needs the plan token of its dry run",
                why="The operator chose --approval token: what destroys is looked at before it is done",
                next_step="Call it with dry_run=true, read the plan, then call again with the plan_token it gives",
            )
        used = await self.approvals.use(token, request.caller, request.digest, request.identity)
        if not used:
            raise Refused(
                f"The plan token does not fit: {used}",
                next_step="Call again with dry_run=true; the new plan comes with a new token. Nothing was done",
            )
        return Consent("plan token", token)

    async def _answered(self, request: Request, plan: Plan, exchange: Exchange, seconds: float) -> Approval:
        """The approval, if the answer is yes."""
        row = await self.approvals.ask(request)
        if row.state is State.PENDING:
            row = await (
                self._put_to_person(row, plan, exchange) if exchange.ask else self._wait(row, exchange, seconds)
            )
        if row.state is State.PENDING:
            raise _pending(row, provable=await self.passphrase.is_set())
        if row.state is not State.APPROVED:
            raise Refused(
                f"{request.summary}: {row.state} by {row.answered_by or 'nobody'}",
                why=row.reason or "",
                next_step="Nothing was done. Do not try again unless the person asks for it",
            )
        return row

    async def _wait(self, row: Approval, exchange: Exchange, seconds: float) -> Approval:
        if exchange.report is not None and seconds > 0:
            await exchange.report(0.0, 100.0, f"Waits for an operator: quorate approvals approve {row.id}")
        return await self.approvals.wait(row.id, seconds) or row

    async def _put_to_person(self, row: Approval, plan: Plan, exchange: Exchange) -> Approval:
        assert exchange.ask is not None
        wanted = _word_of_consent(plan)
        question = Question(row.id, _question(row, wanted), wanted)
        try:
            typed = await exchange.ask(question)
        except TimeoutError:
            return row
        if typed is not None and typed.strip() != wanted:
            raise Refused(
                f"{row.summary}: not done, because something other than {wanted!r} was typed",
                next_step="If it was a slip, call again and the person is asked again",
            )
        return await self.approvals.answer(row.id, typed is not None, f"the person at {exchange.caller.client}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A planned call that needs consent."""

    tool: str
    risk: Risk
    arguments: Mapping[str, Any]
    plan: Plan
    lines: tuple[str, ...]
    """The plan's calls as the operator sees them: without secrets."""
    summary: str
    remarks: tuple[str, ...] = ()
    """What the person should know besides, in the same way."""

    def request(self, caller: Caller, cluster: str, identity: str) -> Request:
        who = caller_key(caller)
        exact = {name: value for name, value in self.arguments.items() if name not in PIPELINE_ARGUMENTS}
        digest = request_digest(who, cluster, self.tool, exact)
        return Request(
            who, cluster, self.tool, self.risk.value, digest, identity, self.summary, self.lines, self.remarks
        )


def caller_key(caller: Caller) -> str:
    """Whom an approval is bound to: the token's subject, else the client on its transport."""
    return f"{caller.transport}:{caller.subject or caller.client}"


async def identity_of(cluster: Cluster, plan: Plan) -> str:
    """What the plan acts on, as it is now, and what it would do: a change in either makes it another request."""
    guests = [one for where, part in plan.parts() for one in await _guest_identities(where or cluster, part)]
    others = [await _other_identity(cluster, target) for target in targets_of(plan) if target.kind not in GUESTS]
    steps = hashlib.sha256("\n".join(call_line(call) for call in plan.calls).encode()).hexdigest()[:16]
    return spelled_out("; ".join([*guests, *others, f"plan {steps}"]))


async def _guest_identities(cluster: Cluster, plan: Plan) -> list[str]:
    cluster.inventory.forget()
    return [await _guest_identity(cluster, target) for target in targets_of(plan) if target.kind in GUESTS]


async def _guest_identity(cluster: Cluster, target: Target) -> str:
    try:
        guest = await cluster.guest(int(target.id))
        config = await guest.get("config")
    except NotFound:
        return f"{target} new"
    return f"{guest} on {guest.row.node} digest {config.get('digest', '')}"


async def _other_identity(cluster: Cluster, target: Target) -> str:
    """A host by its name, and where that leads: a name that is given to another machine afterwards is not agreed to."""
    if target.kind != HOST or not isinstance(cluster, Homelab):
        return str(target)
    everyone = {host.name: host for host in await cluster.hosts.everyone()}
    if target.id not in everyone:
        return f"{target} not registered"
    way = [everyone[target.id], *await jumps(cluster.hosts, everyone[target.id])]
    return f"{target} digest {'-'.join(one.digest for one in way)}"


def _word_of_consent(plan: Plan) -> str:
    """One target is named; of several, their number."""
    names = {target.name if _is_a_word(target.name) else target.id for target in targets_of(plan)}
    return names.pop() if len(names) == 1 else f"yes to {len(plan.calls)} steps"


def _is_a_word(name: str) -> bool:
    """Something to type: a name with blanks or unseen characters in it may be made to mislead."""
    return bool(name) and len(name) <= LONGEST_WORD and clean_text(name) == name and not re.search(r"\s", name)


def _question(row: Approval, wanted: str) -> str:
    summary = shortened(row.summary, LONGEST_STEP)
    known = [f"- {line}" for line in _shortened(row.remarks, MOST_REMARKS_SHOWN, LONGEST_REMARK)]
    parts = [
        [summary],
        *([known] if known else []),
        [f"Cluster: {row.cluster}", *_shortened(row.plan, MOST_STEPS_SHOWN, LONGEST_STEP)],
        [f"This cannot be undone. Type {wanted} to go on."],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts)


def _shortened(lines: Sequence[str], most: int, longest: int) -> list[str]:
    rest = [f"… and {len(lines) - most} more"] if len(lines) > most else []
    return [*(shortened(line, longest) for line in lines[:most]), *rest]


def _pending(row: Approval, *, provable: bool) -> ApprovalPending:
    first = "" if provable else f"has no passphrase yet and sets one with `{SET_PASSPHRASE}`, then "
    return ApprovalPending(
        f"{row.summary}: waits for an operator's approval {row.id}",
        why="What destroys is not done on an assistant's word alone",
        next_step=(
            f"Nothing was done. The operator {first}answers with `quorate approvals approve {row.id}` at a terminal; "
            "then make the very same call again"
        ),
        facts={"approval": row.id},
    )
