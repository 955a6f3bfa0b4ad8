"""HA resources: the guests under the care of the HA manager."""

from __future__ import annotations

import re
from typing import Any

from quorate.sim.config_files import changing, check_digest, digest_of, split_list, stored
from quorate.sim.ha_manager import HaManager
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route
from quorate.sim.world import HaResource

_OPTIONS = ("state", "group", "comment", "max_restart", "max_relocate", "failback", "auto-rebalance")
_VMID = re.compile(r"[1-9][0-9]{1,8}")
_MIGRATED = "ha groups have been migrated to rules"


@route("GET /cluster/ha")
def index(call: Call) -> list[dict[str, str]]:
    names = ["status", "resources", "groups", *(["rules"] if call.world.version_at_least(9, 0) else [])]
    return [{"id": name} for name in names]


@route("GET /cluster/ha/resources")
def list_resources(call: Call) -> list[dict[str, Any]]:
    wanted = call.params.get("type")
    return [_shown(call, each) for each in call.world.ha.values() if wanted in (None, _type_of(each.sid))]


@route("GET /cluster/ha/resources/{sid}")
def read_resource(call: Call) -> dict[str, Any]:
    return _shown(call, _existing(call))


@route("POST /cluster/ha/resources")
def create_resource(call: Call) -> None:
    world, sid = call.world, _sid(call)
    kind, _, vmid = sid.partition(":")
    if call.params.get("type", kind) != kind:
        raise failure("types does not match")
    if not _VMID.fullmatch(vmid):
        raise failure("invalid VMID")
    guest = world.guests.get(int(vmid))
    if guest is None or guest.sid != sid:
        raise failure(f"resource '{sid}' does not exist in cluster")
    _refuse_group(call)
    with changing("create resource failed"):
        if sid in world.ha:
            raise failure(f"resource ID '{sid}' already defined")
    resource = HaResource(sid, crm_state=None, shown_state="queued")
    _set_options(resource, _given(call))
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
    with changing("update resource failed"):
        check_digest(_digest(call), call.params.get("digest"))
        resource = _existing(call)
        unwanted = split_list(call.params.get("delete"))
        for name in unwanted:
            if name not in _OPTIONS:
                raise failure(f"no such option '{name}'")
    for name in unwanted:
        resource.given.pop(name, None)
    _set_options(resource, resource.given | _given(call))
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


@route("POST /cluster/ha/resources/{sid}/migrate")
def migrate_resource(call: Call) -> dict[str, Any] | None:
    return _move(call, "migrate")


@route("POST /cluster/ha/resources/{sid}/relocate")
def relocate_resource(call: Call) -> dict[str, Any] | None:
    return _move(call, "relocate")


def _move(call: Call, mode: str) -> dict[str, Any] | None:
    """The request is only queued; PVE 9 tells who comes along or who stands in the way."""
    sid, node = _sid(call), call.params["node"]
    if sid not in call.world.ha:
        raise failure(f"resource '{sid}' is not HA managed")
    _check_not_in_error(call, sid, None)
    manager = call.world.part(HaManager)
    dependent, _ = manager.motion_of(sid)
    blocking = manager.request_move(sid, mode, node)
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
    """The resource's full name; a bare number means the guest that has it."""
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


def _given(call: Call) -> dict[str, Any]:
    return {name: stored(call.params[name]) for name in _OPTIONS if name in call.params}


def _set_options(resource: HaResource, options: dict[str, Any]) -> None:
    """Take over what was given, and PVE's defaults for the rest."""
    resource.given = dict(options)
    state = options.get("state", "started")
    resource.state = "started" if state == "enabled" else state
    resource.comment = options.get("comment")
    resource.max_restart = options.get("max_restart", 1)
    resource.max_relocate = options.get("max_relocate", 1)
    resource.failback = bool(options.get("failback", 1))
    resource.group = options.get("group")


def _options_of(resource: HaResource) -> dict[str, Any]:
    """What its section has; the state may have been changed by a power action since."""
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


def _shown(call: Call, resource: HaResource) -> dict[str, Any]:
    return {
        "sid": resource.sid,
        "type": _type_of(resource.sid),
        **_options_of(resource),
        "digest": _digest(call),
    }
