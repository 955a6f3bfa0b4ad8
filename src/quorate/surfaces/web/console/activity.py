"""Runs and tasks: what is being done, how far it is, and what was done lately."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from quorate.surfaces.web.console.person import Person
from quorate.surfaces.web.console.templates import HEADERS, PATH, query

if TYPE_CHECKING:
    from quorate.surfaces.web.console.console import Console

TASKS = 50
LOG_LINES = 200
CONTROLS = {"waiting": ("pause", "abort"), "running": ("pause", "abort"), "paused": ("resume", "abort")}
"""What a person can do about a run in each state."""


def activity_routes(console: Console) -> list[tuple[Any, ...]]:
    services = console.services

    async def show(request: Request, person: Person) -> Response:
        tasks, problem = await services.rows_or_problem(person, "task_list", limit=TASKS)
        runs: list[dict[str, Any]] = []
        runs_problem = ""
        if services.offers(person, "run_list"):
            runs, runs_problem = await services.rows_or_problem(person, "run_list", state="all")
        template = "part_activity.html" if request.url.path.endswith("/part/activity") else "activity.html"
        return await console.show(
            request, person, template, tasks=tasks, problem=problem, runs=runs, runs_problem=runs_problem
        )

    async def show_task(request: Request, person: Person) -> Response:
        task = await services.facts(person, "task_get", task=request.path_params["upid"], log_lines=LOG_LINES)
        return await console.show(request, person, "task.html", task=task)

    async def show_run(request: Request, person: Person) -> Response:
        inside = True if services.offers(person, "guest_screenshot") else None
        where = services.where(request.query_params)
        found = await services.facts(
            person, "run_get", run=request.path_params["id"], lines=LOG_LINES, inside=inside, **where
        )
        run = dict(found)
        log, state = run.pop("log", []), str(run.get("state"))
        controls = CONTROLS.get(state, ()) if services.offers(person, "run_control") else ()
        template = "part_run.html" if "/part/" in request.url.path else "run.html"
        return await console.show(request, person, template, run=run, log=log, controls=controls)

    async def control_run(request: Request, person: Person) -> Response:
        form = await console.form(request)
        run, where = request.path_params["id"], services.where(request.query_params)
        await services.run(person, "run_control", run=run, action=form.get("action", ""), **where)
        return RedirectResponse(query(f"{PATH}/runs/{run}", where), status_code=303, headers=HEADERS)

    return [
        ("/activity", show),
        ("/part/activity", show),
        ("/tasks/{upid}", show_task),
        ("/runs/{id}", show_run),
        ("/part/runs/{id}", show_run),
        ("/runs/{id}", control_run, "POST"),
    ]
