"""What runs and what ran: runs with their controls, and the tasks of the clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from quorate.console.login import Person
from quorate.console.templates import HEADERS, PATH, query
from quorate.pipeline.sites import CLUSTER

if TYPE_CHECKING:
    from quorate.console.console import Console

TASKS = 50
LOG_LINES = 200
CONTROLS = {"waiting": ("pause", "abort"), "running": ("pause", "abort"), "paused": ("resume", "abort")}
"""What a person can do about a run in each state."""


_OF_GUESTS = {
    "start": "start", "stop": "stop", "shutdown": "shut down", "reboot": "reboot", "reset": "reset", "create": "create",
    "destroy": "delete", "clone": "clone", "migrate": "migrate", "snapshot": "take a snapshot", "restore": "restore",
    "rollback": "roll back to a snapshot", "delsnapshot": "delete a snapshot", "template": "convert to a template",
    "resize": "resize a disk", "config": "configure", "suspend": "suspend", "resume": "resume", "move": "move a disk",
}  # fmt: skip
"""What a task does to a guest, by its type without qm or vz."""
_OTHERS = {
    "vzdump": "back up", "aptupdate": "refresh the package lists", "imgcopy": "copy a volume",
    "imgdel": "delete a volume", "download": "download a file", "ociregistrypull": "pull an image",
    "startall": "start all guests",
    "stopall": "stop all guests", "migrateall": "migrate all guests", "hamigrate": "migrate under HA",
    "hastart": "start under HA", "hastop": "stop under HA", "move_volume": "move a volume",
    "vncproxy": "open the console", "vncshell": "open a shell", "prunebackups": "prune backups",
    "replication": "replicate",
}  # fmt: skip


def task_title(task: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """A task as people say it, such as "CT 200 pihole: migrate"; its type if that is not known."""
    task_type, target = str(task.get("type", "")), str(task.get("id") or "")
    kind = {"qm": "VM", "vz": "CT"}.get(task_type[:2], "") if task_type not in _OTHERS else ""
    words = _OTHERS.get(task_type) or (_OF_GUESTS.get(task_type[2:], "") if kind else "") or task_type
    subject = names.get(target) or f"{kind} {target}".strip()
    return f"{subject}: {words}" if subject else words


def activity_routes(console: Console) -> list[tuple[Any, ...]]:
    services = console.services

    async def show(request: Request, person: Person) -> Response:
        (tasks, problem), runs, names = await asyncio.gather(
            console.clusters.table(person, "task_list", limit=TASKS),
            console.clusters.runs(person, state="all"),
            _guest_names(person),
        )
        tasks = sorted(tasks, key=lambda task: str(task["started"]), reverse=True)[:TASKS]
        tasks = [{**task, "title": task_title(task, names[str(task.get(CLUSTER, ""))])} for task in tasks]
        template = "part_activity.html" if request.url.path.endswith("/part/activity") else "activity.html"
        return await console.show(request, person, template, tasks=tasks, problem=problem, runs=runs)

    async def _guest_names(person: Person) -> dict[str, dict[str, str]]:
        """The guests of each cluster by vmid; the only cluster has no name in rows."""
        return {
            services.where({CLUSTER: name}).get(CLUSTER, ""): {
                str(row.vmid): f"{'VM' if row.type == 'qemu' else 'CT'} {row.vmid} {row.name or ''}".strip()
                for row in listed.rows
                if row.is_guest
            }
            for name, listed in (await console.clusters.read_all(person)).items()
        }

    async def show_task(request: Request, person: Person) -> Response:
        where = services.where(request.query_params)
        await console.clusters.require_answer(person, where.get(CLUSTER))
        task = await services.facts(person, "task_get", task=request.path_params["upid"], log_lines=LOG_LINES, **where)
        return await console.show(request, person, "task.html", task=task)

    async def show_run(request: Request, person: Person) -> Response:
        inside = True if services.offers(person, "guest_screenshot") else None
        where = services.where(request.query_params)
        facts = await services.facts(
            person, "run_get", run=request.path_params["id"], lines=LOG_LINES, inside=inside, **where
        )
        run = dict(facts)
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
