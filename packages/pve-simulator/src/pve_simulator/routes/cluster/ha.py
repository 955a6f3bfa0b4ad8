"""High availability: resources, rules, groups and the state of the manager."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from pve_simulator.cluster.config_files import (
    Section,
    SectionFile,
    Sections,
    changing,
    check_digest,
    digest_of,
    encode_value,
    options_of,
    texts,
    written_options,
)
from pve_simulator.cluster.ha_manager import HaManager, RemovedService
from pve_simulator.cluster.ha_rules import (
    HaRules,
    errors_of,
    parse_nodes,
    refuse_infeasible,
    resources_of,
    written_nodes,
)
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import existing, failure, flatten_errors
from pve_simulator.http.routing import Call, route
from pve_simulator.world import HaResource

_OPTIONS = ("state", "group", "comment", "max_restart", "max_relocate", "failback", "auto-rebalance")
_GUEST_TYPES = {"vm": "virtual machine", "ct": "container"}
_VMID = re.compile(r"[1-9][0-9]{1,8}")
_MIGRATED = "ha groups have been migrated to rules"

_SILENT = "old timestamp - dead?"


@route("GET /cluster/ha")
def index(call: Call) -> list[dict[str, str]]:
    names = ["status", "resources", "groups", *(["rules"] if call.world.version_at_least(9, 0) else [])]
    return [{"id": name} for name in names]


@route("GET /cluster/ha/resources")
def list_resources(call: Call) -> list[dict[str, Any]]:
    only = call.params.get("type")
    return [_describe(call, each) for each in call.world.ha.values() if only in (None, _type_of(each.sid))]


@route("GET /cluster/ha/resources/{sid}")
def read_resource(call: Call) -> dict[str, Any]:
    return _describe(call, _existing(call))


@route("POST /cluster/ha/resources")
def create_resource(call: Call) -> None:
    world, requested = call.world, str(call.params["sid"])
    if ":" not in requested and int(requested) not in world.guests:
        raise failure(f"unable to detect SID from VMID - VM/CT {requested} does not exist")
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
    manager = world.part(HaManager)
    manager.removed.pop(sid, None)
    manager.wake()


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
        resource.options.pop(name, None)
    _set_options(resource, resource.options | _read_options(call))
    if "state" in call.params or "state" in unwanted:
        explicit = "state" in resource.options
        manager.request_state(resource, resource.state)
        if not explicit:
            del resource.options["state"]
    manager.wake()


@route("DELETE /cluster/ha/resources/{sid}")
def delete_resource(call: Call) -> None:
    sid = _sid(call)
    if sid not in call.world.ha:
        raise failure(f"cannot delete service '{sid}', not HA managed!")
    manager = call.world.part(HaManager)
    if call.params.get("purge", True):
        manager.rules.drop_resource(sid)
    manager.remove(call.world.ha[sid])


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


def _check_not_in_error(call: Call, sid: str, state: str | None) -> None:
    resource = call.world.ha.get(sid)
    if resource is not None and resource.crm_state == "error" and state != "disabled":
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
    resource.options = options = written_options(options)
    state = options.get("state", "started")
    resource.state = "started" if state == "enabled" else state
    resource.comment = options.get("comment")
    resource.max_restart = options.get("max_restart", 1)
    resource.max_relocate = options.get("max_relocate", 1)
    resource.failback = bool(options.get("failback", 1))
    resource.group = options.get("group")


def _options_of(resource: HaResource) -> dict[str, Any]:
    """The options of its section; a power action may have changed the state since."""
    shown = dict(resource.options)
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
        rows.append(_master_row(manager, _master_state(call)))
    if world.version_at_least(9, 1):
        rows.append(_fencing_row(manager.master if manager.active else here, manager, _master_state(call)))
    if manager.active:
        rows += [_lrm_row(call, node) for node in sorted(world.nodes)]
    services = {sid: _service_row(call, resource) for sid, resource in world.ha.items()}
    services |= {sid: _removed_row(service) for sid, service in manager.removed.items()}
    return rows + [services[sid] for sid in sorted(services)]


def _master_state(call: Call) -> str:
    manager = call.world.part(HaManager)
    if not call.world.ha and not manager.removed:
        return "idle"
    return _SILENT if manager.is_silent(manager.decided_at) else "active"


def _master_row(manager: HaManager, state: str) -> dict[str, Any]:
    return {
        "id": "master",
        "type": "master",
        "node": manager.master,
        "status": f"{manager.master} ({state}, {_time_text(manager.decided_at)})",
        "timestamp": int(manager.decided_at),
    }


def _fencing_row(node: str, manager: HaManager, master_state: str) -> dict[str, Any]:
    row: dict[str, Any] = {"id": "fencing", "type": "fencing", "node": node}
    if manager.resource_mode is not None:
        mode = manager.resource_mode
        return row | {"armed-state": "disarmed", "resource_mode": mode, "status": f"disarmed, resource mode: {mode}"}
    if manager.active and master_state == "active":
        return row | {"armed-state": "armed", "status": "armed (CRM watchdog active)"}
    return row | {"armed-state": "standby", "status": "standby (CRM watchdog standby)"}


def _lrm_row(call: Call, name: str) -> dict[str, Any]:
    world, manager = call.world, call.world.part(HaManager)
    acted_at = manager.acted_at.get(name, world.clock.now())
    state, watchdog = ("active", "active") if manager.is_busy(name) else ("idle", "standby")
    if name in manager.in_maintenance:
        state = "maintenance mode"
    if manager.is_silent(acted_at):
        state, watchdog = _SILENT, "standby"
    shown = f"{state}, watchdog {watchdog}" if world.version_at_least(9, 1) else state
    return {
        "id": f"lrm:{name}",
        "type": "lrm",
        "node": name,
        "status": f"{name} ({shown}, {_time_text(acted_at)})",
        "timestamp": int(acted_at),
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


def _removed_row(service: RemovedService) -> dict[str, Any]:
    """A resource that is no longer configured, until the manager drops it."""
    return {
        "id": f"service:{service.sid}",
        "type": "service",
        "sid": service.sid,
        "state": "deleting",
        "status": f"{service.sid} ({service.node}, deleting)",
        "node": service.node,
        "crm_state": service.crm_state,
    }


@route("GET /cluster/ha/status/manager_status")
def manager_status(call: Call) -> dict[str, Any]:
    world, manager = call.world, call.world.part(HaManager)
    status: dict[str, Any] = {
        "quorum": {"node": call.local_node.name, "quorate": "1" if world.quorate else ""},
        "manager_status": {"node_status": {}},
    }
    if not manager.active:
        return status
    status["manager_status"] = {
        "master_node": manager.master,
        "timestamp": int(manager.decided_at),
        "node_status": {
            name: "unknown" if not node.online else "maintenance" if name in manager.in_maintenance else "online"
            for name, node in world.nodes.items()
        },
        "service_status": {
            sid: {
                "node": _node_of(call, each),
                "state": each.crm_state,
                "running": _running(call, each),
                "uid": _uid(sid),
            }
            for sid, each in sorted(world.ha.items())
            if each.crm_state is not None
        },
    }
    status["lrm_status"] = {
        name: {
            "mode": "maintenance" if name in manager.in_maintenance else "active",
            "state": "active" if manager.is_busy(name) else "wait_for_agent_lock",
            "timestamp": int(acted_at),
            "results": {
                _uid(sid): {"sid": sid, "state": each.crm_state, "exit_code": 0}
                for sid, each in sorted(world.ha.items())
                if each.crm_state is not None and _node_of(call, each) == name
            },
        }
        for name, acted_at in sorted(manager.acted_at.items())
    }
    return status


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


def _uid(sid: str) -> str:
    """The id of the manager's last order for a service."""
    return base64.b64encode(hashlib.md5(sid.encode(), usedforsecurity=False).digest()).decode().rstrip("=")


