"""The cluster: resources, status, options, log, metric servers, jobs and CPU models."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pve_schema.calendar_events import parse_calendar_event
from pve_simulator.cluster.config_files import (
    UNDEFINED_TYPE,
    Section,
    SectionFile,
    Sections,
    always,
    encode_value,
    options_of,
    texts,
)
from pve_simulator.cluster.datacenter import DEFAULT_MAC_PREFIX, Datacenter, shown_option
from pve_simulator.cluster.resources import rows_of
from pve_simulator.guests.options import cpu_flags
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import Refusal, bad_parameters, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.nodes.status_daemon import StatusDaemon
from pve_simulator.world import ListOrder, Node


@route("GET /cluster/resources")
def resources(call: Call) -> list[Any]:
    only = call.params.get("type")
    sources = (("", _pool_rows), ("vm", _guest_rows), ("node", _node_rows), ("storage", _storage_rows))
    return [row for kind, rows in (*sources, ("sdn", _network_rows)) if only in (None, kind) for row in rows(call)]


def _node_rows(call: Call) -> list[dict[str, Any]]:
    return [
        rows_of(call.world).node(node, numbers=call.allowed(f"/nodes/{node.name}", "Sys.Audit"))
        for node in call.world.nodes.values()
    ]


def _pool_rows(call: Call) -> list[dict[str, Any]]:
    return [
        {"id": f"/pool/{pool}", "type": "pool", "pool": pool}
        for pool in call.world.access.pools
        if call.allowed(f"/pool/{pool}", "Pool.Audit")
    ]


def _guest_rows(call: Call) -> list[Any]:
    world, rows = call.world, rows_of(call.world)
    guests = world.guests.values()
    if call.is_root or world.access.allowed_everywhere(call.authid, "/vms", "VM.Audit"):
        return list(rows.guests(guests))
    return list(rows.guests(guest for guest in guests if call.allowed(f"/vms/{guest.vmid}", "VM.Audit")))


def _storage_rows(call: Call) -> list[dict[str, Any]]:
    return [
        rows_of(call.world).storage(storage, node)
        for storage in call.world.storages.values()
        if not storage.disabled and call.allowed(f"/storage/{storage.id}", "Datastore.Audit")
        for node in call.world.nodes.values()
        if storage.on_node(node.name)
    ]


def _network_rows(call: Call) -> list[dict[str, Any]]:
    """The zone of the plain bridges and those of SDN; their type is network since PVE 9, sdn before."""
    zones = ["localnetwork", *sorted(call.world.part(StatusDaemon).zones)]
    seen = [zone for zone in zones if call.allowed(f"/sdn/zones/{zone}", "SDN.Audit")]
    return [_zone_row(call, node, zone) for node in call.world.nodes.values() for zone in seen]


def _zone_row(call: Call, node: Node, zone: str) -> dict[str, Any]:
    row = {"node": node.name, "status": "ok" if node.online else "unknown"}
    if not call.world.version_at_least(9, 0):
        return {"id": f"sdn/{node.name}/{zone}", "type": "sdn", "sdn": zone, **row}
    kind = {"type": "network", "network": zone, "network-type": "zone"}
    return {"id": f"network/{node.name}/zone/{zone}", **kind, **row}


@route("GET /cluster/status")
def cluster_status(call: Call) -> list[dict[str, Any]]:
    nodes = list(call.world.nodes.values())
    standalone = call.world.standalone
    rows: list[dict[str, Any]] = [
        {
            "type": "node",
            "id": f"node/{node.name}",
            "name": node.name,
            "nodeid": 0 if standalone else node.number,
            "ip": node.ip,
            "online": int(node.online),
            "local": int(node is call.local_node),
            "level": "",
        }
        for node in nodes
    ]
    if standalone:
        return rows
    cluster = {
        "type": "cluster",
        "id": "cluster",
        "name": call.world.name,
        "nodes": len(nodes),
        "version": len(nodes),
        "quorate": int(call.world.quorate),
    }
    return [cluster, *call.world.part(ListOrder).shuffle(rows)]


@route("GET /cluster/nextid")
def next_id(call: Call) -> str:
    requested = call.params.get("vmid")
    if requested is None:
        return str(_free_vmid(call))
    if requested in call.world.guests:
        raise bad_parameters({"vmid": f"VM {requested} already exists"})
    return str(requested)


def _free_vmid(call: Call) -> int:
    """The lowest free vmid in the range of the datacenter options."""
    lower, upper = call.world.part(Datacenter).vmid_range()
    for vmid in range(lower, upper):
        if vmid not in call.world.guests:
            return vmid
    raise failure(f"unable to get any free VMID in range [{lower}, {upper}]")


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


@route("GET /cluster/qemu/cpu-flags")
def flags(_call: Call) -> list[dict[str, str]]:
    return cpu_flags()


class _CpuModels(Sections):
    path, key, kind = "/cluster/qemu/custom-cpu-models", "cputype", "cpu-model"
    locks_early = True
    missing = always("Custom cputype '{name}' not found")

    def file(self, call: Call) -> SectionFile:
        return call.world.part(Datacenter).cpu_models

    def name(self, call: Call) -> str:
        return super().name(call).removeprefix("custom-")

    def row(self, call: Call, name: str, section: Section) -> Section:
        return options_of(super().row(call, f"custom-{name}", section), "type")

    def duplicate_error(self, _call: Call, name: str) -> Refusal:
        return bad_parameters({"cputype": f"custom CPU model '{name}' already exists"})


_CpuModels()


class _MetricServers(Sections):
    path, named_in_path = "/cluster/metrics/server", True
    locks_early = True
    duplicate = "Metric server '{name}' already exists"
    missing = texts(
        read="status server entry '{name}' does not exist", update="no such server '{name}'", delete=UNDEFINED_TYPE
    )

    def file(self, call: Call) -> SectionFile:
        return call.world.part(Datacenter).metric_servers

    def list(self, call: Call) -> list[Section]:
        return [
            {"id": name, "disable": server.get("disable", 0)} | {key: server[key] for key in ("type", "server", "port")}
            for name, server in sorted(self.all(call).items())
        ]

    def read(self, call: Call) -> Section:
        return options_of(super().read(call), "id", "digest", "token")  # the secret is stored in a separate file


_MetricServers()


@route("GET /cluster/jobs/schedule-analyze")
def analyze_schedule(call: Call) -> list[dict[str, Any]]:
    """The next run times of a schedule."""
    event = parse_calendar_event(call.params["schedule"])
    moment = float(call.params.get("starttime", call.world.clock.now()))
    rows: list[dict[str, Any]] = []
    for _ in range(call.params.get("iterations", 10)):
        following = event.next_after(moment)
        if following is None:
            break
        utc = datetime.fromtimestamp(following, UTC).strftime("%a %b %e %H:%M:%S %Y")
        rows.append({"timestamp": int(following), "utc": utc})
        moment = following
    return rows


class _RealmSyncJobs(Sections):
    """Errors under PVE's lock of this file get no prefix, but are flattened."""

    path, kind, named_in_path = "/cluster/jobs/realm-sync", "realm-sync", True
    locks_early = True
    duplicate = "Job '{name}' already exists"
    missing = texts(
        update="no such realm-sync job", delete="400 Parameter verification failed.\nid: No such job '{name}'"
    )

    def file(self, call: Call) -> SectionFile:
        return call.world.part(Datacenter).realm_sync_jobs

    def list(self, call: Call) -> list[Section]:
        rows = []
        for name, job in self.all(call).items():
            following = parse_calendar_event(job["schedule"]).next_after(call.world.clock.now())
            rows.append({"id": name, "last-run": None, **job, **({"next-run": int(following)} if following else {})})
        return rows

    def read(self, call: Call) -> Section:
        return options_of(super().read(call), "id", "digest")

    def new_section(self, call: Call) -> Section:
        section, realms = super().new_section(call), call.world.access.realms
        realm = section.get("realm", "")
        if realm not in realms:
            raise failure(f"400 Parameter verification failed.\nrealm: No such realm '{realm}'")
        if realms[realm].type not in ("ldap", "ad"):
            raise failure("400 Parameter verification failed.\nrealm: Only LDAP/AD realms can be synced.")
        return {"enabled": 1, **section}

    def missing_error(self, call: Call, verb: str, name: str) -> Refusal:
        missing = bad_parameters({"id": f"No such job '{name}'"})
        return missing if verb == "read" else super().missing_error(call, verb, name)


_RealmSyncJobs()
