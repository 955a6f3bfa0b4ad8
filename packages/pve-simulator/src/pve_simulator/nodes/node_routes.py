"""A node: status, commands, consoles, services and logs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from pve_schema.schema import facts
from pve_simulator.access.directory import ROOT
from pve_simulator.cluster.resources import rows_of
from pve_simulator.guests import status
from pve_simulator.guests.consoles import node_of, open_console, spice_file
from pve_simulator.http import parameters
from pve_simulator.http.permission_check import check_permission
from pve_simulator.http.refusals import Refusal, bad_parameters, failure, forbidden
from pve_simulator.http.routing import Call, Handler, Payload, all_routes, route
from pve_simulator.nodes.certificate_routes import Certificates
from pve_simulator.nodes.services import Service, Services, service_work
from pve_simulator.world import Node, World

_HOUR = 3600.0
_ROUTINE_HOURS = 48


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the journal."""

    time: float
    unit: str
    text: str

    def line(self, host: str) -> str:
        stamp = datetime.fromtimestamp(self.time, UTC).strftime("%b %d %H:%M:%S")
        return f"{stamp} {host} {self.text}"

    def cursor(self, position: int) -> str:
        return f"s=simulator;i={position:x};t={int(self.time * 1_000_000):x}"


def entries(world: World, node: Node) -> list[Entry]:
    """The journal of the node, oldest first."""
    found = [*_boot(node), *_routine(world, node), *_tasks(world, node)]
    return sorted(found, key=lambda entry: entry.time)


def _boot(node: Node) -> Iterable[Entry]:
    at = node.booted_at
    yield Entry(at, "kernel", f"kernel: Linux version {node.kernel} (build@proxmox)")
    yield Entry(at + 4, "systemd", "systemd[1]: Started systemd-journald.service - Journal Service.")
    yield Entry(at + 9, "pve-cluster", "systemd[1]: Started pve-cluster.service - The Proxmox VE cluster filesystem.")
    yield Entry(at + 10, "corosync", "corosync[1102]:   [QUORUM] This node is within the primary component.")
    yield Entry(at + 14, "pvedaemon", "pvedaemon[1204]: starting 3 worker(s)")
    yield Entry(at + 15, "pveproxy", "pveproxy[1210]: starting 3 worker(s)")


def _routine(world: World, node: Node) -> Iterable[Entry]:
    """Hourly routine messages of the last two days."""
    last = world.clock.now() // _HOUR * _HOUR
    for hours in range(_ROUTINE_HOURS):
        at = last - hours * _HOUR
        if at + 17 * 60 <= world.clock.now() and at > node.booted_at:
            yield Entry(at + 17 * 60, "cron", "CRON[88121]: (root) CMD (cd / && run-parts --report /etc/cron.hourly)")


def _tasks(world: World, node: Node) -> Iterable[Entry]:
    for task in world.tasks.newest_first(node.name):
        upid = task.upid
        who = f"pvedaemon[{upid.pid}]: <{upid.user}>"
        yield Entry(float(upid.starttime), "pvedaemon", f"{who} starting task {upid}")
        if task.endtime is not None:
            yield Entry(task.endtime, "pvedaemon", f"{who} end task {upid} {task.exitstatus}")


@route("GET /nodes")
def list_nodes(call: Call) -> list[dict[str, Any]]:
    rows = []
    for node in call.world.nodes.values():
        row = rows_of(call.world).node(node, numbers=call.allowed(f"/nodes/{node.name}", "Sys.Audit"))
        row.pop("cgroup-mode", None)
        rows.append(row | {"ssl_fingerprint": node.fingerprint})
    return rows


@route("GET /nodes/{node}/status")
def node_status(call: Call) -> dict[str, Any]:
    return status.node_status(call.world, call.world.nodes[call.node])


@route("GET /version", "GET /nodes/{node}/version")
def version(call: Call) -> dict[str, Any]:
    world = call.world
    return {"version": world.version, "release": world.release, "repoid": status.repoid(world.version)}


@route("POST /nodes/{node}/execute")
async def execute(call: Call) -> list[dict[str, Any]]:
    """Every command gets its own answer; one that fails does not stop the others."""
    try:
        commands = msgspec.json.decode(call.params["commands"])
    except msgspec.DecodeError as error:
        raise failure("commands param did not contain valid JSON: malformed JSON string") from error
    if not isinstance(commands, list):
        raise failure("commands is not an array")
    return [await _answer(call, command) for command in commands]


async def _answer(call: Call, command: Any) -> dict[str, Any]:
    try:
        return {"status": 200, "data": await _run(call, command)}
    except Refusal as refusal:
        answer: dict[str, Any] = {"status": refusal.status, "message": refusal.message}
        return answer | ({"errors": refusal.errors} if refusal.errors else {})


