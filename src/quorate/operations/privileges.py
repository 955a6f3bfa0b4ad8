"""Which privileges calls need: as the API's facts declare it, and for what PVE decides in its code, as listed here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pve_schema.schema import Facts
from quorate.pve.privileges import Has, Need, fill_in, missing, needs, root_only

LEVELS: Final = ("read", "operate", "admin")

_GUEST: Final = "/nodes/{node}/qemu/{vmid}"
_STORAGE: Final = "/nodes/{node}/storage/{storage}"
_ALL_CONFIG: Final = (
    "/vms/{vmid} VM.Config.CDROM VM.Config.CPU VM.Config.Cloudinit VM.Config.Disk VM.Config.HWType VM.Config.Memory"
    " VM.Config.Network VM.Config.Options"
)

# What every toolset needs to find the guests, storages and nodes that its tools act on.
_LOOKUP: Final = (f"GET {_GUEST}/status/current", f"GET {_STORAGE}/status", "GET /nodes/{node}/status")
_SEE_BACKUPS: Final = "POST /nodes/{node}/vzdump"
"""PVE shows backups only to users who may create them."""

# Representative calls of each toolset at each level. The privileges follow from the facts of the version.
CALLS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "cluster": {"read": ("GET /cluster/status", "GET /nodes/{node}/status")},
    "guests": {
        "read": (f"GET {_GUEST}/status/current", f"GET {_GUEST}/agent/network-get-interfaces"),
        "operate": (
            f"POST {_GUEST}/status/start",
            f"PUT {_GUEST}/config",
            f"POST {_GUEST}/vncproxy",
            f"POST {_GUEST}/snapshot",
            "POST /nodes/{node}/vzdump",
        ),
        "admin": (f"POST {_GUEST}/status/stop",),
    },
    "provision": {
        "operate": (
            "POST /nodes/{node}/qemu",
            "POST /nodes/{node}/lxc",
            f"POST {_GUEST}/clone",
            f"POST {_GUEST}/migrate",
            f"POST {_GUEST}/template",
            f"POST {_GUEST}/status/start",
        ),
        "admin": (f"DELETE {_GUEST}", f"POST {_GUEST}/status/stop"),
    },
    "configure": {
        "operate": (f"PUT {_GUEST}/config", f"PUT {_GUEST}/resize", f"POST {_GUEST}/move_disk"),
        "admin": (f"PUT {_GUEST}/unlink",),
    },
    "snapshots": {
        "read": (f"GET {_GUEST}/snapshot",),
        "operate": (f"POST {_GUEST}/snapshot",),
        "admin": (
            f"POST {_GUEST}/snapshot/{{snapname}}/rollback",
            f"DELETE {_GUEST}/snapshot/{{snapname}}",
            f"POST {_GUEST}/status/start",
        ),
    },
    "storage": {
        "read": (f"GET {_STORAGE}/content", f"GET {_STORAGE}/status"),
        "operate": (f"PUT {_STORAGE}/content/{{volume}}", _SEE_BACKUPS),
        "admin": (f"DELETE {_STORAGE}/content/{{volume}}",),
    },
    "images": {
        "read": ("GET /nodes/{node}/aplinfo",),
        "operate": (f"POST {_STORAGE}/upload", f"POST {_STORAGE}/download-url", "POST /nodes/{node}/aplinfo"),
    },
    "backups": {
        "read": (f"GET {_STORAGE}/content", "GET /cluster/backup"),
        "operate": ("POST /nodes/{node}/vzdump", "POST /cluster/backup", "POST /nodes/{node}/qemu"),
        "admin": (f"DELETE {_STORAGE}/content/{{volume}}",),
    },
    "metrics": {"read": (f"GET {_GUEST}/rrddata", "GET /nodes/{node}/rrddata", f"GET {_STORAGE}/rrddata")},
    "access": {
        "read": ("GET /access/users", "GET /access/permissions", "GET /pools"),
        "operate": ("POST /pools",),
        "admin": ("POST /access/users", "POST /access/groups", "POST /access/roles", "PUT /access/acl", "PUT /pools"),
    },
    "firewall": {
        "read": ("GET /cluster/firewall/rules", "GET /nodes/{node}/firewall/rules", f"GET {_GUEST}/firewall/rules"),
        "operate": (f"POST {_GUEST}/firewall/rules",),
        "admin": ("PUT /cluster/firewall/options", "POST /nodes/{node}/firewall/rules"),
    },
    "ha": {
        "read": ("GET /cluster/ha/status/current", "GET /cluster/replication"),
        "operate": ("POST /cluster/ha/resources", "POST /nodes/{node}/replication/{id}/schedule_now"),
        "admin": ("DELETE /cluster/ha/resources/{sid}", "DELETE /cluster/replication/{id}"),
    },
    "network": {
        "read": ("GET /nodes/{node}/network", "GET /cluster/sdn/zones"),
        "operate": ("POST /nodes/{node}/network", "POST /cluster/sdn/zones"),
        "admin": ("PUT /nodes/{node}/network", "PUT /cluster/sdn"),
    },
    "nodes": {
        "read": ("GET /nodes/{node}/services", "GET /nodes/{node}/disks/smart", "GET /nodes/{node}/syslog"),
        "operate": ("POST /nodes/{node}/services/{service}/restart", "POST /nodes/{node}/apt/update"),
        "admin": ("POST /nodes/{node}/status",),
    },
    "reports": {"read": ("GET /cluster/status", "GET /cluster/backup", "GET /nodes/{node}/tasks")},
    "inside": {
        "read": (f"GET {_GUEST}/config", f"GET {_GUEST}/agent/get-osinfo"),
        "operate": (
            f"GET {_GUEST}/agent/file-read",
            f"POST {_GUEST}/agent/exec",
            f"POST {_GUEST}/agent/file-write",
        ),
    },
    "tasks": {"read": ("GET /nodes/{node}/tasks",), "operate": ("DELETE /nodes/{node}/tasks/{upid}",)},
    "runs": {
        "read": ("GET /cluster/status",),
        "operate": (f"POST {_GUEST}/migrate", f"PUT {_GUEST}/config"),
        "admin": (
            "POST /nodes/{node}/status",
            "POST /nodes/{node}/qemu",
            f"DELETE {_GUEST}",
            f"POST {_GUEST}/snapshot",
            f"POST {_GUEST}/snapshot/{{snapname}}/rollback",
            f"POST {_GUEST}/status/start",
            f"GET {_GUEST}/agent/get-osinfo",
            f"POST {_GUEST}/agent/exec",
            "POST /nodes/{node}/vzdump",
        ),
    },
    # What the whole API needs depends on the call: ask with tool=api_call and its arguments.
    "api": {},
}

# What a read-only token does not get, because PVE ties it to a privilege that also allows changes.
_BEYOND_READ: Final[Mapping[str, tuple[str, str]]] = {
    "to see the pending updates of nodes": ("nodes", "Sys.Modify on /nodes"),
    "to see backups (PVE shows them only to users who may create them)": (
        "backups storage reports",
        "VM.Backup on /vms and Datastore.AllocateSpace on /storage",
    ),
}

# The API declares these as open to every user; what is allowed or shown is decided in PVE's code.
IN_CODE: Final[Mapping[str, tuple[str, ...]]] = {
    "POST /nodes/{node}/qemu": (
        "/vms/{vmid} VM.Allocate",
        "/storage/{storage} Datastore.AllocateSpace",
        "/sdn/zones SDN.Use",
        _ALL_CONFIG,
    ),
    "POST /nodes/{node}/lxc": (
        "/vms/{vmid} VM.Allocate",
        "/storage/{storage} Datastore.AllocateSpace",
        "/sdn/zones SDN.Use",
    ),
    f"POST {_GUEST}/clone": ("/storage/{storage} Datastore.AllocateSpace", "/sdn/zones SDN.Use"),
    "POST /nodes/{node}/lxc/{vmid}/clone": ("/storage/{storage} Datastore.AllocateSpace", "/sdn/zones SDN.Use"),
    f"POST {_GUEST}/move_disk": ("/storage/{storage} Datastore.AllocateSpace",),
    f"DELETE {_STORAGE}/content/{{volume}}": ("/storage/{storage} Datastore.Allocate",),
    "POST /nodes/{node}/vzdump": ("/vms/{vmid} VM.Backup", "/storage/{storage} Datastore.AllocateSpace"),
    "POST /cluster/backup": ("/storage/{storage} Datastore.Allocate",),
    "GET /access/users": ("/access/groups Sys.Audit",),
    "GET /access/permissions": ("/access Sys.Audit",),
    "GET /pools": ("/pool/{poolid} Pool.Audit",),
    "PUT /pools": ("/vms/{vmid} Permissions.Modify", "/storage/{storage} Permissions.Modify"),
    "GET /cluster/replication": ("/vms/{vmid} VM.Audit",),
    "POST /nodes/{node}/replication/{id}/schedule_now": ("/vms/{vmid} VM.Replicate",),
    "DELETE /cluster/replication/{id}": ("/vms/{vmid} VM.Replicate",),
    "POST /cluster/replication": ("/vms/{vmid} VM.Replicate",),
    "GET /cluster/sdn/zones": ("/sdn/zones SDN.Audit",),
    "GET /nodes/{node}/tasks": ("/nodes/{node} Sys.Audit",),
    "DELETE /nodes/{node}/tasks/{upid}": ("/nodes/{node} Sys.Modify",),
}
_WHOLE_CONFIG: Final = f"PUT {_GUEST}/config"
"""PVE lets anyone with one of the VM.Config privileges in, then checks each option: for all options all are needed."""


@dataclass(frozen=True, slots=True)
class NeededCall:
    """One call that must be allowed."""

    method: str
    template: str
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.method} {self.template}"


def calls_of_level(level: str, toolsets: Iterable[str], places: Sequence[Mapping[str, Any]]) -> list[NeededCall]:
    """Representative calls of a level and those below it, for each of the places (values for paths)."""
    chosen = list(toolsets)
    names = {*(_LOOKUP if chosen else ())} | {
        name
        for toolset in chosen
        for lower in LEVELS[: LEVELS.index(level) + 1]
        for name in CALLS[toolset].get(lower, ())
    }
    split = [name.partition(" ") for name in sorted(names)]
    return [NeededCall(method, template, values) for method, _, template in split for values in places]


def describe_withheld(level: str, toolsets: Iterable[str]) -> list[str]:
    """What the privileges of a level leave out on purpose, and what it would take."""
    if level != "read":
        return []
    chosen = set(toolsets)
    return [f"{what}: {needs}" for what, (sets, needs) in _BEYOND_READ.items() if chosen & {*sets.split()}]


def paths_of(facts: Facts, calls: Iterable[NeededCall], who: str) -> set[str]:
    """Every path whose privileges must be known."""
    return {widen_path(need.path) for call in calls for need in _all_needs(facts, call, who)}


def missing_privileges(
    facts: Facts, needed: Iterable[NeededCall], who: str, has: Has
) -> dict[str, dict[str, list[str]]]:
    """What must be granted: path -> privilege -> the calls that need it."""
    lacking: dict[str, dict[str, list[str]]] = {}
    for call in needed:
        for need in _missing(facts, call, who, has):
            granted = need.privileges[:1] if need.any_of else need.privileges
            for privilege in granted:
                calls = lacking.setdefault(widen_path(need.path), {}).setdefault(privilege, [])
                if call.name not in calls:
                    calls.append(call.name)
    return lacking


def root_only_calls(facts: Facts, calls: Iterable[NeededCall]) -> list[str]:
    endpoints = ((call, facts.endpoint(call.method, call.template)) for call in calls)
    return sorted({call.name for call, endpoint in endpoints if root_only(endpoint.permission)})


def widen_path(path: str) -> str:
    """For a path without an object, the path of all such objects: a grant there covers each."""
    return path[: path.index("/-")] or "/" if "/-" in path else path


def _all_needs(facts: Facts, call: NeededCall, who: str) -> list[Need]:
    permission = facts.endpoint(call.method, call.template).permission
    return [*needs(permission, call.values), *_undeclared_needs(facts, call, who)]


def _missing(facts: Facts, call: NeededCall, who: str, has: Has) -> list[Need]:
    permission = facts.endpoint(call.method, call.template).permission
    declared = missing(permission, call.values, lambda path, privilege: has(widen_path(path), privilege))
    beyond = []
    for need in _undeclared_needs(facts, call, who):
        lacked = tuple(name for name in need.privileges if not has(widen_path(need.path), name))
        if lacked and (not need.any_of or len(lacked) == len(need.privileges)):
            beyond.append(need if need.any_of else Need(need.path, lacked, any_of=False))
    return [*declared, *beyond]


def _undeclared_needs(facts: Facts, call: NeededCall, who: str) -> list[Need]:
    """What the declared privileges do not cover: checks in PVE's code, and those that depend on a user."""
    listed = IN_CODE.get(call.name, ())
    listed += (_ALL_CONFIG,) if call.name == _WHOLE_CONFIG and not call.values.keys() - {"node", "vmid"} else ()
    required = []
    for line in listed:
        template, *privileges = line.split()
        known = tuple(name for name in privileges if name in facts.privileges)
        if known:
            required.append(Need(fill_in(template, call.values), known, any_of=False))
    check = (facts.endpoint(call.method, call.template).permission or {}).get("check")
    return required + (_about_user(check, call.values, who) if check else [])


def _about_user(check: Sequence[Any], values: Mapping[str, Any], who: str) -> list[Need]:
    """Checks on the user that a call is about, at their widest: privileges on all groups, on the user's realm."""
    user = str(values.get("userid", ""))
    match check[0]:
        case "and":
            return [need for part in check[1:] for need in _about_user(part, values, who)]
        case "or":
            if any(part == ["userid-param", "self"] for part in check[1:]) and user == who:
                return []
            return [need for part in check[1:] for need in _about_user(part, values, who)]
        case "userid-group":
            return [Need("/access/groups", tuple(check[1]), any_of=True)]
        case "userid-param" if check[1] != "self":
            realm = user.rpartition("@")[2]
            return [Need(f"/access/realm/{realm}" if realm else "/access/realm", (check[1],), any_of=False)]
    return []
