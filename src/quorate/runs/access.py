"""Whether the caller of a run may still do what the run does for them."""

from __future__ import annotations

from dataclasses import replace

from quorate.config import Access
from quorate.operations.registry import EVERY, find_operation
from quorate.pipeline.caller import Caller, Scope
from quorate.pipeline.gate import Gate
from quorate.problems import Refused
from quorate.state.runs import Run
from quorate.state.tokens import Tokens


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