def _time_text(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%a %b %e %H:%M:%S %Y}"


class _Rules(Sections):
    path, key = "/cluster/ha/rules", "rule"
    duplicate = "HA rule '{name}' already defined"
    missing = texts(read="no such ha rule '{name}'", update="HA rule '{name}' does not exist")

    def file(self, call: Call) -> SectionFile:
        return _rules(call).rules

    def lock(self, _call: Call, verb: str) -> Any:
        return changing({"create": "create ha rule failed"}.get(verb, f"{verb} HA rules failed"))

    def options(self, call: Call) -> Section:
        return options_of(super().options(call), "type")

    def visible(self, call: Call, _name: str, section: Section) -> bool:
        return call.params.get("resource") in (None, *resources_of(section))

    def row(self, call: Call, name: str, section: Section) -> Section:
        rules = _rules(call)
        shown = super().row(call, name, section) | {"order": list(rules.rules.sections).index(name) + 1}
        if section["type"] == "node-affinity" and call.world.version_at_least(9, 2):
            shown.setdefault("affinity", "positive")
        errors = errors_of(rules, _node_count(call)).get(name)
        return shown | ({"errors": {"resources": errors}} if errors else {})

    def check(self, call: Call, _name: str, section: Section, _before: Section | None) -> None:
        if call.params["type"] != section["type"]:
            raise failure("unexpected property 'type'")
        unmanaged = [sid for sid in resources_of(section) if sid not in call.world.ha]
        if unmanaged:
            raise failure(f"cannot use unmanaged resource(s) {', '.join(unmanaged)}.")
        missing = [node for node in sorted(parse_nodes(section.get("nodes"))) if node not in call.world.nodes]
        if missing:
            raise failure(f"cannot use non-existent node(s) {', '.join(missing)}.")

    def keep(self, call: Call, name: str, section: Section) -> None:
        """Store the rule, unless it conflicts with others."""
        rules = _rules(call)
        before = dict(rules.rules.sections)
        section["resources"] = ",".join(resources_of(section))
        if "nodes" in section:
            section["nodes"] = written_nodes(section["nodes"])
        rules.rules.sections[name] = section
        try:
            with flatten_errors():
                refuse_infeasible(rules, name, _node_count(call))
        except BaseException:
            rules.rules.sections = before
            raise
        call.world.part(HaManager).wake()


