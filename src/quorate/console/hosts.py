"""Hosts outside the clusters: what is registered, how each is, and the containers on it.

What needs a login to a machine is a part of its own, which the page loads when it is already shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from quorate.console.login import Person
from quorate.problems import NotFound

if TYPE_CHECKING:
    from quorate.console.console import Console

MOST_HOSTS = 500
PARTS = {"status": "host_status", "containers": "workload_list"}


def host_routes(console: Console) -> list[tuple[Any, ...]]:
    services = console.services

    async def show(request: Request, person: Person) -> Response:
        hosts, problem = await services.rows_or_problem(person, "host_list", clusters=False, limit=MOST_HOSTS)
        return await console.show(
            request, person, "hosts.html", hosts=hosts, problem=problem, parts=_parts(person, "status")
        )

    async def show_one(request: Request, person: Person) -> Response:
        name = request.path_params["name"]
        host = await services.facts(person, "host_list", host=name)
        return await console.show(request, person, "host.html", name=name, host=host, parts=_parts(person, *PARTS))

    async def show_part(request: Request, person: Person) -> Response:
        """One table about a host, or about all of them."""
        part, name = request.path_params["part"], request.query_params.get("host", "all")
        if part not in PARTS:
            raise NotFound("A host has no such part")
        rows, problem = await services.rows_or_problem(person, PARTS[part], host=name)
        return await console.show(request, person, "part_host.html", part=part, rows=rows, problem=problem)

    def _parts(person: Person, *names: str) -> list[str]:
        return [name for name in names if services.offers(person, PARTS[name])]

    return [("/hosts", show), ("/hosts/{name}", show_one), ("/part/hosts/{part}", show_part)]
