"""Datacenter options, and other cluster-wide settings."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from pve_simulator.cluster.config_files import SectionFile, encode_value, section_type
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import Refusal, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.nodes.tasks import TaskContext, TaskError
from pve_simulator.world import World

DEFAULT_MAC_PREFIX: Final = "BC:24:11"
_LOWEST_VMID: Final = 100
_UPPER_END: Final = 1_000_000

_PARSED: Final = frozenset(
    {"crs", "ha", "location", "migration", "next-id", "notify", "replication", "tag-style", "u2f", "user-tag-access"}
    | {"webauthn"}
)
"""Options that the API takes as a property string and shows as an object."""
_DEFAULT_KEYS: Final = {"migration": "type", "replication": "type"}
_BOOLEANS: Final = frozenset({"case-sensitive", "ha-rebalance-on-start", "ha-auto-rebalance", "allow-subdomains"})

_OF_METRIC_SERVERS: Final = "disable mtu timeout"
_MAPPING_TYPES: Final = {
    "pci": section_type("map", "description mdev live-migration-capable"),
    "usb": section_type("map", "description"),
    "dir": section_type("map", "description"),
}
_METRIC_TYPES: Final = {
    "graphite": section_type("server port", f"{_OF_METRIC_SERVERS} path proto"),
    "influxdb": section_type(
        "server port",
        f"{_OF_METRIC_SERVERS} influxdbproto organization bucket token api-path-prefix max-body-size"
        " verify-certificate",
    ),
    "opentelemetry": section_type(
        "server port",
        f"{_OF_METRIC_SERVERS} otel-compression otel-headers otel-max-body-size otel-path otel-protocol"
        " otel-resource-attributes otel-timeout otel-verify-ssl",
    ),
}
_ACME_TYPES: Final = {
    "standalone": section_type(optional="disable nodes"),
    "dns": section_type("api", "data disable nodes validation-delay"),
}
_JOB_TYPES: Final = {
    "realm-sync": section_type("schedule scope", "enabled comment remove-vanished enable-new", fixed="realm")
}

_CPU_TYPES: Final = {
    "cpu-model": section_type(optional="flags guest-phys-bits hidden hv-vendor-id level phys-bits reported-model")
}


class Datacenter:
    """The files below /etc/pve with these settings."""

    def __init__(self, _world: World) -> None:
        self.options: dict[str, Any] = {}
        self.mappings = {kind: SectionFile({kind: options}) for kind, options in _MAPPING_TYPES.items()}
        self.metric_servers = SectionFile(_METRIC_TYPES)
        self.acme_plugins = SectionFile(_ACME_TYPES)
        self.realm_sync_jobs = SectionFile(_JOB_TYPES)
        self.cpu_models = SectionFile(_CPU_TYPES)
        self.acme_accounts: dict[str, dict[str, Any]] = {}

    def vmid_range(self) -> tuple[int, int]:
        """The vmid range for new guests; the upper end is exclusive."""
        configured = shown_option("next-id", self.options["next-id"]) if "next-id" in self.options else {}
        lower, upper = int(configured.get("lower", _LOWEST_VMID)), int(configured.get("upper", _UPPER_END))
        return lower, upper


def shown_option(name: str, value: Any) -> Any:
    """An option as the API shows it: property strings as objects, registered tags as a list."""
    if name == "registered-tags":
        return [tag for tag in str(value).split(";") if tag]
    if name not in _PARSED:
        return value
    parsed: dict[str, Any] = {}
    for part in str(value).split(","):
        key, separator, setting = part.partition("=")
        if not separator:
            key, setting = _DEFAULT_KEYS.get(name, key), key
        parsed[key] = _number(setting) if key in _BOOLEANS else setting
    return parsed


def _number(text: str) -> int:
    return int(text in ("1", "on", "yes", "true"))


_DEFAULT_LOG_LINES = 50
_FOR_EVERYBODY = ("console", "tag-style")
_INFO, _ERROR = 6, 3


@route("GET /cluster/options")
def options(call: Call) -> dict[str, Any]:
    configured = call.world.part(Datacenter).options
    shown = {name: shown_option(name, value) for name, value in configured.items()}
    shown = {"mac_prefix": DEFAULT_MAC_PREFIX, "description": "", **shown}
    if not call.allowed("/", "Sys.Audit"):
        shown = {name: value for name, value in shown.items() if name in _FOR_EVERYBODY}
    return {**shown, "allowed-tags": _allowed_tags(call)}


def _allowed_tags(call: Call) -> list[str]:
    """The tags this user may set. By default any is allowed: those in use and the registered ones are listed."""
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
    configured.update({name: encode_value(value) for name, value in call.params.items() if name != "delete"})
    if configured.get("description"):  # a comment in the file, so every line ends with a newline
        configured["description"] = f"{str(configured['description']).rstrip()}\n"


@route("GET /cluster/log")
def log(call: Call) -> list[dict[str, Any]]:
    """The cluster log, newest first; without Sys.Syslog only the caller's own entries."""
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


@route("GET /cluster/config/qdevice")
def qdevice(call: Call) -> dict[str, Any]:
    """Values from corosync's own status."""
    if not call.world.has_qdevice:
        return {}
    return {
        "Algorithm": "Fifty-Fifty split", "Echo reply": "Not received yet", "Last poll call": "Never", "Model": "Net",
        "QNetd host": "192.168.10.250:5403", "State": "Connected", "Tie-breaker": "Node with lowest node ID",
    }  # fmt: skip


@route("GET /cluster/config/nodes")
def members(call: Call) -> list[dict[str, Any]]:
    return [] if call.world.standalone else _members(call)


@route("GET /cluster/config/totem")
def totem(call: Call) -> dict[str, Any] | None:
    return None if call.world.standalone else _totem(call)


@route("GET /cluster/config/join")
def join_information(call: Call) -> dict[str, Any]:
    world = call.world
    if call.world.standalone:
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


@route("POST /cluster/config")
def create_cluster(call: Call) -> str:
    """Create a cluster with this node; no others can join in the simulator."""
    if not call.world.standalone:
        raise failure("cluster config '/etc/pve/corosync.conf' already exists")

    async def work(context: TaskContext) -> None:
        context.log("Corosync Cluster Engine Authentication key generator.")
        await context.sleep(1.0)
        call.world.name, call.world.clustered = call.params["clustername"], True
        context.log("Restart corosync and cluster filesystem")

    return call.start_local_task("clustercreate", call.params["clustername"], work)


@route("POST /cluster/config/join")
def join_cluster(call: Call) -> str:
    """There is no other cluster to reach."""
    if not call.world.standalone:
        raise failure("detected the following error(s):\n* cluster config '/etc/pve/corosync.conf' already exists")

    async def work(context: TaskContext) -> None:
        context.log(f"Establishing API connection with host '{call.params['hostname']}'")
        await context.sleep(1.0)
        raise TaskError(f"500 Can't connect to {call.params['hostname']}:8006 (No route to host)")

    return call.start_local_task("clusterjoin", "", work)


def _members(call: Call) -> list[dict[str, Any]]:
    return [
        {"node": node.name, "name": node.name, "nodeid": str(node.number), "quorum_votes": "1", "ring0_addr": node.ip}
        for node in call.world.nodes.values()
    ]


def _totem(call: Call) -> dict[str, Any]:
    return {
        "cluster_name": call.world.name, "config_version": str(len(call.world.nodes)),
        "interface": {"0": {"linknumber": "0"}}, "ip_version": "ipv4-6", "link_mode": "passive", "secauth": "on",
        "version": "2",
    }  # fmt: skip