def _node_count(call: Call) -> int:
    """The number of nodes for anti-affinity; a standalone node counts as none."""
    return 0 if call.world.standalone else len(call.world.nodes)


class _Groups(Sections):
    """HA groups of PVE 8; PVE 9 refuses every call."""

    path, key, kind = "/cluster/ha/groups", "group", "group"
    failing, locks_early = "{verb} ha group failed", True
    duplicate = "ha group ID '{name}' already defined"
    missing = texts(read="no such ha group '{name}'", update="no such ha group '{name}'")

    def file(self, call: Call) -> SectionFile:
        return _rules(call).groups

    def list(self, call: Call) -> Any:
        _refuse_migrated(call, "index groups")
        return super().list(call)

    def read(self, call: Call) -> Any:
        _refuse_migrated(call, "read group")
        return super().read(call)

    @contextmanager
    def lock(self, call: Call, verb: str) -> Iterator[None]:
        _refuse_migrated(call, f"{verb} group")
        with super().lock(call, verb):
            yield
        call.world.part(HaManager).wake()

    def check_unused(self, call: Call, name: str) -> None:
        for resource in call.world.ha.values():
            if resource.group == name:
                raise failure(f"ha group is used by service '{resource.sid}'")


_Rules()
_Groups()


def _refuse_migrated(call: Call, what: str) -> None:
    if call.world.version_at_least(9, 0):
        raise failure(f"cannot {what}: ha groups have been migrated to rules")


def _rules(call: Call) -> HaRules:
    return call.world.part(HaManager).rules
