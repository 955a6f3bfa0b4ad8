"""The first page: one verdict, what waits for a person, and how each cluster is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from quorate.console.approvals import waiting_cards
from quorate.console.clusters import ClusterRows
from quorate.console.login import ConsoleServices, Person
from quorate.console.templates import PATH, query
from quorate.console.timeline import Summary, summaries
from quorate.pipeline.redaction import clean
from quorate.pipeline.sites import CLUSTER
from quorate.problems import Problem
from quorate.pve.lookup import Resource
from quorate.state.trail import Filters
from quorate.units import count_of, duration, size

if TYPE_CHECKING:
    from quorate.console.console import Console

ALMOST_FULL = 0.9
FEW_GUESTS = 100
"""With more, the health checks take too many requests to be made whenever someone opens the page."""
MOST_NODES = 24
MOST_STORAGES = 12
MOST_FINDINGS = 5
MOST_READ = 200
MOST_CHANGES = 5
MOST_RUNS = 20
DAY = 86_400


@dataclass(frozen=True, slots=True)
class Concern:
    """One reason why the verdict is not "healthy", with the page that shows it."""

    severity: str
    text: str
    link: str


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    name: str
    where: str
    """The query that names it, where there are several."""
    age: str
    problem: str
    running: int
    stopped: int
    nodes: list[dict[str, Any]]
    more_nodes: int
    storages: list[dict[str, Any]]
    more_storages: int
    concerns: list[Concern]


@dataclass(frozen=True, slots=True)
class Overview:
    clusters: list[ClusterSummary]
    findings: list[dict[str, Any]]
    waiting: dict[str, Any]

    @property
    def concerns(self) -> list[Concern]:
        return [
            *_approval_concerns(len(self.waiting.get("cards", ()))),
            *_finding_concerns(self.findings),
            *(concern for cluster in self.clusters for concern in cluster.concerns),
        ]


def overview_routes(console: Console) -> list[tuple[Any, ...]]:
    services = console.services

    async def show(request: Request, person: Person) -> Response:
        state = await _read(person)
        return await console.show(
            request,
            person,
            "overview.html",
            concerns=state.concerns,
            clusters=state.clusters,
            findings=state.findings[:MOST_FINDINGS],
            more_findings=len(state.findings) - MOST_FINDINGS,
            runs=await console.clusters.runs(person, limit=MOST_RUNS),
            changes=await _changes_today(person),
            few_guests=FEW_GUESTS,
            checks_health=services.offers(person, "cluster_health"),
            **state.waiting,
        )

    async def show_verdict(request: Request, person: Person) -> Response:
        return await console.show(request, person, "part_verdict.html", concerns=(await _read(person)).concerns)

    async def _read(person: Person) -> Overview:
        lists = await console.clusters.read_all(person)
        return Overview(
            [_summarize(services, name, listed) for name, listed in lists.items()],
            await services.rows_in_time(person, "finding_list", state="open", limit=MOST_READ),
            await waiting_cards(console, person) if person.is_operator else {},
        )

    async def show_health(request: Request, person: Person) -> Response:
        """The checks of one cluster, which take a few requests: the page loads them when it is already shown."""
        where = services.where(request.query_params)
        checks: list[dict[str, Any]] = []
        backups: dict[str, Any] = {}
        problem = ""
        try:
            await console.clusters.require_answer(person, where.get(CLUSTER))
            checks, problem = await services.rows_or_problem(person, "cluster_health", **where)
            if services.offers(person, "backup_coverage"):
                backups = dict(await services.facts(person, "backup_coverage", **where, limit=1))
        except Problem as error:  # a part of a page shows it; with an error status it would stay empty
            problem = problem or str(error)
        return await console.show(
            request, person, "part_health.html", checks=checks, problem=problem, backups=backups, where=where
        )

    async def _changes_today(person: Person) -> list[Summary]:
        if not person.is_operator:
            return []
        midnight = services.now // DAY * DAY
        entries = await services.trail.entries(Filters(since=midnight, clusters=person.clusters), MOST_CHANGES)
        return summaries(clean([entry for entry in entries[::-1] if not entry.get("dry_run")]))

    return [("", show), ("/part/verdict", show_verdict), ("/part/health", show_health)]


def _summarize(services: ConsoleServices, name: str, listed: ClusterRows) -> ClusterSummary:
    where = query("", services.where({CLUSTER: name}))
    guests = [row for row in listed.rows if row.is_guest and not row.template]
    nodes = [describe_node(row) for row in sorted(listed.rows, key=lambda row: row.node) if row.type == "node"]
    storages = sorted(describe_storages(listed.rows), key=lambda storage: -storage["share"])
    return ClusterSummary(
        name,
        where,
        listed.describe_age(services.now),
        listed.problem,
        running=sum(row.status == "running" for row in guests),
        stopped=sum(row.status == "stopped" for row in guests),
        nodes=nodes[:MOST_NODES],
        more_nodes=max(0, len(nodes) - MOST_NODES),
        storages=storages[:MOST_STORAGES],
        more_storages=max(0, len(storages) - MOST_STORAGES),
        concerns=list(_cluster_concerns(name, where, listed, nodes, storages)),
    )


def _cluster_concerns(
    name: str, where: str, listed: ClusterRows, nodes: Iterable[dict[str, Any]], storages: Iterable[dict[str, Any]]
) -> Iterable[Concern]:
    link = f"{PATH}/inventory{where}"
    if listed.problem:
        yield Concern("critical", f"{name} does not answer", link)
        return
    for node in nodes:
        if node["status"] != "online":
            yield Concern("critical", f"Node {node['name']} is {node['status'] or 'unknown'}", link)
    for storage in storages:
        if storage["share"] >= ALMOST_FULL:
            text = f"Storage {storage['name']} ({storage['node']}) is {storage['share']:.0%} full"
            yield Concern("warning", text, f"{link}#storages")


def _approval_concerns(waiting: int) -> Iterable[Concern]:
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        yield Concern("waiting", f"{count_of(waiting, 'request')} {verb} for your answer", "#waiting")


def _finding_concerns(findings: Iterable[Mapping[str, Any]]) -> Iterable[Concern]:
    severities = [finding["severity"] for finding in findings]
    for severity in ("critical", "warning"):
        if number := severities.count(severity):
            yield Concern(severity, count_of(number, f"{severity} finding"), f"{PATH}/findings")


# -- rows as the pages show them ---------------------------------------------------------------------------------------


def describe_node(row: Resource) -> dict[str, Any]:
    return {
        "name": row.node,
        "status": row.status,
        "cpu": row.cpu,
        "memory": row.mem / row.maxmem if row.maxmem else 0.0,
        "memory_text": f"{size(row.mem)} of {size(row.maxmem)}",
        "cores": row.maxcpu,
        "uptime": duration(row.uptime) if row.uptime else "",
    }


def describe_storages(rows: Iterable[Resource]) -> list[dict[str, Any]]:
    """A shared one once, however many nodes reach it."""
    storages = {(row.storage, "" if row.shared else row.node): row for row in rows if row.type == "storage"}
    return [_describe_storage(row) for _, row in sorted(storages.items())]


def _describe_storage(row: Resource) -> dict[str, Any]:
    return {
        "name": row.storage,
        "node": "shared" if row.shared else row.node,
        "type": row.plugintype,
        "status": row.status,
        "share": row.disk / row.maxdisk if row.maxdisk else 0.0,
        "text": f"{size(row.disk)} of {size(row.maxdisk)}" if row.maxdisk else "size not known",
    }
