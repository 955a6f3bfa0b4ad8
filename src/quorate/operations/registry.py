"""The registry of operations. Each is a typed function: the signature is the schema, the docstring the description."""

from __future__ import annotations

import enum
import importlib
import importlib.util
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NewType

import msgspec
from msgspec import Meta

from quorate.config import Access
from quorate.hints import Advice, ToolHint
from quorate.pve.lookup import StaleName
from quorate.pve.tasks import Report
from quorate.server_files import ServerFiles
from quorate.suggestions import suggest

if TYPE_CHECKING:
    from quorate.operations.exemptions import Exemption

TOOLSETS = {
    "cluster": "the cluster and its nodes",
    "guests": "finding guests, switching them on and off, changing their options",
    "provision": "creating, cloning, migrating, deleting guests",
    "configure": "disks, networks, cloud-init of guests",
    "snapshots": "snapshots of guests",
    "storage": "storages and the volumes on them",
    "images": "images and templates: upload, download",
    "backups": "backups, restore, backup jobs",
    "metrics": "history of load as numbers and charts",
    "access": "users, groups, roles, tokens, permissions, pools",
    "firewall": "firewall of cluster, nodes and guests",
    "ha": "high availability and replication",
    "network": "networks of nodes, SDN",
    "nodes": "care of nodes: services, updates, disks, certificates, logs",
    "reports": "health and capacity reports",
    "inside": "commands, files and services inside guests",
    "api": "the whole PVE API",
    "tasks": "what PVE is doing and has done",
    "runs": "multi-step work that survives restarts: evacuate, rolling update, restore drill, guest update, undo, move",
}
"""Named groups of operations. Each operation names its toolset."""
HOMELAB = {
    "hosts": "plain hosts every day: status, commands, files, services, logs, updates, restart; one or many at once",
    "host_admin": "care of hosts: administration account, terminal, hardware, changing what is registered",
    "map": "finding devices on the network, the map of them, what has changed",
    "workloads": "containers on plain hosts: Docker, Podman, LXD, Incus",
    "services": "a catalog of services, installed by Compose, Ansible or Terraform",
    "terraform": "Terraform: plan, apply, refresh, destroy services; export guests",
    "infra": "infrastructure plans: validate, apply, back up, roll back",
    "scripts": "community scripts for Proxmox VE",
    "pbs": "Proxmox Backup Servers: datastores, backups, verification, prune, garbage collection, jobs, tasks",
    "watch": "findings of the watch, and what has changed since a time",
}
"""Toolsets of the homelab around the clusters. Their operations get the homelab where the others get the cluster."""
EVERY = {**TOOLSETS, **HOMELAB}
MODULES: Final = {
    "cluster": "tools.cluster tools.nodes",
    "guests": "tools.guest_bulk tools.guest_details tools.guest_diff tools.guest_options tools.guest_power "
    "tools.guests",
    "provision": "tools.containers tools.guest_clone tools.guest_delete tools.guest_migrate tools.guest_renumber "
    "tools.vm_import tools.vms",
    "configure": "tools.cloudinit tools.disks tools.nics",
    "snapshots": "tools.snapshots",
    "storage": "tools.storage_cleanup tools.storages tools.volumes",
    "images": "tools.image_templates tools.images tools.templates",
    "backups": "tools.backup_coverage tools.backup_files tools.backup_jobs tools.backup_restore tools.backups",
    "metrics": "tools.metrics",
    "access": "tools.access tools.acl tools.groups tools.permissions tools.pools tools.roles tools.tokens tools.users",
    "firewall": "tools.firewall tools.firewall_explain tools.firewall_rules",
    "ha": "tools.ha tools.replication",
    "network": "tools.networks tools.node_network tools.sdn",
    "nodes": "tools.ceph tools.logs tools.node_inspect tools.nodes",
    "reports": "tools.capacity tools.cluster",
    "inside": "tools.guest_commands tools.guest_files tools.guest_info tools.inventory",
    "api": "tools.api tools.api_search",
    "tasks": "tools.tasks",
    "runs": "runs.changes runs.control runs.evacuate runs.guest_update runs.remote_move runs.restore_drill "
    "runs.rolling_update",
    "hosts": "tools.host_commands tools.host_import tools.host_services tools.host_upgrade tools.hosts",
    "host_admin": "tools.host_admin tools.host_commands tools.host_discover tools.hosts",
    "map": "tools.network_map tools.network_scan",
    "workloads": "tools.projects tools.workload_lifecycle tools.workloads",
    "services": "tools.ansible tools.service_install tools.services",
    "terraform": "tools.terraform tools.terraform_export",
    "infra": "tools.devices tools.infra tools.infra_backup",
    "scripts": "tools.scripts",
    "pbs": "tools.pbs tools.pbs_api tools.pbs_backups tools.pbs_jobs tools.pbs_maintenance tools.pbs_tasks",
    "watch": "watch.changes watch.findings",
}
"""The modules that declare the operations of each toolset, so that only those of the chosen toolsets are imported."""

