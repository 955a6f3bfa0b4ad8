"""Which privileges calls need: as the API's facts declare it, and for what PVE decides in its code, as listed here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pve_schema.schema import Facts
from quorate.operations.option_privileges import CodeNeeds, needs_in_code
from quorate.pve.privileges import Has, Need, fill_in, is_decisive, lacking_of, missing, needs, root_only

LEVELS: Final = ("read", "operate", "admin")
ROOT: Final = "root@pam"

_GUEST: Final = "/nodes/{node}/qemu/{vmid}"
_CONTAINER: Final = "/nodes/{node}/lxc/{vmid}"
_STORAGE: Final = "/nodes/{node}/storage/{storage}"
_ALL_CONFIG: Final = (
    "/vms/{vmid} VM.Config.CDROM VM.Config.CPU VM.Config.Cloudinit VM.Config.Disk VM.Config.HWType VM.Config.Memory"
    " VM.Config.Network VM.Config.Options"
)
_BRIDGES: Final = "/sdn/zones SDN.Use"
"""To connect a guest to any bridge."""

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
        "operate": (
            f"PUT {_GUEST}/config",
            f"PUT {_CONTAINER}/config",
            f"PUT {_GUEST}/resize",
            f"POST {_GUEST}/move_disk",
        ),
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
        _BRIDGES,
        _ALL_CONFIG,
    ),
    "POST /nodes/{node}/lxc": (
        "/vms/{vmid} VM.Allocate",
        "/storage/{storage} Datastore.AllocateSpace",
        _BRIDGES,
    ),
    f"POST {_GUEST}/clone": ("/storage/{storage} Datastore.AllocateSpace", _BRIDGES),
    "POST /nodes/{node}/lxc/{vmid}/clone": ("/storage/{storage} Datastore.AllocateSpace", _BRIDGES),
    f"PUT {_CONTAINER}/config": (_BRIDGES,),
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
    """The values of its path and its parameters."""
    representative: bool = False
    """It stands for all calls to its endpoint, so that whatever these may need counts."""

    @property
    def name(self) -> str:
        return f"{self.method} {self.template}"

    @property
    def checked_in_code(self) -> CodeNeeds | None:
        return None if self.representative else needs_in_code(self.method, self.template, self.values)


# -- one call, as the preflight and the audit check it -----------------------------------------------------------------


def call_needs(facts: Facts, call: NeededCall) -> list[Need]:
    """Every check that PVE makes for this call, as far as privileges decide, whether or not all have to pass."""
    in_code = call.checked_in_code
    declared = needs(facts.endpoint(call.method, call.template).permission, call.values)
    return declared + [need for row in (in_code.rows if in_code else ()) for need in row]


def missing_needs(facts: Facts, call: NeededCall, has: Has) -> list[Need]:
    """What has to be granted before PVE accepts this call; of several alternatives, what lacks least."""
    in_code = call.checked_in_code
    lacking = [
        need
        for row in (in_code.rows if in_code else ())
        for need in min((lacking_of(need, has) for need in row), key=_count_privileges)
    ]
    declared = missing(facts.endpoint(call.method, call.template).permission, call.values, has)
    return list(dict.fromkeys([*(need for need in declared if not _is_covered(need, lacking)), *lacking]))


def _count_privileges(needs: Sequence[Need]) -> int:
    return sum(len(need.privileges) for need in needs)


def _is_covered(declared: Need, lacking: Sequence[Need]) -> bool:
    """PVE lets in who may set some option, then asks for the privileges of the options that are set."""
    return declared.any_of and any(
        need.path == declared.path and not {*need.privileges}.isdisjoint(declared.privileges) for need in lacking
    )


def is_decided(facts: Facts, call: NeededCall) -> bool:
    """Whether `missing_needs` is all that can be missing. Otherwise PVE also looks at users and objects."""
    in_code = call.checked_in_code
    return in_code.complete if in_code else is_decisive(facts.endpoint(call.method, call.template).permission)


# -- levels and audits -------------------------------------------------------------------------------------------------


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
    return [
        NeededCall(method, template, values, representative=True) for method, _, template in split for values in places
    ]


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
            granted = _narrowest(facts, need.privileges) if need.any_of else need.privileges
            for privilege in granted:
                calls = lacking.setdefault(widen_path(need.path), {}).setdefault(privilege, [])
                if call.name not in calls:
                    calls.append(call.name)
    return lacking


def _narrowest(facts: Facts, alternatives: Sequence[str]) -> Sequence[str]:
    """Of alternatives, one that another of them includes, else the first: what rolls back need not take snapshots."""
    narrow = [name for name in alternatives if including_privileges(facts, name) & {*alternatives}]
    return (narrow or [*alternatives])[:1]


def including_privileges(facts: Facts, privilege: str) -> frozenset[str]:
    """The privileges that PVE takes wherever it asks for this one: VM.Snapshot for VM.Snapshot.Rollback."""
    if privilege.startswith("VM.Config."):  # PVE asks for any of them first, then for those of the options that change
        return frozenset()
    accepted = [
        frozenset(need.privileges) - {privilege} if need.any_of else frozenset[str]()
        for need in _declared_needs(facts)
        if privilege in need.privileges
    ]
    return frozenset.intersection(*accepted) if accepted else frozenset()


@cache
def _declared_needs(facts: Facts) -> tuple[Need, ...]:
    """The alternatives and requirements of every endpoint."""
    return tuple({need for endpoint in facts.endpoints() for need in needs(endpoint.permission, {})})


def closed_calls(facts: Facts, calls: Iterable[NeededCall], who: str) -> list[str]:
    """The calls that PVE reserves for root@pam logged in with a password, and those that it accepts from no token."""
    endpoints = ((call, facts.endpoint(call.method, call.template)) for call in calls)
    return sorted(
        {
            call.name
            for call, endpoint in endpoints
            if (root_only(endpoint.permission) and who != ROOT) or ("!" in who and not endpoint.allow_token)
        }
    )


def widen_path(path: str) -> str:
    """For a path without an object, the path of all such objects: a grant there covers each."""
    return path[: path.index("/-")] or "/" if "/-" in path else path


def _all_needs(facts: Facts, call: NeededCall, who: str) -> list[Need]:
    return [*call_needs(facts, call), *_undeclared_needs(facts, call, who)]


def _missing(facts: Facts, call: NeededCall, who: str, has: Has) -> list[Need]:
    def has_widely(path: str, privilege: str) -> bool:
        return has(widen_path(path), privilege)

    beyond = [lacking_of(need, has_widely) for need in _undeclared_needs(facts, call, who)]
    return [*missing_needs(facts, call, has_widely), *(need for lacked in beyond for need in lacked)]


def _undeclared_needs(facts: Facts, call: NeededCall, who: str) -> list[Need]:
    """What neither the declared privileges nor the call's own values cover: whatever calls to a representative
    endpoint may need, and checks on the user that a call is about, at their widest."""
    listed = IN_CODE.get(call.name, ()) if call.representative else ()
    listed += (_ALL_CONFIG,) if call.representative and call.name == _WHOLE_CONFIG else ()
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
