"""HA resources, and the status of the HA manager."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from pve_simulator.cluster.config_files import changing, check_digest, digest_of, encode_value
from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import existing, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.world import HaResource

_OPTIONS = ("state", "group", "comment", "max_restart", "max_relocate", "failback", "auto-rebalance")
_GUEST_TYPES = {"vm": "virtual machine", "ct": "container"}
_VMID = re.compile(r"[1-9][0-9]{1,8}")
_MIGRATED = "ha groups have been migrated to rules"


@route("GET /cluster/ha")
def index(call: Call) -> list[dict[str, str]]:
    names = ["status", "resources", "groups", *(["rules"] if call.world.version_at_least(9, 0) else [])]
    return [{"id": name} for name in names]


@route("GET /cluster/ha/resources")
def list_resources(call: Call) -> list[dict[str, Any]]:
    wanted = call.params.get("type")
    return [_describe(call, each) for each in call.world.ha.values() if wanted in (None, _type_of(each.sid))]


@route("GET /cluster/ha/resources/{sid}")
def read_resource(call: Call) -> dict[str, Any]:
    return _describe(call, _existing(call))


@route("POST /cluster/ha/resources")
def create_resource(call: Call) -> None:
    world, given = call.world, str(call.params["sid"])
    if ":" not in given and int(given) not in world.guests:
        raise failure(f"unable to detect SID from VMID - VM/CT {given} does not exist")
    sid = _sid(call)
    kind, _, vmid = sid.partition(":")
    if kind not in _GUEST_TYPES:
        raise failure(f"unknown section type '{kind}'")
    if call.params.get("type", kind) != kind:
        raise failure("types does not match")
    if not _VMID.fullmatch(vmid):
        raise failure("invalid VMID")
    guest = existing(world.guests.get(int(vmid)), f"resource '{sid}' does not exist in cluster")
    if guest.sid != sid:
        raise failure(f"resource '{sid}' - guest with ID {vmid} is not a {_GUEST_TYPES[kind]}")
    _refuse_group(call)
    with changing("create resource failed"):
        if sid in world.ha:
            raise failure(f"resource ID '{sid}' already defined")
    resource = HaResource(sid, crm_state=None, shown_state="queued")
    _set_options(resource, _read_options(call))
    world.ha[sid] = resource
    if resource.state == "ignored":
        resource.shown_state = "ignored"
    guest.touch()
    world.part(HaManager).wake()


@route("PUT /cluster/ha/resources/{sid}")
def change_resource(call: Call) -> None:
    sid = _sid(call)
    _refuse_group(call)
    _check_not_in_error(call, sid, call.params.get("state"))
    manager = call.world.part(HaManager)
    with changing("update resources config failed"):
        check_digest(_digest(call), call.params.get("digest"))
        resource = _existing(call)
        unwanted = split_list(call.params.get("delete"))
        for name in unwanted:
            if name not in _OPTIONS:
                raise failure(f"no such option '{name}'")
    for name in unwanted:
        resource.given.pop(name, None)
    _set_options(resource, resource.given | _read_options(call))
    if "state" in call.params or "state" in unwanted:
        explicit = "state" in resource.given
        manager.request_state(resource, resource.state)
        if not explicit:
            del resource.given["state"]
    manager.wake()


@route("DELETE /cluster/ha/resources/{sid}")
def delete_resource(call: Call) -> None:
    sid = _sid(call)
    if sid not in call.world.ha:
        raise failure(f"cannot delete service '{sid}', not HA managed!")
    manager = call.world.part(HaManager)
    del call.world.ha[sid]
    if call.params.get("purge", True):
        manager.rules.drop_resource(sid)
    manager.forget(sid)


@route("POST /cluster/ha/resources/{sid}/migrate", "POST /cluster/ha/resources/{sid}/relocate")
def move(call: Call) -> dict[str, Any] | None:
    """Queue the move; PVE 9 lists the resources that move along or block it."""
    sid, node = _sid(call), call.params["node"]
    resource = call.world.ha.get(sid)
    if resource is None or resource.state == "ignored":
        raise failure(f"resource '{sid}' is not HA managed")
    _check_not_in_error(call, sid, None)
    manager = call.world.part(HaManager)
    dependent, _ = manager.motion_of(sid)
    blocking = manager.request_move(sid, call.endpoint.template.rpartition("/")[2], node)
    if not call.world.version_at_least(9, 0):
        return None
    answer: dict[str, Any] = {"sid": sid, "requested-node": node}
    if blocking:
        return answer | {"blocking-resources": blocking}
    return answer | ({"comigrated-resources": dependent} if dependent else {})


def _check_not_in_error(call: Call, sid: str, wanted: str | None) -> None:
    resource = call.world.ha.get(sid)
    if resource is not None and resource.crm_state == "error" and wanted != "disabled":
        raise failure(f"service '{sid}' in error state, must be disabled and fixed first")


def _refuse_group(call: Call) -> None:
    group = call.params.get("group")
    if group is None:
        return
    if call.world.version_at_least(9, 0):
        raise failure(f"invalid parameter 'group': {_MIGRATED}")
    if group not in call.world.part(HaManager).rules.groups.sections:
        raise failure(f"HA group '{group}' does not exist")


def _sid(call: Call) -> str:
    """The resource's sid; a bare number is a vmid."""
    sid = str(call.params["sid"])
    if ":" in sid:
        return sid
    guest = call.world.guests.get(int(sid)) if _VMID.fullmatch(sid) else None
    return guest.sid if guest is not None else f"vm:{sid}"


def _existing(call: Call) -> HaResource:
    sid = _sid(call)
    if sid not in call.world.ha:
        raise failure(f"no such resource '{sid}'")
    return call.world.ha[sid]


def _read_options(call: Call) -> dict[str, Any]:
    return {name: encode_value(call.params[name]) for name in _OPTIONS if name in call.params}


def _set_options(resource: HaResource, options: dict[str, Any]) -> None:
    """Set the given options, with PVE's defaults for the rest."""
    resource.given = dict(options)
    state = options.get("state", "started")
    resource.state = "started" if state == "enabled" else state
    resource.comment = options.get("comment")
    resource.max_restart = options.get("max_restart", 1)
    resource.max_relocate = options.get("max_relocate", 1)
    resource.failback = bool(options.get("failback", 1))
    resource.group = options.get("group")


def _options_of(resource: HaResource) -> dict[str, Any]:
    """The options of its section; a power action may have changed the state since."""
    shown = dict(resource.given)
    if resource.comment is not None:
        shown["comment"] = resource.comment
    if "state" in shown or resource.state != "started":
        shown["state"] = resource.state
    return shown


def _type_of(sid: str) -> str:
    return sid.partition(":")[0]


def _digest(call: Call) -> str:
    return digest_of({"sid": each.sid, **_options_of(each)} for each in call.world.ha.values())


def _describe(call: Call, resource: HaResource) -> dict[str, Any]:
    return {"sid": resource.sid, "type": _type_of(resource.sid), **_options_of(resource), "digest": _digest(call)}


@route("GET /cluster/ha/status")
def status_index(call: Call) -> list[dict[str, str]]:
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
    has_resources = any(_node_of(call, each) == name and each.state != "ignored" for each in world.ha.values())
    state = "active" if has_resources else "idle"
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