NAMES = "names"
"""In the extra of a type: the kinds of object that its values name, for shells that complete them."""
GuestRef = Annotated[int | str, Meta(description="vmid or name", extra={NAMES: ("guest",)})]
GuestRefs = Annotated[
    int | str | list[int | str], Meta(description="vmid or name, or a list", extra={NAMES: ("guest",)})
]


Spans = Literal["all", "any", "one"]


class Risk(enum.Enum):
    """What an operation can do. Gates and annotations follow from it."""

    READ = "read"
    LOOK_INSIDE = "look_inside"
    CHANGE = "change"
    DESTROY = "destroy"


NEEDED: Final = {
    Risk.READ: Access.READ,
    Risk.LOOK_INSIDE: Access.OPERATE,
    Risk.CHANGE: Access.OPERATE,
    Risk.DESTROY: Access.ADMIN,
}
"""The access level that a call of each risk needs."""


class Operation:
    """A declared function and what follows from it; schema and types are computed when first needed."""

    def __init__(
        self,
        function: Callable[..., Awaitable[Any]],
        *,
        toolset: str,
        risk: Risk,
        idempotent: bool | None,
        risk_of: Callable[[Mapping[str, Any]], Risk] | None,
        least: Risk | None,
        spans: Spans,
        unrecorded: Iterable[str],
        search_words: str,
        example: str,
        exemptions: tuple[Exemption, ...],
        shown_by: tuple[str, ...],
        elsewhere: Mapping[str, ToolHint],
        plans_later: bool,
    ) -> None:
        self.function = function
        self.name = function.__name__
        self.toolset = toolset
        self.about_homelab = self.toolset in HOMELAB
        self.risk = risk
        self.risk_of = risk_of
        self.least_risk = least or (risk if risk_of is None else Risk.READ)
        self.spans = spans
        self.unrecorded = frozenset(unrecorded)
        self.changes = risk in (Risk.CHANGE, Risk.DESTROY)
        self.idempotent = not self.changes if idempotent is None else idempotent
        self.search_words = search_words
        self.example = example
        self.exemptions = exemptions
        self.shown_by = shown_by
        self.elsewhere = elsewhere
        self.plans_later = plans_later

    async def run(self, cluster: Any, /, **arguments: Any) -> Any:
        try:
            return await self.function(cluster, **arguments)
        except StaleName:  # the view of the cluster had an outdated name, which is corrected now
            return await self.function(cluster, **arguments)

    @cached_property
    def summary(self) -> str:
        return " ".join(inspect.cleandoc(self.function.__doc__ or "").split())

    @cached_property
    def arguments(self) -> type[msgspec.Struct]:
        fields = [field for name, field in self._parameters.items() if name not in self.supplied]
        common = [argument for argument in CHANGE_ARGUMENTS if self.changes and argument[0] not in self.inapplicable]
        return msgspec.defstruct(self.name, [*fields, *common], kw_only=True)

    @cached_property
    def supplied(self) -> Mapping[str, Any]:
        """The parameters that the pipeline fills: name -> a key of `SUPPLIED`."""
        kinds = {name: name if name == OTHER_CLUSTER else field[1] for name, field in self._parameters.items()}
        return {name: kind for name, kind in kinds.items() if kind in [*SUPPLIED]}  # not every type is hashable

    @property
    def wants_other_cluster(self) -> bool:
        return OTHER_CLUSTER in self.supplied

    @property
    def inapplicable(self) -> Mapping[str, str]:
        """Arguments of the pipeline that it never takes, and why: `safely`, unless its plans decide about that."""
        if self.plans_later:
            return {SAFELY: PLANNED_LATER}
        return {SAFELY: NOT_ABOUT_GUESTS} if self.toolset in _OTHER_TOOLSETS else {}

    def schema(self) -> dict[str, Any]:
        return schema_of(self.arguments)

    def names_in(self, argument: str) -> tuple[str, ...]:
        """The kinds of object that an argument names, as its type declares them."""
        return _kinds_in(self._parameters[argument][1]) if argument in self._parameters else ()

    @cached_property
    def _parameters(self) -> dict[str, tuple[Any, ...]]:
        """Name -> name, type and default, if any; without the cluster, which comes first."""
        hints = typing.get_type_hints(self.function, include_extras=True)
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        return {
            parameter.name: (parameter.name, hints[parameter.name], *_default(parameter)) for parameter in parameters
        }


