"""Datacenter options, the cluster log, and the cluster's membership as corosync sees it."""

from __future__ import annotations

import hashlib
from typing import Any

from quorate.sim.config_files import split_list, stored
from quorate.sim.datacenter import DEFAULT_MAC_PREFIX, Datacenter, shown_option
from quorate.sim.refusals import Refusal, failure
from quorate.sim.routing import Call, route

_DEFAULT_LOG_LINES = 50
_INFO, _ERROR = 6, 3


@route("GET /cluster/options")
def options(call: Call) -> dict[str, Any]:
    configured = call.world.part(Datacenter).options
    shown = {name: shown_option(name, value) for name, value in configured.items()}
    return {"mac_prefix": DEFAULT_MAC_PREFIX, "description": "", **shown, "allowed-tags": _allowed_tags(call)}


def _allowed_tags(call: Call) -> list[str]:
    """The tags this user may set: with PVE's default that is any, so those in use and the registered ones."""
    configured = call.world.part(Datacenter).options
    registered = set(shown_option("registered-tags", configured.get("registered-tags", "")))
    access = shown_option("user-tag-access", configured.get("user-tag-access", "user-allow=free"))
    policy = access.get("user-allow", "free")
    allowed: set[str] = set(str(access.get("user-allow-list", "")).split(";")) if policy == "list" else set()
    in_use = {
        tag
        for guest in call.world.guests.values()
        if call.allowed(f"/vms/{guest.vmid}", "VM.Audit")
        for tag in split_list(guest.config.get("tags"))
    }
    if policy in ("existing", "free") or call.allowed("/", "Sys.Modify"):
        allowed |= in_use
    if policy == "free" or call.allowed("/", "Sys.Modify"):
        allowed |= registered
    return sorted(allowed - {""})


@route("PUT /cluster/options")
def change_options(call: Call) -> None:
    configured = call.world.part(Datacenter).options
    for name in split_list(call.params.get("delete")):
        configured.pop(name, None)
    configured.update({name: stored(value) for name, value in call.params.items() if name != "delete"})


@route("GET /cluster/log")
def log(call: Call) -> list[dict[str, Any]]:
    """What happened, newest first; without Sys.Syslog only what oneself has done."""
    world = call.world
    entries = [(world.started_at, "root", "cluster", _INFO, "starting cluster log", call.local_node.name)]
    for node in world.nodes:
        for task in world.tasks.newest_first(node):
            upid = task.upid
            entries.append((upid.starttime, upid.user, "pvedaemon", _INFO, f"starting task {upid}", node))
            if task.endtime is not None:
                text = f"end task {upid} {task.exitstatus}"
                entries.append((task.endtime, upid.user, "pvedaemon", _ERROR if task.failed else _INFO, text, node))
    entries.sort(key=lambda entry: entry[0])
    sees_all = call.allowed("/", "Sys.Syslog")
    rows = [
        {
            "uid": str(number),
            "id": f"{number}:{node}",
            "time": int(time),
            "pri": priority,
            "tag": tag,
            "pid": 1100 + len(node),
            "node": node,
            "user": user,
            "msg": text,
        }
        for number, (time, user, tag, priority, text, node) in enumerate(entries, 1)
        if sees_all or user == call.user
    ]
    return rows[::-1][: call.params.get("max", _DEFAULT_LOG_LINES)]


@route("GET /cluster/config/apiversion")
def api_version(_call: Call) -> str:
    return "1"


@route("GET /cluster/config/qdevice")
def qdevice(_call: Call) -> dict[str, Any]:
    return {}


@route("GET /cluster/config/nodes")
def members(call: Call) -> list[dict[str, Any]]:
    return [] if _alone(call) else _members(call)


@route("GET /cluster/config/totem")
def totem(call: Call) -> dict[str, Any] | None:
    return None if _alone(call) else _totem(call)


@route("GET /cluster/config/join")
def join_information(call: Call) -> dict[str, Any]:
    world = call.world
    if _alone(call):
        raise Refusal(424, "node is not in a cluster, no join info available!")
    preferred = call.params.get("node", call.local_node.name)
    if preferred not in world.nodes:
        raise failure(f"no such node '{preferred}'")
    nodes = [
        {**row, "pve_addr": world.nodes[row["name"]].ip, "pve_fp": world.nodes[row["name"]].fingerprint}
        for row in _members(call)
    ]
    digest = hashlib.sha1(repr((nodes, _totem(call))).encode(), usedforsecurity=False).hexdigest()
    return {"nodelist": nodes, "preferred_node": preferred, "totem": _totem(call), "config_digest": digest}


def _alone(call: Call) -> bool:
    return len(call.world.nodes) == 1


def _members(call: Call) -> list[dict[str, Any]]:
    return [
        {
            "node": node.name,
            "name": node.name,
            "nodeid": str(node.number),
            "quorum_votes": "1",
            "ring0_addr": node.ip,
        }
        for node in call.world.nodes.values()
    ]


def _totem(call: Call) -> dict[str, Any]:
    return {
        "cluster_name": call.world.name,
        "config_version": str(len(call.world.nodes)),
        "interface": {"0": {"linknumber": "0"}},
        "ip_version": "ipv4-6",
        "link_mode": "passive",
        "secauth": "on",
        "version": "2",
    }
