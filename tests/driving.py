"""Driving Quorate from its front door: MCP client -> server -> real HTTPS -> simulated cluster, on one driven clock."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.client.session import ElicitationFnT
from mcp.types import CallToolResult

from quorate.app import App, build, simulated_cluster
from quorate.config import Access, Approval, ClusterSettings, Settings
from quorate.pve.connection import Connection, Limits, Secret, Token
from quorate.sim.clock import ManualClock
from quorate.sim.cluster import SimulatedCluster


class DrivenTime:
    """The product's clock on the simulator's: when Quorate waits, simulated time goes on, and nobody waits."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def monotonic(self) -> float:
        return self._clock.now()

    def time(self) -> float:
        return self._clock.now()

    async def sleep(self, seconds: float) -> None:
        await self._clock.advance(seconds)


@dataclass
class Rig:
    """A server in front of a simulated cluster, and a client that talks to it."""

    sim: SimulatedCluster
    app: App
    client: Client
    audit_file: Path
    progress: list[tuple[float, float | None, str | None]] = field(default_factory=list)

    async def call(self, tool: str, /, **arguments: Any) -> CallToolResult:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            self.progress.append((progress, total, message))

        return await self.client.call_tool(tool, arguments, progress_callback=note)

    async def facts(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """The structured answer of a call that must succeed."""
        answer = await self.call(tool, **arguments)
        assert not answer.is_error, text_of(answer)
        facts: dict[str, Any] = answer.structured_content
        return facts

    async def rows(self, tool: str, /, **arguments: Any) -> list[dict[str, Any]]:
        facts = await self.facts(tool, **arguments)
        return [dict(zip(facts["columns"], row, strict=True)) for row in facts["rows"]]

    async def refusal(self, tool: str, /, **arguments: Any) -> str:
        """The text of a call that must fail."""
        answer = await self.call(tool, **arguments)
        assert answer.is_error, answer.structured_content
        return text_of(answer)

    def audit(self) -> list[dict[str, Any]]:
        return (
            [json.loads(line) for line in self.audit_file.read_text().splitlines()] if self.audit_file.exists() else []
        )

    @property
    def clock(self) -> ManualClock:
        assert isinstance(self.sim.clock, ManualClock)
        return self.sim.clock

    def requests_since(self, mark: int) -> list[tuple[str, str]]:
        return [(method, path) for method, path in self.sim.requests[mark:]]


def text_of(answer: CallToolResult) -> str:
    return "\n".join(block.text for block in answer.content if block.type == "text")


@asynccontextmanager
async def rig(
    tmp_path: Path,
    *,
    access: Access = Access.ADMIN,
    mode: str = "auto",
    cluster: ClusterSettings | None = None,
    limits: Limits | None = None,
    toolsets: tuple[str, ...] | None = ("all",),
    approval: Approval = Approval.NONE,
    approve_changes: bool = False,
    elicitation: ElicitationFnT | None = None,
    more: Mapping[str, Any] | None = None,
    **simulator: Any,
) -> AsyncIterator[Rig]:
    """Start all parts on free ports; `simulator` goes to SimulatedCluster, `more` are further settings."""
    clock = ManualClock()
    async with SimulatedCluster(clock=clock, **{"auth_delay": 0.0, **simulator}) as sim:
        target = cluster or simulated_cluster(sim)
        if limits:
            target = replace(target, connection=replace(target.connection, limits=limits))
        audit_file = tmp_path / "audit.jsonl"
        settings = Settings(
            clusters=(target,),
            access=access,
            audit_file=audit_file,
            toolsets=toolsets,
            approval=approval,
            approve_changes=approve_changes,
            state=str(tmp_path / "state.sqlite"),
            **(more or {}),
        )
        app = build(settings, clock=DrivenTime(clock))
        try:
            async with Client(app.server(), mode=mode, elicitation_callback=elicitation) as client:
                yield Rig(sim, app, client, audit_file)
        finally:
            await app.close()


def pointed_at(sim: SimulatedCluster, **changes: Any) -> ClusterSettings:
    """The simulated cluster's settings with parts of the connection replaced."""
    settings = simulated_cluster(sim)
    connection: Connection = replace(settings.connection, **changes)
    return replace(settings, connection=connection)


@asynccontextmanager
async def second_server(
    quorate: Rig, audit_file: Path, *, token: str | None = None, **changes: Any
) -> AsyncIterator[Rig]:
    """Another server on the same simulated cluster, as an API token such as alice@pve!cli if one is given."""
    target = simulated_cluster(quorate.sim)
    if token is not None:
        user, _, name = token.partition("!")
        secret = quorate.sim.world.access.users[user].tokens[name].secret
        target = pointed_at(quorate.sim, credentials=Token(token, Secret(secret)))
    usual = {"clusters": (target,), "access": Access.ADMIN, "audit_file": audit_file}
    settings = replace(quorate.app.settings, **{**usual, **changes})
    app = build(settings, clock=DrivenTime(quorate.clock))
    try:
        async with Client(app.server()) as client:
            yield Rig(quorate.sim, app, client, audit_file)
    finally:
        await app.close()
