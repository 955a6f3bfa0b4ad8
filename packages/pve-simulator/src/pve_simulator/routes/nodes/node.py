"""A node: status, power, commands, consoles and reports."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from pve_schema.schema import facts
from pve_simulator.access.directory import ROOT
from pve_simulator.cluster.resources import rows_of
from pve_simulator.guests import power, status
from pve_simulator.guests.consoles import node_of, open_console, spice_file
from pve_simulator.guests.guest import Guest
from pve_simulator.http import parameters
from pve_simulator.http.permission_check import check_permission
from pve_simulator.http.refusals import Refusal, bad_parameters, existing, failure, forbidden
from pve_simulator.http.routing import Call, all_routes, route
from pve_simulator.nodes.tasks import TaskContext, TaskError, Work
from pve_simulator.routes.cluster.bulk_action import in_start_order
from pve_simulator.routes.nodes.apt import Packages
from pve_simulator.routes.nodes.certificates import Certificates
from pve_simulator.routes.nodes.settings import Settings
from pve_simulator.world import ListOrder, Node, World

# PVE answers first and acts after this delay; then services stop, and the boot takes a while.
_GRACE_SECONDS = 2.0
_HALT_SECONDS = 4.0
_BOOT_SECONDS = 75.0


class NodePower:
    """The nodes that are going down or booting."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._leaving: set[str] = set()

    def switch_off(self, node: Node, *, reboot: bool) -> None:
        """Stop the guests, then the node; after a reboot it comes back."""
        if node.name not in self._leaving:
            self._leaving.add(node.name)
            self._world.tasks.in_background(self._go_down(node, reboot=reboot))

    def wake(self, node: Node) -> None:
        """Wake the node by Wake-on-LAN."""
        if not node.online and node.name not in self._leaving:
            self._world.tasks.in_background(self._come_up(node))

    async def _go_down(self, node: Node, *, reboot: bool) -> None:
        world = self._world
        await world.clock.sleep(_GRACE_SECONDS)
        await world.tasks.wait_for(world.tasks.start(node.name, "stopall", "", ROOT, _stop_all(world, node.name)))
        await world.clock.sleep(_HALT_SECONDS)
        for guest in _running(world, node.name):
            guest.stop_running()
        self._set_online(node, online=False)
        self._leaving.discard(node.name)
        if reboot:
            await self._come_up(node)

    async def _come_up(self, node: Node) -> None:
        world = self._world
        self._leaving.add(node.name)
        await world.clock.sleep(_BOOT_SECONDS)
        node.booted_at = world.clock.now()
        node.kernel = node.installed_kernel or node.kernel
        self._set_online(node, online=True)
        self._leaving.discard(node.name)
        world.tasks.start(node.name, "startall", "", ROOT, _start_all(world, node.name))

    def _set_online(self, node: Node, *, online: bool) -> None:
        now = self._world.clock.now()
        node.online = online
        known = node.outages
        if online and known:
            known[-1] = (known[-1][0], now)
        elif not online:
            known.append((now, float("inf")))
        for guest in self._world.guests_on(node.name):
            guest.touch()


def _running(world: World, node: str) -> list[Guest]:
    return [guest for guest in world.guests_on(node) if guest.running]


def _stop_all(world: World, node: str) -> Work:
    async def work(context: TaskContext) -> None:
        for guest in _running(world, node):
            context.log(f"Stopping {guest.word} {guest.vmid} (timeout = 180 seconds)")
            address = power.GuestAddress.of_guest(world, guest)
            try:
                await power.shutdown(address, timeout=180, force_stop=True, skiplock=True)(context)
            except TaskError as error:
                context.warn(str(error))

    return work


def _start_all(world: World, node: str) -> Work:
    async def work(context: TaskContext) -> None:
        for guest in (guest for group in in_start_order(world.guests_on(node)) for guest in group):
            if guest.running or not guest.config.get("onboot"):
                continue
            context.log(f"Starting {guest.word} {guest.vmid}")
            try:
                await power.start(power.GuestAddress.of_guest(world, guest))(context)
            except TaskError as error:
                context.warn(str(error))

    return work


@route("GET /nodes")
def list_nodes(call: Call) -> list[dict[str, Any]]:
    rows = []
    for node in call.world.nodes.values():
        row = rows_of(call.world).node(node, numbers=call.allowed(f"/nodes/{node.name}", "Sys.Audit"))
        row.pop("cgroup-mode", None)
        rows.append(row | {"ssl_fingerprint": node.fingerprint})
    return call.world.part(ListOrder).shuffle(rows)


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
    arguments = command.get("args") or {}
    for name in arguments:
        if name in match.values:
            raise bad_parameters({name: "duplicate parameter"})
    raw = {**arguments, **match.values}
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


@route("GET /nodes/{node}/netstat")
def netstat(call: Call) -> list[dict[str, str]]:
    """The counters of the guests' network devices, as text."""
    rows = []
    now = call.world.clock.now()
    for guest in call.world.guests_on(call.node):
        if not guest.running:
            continue
        cards = sorted(key for key in guest.config if re.fullmatch(r"net\d+", key))
        moving = status.load(call.world, guest, now)
        for card in cards:
            share = {"in": str(moving["netin"] // len(cards)), "out": str(moving["netout"] // len(cards))}
            rows.append({"vmid": str(guest.vmid), "dev": card, **share})
    return rows


@route("GET /nodes/{node}/report")
def report(call: Call) -> str:
    """The system report for support."""
    world, node = call.world, call.world.nodes[call.node]
    settings, shown = call.world.part(Settings).of(call.node), status.node_status(call.world, node)
    written = datetime.fromtimestamp(world.clock.now(), UTC).strftime("%a %d %b %Y %I:%M:%S %p UTC")
    versions = [f"{row['Package']}: {row['Version']}" for row in world.part(Packages).versions(node)]
    guests = [f"{guest.vmid} {guest.name} {guest.status}" for guest in world.guests_on(node.name)]
    storages = [f"{storage.type}: {storage.id}" for storage in world.storages.values()]
    sections = {
        "general system info": ["# hostname", node.name, "# date", written, "# pveversion --verbose", *versions],
        "overall system load info": ["# uptime", f"load average: {', '.join(shown['loadavg'])}"],
        "hosts and name service": ["# cat /etc/hosts", settings.hosts],
        "info about storage": ["# cat /etc/pve/storage.cfg", *storages],
        "info about virtual guests": ["# qm list; pct list", *guests],
        "info about the cluster": ["# pvecm nodes", *world.nodes],
    }
    return "\n\n".join(f"==== {title} ====\n\n" + "\n".join(lines) for title, lines in sections.items()) + "\n"


@route("POST /nodes/{node}/status", needs_quorum=False)
def switch_power(call: Call) -> None:
    reboot = call.params["command"] == "reboot"
    call.world.part(NodePower).switch_off(call.world.nodes[call.node], reboot=reboot)


@route("POST /nodes/{node}/wakeonlan", needs_quorum=False)
def wake(call: Call) -> str:
    name = call.node
    if name in ("localhost", call.local_node.name):
        raise failure(f"'{name}' is local node, cannot wake my self!")
    node = existing(call.world.nodes.get(name), f"no such cluster node '{name}'")
    missing = f"No wake on LAN MAC address defined for '{name}'!"
    setting = existing(call.world.part(Settings).of(call.node).options.get("wakeonlan"), missing)
    call.world.part(NodePower).wake(node)
    return str(setting).split(",")[0].removeprefix("mac=")
