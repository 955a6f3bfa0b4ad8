"""Findings, the most severe first, with acknowledge and silence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from quorate.console.login import Person
from quorate.console.templates import HEADERS, PATH
from quorate.operations.registry import Risk, Table
from quorate.problems import Problem

if TYPE_CHECKING:
    from quorate.console.console import Console

MOST = 200


def finding_routes(console: Console) -> list[tuple[Any, ...]]:
    services = console.services

    async def show(request: Request, person: Person) -> Response:
        watched = services.offers(person, "finding_list")
        findings: list[dict[str, Any]] = []
        about: Mapping[str, Any] = {}
        problem = ""
        if watched:
            try:
                data = await services.data(person, "finding_list", limit=MOST)
                findings, about = services.as_rows(data), data.facts if isinstance(data, Table) else {}
            except Problem as error:
                problem = str(error)
        template = "part_findings.html" if request.url.path.endswith("/part/findings") else "findings.html"
        return await console.show(
            request,
            person,
            template,
            findings=findings,
            about=about,
            problem=problem,
            watched=watched,
            answerable=services.offers(person, "finding_acknowledge"),
        )

    async def show_one(request: Request, person: Person) -> Response:
        finding = await services.facts(person, "finding_get", finding=request.path_params["id"])
        return await console.show(
            request,
            person,
            "finding.html",
            finding=finding,
            suggestion=await _suggestion(person, request.path_params["id"]),
            answerable=services.offers(person, "finding_acknowledge"),
        )

    async def _suggestion(person: Person, number: str) -> str:
        """The words on the button that makes the suggested call; empty if this person cannot make it."""
        stored = await services.findings.get(number)
        tool = stored.seen_as.next.tool if stored is not None else ""
        if not tool or not services.offers(person, tool):
            return ""
        return "Look closer" if services.pipeline.operation(tool).risk is Risk.READ else "See what would fix it"

    async def answer(request: Request, person: Person) -> Response:
        form = await console.form(request)
        finding = request.path_params["id"]
        await services.run(
            person,
            "finding_acknowledge",
            finding=finding,
            silence=form.get("silence") or None,
            note=form.get("note") or None,
        )
        page = "" if form.get("from") == "list" else f"/{finding}"
        return RedirectResponse(f"{PATH}/findings{page}", status_code=303, headers=HEADERS)

    return [
        ("/findings", show),
        ("/part/findings", show),
        ("/findings/{id}", show_one),
        ("/findings/{id}", answer, "POST"),
    ]
