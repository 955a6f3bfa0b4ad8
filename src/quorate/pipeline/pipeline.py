"""The pipeline that every call passes through, and one call of it."""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.config import Approval
from quorate.hints import resolve
from quorate.log import CallRecord, current_call, record_call
from quorate.operations.arguments import decode, refuse_oversized, with_known_names
from quorate.operations.backend import Backend
from quorate.operations.registry import (
    OTHER_CLUSTER,
    PIPELINE_ARGUMENTS,
    IllustratedFacts,
    InFull,
    Neighbors,
    Operation,
    Owner,
    Risk,
    Table,
    chosen_operations,
    find_operation,
    operations,
)
from quorate.pipeline.approval import ApprovalSettings, Approver
from quorate.pipeline.caller import ALL_TOOLSETS, Caller, Exchange, Gate
from quorate.pipeline.redaction import Sanitizer, secrets_in
from quorate.pipeline.sites import CLUSTER, NO_ANSWER, Data, Route, Site, Sites, ask_all, route
from quorate.problems import BadArgument, Problem, Refused
from quorate.pve.cluster import Cluster, OtherCluster
from quorate.pve.connection import Clock, SystemClock
from quorate.pve.inventory import Inventory
from quorate.pve.tasks import Report
from quorate.server_files import ServerFiles
from quorate.state.journal import Journal, Outcome
from quorate.suggestions import suggest_tool

if TYPE_CHECKING:
    from quorate.pipeline.proof import Resolution


PLAN_TOKEN = "plan_token"  # noqa: S105 - the name of an argument