def _kinds_in(annotation: Any) -> tuple[str, ...]:
    for meta in getattr(annotation, "__metadata__", ()):
        if isinstance(meta, Meta) and meta.extra and NAMES in meta.extra:
            return tuple(meta.extra[NAMES])
    return next(filter(None, map(_kinds_in, typing.get_args(annotation))), ())


def _default(parameter: inspect.Parameter) -> tuple[Any, ...]:
    return () if parameter.default is inspect.Parameter.empty else (parameter.default,)


_operations: dict[str, Operation] = {}

Function = typing.TypeVar("Function", bound=Callable[..., Awaitable[Any]])

SAFELY = "safely"
PLANNED_LATER = "A run plans each of its steps later, from what it finds then"
NOT_ABOUT_GUESTS = "This changes no disk or option of a guest"
# Changes take these; the pipeline acts on them, the operation never sees them.
CHANGE_ARGUMENTS: tuple[tuple[str, Any, Any], ...] = (
    ("dry_run", Annotated[bool, Meta(description="Only show the plan")], False),
    (
        "wait",
        Annotated[float, Meta(ge=0, le=50, description="Seconds to follow the task before handing it back")] | None,
        None,
    ),
    (
        SAFELY,
        Annotated[bool, Meta(description="Take a snapshot of each affected guest first; refused if impossible")],
        False,
    ),
)
_OTHER_TOOLSETS = frozenset(
    ("access", "ha", "network", "nodes", "storage", "images", "tasks", "scripts", "pbs", "watch"),
)
"""Toolsets that change no disk or option of a guest, so that their tools do not offer `safely`."""
PIPELINE_ARGUMENTS = frozenset(name for name, *_ in CHANGE_ARGUMENTS)
OTHER_CLUSTER = "other_cluster"
"""The name of a parameter that the pipeline fills: see `quorate.pve.cluster.OtherCluster`."""
Owner = NewType("Owner", str)
"""The type of a parameter that the pipeline fills: to whom what the call starts belongs."""
InFull = NewType("InFull", bool)
"""The type of a parameter that the pipeline fills: whether a program reads the answer, so that it is not shortened."""
Neighbors = NewType("Neighbors", tuple[Any, ...])
"""The type of a parameter that the pipeline fills: all clusters, beyond the caller's scope, to spare what they use."""
SUPPLIED: Final[Mapping[Any, Any]] = {
    OTHER_CLUSTER: None,
    Report: None,
    Owner: "",
    InFull: False,
    Neighbors: (),
    ServerFiles: ServerFiles(),
}
"""What the pipeline fills, each with its value where nobody calls."""


