"""How every operation runs: routing, arguments, gates, then a read or a change."""

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
from quorate.operations.argument_names import with_known_names
from quorate.operations.backend import Backend
from quorate.operations.registry import (
    PIPELINE_ARGUMENTS,
    IllustratedFacts,
    Operation,
    Risk,
    Table,
    find_operation,
    operations,
)
from quorate.operations.toolsets import chosen_operations
from quorate.pipeline.approval import ApprovalSettings, Approver
from quorate.pipeline.arguments import decode, refuse_oversized
from quorate.pipeline.caller import ALL_TOOLSETS, Caller, Exchange
from quorate.pipeline.fan_out import NO_ANSWER, Data, ask_all
from quorate.pipeline.gate import Gate
from quorate.pipeline.invocation import Invocation, Result, without_token
from quorate.pipeline.redaction import secrets_in
from quorate.pipeline.routing import CLUSTER, Route, route
from quorate.pipeline.sanitization import Sanitizer
from quorate.pipeline.sites import Site, Sites
from quorate.problems import BadArgument, Problem, Refused
from quorate.pve.clock import Clock, SystemClock
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Inventory
from quorate.state.journal import Journal
from quorate.suggestions import suggest_tool

if TYPE_CHECKING:
    from quorate.pipeline.resolution import Resolution


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
            one
            for one in offered
            if any(
                gate.objection(one, caller) is None
                for gate in (self.gates(caller, one) if one.about_homelab else gates)
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
        if found := find_operation(name):
            return found
        raise BadArgument(f"There is no tool {name!r}", next_step=suggest_tool(name, operations(), None))

    def risk_of(self, operation: Operation, given: Mapping[str, Any]) -> Risk:
        """What this call can do: fixed for most operations, by method and path for a raw API call."""
        if operation.risk_of is None:
            return operation.risk
        given = with_known_names(operation, given)
        own = without_token(given) if self.approver.takes_tokens else given
        return operation.risk_of(
            decode(operation, {name: value for name, value in own.items() if name != CLUSTER or not self.sites.several})
        )

    # -- running it ------------------------------------------------------------------------------------------------

    async def run(self, name: str, given: Mapping[str, Any], exchange: Exchange) -> Result:
        """Run one operation. Raises Problem, already sanitized, if there is no result."""
        refuse_oversized(name, given)
        self.sites.refresh()
        sanitizer = self._sanitizer(given, exchange)
        try:
            operation = self.operation(name)
            given = with_known_names(operation, given)
            invocation = self.invocation(operation, self.risk_of(operation, given), given, exchange, sanitizer)
            if invocation.changes:
                from quorate.pipeline.change import ChangeRun  # a call that reads does without it

                return await ChangeRun(self, invocation).execute()
            return await self._execute_read(invocation)
        except Problem as problem:
            raise sanitizer.problem(problem) from None

    def invocation(
        self,
        operation: Operation,
        risk: Risk,
        given: Mapping[str, Any],
        exchange: Exchange,
        sanitizer: Sanitizer | None = None,
    ) -> Invocation:
        sanitizer = sanitizer or self._sanitizer(given, exchange)
        approver = exchange.approver or self.approver_for(exchange.caller)
        return Invocation(operation, risk, given, exchange, sanitizer, approver, self.upload_dirs)

    @asynccontextmanager
    async def inventory(self, cluster: str | None, caller: Caller) -> AsyncIterator[Inventory]:
        """The inventory of a cluster as the caller may list it, for surfaces that look guests up before they call."""
        given = {} if cluster is None else {CLUSTER: cluster}
        operation = self.operation("guest_list")
        invocation = self.invocation(operation, operation.risk, given, Exchange(caller))
        try:
            self.require_permitted(invocation)
            chosen = await route(self.sites, operation, given, caller, changes=False)
            site = self.permitted_sites(chosen.sites, invocation)[0]
            yield (await self.visible_view(site, invocation)).api.inventory
        except Problem as problem:
            raise invocation.sanitizer.problem(problem) from None

    async def resolve_unfinished(self) -> list[Resolution]:
        """Find out how changes ended whose processes are gone, and close their entries."""
        from quorate.pipeline.resolution import Resolver

        async def look(tool: str, arguments: Mapping[str, Any]) -> Any:
            found = (await self.run(tool, arguments, Exchange(Caller(exposure=ALL_TOOLSETS)))).data
            return resolve({"columns": found.columns, "rows": found.rows} if isinstance(found, Table) else found)

        return await Resolver(self.sites, self.journal, self._sanitizer().journal_line, look, self.clock).resolve()

    def sanitize(self, data: Any) -> Any:
        """The data without secrets and invisible characters."""
        return self._sanitizer().sanitize(data)

    def trace_of(self, error: Exception, given: Mapping[str, Any]) -> str:
        """The traceback of an internal defect, without secrets, for the log."""
        return str(self._sanitizer(given).sanitize("".join(traceback.format_exception(error))))

    async def _execute_read(self, invocation: Invocation) -> Result:
        operation = invocation.operation
        self.require_permitted(invocation)
        chosen = await route(self.sites, operation, invocation.given, invocation.caller, changes=False)
        arguments = decode(operation, chosen.arguments)
        for name in PIPELINE_ARGUMENTS if operation.changes else ():
            arguments.pop(name, None)
        arguments |= invocation.supplied_arguments(partial(self.other_cluster, invocation=invocation))
        sites = self.permitted_sites(chosen.sites, invocation)

        async def ask(site: Site, wanted: Mapping[str, Any]) -> Data:
            answer: Data = await invocation.run(await self.visible_view(site, invocation), wanted)
            return answer

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

    def require_permitted(self, invocation: Invocation) -> None:
        """Refuse what no cluster allows before any of them is asked."""
        sites = self.sites.for_operation(invocation.operation, invocation.caller)
        if sites:
            self.permitted_sites(sites, invocation)
        elif objection := self.gate(invocation.caller).objection(
            invocation.operation, invocation.caller, invocation.risk
        ):
            raise objection

    def permitted_sites(self, sites: Sequence[Site], invocation: Invocation) -> Sequence[Site]:
        """The sites where the call is allowed. Raises the reason if there is none."""
        found = [(site, self._objection(site, invocation)) for site in sites]
        permitted = [site for site, objection in found if objection is None]
        if not permitted:
            raise next(objection for _, objection in found if objection is not None)
        return permitted

    async def visible_view(self, site: Site, invocation: Invocation) -> Backend:
        """The cluster or homelab without what the rules hide from this call."""

        async def neighbors() -> tuple[list[Cluster], list[Cluster]]:
            permitted = [one for one in self.sites.open_to(invocation.caller) if not self._objection(one, invocation)]
            visible = [(await self.visible_view(one, invocation)).api for one in permitted]
            return visible, [one.cluster for one in self.sites if one.guards or one not in permitted]

        hides = site.rules.visibility_filter(invocation.operation, invocation.risk, self.clock.time())
        exchange = invocation.exchange
        return await site.backend.visible_view(hides, neighbors, exchange.login, local=exchange.caller.is_local)

    async def other_cluster(self, name: str, invocation: Invocation) -> Cluster:
        """Another cluster as this caller sees it, if the call is allowed there as well."""
        site = self.sites.find(name, invocation.caller)
        self.permitted_sites([site], invocation)
        return (await self.visible_view(site, invocation)).api

    def _objection(self, site: Site, invocation: Invocation) -> Refused | None:
        """For a change, hours are judged together with its plan: a dry run is fine at any time."""
        now = None if invocation.changes else self.clock.time()
        gate = self.gate(invocation.caller, site)
        return gate.objection(invocation.operation, invocation.caller, invocation.risk, now)

    def _sanitizer(self, given: Mapping[str, Any] | None = None, exchange: Exchange | None = None) -> Sanitizer:
        lent = exchange.secrets if exchange is not None else ()

        def secrets() -> list[str]:
            return [*lent, *(secret for site in self.sites.everywhere for secret in site.backend.secrets())]

        return Sanitizer(secrets, secrets_in(given or {}))
