"""What clusters list, and which of them are silent: no page waits for those longer than a moment."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from quorate.console.login import PATIENCE_SECONDS, ConsoleServices, Person
from quorate.console.templates import HEADERS, query
from quorate.pipeline.sites import CLUSTER
from quorate.problems import Problem, TimedOut, Unreachable
from quorate.pve.lookup import Resource
from quorate.units import ago, moment

SILENT_SECONDS = 30.0
"""How long pages wait only briefly for a cluster that did not answer, so that not every page is slow."""
BRIEF_SECONDS = 0.2
RECENT_SECONDS = 5.0
"""A cluster that was asked so recently is not asked again only to see whether it is still silent."""
MOST_REMEMBERED = 32


@dataclass(frozen=True, slots=True)
class ClusterRows:
    """What a cluster lists; of one that does not answer, what it listed before."""

    rows: list[Resource] = field(default_factory=list)
    problem: str = ""
    read_at: float | None = None
    """When an older list was read; None for a current one."""

    def describe_age(self, now: float) -> str:
        return "" if self.read_at is None else f"as of {ago(now - self.read_at)}"


@dataclass(slots=True)
class Silence:
    """A cluster that does not answer."""

    since: float
    asked_at: float
    brief_until: float = 0.0


class ClusterReader:
    """Reads what clusters list, without waiting for a silent one for longer than a page may take."""

    def __init__(self, services: ConsoleServices) -> None:
        self._services = services
        self._last: dict[tuple[str, str], tuple[float, list[Resource]]] = {}
        self._silences: dict[str, Silence] = {}

    def names(self, person: Person) -> list[str]:
        return [site.name for site in self._services.pipeline.sites.open_to(person.caller)]

    async def read(self, cluster: str, person: Person) -> ClusterRows:
        pipeline, now = self._services.pipeline, self._services.now
        silence = self._silences.get(cluster)
        brief = silence is not None and now < silence.brief_until
        try:
            async with asyncio.timeout(BRIEF_SECONDS if brief else PATIENCE_SECONDS):
                argument = cluster if pipeline.sites.several else None
                async with pipeline.inventory(argument, person.caller) as inventory:
                    rows = await inventory.rows()
        except TimeoutError:
            silence = self._note_silence(cluster)
            if not brief:  # otherwise a cluster that answers late would be silent as long as someone looks
                silence.brief_until = self._services.now + SILENT_SECONDS
            return self._recall(cluster, person, f"{cluster} does not answer")
        except Problem as problem:
            if isinstance(problem, (Unreachable, TimedOut)):
                self._note_silence(cluster)
            return self._recall(cluster, person, str(problem))
        self._silences.pop(cluster, None)
        key = self._key(cluster, person)
        self._last.pop(key, None)
        self._last[key] = self._services.now, rows
        while len(self._last) > MOST_REMEMBERED:
            del self._last[next(iter(self._last))]
        return ClusterRows(rows)

    async def read_all(self, person: Person) -> dict[str, ClusterRows]:
        names = self.names(person)
        lists = await asyncio.gather(*(self.read(name, person) for name in names))
        return dict(zip(names, lists, strict=True))

    async def table(self, person: Person, tool: str, **arguments: Any) -> tuple[list[dict[str, Any]], str]:
        """The rows of every cluster that answers, each with its cluster where there are several, and what is wrong
        with the others."""

        async def of_cluster(name: str) -> tuple[list[dict[str, Any]], str]:
            if problem := (await self.read(name, person)).problem:
                return [], problem
            where = self._services.where({CLUSTER: name})
            rows, problem = await self._services.rows_or_problem(person, tool, **arguments, **where)
            return [{**where, **row} for row in rows], problem

        answers = await asyncio.gather(*map(of_cluster, self.names(person)))
        problems = dict.fromkeys(problem for _, problem in answers if problem)
        return [row for rows, _ in answers for row in rows], "; ".join(problems)

    async def runs(self, person: Person, **arguments: Any) -> list[dict[str, Any]]:
        """The runs of every cluster. They are in Quorate's own store, so those of a silent cluster are among them."""

        async def of_cluster(name: str) -> list[dict[str, Any]]:
            where = self._services.where({CLUSTER: name})
            rows = await self._services.rows_in_time(person, "run_list", **arguments, **where)
            return [{**row, **where} for row in rows]

        answers = await asyncio.gather(*map(of_cluster, self.names(person)))
        return [run for runs in answers for run in runs]

    # -- silence -------------------------------------------------------------------------------------------------------

    def is_silent(self, cluster: str | None, person: Person) -> bool:
        """Whether the cluster, or the only one, did not answer when it was last asked."""
        names = self.names(person)
        return (cluster or (names[0] if len(names) == 1 else "")) in self._silences

    async def silent(self, person: Person) -> list[tuple[str, str]]:
        """The clusters that do not answer, and since when. One that answers again is not among them."""
        names = [name for name in self.names(person) if name in self._silences]
        stale = [name for name in names if self._services.now - self._silences[name].asked_at > RECENT_SECONDS]
        await asyncio.gather(*(self.read(name, person) for name in stale))
        return [(name, moment(self._silences[name].since)) for name in names if name in self._silences]

    async def require_answer(self, person: Person, cluster: str | None, guest: str = "") -> None:
        """A cluster that does not answer would keep the page waiting: say so at once, with what was last seen."""
        names = self.names(person)
        name = cluster or (names[0] if len(names) == 1 else "")
        if name not in names:
            return
        listed = await self.read(name, person)
        if not listed.problem:
            return
        row = next((row for row in listed.rows if row.is_guest and guest in (str(row.vmid), row.name)), None)
        age = listed.describe_age(self._services.now)
        last = f"{row.name or guest} was {row.status} on {row.node}, {age}" if row else None
        raise Unreachable(listed.problem, why=last, next_step="Reload the page when the cluster answers again")

    async def complete_address(self, request: Request, person: Person) -> Response | None:
        """Where to find the same page of a guest whose address does not name its cluster; None if it does, or if not
        exactly one cluster lists the guest."""
        ref, parameters = request.path_params["ref"], dict(request.query_params)
        if not self._services.pipeline.sites.several or parameters.get(CLUSTER):
            return None
        having = [
            name
            for name, listed in (await self.read_all(person)).items()
            if any(row.is_guest and ref in (str(row.vmid), row.name) for row in listed.rows)
        ]
        if len(having) != 1:
            return None
        address = query(quote(request.url.path), {**parameters, CLUSTER: having[0]})
        return RedirectResponse(address, status_code=303, headers=HEADERS)

    def _note_silence(self, cluster: str) -> Silence:
        now = self._services.now
        silence = self._silences.setdefault(cluster, Silence(now, now))
        silence.asked_at = now
        return silence

    def _recall(self, cluster: str, person: Person, problem: str) -> ClusterRows:
        read_at, rows = self._last.get(self._key(cluster, person), (None, []))
        return ClusterRows(rows, problem, read_at)

    def _key(self, cluster: str, person: Person) -> tuple[str, str]:
        """Rules may hide guests from one caller that another sees."""
        return cluster, person.caller.subject or ""
