"""A planned call that needs approval: what it is bound to, and the question for the person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quorate.operations.backend import Backend
from quorate.operations.plan import Plan
from quorate.operations.registry import Risk
from quorate.pipeline.bound_objects import describe_changes, read_bound_objects
from quorate.pipeline.caller import Caller, Question
from quorate.pipeline.differences import Difference
from quorate.pipeline.question import confirmation_word, question
from quorate.pipeline.sanitization import escape_invisible
from quorate.problems import Conflict, Problem
from quorate.state.approvals import Approval, Remark, Request, request_digest

PIPELINE_ARGUMENTS = ("dry_run", "wait", "plan_token")
"""Arguments of the pipeline itself: calls that differ only in these are the same request."""
LOOK_AGAIN = "Nothing was done. Look at it again, then call again if it is still right"


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
    judged: str = ""
    """The identity at the time when the plan was judged; empty for a plan that nobody has to approve."""

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
        bound = await read_bound_objects(backend, self.plan)
        return escape_invisible("; ".join([*map(str, bound), f"plan: {self.plan.digest[:16]}"]))

    async def confirm_identity(self, backend: Backend) -> None:
        """Raise if anything that the plan acts on is not what was judged, or cannot be read any more."""
        try:
            now = await self.identity(backend)
        except Conflict:
            raise
        except Problem as problem:
            raise Conflict(
                f"{self.summary}: what it acts on cannot be verified", why=str(problem), next_step=LOOK_AGAIN
            ) from None
        if now != self.judged:
            raise Conflict(
                f"{self.summary}: what it acts on has changed in the meantime",
                why=f"Changed: {describe_changes(self.judged, now)}",
                next_step=LOOK_AGAIN,
            )


def _caller_key(caller: Caller) -> str:
    """The caller that an approval is bound to: the token's subject, otherwise the client and its transport."""
    return f"{caller.transport}:{caller.subject or caller.client}"
