"""What a run may do: what its caller still may, and what a person approved with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from quorate.config import Access
from quorate.operations.backend import Backend
from quorate.operations.plan import Action, Call, Plan, Target
from quorate.operations.registry import EVERY, Risk, find_operation
from quorate.operations.risk import ORDER
from quorate.pipeline.approval import ApprovalGrant, Approver
from quorate.pipeline.approval_request import ApprovalRequest
from quorate.pipeline.caller import Caller, Exchange, Gate, Scope
from quorate.problems import NotFound, Refused
from quorate.pve.wire import encode, pairs
from quorate.runs.store import Bound, Run, literal
from quorate.state.tokens import Tokens

SECRET = ("target-endpoint", "password", "cipassword")
"""Parameters that hold secrets: their values are neither compared nor stored."""


class AccessLost(Refused):
    """The credentials of a run's caller no longer cover the run."""

    def __init__(self, caller: Caller, why: str) -> None:
        super().__init__(
            f"{caller.subject or 'Its caller'} no longer has the access that this run needs",
            why=why,
            next_step="Anyone who has it can resume or abort the run, which then acts for them",
        )


async def present_caller(run: Run, tokens: Tokens) -> Caller:
    """The caller with what their token allows now. Raises AccessLost if it no longer allows starting the run.

    Once a run is aborted, it only cleans up: then the token has to be valid, and each step is judged as always.
    """
    caller = Caller.of_run(run.id, run.caller)
    if not caller.scope.token:
        return caller
    grant = await tokens.find(caller.scope.token)
    if grant is None or grant.revoked is not None:
        raise AccessLost(caller, "The token was revoked")
    if grant.expires is not None and grant.expires <= tokens.clock.time():
        raise AccessLost(caller, "The token has expired")
    now = replace(caller, scope=caller.scope.within(Scope(Access(grant.access), grant.toolsets, grant.clusters)))
    operation = find_operation(run.tool)
    anything = Gate(Access.ADMIN, frozenset(EVERY), cluster=run.cluster)
    if operation is not None and not run.aborting and (objection := anything.objection(operation, now)):
        raise AccessLost(caller, f"{objection.what}. {objection.why or ''}".strip())
    return replace(now, scope=replace(now.scope, toolsets=None))  # its steps are calls of tools of other toolsets


class OutsideBounds(Refused):
    """A step that nobody approved."""

    def __init__(self, run: Run, outside: list[Bound]) -> None:
        super().__init__(
            f"The run {run.id} wants to do something that was not approved with it",
            why=", ".join(map(str, outside)),
            next_step="Look at the run; resuming it allows this",
        )
        self.outside = outside


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
    missing = []
    bounds = [bound for bound in bounds if ORDER.index(risk) <= ORDER.index(Risk(bound.risk))]
    for step in plan.calls:
        where = step.where if isinstance(step, Action) and step.where else backend
        name = await _current_name(where, step.target)
        needed = bound_of(step, where.name, name)
        params = {key: values[0] for key, values in needed.params.items() if key not in SECRET}
        text = step.line if isinstance(step, Action) else step.path
        if not any(bound.permits(needed.method, text, params, name, where.name) for bound in bounds):
            missing.append(needed)
    return missing


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
