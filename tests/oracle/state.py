"""Everything that the simulated world holds, as flat paths and values, so that two moments can be compared."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from pve_simulator.cluster.datacenter import Datacenter
from pve_simulator.cluster.firewall import Firewalls
from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.cluster.sdn import Sdn
from pve_simulator.nodes.disks import Disks
from pve_simulator.routes.cluster.notifications import Notifications
from pve_simulator.routes.nodes.apt import Packages
from pve_simulator.routes.nodes.network import Networks
from pve_simulator.routes.nodes.services import Services
from pve_simulator.routes.nodes.settings import Settings
from pve_simulator.routes.replication import Replication
from pve_simulator.storage.backup_jobs import BackupJobs
from pve_simulator.world import World

Path = tuple[str, ...]
State = dict[Path, Any]

_PARTS: Final = {
    "jobs": (BackupJobs, ("_jobs",)),
    "datacenter": (Datacenter, ("options", "mappings", "metric_servers", "acme_plugins", "realm_sync_jobs")),
    "firewall": (Firewalls, ("cluster", "_nodes", "_guests", "_vnets")),
    "ha-manager": (HaManager, ("rules", "resource_mode")),
    "networks": (Networks, ("_by_node",)),
    "disks": (Disks, ("_by_node",)),
    "settings": (Settings, ("_by_node",)),
    "notifications": (Notifications, ("sections",)),
    "packages": (Packages, ("_repositories",)),
    "replication": (Replication, ("_jobs",)),
    "sdn": (Sdn, ("files", "ipams", "dns", "_running")),
    "services": (Services, ("_by_node",)),
}
_COMES_AND_GOES: Final = frozenset(
    {
        *("pid", "started_at", "revision", "visible_at", "lock_file_held", "cloudinit", "addresses", "last_pid"),
        *("crm_state", "shown_state", "volumes_used", "used", "fingerprint", "booted_at", "_node", "_world", "types"),
        *(
            "next_sync",
            "last_sync",
            "last_try",
            "fail_count",
            "error",
            "duration",
            "run_ends",
            "log",
            "archive",
            "_suite",
        ),
    }
)
"""What changes automatically, or follows from the rest."""


def state_of(world: World) -> State:
    state: State = {}
    access = world.access
    whole = {
        "guests": world.guests,
        "ha": world.ha,
        "nodes": world.nodes,
        "storages": world.storages,
        "access": {
            "users": access.users,
            "groups": access.groups,
            "roles": access.custom_roles,
            "realms": access.realms,
            "pools": access.pools,
            "acl": {path: set(map(str, entries)) for path, entries in access._acl.items()},
        },
    }
    for name, part in whole.items():
        _flatten((name,), part, state)
    for name, (kind, fields) in _PARTS.items():
        holder = world.part(kind)
        for field in fields:
            _flatten((name, field.strip("_")), getattr(holder, field), state)
    return state


def _flatten(path: Path, value: Any, state: State) -> None:
    kind = type(value)
    if kind in _PLAIN:
        state[path] = value
    elif kind in _SETS:
        for member in value:
            state[*path, str(member)] = True
    elif kind in _MAPPINGS:
        for name, held in value.items():
            _flatten((*path, str(name)), held, state)
    elif kind in _SEQUENCES:
        for number, held in enumerate(value):
            _flatten((*path, str(number)), held, state)
    else:
        for name in _fields(kind) or getattr(value, "__dict__", ()):
            if name not in _COMES_AND_GOES:
                _flatten((*path, name), getattr(value, name), state)


_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_SETS: Final = frozenset({set, frozenset})
_MAPPINGS: Final = frozenset({dict})
_SEQUENCES: Final = frozenset({list, tuple})


def _fields(kind: type[Any]) -> tuple[str, ...]:
    """Of a dataclass; worked out once, for there are thousands of objects in a world."""
    known = _KNOWN.get(kind)
    if known is None:
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        known = _KNOWN[kind] = tuple(field.name for field in fields)
    return known


_KNOWN: Final[dict[type[Any], tuple[str, ...]]] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    path: Path
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{'/'.join(self.path)}: {_shown(self.before)} -> {_shown(self.after)}"


class Absent:
    """What a path holds that is not there."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT: Final = Absent()


def differences(before: State, after: State) -> list[Difference]:
    changed = [
        Difference(path, value, now) for path, value in before.items() if (now := after.get(path, ABSENT)) != value
    ]
    return changed + [Difference(path, ABSENT, value) for path, value in after.items() if path not in before]


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, Absent) else repr(value)[:160]