def operation(
    *,
    toolset: str,
    risk: Risk,
    idempotent: bool | None = None,
    risk_of: Callable[[Mapping[str, Any]], Risk] | None = None,
    least: Risk | None = None,
    spans: Spans = "all",
    unrecorded: Iterable[str] = (),
    search_words: str = "",
    example: str = "",
    exemptions: tuple[Exemption, ...] = (),
    shown_by: tuple[str, ...] = (),
    elsewhere: Mapping[str, ToolHint] | None = None,
    plans_later: bool = False,
) -> Callable[[Function], Function]:
    """Declare an operation. Its first parameter is the cluster, or the homelab for a homelab toolset; a parameter
    annotated `Report` receives progress, `Owner` the caller's subject, `ServerFiles` the images on this machine that
    the caller may upload; `other_cluster` leads to the caller's other clusters.

    risk_of: the risk of a call where it depends on the arguments. `risk` is then the highest and `least` the lowest
        risk (READ by default); `least` decides whether the operation is listed.
    spans: what a read covers if there are several clusters and the caller names none: all of them, any one of them
        because each gives the same answer, or one that must be named.
    unrecorded: arguments of which the audit trail keeps only the length, such as the content of a file.
    search_words: what people say when they mean this operation, beyond its name and summary.
    example: arguments for a first call, as `key=value`; they work on the demo cluster.
    exemptions: conditions under which a call of the plan does not count although its risk is higher.
    shown_by: the operation that shows the result, and the arguments to pass on to it. It is called to find out
        how a change ended whose process died.
    elsewhere: values that callers expect here and that another tool takes, because it has another risk.
    plans_later: it starts or controls a run, whose steps are planned one by one, so `safely` does not apply.
    """

    def register(function: Function) -> Function:
        declared = Operation(
            function,
            toolset=toolset,
            risk=risk,
            idempotent=idempotent,
            risk_of=risk_of,
            least=least,
            spans=spans,
            unrecorded=unrecorded,
            search_words=search_words,
            example=example,
            exemptions=exemptions,
            shown_by=shown_by,
            elsewhere=elsewhere or {},
            plans_later=plans_later,
        )
        assert declared.name not in _operations, f"two operations are called {declared.name}"
        module = function.__module__.removeprefix("quorate.")
        assert module in MODULES[toolset].split(), f"{module} is not among the modules of {toolset}"
        _operations[declared.name] = declared
        return function

    return register


def operations(toolsets: Iterable[str] = EVERY) -> Mapping[str, Operation]:
    """The operations of these toolsets, by name. Only their modules are imported: start-up pays for nothing else."""
    chosen = frozenset(toolsets)
    for toolset in chosen:
        _load(toolset)
    return {name: _operations[name] for name in sorted(_operations) if _operations[name].toolset in chosen}


def find_operation(name: str) -> Operation | None:
    """One operation of any toolset. It is in a module of its noun: those are imported first."""
    noun = name.partition("_")[0]
    modules = {module: module.rpartition(".")[2] for toolset in EVERY for module in MODULES[toolset].split()}
    for module in sorted(modules, key=lambda module: (not modules[module].startswith(noun), len(module))):
        if name in _operations:
            break
        importlib.import_module(f"quorate.{module}")
    return _operations.get(name)


@cache
def _load(toolset: str) -> None:
    for module in MODULES[toolset].split():
        importlib.import_module(f"quorate.{module}")


# -- schemas on a diet -------------------------------------------------------------------------------------------------


