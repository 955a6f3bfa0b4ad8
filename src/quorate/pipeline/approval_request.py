"""A planned call that needs approval: what it is bound to, and the question for the person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quorate.operations.backend import Backend
from quorate.operations.plan import Plan, Target
from quorate.operations.registry import Risk
from quorate.pipeline.caller import Caller, Question
from quorate.pipeline.differences import Difference
from quorate.pipeline.question import GUESTS, confirmation_word, question, targets_of
from quorate.pipeline.sanitization import escape_invisible
from quorate.problems import NotFound
from quorate.pve.cluster import Cluster
from quorate.state.approvals import Approval, Remark, Request, request_digest

PIPELINE_ARGUMENTS = ("dry_run", "wait", "plan_token")
"""Arguments of the pipeline itself: calls that differ only in these are the same request."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A planned call that needs approval."""

    tool: str
    risk: Risk
    arguments: Mapping[str, Any]
    plan: Plan
    lines: tuple[str, ...]
    """The plan's calls as the operator sees them: without secrets."""
    summary: str
    remarks: tuple[Remark, ...] = ()
    """What else the person should know, without secrets."""
    differences: tuple[Difference, ...] = ()
    targets: tuple[str, ...] = ()
    """What it is about, to find earlier answers: `target_keys`."""
    change: str = ""
    """The id of the journal entry that will use the approval."""

    def as_row(self, caller: Caller, cluster: str, identity: str) -> Request:
        who = _caller_key(caller)
        exact = {name: value for name, value in self.arguments.items() if name not in PIPELINE_ARGUMENTS}
        digest = request_digest(who, cluster, self.tool, exact)
        return Request(
            who,
            cluster,
            self.tool,
            self.risk.value,
            digest,
            identity,
            self.summary,
            self.lines,
            self.remarks,
            self.word(cluster),
            self.differences,
            self.targets,
        )

    def word(self, site: str) -> str:
        """What a person types to approve."""
        return confirmation_word(self.plan, site)

    def question(self, row: Approval, now: float) -> Question:
        """The question for the person at the client."""
        return Question(row.id, question(row), row.word, asked=now)

    async def identity(self, backend: Backend) -> str:
        """What the plan acts on, as it is now, and what it would do: a change in either makes it another request."""
        guests = [one for where, part in self.plan.parts() for one in await _guest_identities(where or backend, part)]
        others = [await _other_identity(backend, one) for one in targets_of(self.plan) if one.kind not in GUESTS]
        return escape_invisible("; ".join([*guests, *others, f"plan {self.plan.digest[:16]}"]))


def _caller_key(caller: Caller) -> str:
    """The caller that an approval is bound to: the token's subject, otherwise the client and its transport."""
    return f"{caller.transport}:{caller.subject or caller.client}"


async def _guest_identities(backend: Backend, plan: Plan) -> list[str]:
    backend.forget()
    return [await _guest_identity(backend.api, target) for target in targets_of(plan) if target.kind in GUESTS]


async def _guest_identity(cluster: Cluster, target: Target) -> str:
    try:
        guest = await cluster.guest(int(target.id))
        config = await guest.get("config")
    except NotFound:
        return f"{target} new"
    return f"{guest} on {guest.row.node} digest {config.get('digest', '')}"


async def _other_identity(backend: Backend, target: Target) -> str:
    return f"{target} {await backend.identity(target.kind, target.id)}".rstrip()
