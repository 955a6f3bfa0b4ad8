"""The freeze, on every page: its state, and the form that sets or lifts it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from quorate.state.freeze import LONGEST_REASON
from quorate.surfaces.web.console.person import Person
from quorate.surfaces.web.console.templates import HEADERS, PATH

if TYPE_CHECKING:
    from quorate.surfaces.web.console.console import Console


def freeze_routes(console: Console) -> list[tuple[Any, ...]]:
    services = console.services

    async def show(request: Request, person: Person) -> Response:
        return await console.show(request, person, "freeze.html")

    async def part(request: Request, person: Person) -> Response:
        return await console.show(request, person, "part_freeze.html")

    async def change(request: Request, person: Person) -> Response:
        person.require_operator("The freeze is")
        form = await console.form(request)
        await console.prove(request, form.get("passphrase", ""))
        if form.get("action") == "unfreeze":
            await services.freeze.lift(console.who(), services.trail)
        else:
            await services.freeze.set(console.who(), form.get("reason", "")[:LONGEST_REASON], services.trail)
        return RedirectResponse(f"{PATH}/freeze", status_code=303, headers=HEADERS)

    return [("/freeze", show), ("/part/freeze", part), ("/freeze", change, "POST")]