@cache
def schema_of(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """Computed once and shared by every list of tools: copy it before you add to it."""
    (top,), parts = msgspec.json.schema_components([arguments])
    schema = parts[arguments.__name__] if "$ref" in top else top
    properties = {name: _slim(part) for name, part in schema.get("properties", {}).items()}
    required = {"required": schema["required"]} if schema.get("required") else {}
    return {"type": "object", "properties": properties, **required, "additionalProperties": False}


def _slim(part: dict[str, Any]) -> dict[str, Any]:
    """Without parts that are useless to a caller: null defaults, and `null` instead of leaving the argument out."""
    slim = {key: value for key, value in part.items() if not (key == "default" and value is None)}
    alternatives = [alternative for alternative in slim.pop("anyOf", ()) if alternative != {"type": "null"}]
    if len(alternatives) == 1:
        slim |= alternatives[0]
    elif alternatives:
        slim["anyOf"] = alternatives
    if "enum" in slim:
        slim["type"] = "string"  # some clients insist on it
        slim["enum"] = [value for value in slim["enum"] if value is not None]
    return slim


# -- answers -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Table:
    """A list answer: columns once, then rows; always bounded."""

    columns: tuple[str, ...]
    rows: list[list[Any]]
    total: int
    offset: int = 0
    note: str | Advice | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """Facts in addition to the rows."""
    keys: list[Any] = field(default_factory=list)
    """What the rows are sorted by, one for each, so that tables of several clusters can be put into one order."""

    @property
    def next_offset(self) -> int | None:
        end = self.offset + len(self.rows)
        return end if end < self.total else None


@dataclass(frozen=True, slots=True)
class IllustratedFacts:
    """Facts together with pictures (PNG)."""

    facts: dict[str, Any]
    pictures: tuple[bytes, ...]


def page(
    columns: tuple[str, ...], rows: Iterable[list[Any]], *, limit: int, offset: int, total: int | None = None
) -> Table:
    """One page of `rows` (all of them, in order), without the columns that are empty in every row of it."""
    everything = list(rows)
    shown = everything[offset : offset + limit]
    filled = [index for index in range(len(columns)) if any(row[index] not in ("", None) for row in shown)]
    return Table(
        columns=tuple(columns[index] for index in filled),
        rows=[[row[index] for index in filled] for row in shown],
        total=len(everything) if total is None else total,
        offset=offset,
    )


# -- which tools are served: the default ones, whole toolsets, or both -------------------------------------------------

DEFAULT, ALL = "default", "all"
"""Name the default tools, and all for clusters and the watch, where toolsets are chosen."""

DEFAULT_TOOLS: Mapping[str, str] = {
    "cluster": "cluster_status node_get node_list",
    "guests": "guest_configure guest_get guest_list guest_power guest_screenshot guest_stop",
    "provision": "container_create guest_clone guest_delete guest_migrate vm_create",
    "configure": "disk_add disk_change disk_destroy",
    "snapshots": "snapshot_create snapshot_delete snapshot_list snapshot_rollback",
    "storage": "storage_list volume_list",
    "backups": "backup_coverage backup_create backup_job_list backup_job_set backup_list backup_restore",
    "metrics": "metrics_get metrics_top",
    "reports": "cluster_health",
    "inside": "guest_exec guest_file_read guest_file_write guest_job",
    "watch": "changes_since finding_list",
    "tasks": "task_get task_list task_stop task_wait",
}
"""What a homelab needs every day, by toolset, in at most 34 kB of `tools/list`."""

_GROUPS: Mapping[str, Iterable[str]] = {
    ALL: (*TOOLSETS, *(toolset for toolset in DEFAULT_TOOLS if toolset not in TOOLSETS)),
    "homelab": HOMELAB,
}
_DEFAULT_NAMES = frozenset(name for names in DEFAULT_TOOLS.values() for name in names.split())


def expand(names: Iterable[str]) -> frozenset[str]:
    """Toolsets by name, with the groups `all` and `homelab` spelled out. Raises KeyError for an unknown name."""
    chosen: set[str] = set()
    for name in names:
        if name not in _GROUPS and name not in EVERY and name != DEFAULT:
            raise KeyError(name)
        chosen |= {*_GROUPS.get(name, (name,))}
    return frozenset(chosen)


def valid_names() -> str:
    return f"{', '.join(EVERY)}, {DEFAULT}, {' or '.join(_GROUPS)}"


def describe_unknown(name: str) -> str:
    hint = suggest(name, (*EVERY, DEFAULT, *_GROUPS), None)
    advice = f"did{hint.removeprefix('Did')} Choose" if hint else "choose"
    return f"There is no toolset {name!r}: {advice} from {valid_names()}"


def includes(chosen: frozenset[str], operation: Operation) -> bool:
    return operation.toolset in chosen or (DEFAULT in chosen and operation.name in _DEFAULT_NAMES)


def chosen_operations(chosen: frozenset[str]) -> list[Operation]:
    """By name. Only modules of toolsets with a chosen operation are imported."""
    return [operation for operation in operations(in_use(chosen)).values() if includes(chosen, operation)]


def in_use(chosen: frozenset[str]) -> list[str]:
    """The toolsets of which at least one tool is on."""
    return [name for name in EVERY if name in chosen or (DEFAULT in chosen and name in DEFAULT_TOOLS)]


def option_adding(chosen: frozenset[str], toolset: str) -> str:
    """The value of `--toolsets` that adds one and keeps what is enabled."""
    return ",".join(_shortest(chosen | {toolset}))


def _shortest(chosen: frozenset[str]) -> list[str]:
    if DEFAULT in chosen:
        return [f"+{name}" for name in _shortest(chosen - {DEFAULT})] or [DEFAULT]
    whole = [group for group, members in _GROUPS.items() if chosen.issuperset(members)]
    covered = {name for group in whole for name in _GROUPS[group]}
    return [*whole, *(name for name in EVERY if name in chosen and name not in covered)]


def left_out(chosen: frozenset[str]) -> tuple[list[str], list[str]]:
    """The toolsets that are off, and those of which only the default tools are on."""
    partly = [name for name in DEFAULT_TOOLS if name not in chosen] if DEFAULT in chosen else []
    off = [name for name in EVERY if name not in chosen and name not in partly]
    return off, [name for name in partly if len(operations([name])) > len(DEFAULT_TOOLS[name].split())]
