"""The search over everything that the console shows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from quorate.console.hosts import MOST_HOSTS
from quorate.console.login import Person
from quorate.console.templates import HEADERS, PATH, query
from quorate.pipeline.sites import CLUSTER

if TYPE_CHECKING:
    from quorate.console.console import Console

MOST_HITS = 20
"""Of each kind of thing."""
SHORTEST = 2


@dataclass(frozen=True, slots=True)
class Hit:
    kind: str
    text: str
    link: str


def search_routes(console: Console) -> list[tuple[Any, ...]]:
    services = console.services

    async def show(request: Request, person: Person) -> Response:
        text = request.query_params.get("q", "").strip()[:100]
        hits: list[Hit] = []
        if len(text) >= SHORTEST or text.isdigit():
            words = text.casefold()
            groups = await asyncio.gather(_pages(words, person), _clusters(words, person), _records(words, person))
            hits = [hit for group in groups for hit in group]
        if len(hits) == 1:
            return RedirectResponse(hits[0].link, status_code=303, headers=HEADERS)
        return await console.show(request, person, "search.html", text=text, hits=hits)

    async def _pages(words: str, person: Person) -> list[Hit]:
        return [
            Hit("page", title, PATH + path) for path, title in console.pages_of(person) if words in title.casefold()
        ]

    async def _clusters(words: str, person: Person) -> list[Hit]:
        hits: dict[str, list[Hit]] = {"guest": [], "node": [], "storage": []}
        for name, listed in (await console.clusters.read_all(person)).items():
            where = services.where({CLUSTER: name})
            inventory = query(f"{PATH}/inventory", where)
            place = f" in {name}" if where else ""
            for row in listed.rows:
                if row.is_guest and words in f"{row.vmid} {row.name} {row.tags} {row.pool}".casefold():
                    link = query(f"{PATH}/guests/{row.vmid}", where)
                    hits["guest"].append(Hit("guest", f"{row.vmid} {row.name or ''} on {row.node}{place}", link))
                elif row.type == "node" and words in row.node.casefold():
                    hits["node"].append(Hit("node", f"{row.node}{place}", inventory))
                elif row.type == "storage" and words in row.storage.casefold():
                    hits["storage"].append(
                        Hit("storage", f"{row.storage} on {row.node}{place}", f"{inventory}#storages")
                    )
        return [hit for kind in hits.values() for hit in kind[:MOST_HITS]]

    async def _records(words: str, person: Person) -> list[Hit]:
        """Hosts, findings and pending requests: what is in Quorate's own store."""
        hosts = await services.rows_in_time(person, "host_list", clusters=False, limit=MOST_HOSTS)
        findings = await services.rows_in_time(person, "finding_list", limit=200)
        pending = await services.approvals.list() if person.is_operator else []
        return [
            *_first(
                Hit("host", f"{host['name']} {host.get('address', '')}", f"{PATH}/hosts/{quote(host['name'])}")
                for host in hosts
                if any(words in str(value).casefold() for value in host.values())
            ),
            *_first(
                Hit("finding", finding["finding"], f"{PATH}/findings/{finding['id']}")
                for finding in findings
                if words in f"{finding['id']} {finding['finding']} {finding['kind']}".casefold()
            ),
            *_first(
                Hit("request", row.summary, f"{PATH}/approvals/{row.id}")
                for row in pending
                if person.reaches(row.cluster) and words in f"{row.id} {row.summary} {row.caller}".casefold()
            ),
        ]

    return [("/search", show)]


def _first(hits: Iterable[Hit]) -> list[Hit]:
    return list(hits)[:MOST_HITS]
