"""The approval of a run's steps: whatever a person approved with the run, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

from quorate.operations.api.risk import ORDER
from quorate.operations.backend import Backend
from quorate.operations.plan import Action, Call, Plan, Target
from quorate.operations.registry import Risk
from quorate.pipeline.approval import ApprovalGrant, Approver
from quorate.pipeline.approval_request import ApprovalRequest
from quorate.pipeline.caller import Exchange
from quorate.problems import NotFound, Refused
from quorate.pve.wire import encode, pairs
from quorate.state.runs import Bound, Run, literal

SECRET = ("target-endpoint", "password", "cipassword")
"""Parameters that hold secrets: their values are neither compared nor stored."""


class OutsideBounds(Refused):
    """A step that nobody approved."""

    def __init__(self, run: Run, wanted: list[Bound]) -> None:
        super().__init__(
            f"The run {run.id} wants to do something that was not approved with it",
            why=", ".join(map(str, wanted)),
            next_step="Look at the run; resuming it allows this",
        )
        self.wanted = wanted


@dataclass(frozen=True, slots=True)
class RunApprover(Approver):
    """Approves every call within the bounds of a run, and no other."""

    run: Run = field(kw_only=True)

    def needed(self, risk: Risk) -> bool:  # noqa: ARG002
        return True

    @property
    def asks(self) -> bool:
        return False

    @property
    def takes_tokens(self) -> bool:
        return False

    async def obtain(
        self,
        request: ApprovalRequest,
        backend: Backend,
        exchange: Exchange,  # noqa: ARG002
        *,
        token: str | None,  # noqa: ARG002
        seconds: float,  # noqa: ARG002
    ) -> ApprovalGrant:
        if outside := await missing_bounds(self.run.bounds, request.plan, backend, request.risk):
            raise OutsideBounds(self.run, outside)
        return ApprovalGrant("within run", self.run.id, self.run.approval)


async def missing_bounds(bounds: list[Bound], plan: Plan, backend: Backend, risk: Risk) -> list[Bound]:
    """The steps of a plan that no bound permits, each as the bound that would."""
    found = []
    bounds = [one for one in bounds if ORDER.index(risk) <= ORDER.index(Risk(one.risk))]
    for step in plan.calls:
        where = step.where if isinstance(step, Action) and step.where else backend
        name = await _current_name(where, step.target)
        wanted = bound_of(step, where.name, name)
        params = {key: values[0] for key, values in wanted.params.items() if key not in SECRET}
        text = step.line if isinstance(step, Action) else step.path
        if not any(one.permits(wanted.method, text, params, name, where.name) for one in bounds):
            found.append(wanted)
    return found


async def _current_name(where: Backend, target: Target | None) -> str:
    """The name that a guest's node reports: what a run may do to its own guests depends on it."""
    if target is None or target.kind not in ("vm", "ct"):
        return (target.name or target.id) if target else ""
    try:
        return (await where.api.inventory.fresh_guest(int(target.id))).name
    except NotFound:
        return target.name


def bound_of(step: Call | Action, cluster: str, name: str) -> Bound:
    target = literal(name) if name else "*"
    if isinstance(step, Action):
        return Bound("RUN", literal(step.line), target=target, cluster=cluster)
    params: dict[str, list[str]] = {}
    for key, value in pairs(encode(step.params)):
        params.setdefault(key, []).append(value)
    joined = {key: ["*"] if key in SECRET else [",".join(values)] for key, values in params.items()}
    return Bound(step.method, literal(step.path), joined, target=target, cluster=cluster)
