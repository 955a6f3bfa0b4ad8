"""What the HA manager is doing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from quorate.sim.ha_manager import HaManager
from quorate.sim.routing import Call, route
from quorate.sim.world import HaResource


@route("GET /cluster/ha/status")
def index(call: Call) -> list[dict[str, str]]:
    names = ["current", "manager_status"]
    if call.world.version_at_least(9, 1):
        names += ["disarm-ha", "arm-ha"]
    return [{"name": name} for name in names]


@route("GET /cluster/ha/status/current")
def current(call: Call) -> list[dict[str, Any]]:
    world, manager = call.world, call.world.part(HaManager)
    here = call.local_node.name
    quorum = {
        "id": "quorum",
        "type": "quorum",
        "node": here,
        "status": "OK" if world.quorate else f"No quorum on node '{here}'!",
        "quorate": int(world.quorate),
    }
    rows: list[dict[str, Any]] = [quorum]
    if manager.active:
        rows.append(_master_row(call, manager))
    if world.version_at_least(9, 1):
        rows.append(_fencing_row(here, manager))
    if manager.active:
        rows += [_lrm_row(call, node) for node in sorted(world.nodes)]
    return rows + [_service_row(call, world.ha[sid]) for sid in sorted(world.ha)]


def _master_row(call: Call, manager: HaManager) -> dict[str, Any]:
    return {
        "id": "master",
        "type": "master",
        "node": manager.master,
        "status": f"{manager.master} (active, {_time_text(call)})",
        "timestamp": int(call.world.clock.now()),
    }


def _fencing_row(node: str, manager: HaManager) -> dict[str, Any]:
    row: dict[str, Any] = {"id": "fencing", "type": "fencing", "node": node}
    if manager.resource_mode is not None:
        mode = manager.resource_mode
        return row | {"armed-state": "disarmed", "resource_mode": mode, "status": f"disarmed, resource mode: {mode}"}
    if manager.active:
        return row | {"armed-state": "armed", "status": "armed (CRM watchdog active)"}
    return row | {"armed-state": "standby", "status": "standby (CRM watchdog standby)"}


def _lrm_row(call: Call, name: str) -> dict[str, Any]:
    world = call.world
    carries = any(_node_of(call, each) == name and each.state != "ignored" for each in world.ha.values())
    state = "active" if carries else "idle"
    if not world.nodes[name].online:
        state = "old timestamp - dead?"
    return {
        "id": f"lrm:{name}",
        "type": "lrm",
        "node": name,
        "status": f"{name} ({state}, {_time_text(call)})",
        "timestamp": int(world.clock.now()),
    }


def _service_row(call: Call, resource: HaResource) -> dict[str, Any]:
    node = _node_of(call, resource)
    row: dict[str, Any] = {
        "id": f"service:{resource.sid}",
        "type": "service",
        "sid": resource.sid,
        "state": resource.shown_state,
        "status": f"{resource.sid} ({node or '---'}, {resource.shown_state})",
        "request_state": resource.state,
        "max_restart": resource.max_restart,
        "max_relocate": resource.max_relocate,
    }
    if node is not None:
        row["node"] = node
    if resource.crm_state is not None:
        row["crm_state"] = resource.crm_state
    if call.world.version_at_least(9, 0):
        row["failback"] = int(resource.failback)
    named = {"group": resource.group, "comment": resource.comment}
    return row | {name: value for name, value in named.items() if value is not None}


@route("GET /cluster/ha/status/manager_status")
def manager_status(call: Call) -> dict[str, Any]:
    world, manager = call.world, call.world.part(HaManager)
    now = int(world.clock.now())
    found: dict[str, Any] = {
        "quorum": {"node": call.local_node.name, "quorate": "1" if world.quorate else ""},
        "manager_status": {"node_status": {}},
    }
    if not manager.active:
        return found
    found["manager_status"] = {
        "master_node": manager.master,
        "timestamp": now,
        "node_status": {name: "online" if node.online else "unknown" for name, node in world.nodes.items()},
        "service_status": {
            sid: {"node": _node_of(call, each), "state": each.crm_state, "running": _running(call, each)}
            for sid, each in sorted(world.ha.items())
            if each.crm_state is not None
        },
    }
    found["lrm_status"] = {
        name: {"mode": "active", "state": "active", "timestamp": now, "results": {}} for name in sorted(world.nodes)
    }
    return found


@route("POST /cluster/ha/status/disarm-ha")
def disarm(call: Call) -> None:
    call.world.part(HaManager).resource_mode = call.params["resource-mode"]


@route("POST /cluster/ha/status/arm-ha")
def arm(call: Call) -> None:
    manager = call.world.part(HaManager)
    manager.resource_mode = None
    manager.wake()


def _node_of(call: Call, resource: HaResource) -> str | None:
    guest = call.world.part(HaManager).guest_of(resource.sid)
    return None if guest is None else guest.node


def _running(call: Call, resource: HaResource) -> int:
    guest = call.world.part(HaManager).guest_of(resource.sid)
    return int(guest is not None and guest.running)


def _time_text(call: Call) -> str:
    return f"{datetime.fromtimestamp(call.world.clock.now(), UTC):%a %b %e %H:%M:%S %Y}"