async def _run(call: Call, command: Any) -> Any:
    if not isinstance(command, dict) or not command.get("path") or not command.get("method"):
        raise failure(f"{command} is not a valid command")
    path = f"/nodes/{call.node}/{str(command['path']).strip('/')}"
    match = facts(call.world.version).find(str(command["method"]).upper(), path)
    known = None if match is None else all_routes().get((match.endpoint.method, match.endpoint.template))
    if match is None or known is None or known.reads_body:
        raise failure(f"no handler for '{path.removeprefix('/')}'")
    given = command.get("args") or {}
    for name in given:
        if name in match.values:
            raise bad_parameters({name: "duplicate parameter"})
    raw = {**given, **match.values}
    check_permission(call.world.access, match.endpoint.permission, call.user, raw)
    errors = match.endpoint.check(raw)
    if errors:
        raise bad_parameters(errors)
    inner = replace(
        call, endpoint=match.endpoint, params=parameters.convert_values(match.endpoint, raw), values=dict(match.values)
    )
    result = known.handler(inner)
    return await result if inspect.isawaitable(result) else result


def _refuse_token(call: Call) -> None:
    """Refuse a shell other than a login prompt to everyone but root@pam."""
    if call.params.get("cmd", "login") != "login" and call.user != ROOT:
        raise forbidden("user != root@pam")


def _path(call: Call) -> str:
    return f"/nodes/{call.node}"


@route("POST /nodes/{node}/vncshell", needs_quorum=False)
def vnc_shell(call: Call) -> dict[str, Any]:
    node_of(call)
    _refuse_token(call)
    console = open_console(call, "vncshell", "", _path(call))
    return console | {"cert": call.world.part(Certificates).authority_pem()}


@route("POST /nodes/{node}/termproxy", needs_quorum=False)
def terminal(call: Call) -> dict[str, Any]:
    node_of(call)
    _refuse_token(call)
    return open_console(call, "vncshell", "", _path(call))


@route("POST /nodes/{node}/spiceshell", needs_quorum=False)
def spice_shell(call: Call) -> dict[str, Any]:
    _refuse_token(call)
    if "@" in call.authid and not call.authid.partition("!")[0].endswith("@pam"):
        raise Refusal(403, "Permission check failed (realm != pam)\n")
    console = open_console(call, "spiceshell", "", _path(call))
    return spice_file(call, f"{call.node} - Proxmox Console", int(console["port"]))


_SERVICES = "/nodes/{node}/services"
_ACTIONS = ("start", "stop", "restart", "reload")


def _service(call: Call) -> Service:
    return call.world.part(Services).of(call.node)[call.values["service"]]


@route(f"GET {_SERVICES}")
def services(call: Call) -> list[dict[str, Any]]:
    return [service.row() for service in call.world.part(Services).of(call.node).values()]


@route(f"GET {_SERVICES}/{{service}}/state")
def state(call: Call) -> dict[str, Any]:
    return _service(call).row()


def _action(action: str) -> Handler:
    def handler(call: Call) -> str:
        service = _service(call)
        return call.start_task(f"srv{action}", service.name, service_work(service, action))

    return handler


for _name in _ACTIONS:
    route(f"POST {_SERVICES}/{{service}}/{_name}", needs_quorum=False)(_action(_name))


@route("GET /nodes/{node}/syslog")
def syslog(call: Call) -> Payload:
    params = call.params
    found = _between(_entries(call), _seconds(params.get("since")), _seconds(params.get("until")))
    if "service" in params:
        found = [entry for entry in found if entry.unit == params["service"].removesuffix(".service")]
    lines = [entry.line(call.node) for entry in found] or ["-- No entries --"]
    return Payload.of_lines(lines, params)


@route("GET /nodes/{node}/journal")
def journal(call: Call) -> list[str]:
    """The lines between two cursors, which come first and last."""
    params: dict[str, Any] = call.params
    known = _entries(call)
    marked = [(entry.cursor(position), entry) for position, entry in enumerate(known)]
    cursors = [cursor for cursor, _ in marked]
    if params.get("startcursor") in cursors:
        marked = marked[cursors.index(params["startcursor"]) :]
    if params.get("endcursor") in cursors:
        marked = [pair for pair in marked if cursors.index(pair[0]) <= cursors.index(params["endcursor"])]
    since, until = params.get("since"), params.get("until")
    marked = [pair for pair in marked if pair[1] in _between([pair[1]], since, until)]
    if "lastentries" in params:
        marked = marked[len(marked) - min(len(marked), params["lastentries"]) :]
    if not marked:
        return []
    return [marked[0][0], *(entry.line(call.node) for _, entry in marked), marked[-1][0]]


def _entries(call: Call) -> list[Entry]:
    return entries(call.world, call.world.nodes[call.node])


def _between(found: list[Entry], since: float | None, until: float | None) -> list[Entry]:
    return [
        entry for entry in found if (since is None or entry.time >= since) and (until is None or entry.time <= until)
    ]


def _seconds(text: str | None) -> float | None:
    """A time such as `2026-01-15 08:00`; the schema has checked its form, but not that there is such a day."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
