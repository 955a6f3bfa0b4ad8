"""The person at the browser, and what the pages work with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quorate.config import Access
from quorate.operations.registry import Table
from quorate.pipeline.caller import Caller, Exchange
from quorate.pipeline.invocation import Result
from quorate.pipeline.pipeline import Pipeline
from quorate.pipeline.routing import CLUSTER
from quorate.problems import Problem, Refused
from quorate.state.approvals import Approvals
from quorate.state.browser_sessions import BrowserSession
from quorate.state.findings import Findings
from quorate.state.freeze import Freeze
from quorate.state.runs import RunStore
from quorate.state.trail import AuditTrail
from quorate.surfaces import rendering

CLIENT = "console"


@dataclass(frozen=True, slots=True)
class Person:
    caller: Caller
    session: BrowserSession

    @property
    def is_operator(self) -> bool:
        """Whether approvals, the journal, the rules and the freeze are theirs to see."""
        return self.caller.scope.access.allows(Access.ADMIN)

    @property
    def clusters(self) -> frozenset[str] | None:
        return self.caller.scope.clusters

    def require_operator(self, what: str) -> None:
        if not self.is_operator:
            raise Refused(f"{what} for tokens with access admin", next_step="Log in with such a token")

    def reaches(self, cluster: str) -> bool:
        return self.clusters is None or cluster in self.clusters


@dataclass(frozen=True, slots=True)
class ConsoleServices:
    """What the pages read from: the same pipeline that serves the tools, and the store."""

    pipeline: Pipeline
    approvals: Approvals
    freeze: Freeze
    trail: AuditTrail
    runs: RunStore
    findings: Findings

    @property
    def now(self) -> float:
        return self.pipeline.clock.time()

    def offers(self, person: Person, *tools: str) -> bool:
        visible = {one.name for one in self.pipeline.visible(person.caller)}
        return visible.issuperset(tools)

    def where(self, given: Mapping[str, str]) -> dict[str, str]:
        """The argument that names the cluster, where there are several."""
        cluster = given.get(CLUSTER, "")
        return {CLUSTER: cluster} if cluster and self.pipeline.sites.several else {}

    async def run(self, person: Person, tool: str, **arguments: Any) -> Result:
        """Run a tool with the person's scope; rules, redaction and the journal apply."""
        given = {name: value for name, value in arguments.items() if value is not None}
        return await self.pipeline.run(tool, given, Exchange(person.caller, wait_seconds=0.0))

    async def data(self, person: Person, tool: str, **arguments: Any) -> dict[str, Any] | Table:
        found = await self.run(person, tool, **arguments)
        return rendering.render_advice(found.data, str)

    async def rows(self, person: Person, tool: str, **arguments: Any) -> list[dict[str, Any]]:
        return self.as_rows(await self.data(person, tool, **arguments))

    async def facts(self, person: Person, tool: str, **arguments: Any) -> Mapping[str, Any]:
        data = await self.data(person, tool, **arguments)
        return data.facts if isinstance(data, Table) else data

    def as_rows(self, data: dict[str, Any] | Table) -> list[dict[str, Any]]:
        return [dict(zip(data.columns, row, strict=True)) for row in data.rows] if isinstance(data, Table) else []

    async def rows_or_problem(self, person: Person, tool: str, **arguments: Any) -> tuple[list[dict[str, Any]], str]:
        """The rows for part of a page, or the reason why they cannot be read."""
        try:
            return await self.rows(person, tool, **arguments), ""
        except Problem as problem:
            return [], str(problem)
