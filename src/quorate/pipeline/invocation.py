"""One call of one operation, from the caller's arguments to the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quorate.operations.backend import Backend
from quorate.operations.registry import OTHER_CLUSTER, InFull, Operation, Owner, Risk, Table
from quorate.pipeline.approval import Approver
from quorate.pipeline.caller import Caller, Exchange
from quorate.pipeline.sanitization import Sanitizer
from quorate.problems import Problem
from quorate.pve.cluster import OtherCluster
from quorate.pve.tasks import Report
from quorate.server_files import ServerFiles
from quorate.state.outcomes import Outcome

PLAN_TOKEN = "plan_token"  # noqa: S105 - the name of an argument


def without_token(given: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in given.items() if name != PLAN_TOKEN}


@dataclass(frozen=True, slots=True)
class Invocation:
    operation: Operation
    risk: Risk
    """What this call can do."""
    given: Mapping[str, Any]
    """The arguments as they came."""
    exchange: Exchange
    sanitizer: Sanitizer
    approver: Approver
    """If it takes plan tokens, `plan_token` is an argument of the pipeline."""
    upload_dirs: tuple[Path, ...] = ()
    """Folders of this machine with images that any caller may upload."""

    @property
    def arguments(self) -> Mapping[str, Any]:
        return without_token(self.given) if self.approver.takes_tokens else self.given

    @property
    def plan_token(self) -> str | None:
        token = self.given.get(PLAN_TOKEN) if self.approver.takes_tokens else None
        return str(token) if token else None

    def supplied_arguments(self, other_cluster: OtherCluster) -> dict[str, Any]:
        """The parameters of the operation that are not the caller's arguments."""
        values = {
            Report: self.report,
            Owner: self.caller.subject,
            InFull: self.exchange.in_full,
            ServerFiles: ServerFiles(self.caller.is_local, self.upload_dirs, "upload_dirs in [images]"),
            OTHER_CLUSTER: other_cluster,
        }
        return {name: values[kind] for name, kind in self.operation.supplied.items()}

    async def run(self, backend: Backend, arguments: Mapping[str, Any]) -> Any:
        """The answer or plan of the operation. A problem is explained by what the backend knows about its cause."""
        try:
            return await self.operation.run(backend, **arguments)
        except Problem as problem:
            raise await backend.explain(problem) from None

    @property
    def caller(self) -> Caller:
        return self.exchange.caller

    @property
    def changes(self) -> bool:
        return self.risk in (Risk.CHANGE, Risk.DESTROY)

    @property
    def report(self) -> Report | None:
        return self.sanitizer.report(self.exchange.report)


@dataclass(frozen=True, slots=True)
class Result:
    """What the caller gets: facts without secrets, and PNG pictures where requested."""

    data: dict[str, Any] | Table
    outcome: Outcome | None = None
    """The outcome of a change."""
    failed: bool = False
    pictures: tuple[bytes, ...] = ()
