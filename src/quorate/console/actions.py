"""Buttons that change something: each shows its plan first, and runs through the same gates as a call of its tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from quorate.config.clusters import HOMELAB, SERVER
from quorate.console.login import Person
from quorate.console.templates import HEADERS, PATH, query
from quorate.operations.registry import PIPELINE_ARGUMENTS, Table
from quorate.pipeline.sites import CLUSTER
from quorate.problems import NotFound, Problem
from quorate.surfaces import rendering
from quorate.surfaces.web.operator_api import status_of

if TYPE_CHECKING:
    from quorate.console.console import Console


@dataclass(frozen=True, slots=True)
class GuestAction:
    name: str
    label: str
    tool: str
    arguments: Mapping[str, Any]
    states: tuple[str, ...] = ("running", "stopped")
    """The states of a guest in which its page offers this."""


GUEST_ACTIONS = (
    GuestAction("start", "Start", "guest_power", {"action": "start"}, ("stopped",)),
    GuestAction("shutdown", "Shut down", "guest_power", {"action": "shutdown"}, ("running",)),
    GuestAction("reboot", "Reboot", "guest_power", {"action": "reboot"}, ("running",)),
    GuestAction("snapshot", "Snapshot", "snapshot_create", {}),
    GuestAction("backup", "Back up", "backup_create", {}),
)


FILE_RESTORE = "backup_file_restore"
FILE_FIELDS = ("backup", "path", "to")


@dataclass(frozen=True, slots=True)
class ChosenCall:
    """A call that a button makes, and the page to return to."""

    tool: str
    arguments: Mapping[str, Any]
    back: str


def action_routes(console: Console) -> list[tuple[Any, ...]]:
    services = console.services

    def act(choose: Any) -> tuple[Any, Any]:
        """The page with the plan, and its form."""

        async def show_plan(request: Request, person: Person) -> Response:
            chosen = await choose(request, person)
            operation = services.pipeline.operation(chosen.tool)
            changes = operation.changes
            if not operation.about_homelab:
                await console.clusters.require_answer(person, services.where(chosen.arguments).get(CLUSTER))
            rehearsal = {"dry_run": True} if changes else {}
            data = await services.data(person, chosen.tool, **chosen.arguments, **rehearsal)
            return await _show(request, person, chosen, data, confirmable=changes)

        async def carry_out(request: Request, person: Person) -> Response:
            chosen = await choose(request, person)
            try:
                data = await services.data(person, chosen.tool, **chosen.arguments)
            except Problem as problem:  # such as an approval that is needed first: the same button works after it
                text = rendering.problem_text(problem)
                return await _show(
                    request,
                    person,
                    chosen,
                    {},
                    status_of(problem),
                    problem=text,
                    approval=problem.facts.get("approval"),
                    confirmable=True,
                )
            task = data.get("task") if isinstance(data, dict) else None
            if isinstance(task, str):
                address = query(f"{PATH}/tasks/{task}", services.where(chosen.arguments))
                return RedirectResponse(address, status_code=303, headers=HEADERS)
            return await _show(request, person, chosen, data)

        return show_plan, carry_out

    async def _show(
        request: Request, person: Person, chosen: ChosenCall, data: Any, status: int = 200, **context: Any
    ) -> Response:
        return await console.show(
            request,
            person,
            "action.html",
            status,
            tool=chosen.tool,
            back=chosen.back,
            rows=services.as_rows(data),
            facts=data.facts if isinstance(data, Table) else data,
            snapshot=chosen.arguments.get("snapshot") or (isinstance(data, dict) and data.get("snapshot")),
            **context,
        )

    async def choose_for_guest(request: Request, _: Person) -> ChosenCall:
        name, guest = request.path_params["action"], request.path_params["ref"]
        where = services.where(request.query_params)
        for action in GUEST_ACTIONS:
            if action.name == name:
                arguments = {"guest": guest, **action.arguments, **where}
                if snapshot := (await console.form(request)).get("snapshot"):
                    arguments["snapshot"] = snapshot  # its default is the time, and an approval is for one name
                return ChosenCall(action.tool, arguments, query(f"{PATH}/guests/{guest}", where))
        raise NotFound("The console has no such action")

    async def show_guest_plan(request: Request, person: Person) -> Response:
        plan: Response | None = await console.clusters.complete_address(request, person)
        return plan or await guest_plan(request, person)

    async def choose_file(request: Request, _: Person) -> ChosenCall:
        guest, where = request.path_params["ref"], services.where(request.query_params)
        arguments = {name: value for name in FILE_FIELDS if (value := request.query_params.get(name, "").strip())}
        back = query(f"{PATH}/guests/{guest}/restore-file", {**arguments, **where}, form="yes")
        return ChosenCall(FILE_RESTORE, {"guest": guest, **arguments, **where}, back)

    async def show_file_form(request: Request, person: Person) -> Response:
        """Which file of which backup; with both, the plan."""
        fields = {name: request.query_params.get(name, "").strip() for name in FILE_FIELDS}
        guest, where = request.path_params["ref"], services.where(request.query_params)
        problem, status = "", 200
        if elsewhere := await console.clusters.complete_address(request, person):
            return elsewhere
        if fields["backup"] and fields["path"] and not request.query_params.get("form"):
            try:
                plan: Response = await file_plan(request, person)
                return plan
            except Problem as error:  # the form again, as it was filled in
                problem, status = rendering.problem_text(error), status_of(error)
        await console.clusters.require_answer(person, where.get(CLUSTER), guest)
        backups = await services.rows(person, "backup_list", guest=guest, **where)
        return await console.show(
            request,
            person,
            "restore_file.html",
            status,
            guest=guest,
            where=where,
            back=query(f"{PATH}/guests/{guest}", where),
            backups=[backup for backup in backups if is_browsable(backup)],
            fields=fields,
            problem=problem,
        )

    async def choose_for_finding(request: Request, person: Person) -> ChosenCall:
        number = request.path_params["id"]
        await services.facts(person, "finding_get", finding=number)  # refuses what this person may not see
        finding = await services.findings.get(number)
        if finding is None or not finding.seen_as.next.tool:
            raise NotFound("This finding suggests no call")
        call = finding.seen_as.next
        arguments = {name: value for name, value in call.arguments.items() if name not in PIPELINE_ARGUMENTS}
        is_of_a_cluster = finding.cluster not in (HOMELAB, SERVER)
        if is_of_a_cluster and not services.pipeline.operation(call.tool).about_homelab:
            arguments = {**services.where({CLUSTER: finding.cluster}), **arguments}
        return ChosenCall(call.tool, arguments, f"{PATH}/findings/{number}")

    file_plan, file_act = act(choose_file)
    guest_plan, guest_act = act(choose_for_guest)
    finding_plan, finding_act = act(choose_for_finding)
    return [
        ("/guests/{ref}/restore-file", show_file_form),
        ("/guests/{ref}/restore-file", file_act, "POST"),
        ("/guests/{ref}/{action}", show_guest_plan),
        ("/guests/{ref}/{action}", guest_act, "POST"),
        ("/findings/{id}/next", finding_plan),
        ("/findings/{id}/next", finding_act, "POST"),
    ]


def guest_actions(offered: Any, guest: Mapping[str, Any]) -> list[GuestAction]:
    """What the page of this guest offers; `offered` says whether a tool is the person's to use."""
    if guest.get("template"):
        return []
    return [action for action in GUEST_ACTIONS if guest.get("status") in action.states and offered(action.tool)]


def is_browsable(backup: Mapping[str, Any]) -> bool:
    """Whether PVE can look into a backup: only into those on a Proxmox Backup Server."""
    _, _, name = str(backup.get("backup", "")).partition(":")
    return name.startswith(("backup/vm/", "backup/ct/"))