def without_token(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in arguments.items() if name != PLAN_TOKEN}


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of one operation, from the caller's arguments to the result."""

    operation: Operation
    risk: Risk
    """What this call can do."""
    raw_arguments: Mapping[str, Any]
    """The arguments as they came."""
    exchange: Exchange
    sanitizer: Sanitizer
    approver: Approver
    """If it takes plan tokens, `plan_token` is an argument of the pipeline."""
    upload_dirs: tuple[Path, ...] = ()
    """Folders of this machine with images that any caller may upload."""
    clusters: tuple[Cluster, ...] = ()
    """All clusters of the server."""

    @property
    def arguments(self) -> Mapping[str, Any]:
        return without_token(self.raw_arguments) if self.approver.takes_tokens else self.raw_arguments

    @property
    def plan_token(self) -> str | None:
        token = self.raw_arguments.get(PLAN_TOKEN) if self.approver.takes_tokens else None
        return str(token) if token else None

    def supplied_arguments(self, other_cluster: OtherCluster) -> dict[str, Any]:
        """The parameters of the operation that are not the caller's arguments."""
        values = {
            Report: self.report,
            Owner: self.caller.subject,
            InFull: self.exchange.in_full,
            ServerFiles: ServerFiles(self.caller.is_local, self.upload_dirs, "upload_dirs in [images]"),
            Neighbors: self.clusters,
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


@dataclass(frozen=True, eq=False)
class Pipeline:
    """One per server, immutable: what differs between calls and surfaces is in their `Exchange` or `Caller`."""

    sites: Sites
    journal: Journal
    approver: Approver
    wait_seconds: float = 45.0
    upload_dirs: tuple[Path, ...] = ()

    @property
    def clock(self) -> Clock:
        return next((site.backend.clock for site in self.sites), SystemClock())

    # -- what can be run -------------------------------------------------------------------------------------------

    def visible(self, caller: Caller | None = None) -> list[Operation]:
        """The operations that at least one site allows this caller."""
        self.sites.refresh()
        caller = caller or Caller()
        offered = chosen_operations(self.gate(caller).toolsets)
        gates = self.gates(caller)
        return [
            operation
            for operation in offered
            if any(
                gate.objection(operation, caller) is None
                for gate in (self.gates(caller, operation) if operation.about_homelab else gates)
            )
        ]

    def gate(self, caller: Caller, site: Site | None = None) -> Gate:
        """At a site; without one, what applies where a cluster has no settings of its own."""
        general = self.sites.general.with_exposure(caller.exposure)
        return site.gate(general) if site else general

    def gates(self, caller: Caller | None = None, operation: Operation | None = None) -> list[Gate]:
        """One for each cluster that the caller reaches; for an operation of the homelab, the homelab's."""
        caller = caller or Caller()
        if operation is not None and operation.about_homelab:
            return [self.gate(caller, site) for site in self.sites.for_operation(operation, caller)]
        if not list(self.sites):
            return [self.gate(caller)]
        return [self.gate(caller, site) for site in self.sites.open_to(caller)]

    def approver_for(self, caller: Caller) -> Approver:
        """The operator's, unless an opt-in of the server that the surface replaces approved everything in advance."""
        opt_in = caller.exposure.opt_in
        if not opt_in:
            return self.approver

        def settings() -> ApprovalSettings:
            applies = opt_in in self.sites.general.opt_ins
            return ApprovalSettings(Approval.NONE, opted_in=opt_in) if applies else self.approver.settings()

        return replace(self.approver, settings=settings)

    def operation(self, name: str) -> Operation:
        """Find an operation in any toolset, so that one that is switched off is refused with the reason."""
        if operation := find_operation(name):
            return operation
        raise BadArgument(f"There is no tool {name!r}", next_step=suggest_tool(name, operations(), None))

    def risk_of(self, operation: Operation, arguments: Mapping[str, Any]) -> Risk:
        """What this call can do: fixed for most operations, by method and path for a raw API call."""
        if operation.risk_of is None:
            return operation.risk
        arguments = with_known_names(operation, arguments)
        own = without_token(arguments) if self.approver.takes_tokens else arguments
        return operation.risk_of(
            decode(operation, {name: value for name, value in own.items() if name != CLUSTER or not self.sites.several})
        )

    # -- running it ------------------------------------------------------------------------------------------------

    async def run(self, name: str, arguments: Mapping[str, Any], exchange: Exchange) -> Result:
        """Run one operation. Raises Problem, already sanitized, if there is no result."""
        if (call := current_call()) is not None:  # of a surface, which logs it
            call.add_operation(name)
            return await self._run(name, arguments, exchange, call)
        call = CallRecord(name)
        call.describe_caller(exchange.caller.subject, exchange.caller.client, exchange.caller.transport)
        with record_call(call, self.clock.monotonic):
            try:
                result = await self._run(name, arguments, exchange, call)
            except Problem as problem:
                call.fail(problem.code, problem.what)
                raise
            except Exception as error:
                call.fail("defect", type(error).__name__)
                raise
            call.outcome = "error" if result.failed else "ok"
            return result

    async def _run(self, name: str, arguments: Mapping[str, Any], exchange: Exchange, call: CallRecord) -> Result:
        refuse_oversized(name, arguments)
        self.sites.refresh()
        sanitizer = self._sanitizer(arguments, exchange)
        try:
            operation = self.operation(name)
            arguments = with_known_names(operation, arguments)
            invocation = self.invocation(operation, self.risk_of(operation, arguments), arguments, exchange, sanitizer)
            if invocation.changes:
                from quorate.pipeline.change import ChangeRun  # a call that reads does without it

                result = await ChangeRun(self, invocation).execute()
                call.result = result.outcome or ""
                return result
            return await self._execute_read(invocation)
        except Problem as problem:
            raise sanitizer.problem(problem) from None

    def invocation(
        self,
        operation: Operation,
        risk: Risk,
        arguments: Mapping[str, Any],
        exchange: Exchange,
        sanitizer: Sanitizer | None = None,
    ) -> Invocation:
        sanitizer = sanitizer or self._sanitizer(arguments, exchange)
        approver = exchange.approver or self.approver_for(exchange.caller)
        clusters = tuple(site.cluster for site in self.sites)
        return Invocation(operation, risk, arguments, exchange, sanitizer, approver, self.upload_dirs, clusters)

    @asynccontextmanager
    async def inventory(self, cluster: str | None, caller: Caller) -> AsyncIterator[Inventory]:
        """The inventory of a cluster as the caller may list it, for surfaces that look guests up before they call."""
        operation = self.operation("guest_list")
        arguments = {} if cluster is None else {CLUSTER: cluster}
        invocation = self.invocation(operation, operation.risk, arguments, Exchange(caller))
        try:
            objections = self.objections(invocation)
            chosen = await route(self.sites, operation, arguments, caller, changes=False)
            site = select_permitted(chosen.sites, objections)[0]
            yield (await self.visible_view(site, invocation)).api.inventory
        except Problem as problem:
            raise invocation.sanitizer.problem(problem) from None

    async def resolve_unfinished(self) -> list[Resolution]:
        """Find out how changes ended whose processes are gone, and close their entries."""
        from quorate.pipeline.proof import Resolver

        async def look(tool: str, arguments: Mapping[str, Any]) -> Any:
            data = (await self.run(tool, arguments, Exchange(Caller(exposure=ALL_TOOLSETS)))).data
            return resolve({"columns": data.columns, "rows": data.rows} if isinstance(data, Table) else data)

        return await Resolver(self.sites, self.journal, self._sanitizer().journal_line, look, self.clock).resolve()

    def sanitize(self, data: Any, arguments: Mapping[str, Any] | None = None) -> Any:
        """The data without secrets, also those in the arguments of a call, and without invisible characters."""
        return self._sanitizer(arguments).sanitize(data)

    def trace_of(self, error: Exception, arguments: Mapping[str, Any]) -> str:
        """The traceback of an internal defect, without secrets, for the log."""
        return str(self.sanitize("".join(traceback.format_exception(error)), arguments))

    async def _execute_read(self, invocation: Invocation) -> Result:
        operation = invocation.operation
        objections = self.objections(invocation)
        chosen = await route(self.sites, operation, invocation.raw_arguments, invocation.caller, changes=False)
        arguments = decode(operation, chosen.arguments)
        for name in PIPELINE_ARGUMENTS if operation.changes else ():
            arguments.pop(name, None)
        arguments |= invocation.supplied_arguments(partial(self.other_cluster, invocation=invocation))
        sites = select_permitted(chosen.sites, objections)

        async def ask(site: Site, arguments: Mapping[str, Any]) -> Data:
            data: Data = await invocation.run(await self.visible_view(site, invocation), arguments)
            return data

        data = await (ask(sites[0], arguments) if len(chosen.sites) == 1 else ask_all(sites, arguments, ask))
        pictures = data.pictures if isinstance(data, IllustratedFacts) else ()
        facts = data.facts if isinstance(data, IllustratedFacts) else data
        return Result(invocation.sanitizer.sanitize(self.with_cluster(facts, chosen)), pictures=pictures)

    def with_cluster(self, facts: dict[str, Any] | Table, chosen: Route) -> dict[str, Any] | Table:
        """The result with the name of its cluster, if there are several clusters and the call named none."""
        if not self.sites.several or len(chosen.sites) > 1 or chosen.sites[0] is self.sites.home:
            return facts
        silent = {NO_ANSWER: {name: str(problem) for name, problem in chosen.silent.items()}} if chosen.silent else {}
        where = {"cluster": chosen.sites[0].name}
        if isinstance(facts, Table):
            facts.facts = {**facts.facts, **where, **silent}
            return facts
        return {**where, **facts, **silent}

    # -- permission ------------------------------------------------------------------------------------------------

    def objections(self, invocation: Invocation) -> dict[str, Refused | None]:
        """What each site that the caller reaches objects to the call, decided once and before any cluster is asked.

        Raises the reason if no site allows it.
        """
        sites = self.sites.for_operation(invocation.operation, invocation.caller)
        objections = {site.name: self._objection(site, invocation) for site in sites}
        if sites:
            select_permitted(sites, objections)
        elif refused := self.gate(invocation.caller).objection(
            invocation.operation, invocation.caller, invocation.risk
        ):
            raise refused
        return objections

    async def visible_view(self, site: Site, invocation: Invocation) -> Backend:
        """The cluster or homelab without what the rules hide from this call."""

        async def neighbors() -> tuple[list[Cluster], list[Cluster]]:
            allowed = [
                other for other in self.sites.open_to(invocation.caller) if not self._objection(other, invocation)
            ]
            visible = [(await self.visible_view(other, invocation)).api for other in allowed]
            return visible, [other.cluster for other in self.sites if other.guards or other not in allowed]

        hides = site.rules.visibility_filter(invocation.operation, invocation.risk, self.clock.time())
        exchange = invocation.exchange
        return await site.backend.visible_view(hides, neighbors, exchange.login, local=exchange.caller.is_local)

    async def other_cluster(self, name: str, invocation: Invocation) -> Cluster:
        """Another cluster as this caller sees it, if the call is allowed there as well."""
        site = self.sites.find(name, invocation.caller)
        if objection := self._objection(site, invocation):
            raise objection
        return (await self.visible_view(site, invocation)).api

    def _objection(self, site: Site, invocation: Invocation) -> Refused | None:
        """For a change, hours are judged together with its plan: a dry run is fine at any time."""
        now = None if invocation.changes else self.clock.time()
        gate = self.gate(invocation.caller, site)
        return gate.objection(invocation.operation, invocation.caller, invocation.risk, now)

    def _sanitizer(self, arguments: Mapping[str, Any] | None = None, exchange: Exchange | None = None) -> Sanitizer:
        lent = exchange.secrets if exchange is not None else ()

        def secrets() -> list[str]:
            return [*lent, *(secret for site in self.sites.everywhere for secret in site.backend.secrets())]

        return Sanitizer(secrets, secrets_in(arguments or {}))


def select_permitted(sites: Sequence[Site], objections: Mapping[str, Refused | None]) -> Sequence[Site]:
    """The sites where the call is allowed. Raises the reason if there is none."""
    allowed = [site for site in sites if objections[site.name] is None]
    if not allowed:
        raise next(objection for site in sites if (objection := objections[site.name]) is not None)
    return allowed
