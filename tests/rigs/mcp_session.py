"""Quorate behind an MCP client and in front of a simulated cluster over real HTTPS, all on one manual clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from aiohttp.web import StreamResponse
from mcp import Client
from mcp.client.session import ElicitationFnT
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent

from pve_simulator.clock import ManualClock
from pve_simulator.http.certificates import shared_identity
from pve_simulator.simulator import SimulatedCluster
from quorate.app import App, build, simulated_cluster
from quorate.config import Access, Approval, ClusterSettings, Settings
from quorate.pve.connection import Connection, Limits, Secret, Token
from quorate.state.trail import fold
from quorate.surfaces.server import Server
from tests.rigs.in_memory_wire import Handler, Wire

_TURNS = 1000
"""Turns of the event loop within which a request that waits for nothing is answered."""


class DrivenTime:
    """The simulator's clock as the product sees it: when Quorate waits, only simulated time passes."""

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
    """A server in front of a simulated cluster, and its client."""

    sim: SimulatedCluster
    app: App
    client: Client
    audit_file: Path
    progress: list[tuple[float, float | None, str | None]] = field(default_factory=list)
    _server: Server | None = None

    async def call(self, tool: str, /, **arguments: Any) -> CallToolResult:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            self.progress.append((progress, total, message))

        # No tool declares an output schema (see tests/snapshots); the SDK would list every tool to find that out.
        self.client.session._tool_output_schemas.setdefault(tool, None)
        return await self.client.call_tool(tool, arguments, progress_callback=note)

    async def facts(self, tool: str, /, **arguments: Any) -> dict[str, Any]:
        """Return the structured answer of a call that must succeed."""
        answer = await self.call(tool, **arguments)
        assert not answer.is_error, text_of(answer)
        facts: dict[str, Any] = answer.structured_content
        return facts

    async def rows(self, tool: str, /, **arguments: Any) -> list[dict[str, Any]]:
        facts = await self.facts(tool, **arguments)
        return [dict(zip(facts["columns"], row, strict=True)) for row in facts["rows"]]

    async def refusal(self, tool: str, /, **arguments: Any) -> str:
        """Return the text of a call that must fail."""
        answer = await self.call(tool, **arguments)
        assert answer.is_error, answer.structured_content
        return text_of(answer)

    async def refuses(self, tool: str, words: Iterable[str], /, **arguments: Any) -> None:
        """Make a call that must fail, with each of these words and without changing anything."""
        before = len(self.writes)
        text = await self.refusal(tool, **arguments)
        for word in words:
            assert word in text
        assert len(self.writes) == before

    @property
    def writes(self) -> list[tuple[str, str]]:
        """Method and path of every request to PVE so far, except those that only read."""
        return [(method, path) for method, path in self.sim.requests if method != "GET"]

    async def submit(self, tool: str, arguments: dict[str, Any], /) -> CallToolResult:
        """Make the same call without MCP: what the server answers before the protocol encodes it."""
        self._server = self._server or self.app.server()
        try:
            answer = await self._server.call_tool(tool, arguments)
        except ToolError as error:
            return CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True)
        assert isinstance(answer, CallToolResult)
        return answer

    async def write(self, method: str, path: str, params: Mapping[str, Any] | None = None, /) -> Any:
        """Change the cluster behind Quorate's back, as another client of PVE would: no plan, no policy, no journal."""
        assert self.app.cluster is not None
        return (await self.app.cluster.client.request(method, path, params or {})).data

    def audit(self) -> list[dict[str, Any]]:
        """Return the audit trail, one entry for each change."""
        return fold(self.audit_lines())

    def audit_lines(self) -> list[dict[str, Any]]:
        """Return the lines of the audit trail as they were written."""
        return (
            [json.loads(line) for line in self.audit_file.read_text().splitlines()] if self.audit_file.exists() else []
        )

    @property
    def clock(self) -> ManualClock:
        assert isinstance(self.sim.clock, ManualClock)
        return self.sim.clock

    def requests_since(self, mark: int) -> list[tuple[str, str]]:
        return [(method, path) for method, path in self.sim.requests[mark:]]


class StartQuorate(Protocol):
    """The fixture `start_quorate`."""

    async def __call__(self, folder: Path = ..., /, **options: Any) -> Rig: ...


def text_of(answer: CallToolResult) -> str:
    return "\n".join(block.text for block in answer.content if block.type == "text")


def in_one_order(shown: Mapping[str, Any]) -> dict[str, Any]:
    """The answer about an object; PVE lists the content types of a storage in any order."""
    data = shown.get("data")
    if not isinstance(data, dict) or "storage" not in data or "content" not in data:
        return dict(shown)
    return {**shown, "data": {**data, "content": ",".join(sorted(data["content"].split(",")))}}


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
    in_memory: bool = False,
    more: Mapping[str, Any] | None = None,
    clock: ManualClock | None = None,
    **simulator: Any,
) -> AsyncIterator[Rig]:
    """Start all parts on free ports; `simulator` goes to SimulatedCluster, `more` are further settings.

    All toolsets are on unless `toolsets` says otherwise, because tests look at the effect of a change with tools of
    other toolsets. Nothing is listed until a test lists the tools, so this costs a twentieth of a start.

    With `in_memory`, requests reach the cluster without sockets and TLS, for sweeps of many calls.
    """
    clock = clock or ManualClock()
    async with SimulatedCluster(clock=clock, **{"auth_delay": 0.0, "identity": shared_identity, **simulator}) as sim:
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
        if in_memory:
            _leave_out_sockets(app, sim, clock)
        try:
            async with Client(app.server(), mode=mode, elicitation_callback=elicitation) as client:
                yield Rig(sim, app, client, audit_file)
        finally:
            await app.close()


def _leave_out_sockets(app: App, sim: SimulatedCluster, clock: ManualClock) -> None:
    assert app.cluster is not None
    handler = _driven(sim.server.for_node(sim.world.nodes[sim.node]), clock)
    app.cluster.client._session = Wire(handler)  # type: ignore[assignment]


def _driven(handler: Handler, clock: ManualClock) -> Handler:
    """Let simulated time pass while a request waits, such as for a lock: nothing else moves the clock."""

    async def answer(request: Any) -> StreamResponse:
        answering = asyncio.ensure_future(handler(request))
        for _ in range(_TURNS):
            if answering.done():
                break
            await asyncio.sleep(0)
        while not answering.done():
            await clock.advance(1)
        return await answering

    return answer


def pointed_at(sim: SimulatedCluster, **changes: Any) -> ClusterSettings:
    """Return the settings for the simulated cluster, with parts of the connection replaced."""
    settings = simulated_cluster(sim)
    connection: Connection = replace(settings.connection, **changes)
    return replace(settings, connection=connection)


@asynccontextmanager
async def second_server(
    quorate: Rig, audit_file: Path, *, token: str | None = None, in_memory: bool = False, **changes: Any
) -> AsyncIterator[Rig]:
    """Start another server on the same simulated cluster, with an API token such as alice@pve!cli if given."""
    target = simulated_cluster(quorate.sim)
    if token is not None:
        user, _, name = token.partition("!")
        secret = quorate.sim.world.access.users[user].tokens[name].secret
        target = pointed_at(quorate.sim, credentials=Token(token, Secret(secret)))
    usual = {"clusters": (target,), "access": Access.ADMIN, "audit_file": audit_file}
    settings = replace(quorate.app.settings, **{**usual, **changes})
    app = build(settings, clock=DrivenTime(quorate.clock))
    if in_memory:
        _leave_out_sockets(app, quorate.sim, quorate.clock)
    try:
        async with Client(app.server()) as client:
            yield Rig(quorate.sim, app, client, audit_file)
    finally:
        await app.close()
