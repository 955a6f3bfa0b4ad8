"""Finding and reading guests: VMs and containers."""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import GUEST_CONFIGURE, GUEST_POWER, TASK_LIST, TASK_WAIT, Advice
from quorate.inside.interfaces import is_usable, read_interfaces, strip_prefix
from quorate.operations.api.responses import hide_secrets
from quorate.operations.registry import GuestRef, Risk, Table, operation, page
from quorate.operations.start_checks import start_obstacles
from quorate.operations.units import Quantity, duration, load_of, moment, percent, size, unused_size, used_of
from quorate.problems import BadArgument, Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.lookup import Resource
from quorate.pve.tasks import gather_bounded


@dataclass(frozen=True, slots=True)
class Filter:
    """Every specified field must match."""

    node: str | None = None
    type: str | None = None
    status: str | None = None
    name: str | None = None
    tag: str | None = None
    pool: str | None = None
    template: bool | None = None

    async def apply(self, pve: Cluster, *, to_act: bool = False, sort: str = "") -> Sequence[Resource]:
        """The matching guests; an unknown node or pool is an error, not an empty result.

        `to_act`: for choosing the targets of a change; name, status and template then come from the nodes. They
        are also asked before a name is reported as missing.
        """
        if self.node is not None:
            await pve.inventory.node(self.node)
        if self.pool is not None and (await pve.inventory.view()).pools:
            await pve.inventory.pool(self.pool)
        lagging = self.name is not None or self.status is not None or self.template is not None
        if not (to_act and lagging):
            view = await pve.inventory.complete_view()
            found = view.select((self, sort), lambda: self._choose(view.guests, sort))
            if found or self.name is None:
                return found
        return self._choose(await pve.inventory.fresh_guests(self.node), sort)

    def _choose(self, rows: Iterable[Resource], sort: str) -> Sequence[Resource]:
        found = [row for row in rows if self.fits(row)]
        return tuple(sorted(found, key=SORTS[sort]) if sort else found)

    def fits(self, row: Resource) -> bool:
        return (
            (self.node is None or row.node == self.node)
            and (self.type is None or row.kind == self.type)
            and (self.status is None or row.status == self.status)
            and (self.name is None or _name_matches(row.name, self.name))
            and (self.tag is None or self.tag.lower() in (tag.lower() for tag in row.tag_list))
            and (self.pool is None or row.pool == self.pool)
            and (self.template is None or bool(row.template) == self.template)
        )


def _name_matches(name: str, pattern: str) -> bool:
    pattern = pattern.lower()
    return fnmatch.fnmatchcase(name.lower(), pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*")


COLUMNS = ("vmid", "name", "type", "node", "status", "cpu", "mem", "disk", "tags", "pool", "lock")
NOTES_SHOWN = 500
READS_AT_ONCE = 16
CONFIGS_AT_MOST = 300

SORTS: Mapping[str, Callable[[Resource], Any]] = {
    "vmid": lambda row: row.vmid,
    "name": lambda row: (row.name, row.vmid),
    "cpu": lambda row: -row.cpu * row.maxcpu,
    "mem": lambda row: -row.mem,
    "disk": lambda row: -row.maxdisk,
    "uptime": lambda row: -row.uptime,
}


@operation(
    risk=Risk.READ,
    search_words=(
        "location machine ip count list everything node powered off vms containers running stopped guests find "
        "search tag pool name"
    ),
    example="status=running tag=prod",
)
async def guest_list(
    pve: Cluster,
    node: str | None = None,
    type: Literal["vm", "ct"] | None = None,
    status: Literal["running", "stopped", "paused", "unknown"] | None = None,
    name: Annotated[str, Meta(description="Part of it, or web*")] | None = None,
    tag: str | None = None,
    pool: str | None = None,
    template: Annotated[bool, Meta(description="Only templates; false: none")] | None = None,
    protection: bool | None = None,
    sort: Annotated[
        Literal["vmid", "name", "cpu", "mem", "disk", "uptime"],
        Meta(description="Largest first"),
    ] = "vmid",
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Find VMs and containers; cpu is the load of the guest's cores, mem is used/assigned, disk is assigned."""
    wanted = await Filter(node, type, status, name, tag, pool, template).apply(pve, sort=sort)
    if protection is not None:
        wanted = await _with_protection(pve, wanted, protection=protection)
    shown = wanted[offset : offset + limit]
    table = page(COLUMNS, [_row(row) for row in shown], limit=limit, offset=0)
    table.offset, table.total = offset, len(wanted)
    if sort != "vmid":
        table.keys = [SORTS[sort](row) for row in shown]
    if table.next_offset is not None:
        table.note = "narrow with node, type, status, name, tag or pool"
    return table


def _row(row: Resource) -> list[Any]:
    running = row.status == "running"
    return [
        row.vmid,
        row.name,
        row.kind,
        row.node,
        "template" if row.template else row.status,
        _cpu(row) if row.maxcpu else "",
        used_of(row.mem, row.maxmem) if running else unused_size(row.maxmem),
        size(row.maxdisk) if row.maxdisk else "",
        row.tags,
        row.pool,
        row.lock,
    ]


async def _with_protection(pve: Cluster, rows: Sequence[Resource], *, protection: bool) -> Sequence[Resource]:
    """The cluster's view does not show protection, so each configuration is read."""
    if len(rows) > CONFIGS_AT_MOST:
        raise BadArgument(
            f"protection would read the configurations of {len(rows)} guests", next_step="Narrow with node, tag or pool"
        )
    configs = await gather_bounded(READS_AT_ONCE, [partial(Guest(pve, row).get, "config") for row in rows])
    return [
        row
        for row, config in zip(rows, configs, strict=True)
        if values.is_on(config.get("protection", 0)) == protection
    ]


def _cpu(row: Resource) -> str:
    load = row.cpu if row.status == "running" else 0.0
    return load_of(
        load, row.maxcpu, text=f"{percent(load)}/{row.maxcpu:g}" if row.status == "running" else f"{row.maxcpu:g}"
    )


@operation(
    risk=Risk.READ,
    search_words=(
        "location node vlan mac how long up details guest cores memory ip hardware config status alive agent running"
    ),
    example="guest=docker01",
)
async def guest_get(
    pve: Cluster,
    guest: GuestRef,
    detail: Annotated[
        bool, Meta(description="Also addresses, snapshots, OS, file systems, missing disks, tasks, digest")
    ] = False,
) -> dict[str, Any]:
    """One guest: state, load, hardware, disks, networks, what waits for a restart, and what would prevent a start."""
    found = await pve.guest(guest)
    was = found.row.status
    status, pending, snapshots, tasks, addresses, inside = await _gather(
        found.get("status/current"),
        found.get("pending"),
        found.get("snapshot") if detail else None,
        # The task of a locked guest is what the caller needs to know.
        found.running_tasks() if detail or found.row.lock else None,
        *(_from_inside(found) if detail else (None, None)),
    )
    if detail and found.row.status == "running" != was:  # it was started after the cluster's view was made
        addresses, inside = await asyncio.gather(*_from_inside(found))
    config = {entry["key"]: entry["value"] for entry in pending if "value" in entry}
    disks, detached, networks, options = _group_options(config)
    waiting = values.pending_changes(pending)
    could_start = status.get("status") == "stopped" and not found.row.template and not status.get("lock")
    obstacles = await start_obstacles(pve, found, config, closely=detail) if could_start else []
    return {
        **_identity(found, status),
        **({"protection": True} if values.is_on(config.get("protection", 0)) else {}),
        **({"cannot_start": obstacles} if obstacles else {}),
        **_load(status),
        **(inside or {}),
        "hardware": _hardware(config, found.is_vm),
        "disks": disks,
        "detached": detached,
        "networks": networks,
        "addresses": _join_addresses(addresses or values.addresses_in_config(config)),
        "options": options,
        "notes": str(config.get("description", ""))[:NOTES_SHOWN],
        "snapshots": None if snapshots is None else sum(row.get("name") != "current" for row in snapshots),
        "pending": waiting,
        "tasks": [_task_line(task) for task in tasks or []],
        **({"digest": config.get("digest")} if detail else {}),
        "next": _next_steps(found, status, tasks, waiting),
    }


async def _gather(*reads: Awaitable[Any] | None) -> list[Any]:
    """Run the reads concurrently; None for None."""
    results = iter(await asyncio.gather(*(read for read in reads if read is not None)))
    return [None if read is None else next(results) for read in reads]


def _from_inside(guest: Guest) -> tuple[Awaitable[Any], Awaitable[Any]]:
    return _addresses(guest), _inside(guest)


async def _addresses(guest: Guest) -> dict[str, list[str]]:
    """What the guest itself reports. A stopped guest or one without an agent reports nothing, without an error."""
    if guest.row.status != "running":
        return {}
    try:
        interfaces = await read_interfaces(guest)
    except Problem:
        return {}
    found = {one.name: [strip_prefix(address) for address in one.addresses if is_usable(address)] for one in interfaces}
    return {name: own for name, own in found.items() if own}


async def _agent_list(guest: Guest, what: str) -> list[dict[str, Any]]:
    """A list from inside the guest, empty if unavailable: the agent then returns an error instead of the list."""
    try:
        answer = await guest.get(what)
    except Problem:
        return []
    listed = answer.get("result") if isinstance(answer, dict) else answer
    return listed if isinstance(listed, list) else []


def _join_addresses(addresses: dict[str, list[str]]) -> dict[str, str]:
    return {name: ", ".join(own) for name, own in addresses.items()}


async def _inside(guest: Guest) -> dict[str, Any]:
    """What only the agent of a running VM knows."""
    if not guest.is_vm or guest.row.status != "running":
        return {}
    system, volumes = await asyncio.gather(_os(guest), _agent_list(guest, "agent/get-fsinfo"))
    return {"os": system, "filesystems": _usage(volumes)}


async def _os(guest: Guest) -> str:
    try:
        result = (await guest.get("agent/get-osinfo")).get("result") or {}
    except Problem:
        return ""
    kernel = f", kernel {result['kernel-release']}" if result.get("kernel-release") else ""
    return f"{result.get('pretty-name') or result.get('name', '')}{kernel}"


def _usage(volumes: list[dict[str, Any]]) -> dict[str, str]:
    """Mount point -> used of whole; file systems without a size, such as a mounted snap, are left out."""
    return {
        str(volume.get("mountpoint", "?")): _with_kind(
            used_of(volume.get("used-bytes", 0), volume["total-bytes"]), str(volume.get("type", ""))
        )
        for volume in volumes
        if volume.get("total-bytes")
    }


def _with_kind(used: str, kind: str) -> str:
    value = used.value if isinstance(used, Quantity) else {}
    return Quantity(f"{used} {kind}".rstrip(), {**value, "type": kind})


def _task_line(task: dict[str, Any]) -> str:
    return f"{task.get('type')} since {moment(task.get('starttime', 0))} by {task.get('user')}: {task.get('upid')}"


def _next_steps(
    guest: Guest, status: dict[str, Any], tasks: list[dict[str, Any]] | None, waiting: dict[str, str]
) -> str | Advice:
    lock = str(status.get("lock") or "")
    if tasks:
        return Advice("A task is working on it", TASK_WAIT(task=tasks[0].get("upid")))
    if lock == "suspended":
        return Advice("It is suspended to disk; resume it", GUEST_POWER(guest=guest.vmid, action="resume"))
    if lock and tasks is None:
        return Advice(f"It is locked ({lock}). Find the task that holds it", TASK_LIST(guest=guest.vmid))
    if lock:
        unlock = f"{'qm' if guest.is_vm else 'pct'} unlock {guest.vmid}"
        return Advice(
            f"It is locked ({lock}) and none of its tasks is running. `{unlock}` on {guest.row.node} removes a lock "
            "that was left behind",
            TASK_LIST(guest=guest.vmid),
        )
    if waiting and status.get("status") == "running":
        return Advice(
            "Apply what is pending, or revert it",
            GUEST_POWER(guest=guest.vmid, action="reboot"),
            GUEST_CONFIGURE(guest=guest.vmid, revert=next(iter(waiting))),
        )
    return ""


def _identity(guest: Guest, status: dict[str, Any]) -> dict[str, Any]:
    row = guest.row
    state = status.get("qmpstatus") or status.get("status", row.status)
    return {
        "vmid": guest.vmid,
        "name": status.get("name") or row.name,
        "type": row.kind,
        "node": row.node,
        "status": "template" if row.template else state,
        "pool": row.pool,
        "tags": row.tags,
        "lock": status.get("lock", ""),
        "ha": (status.get("ha") or {}).get("state", ""),
    }


def _load(status: dict[str, Any]) -> dict[str, Any]:
    if status.get("status") != "running":
        return {}
    return {
        "uptime": duration(status.get("uptime", 0)),
        "cpu": _load_of_cores(status.get("cpu", 0), status.get("cpus", 0)),
        "memory": used_of(status.get("mem", 0), status.get("maxmem", 0)),
        "rootfs": used_of(status["disk"], status.get("maxdisk", 0)) if status.get("disk") else "",
    }


def _load_of_cores(share: float, cores: float) -> str:
    return load_of(share, cores, text=f"{percent(share)} of {cores or '?'}")


_HARDWARE_VM = (
    "cores",
    "sockets",
    "cpu",
    "memory",
    "balloon",
    "bios",
    "machine",
    "scsihw",
    "ostype",
    "agent",
)
_HARDWARE_CT = ("cores", "cpulimit", "memory", "swap", "ostype", "arch", "unprivileged", "features")


def _hardware(config: dict[str, Any], is_vm: bool) -> dict[str, Any]:
    return {key: config[key] for key in (_HARDWARE_VM if is_vm else _HARDWARE_CT) if key in config}


_NOT_OPTIONS = {
    *_HARDWARE_VM,
    *_HARDWARE_CT,
    "name",
    "hostname",
    "description",
    "digest",
    "tags",
    "vmgenid",
    "smbios1",
    "meta",
    "protection",
    "sshkeys",
    "cipassword",
}


def _group_options(config: dict[str, Any]) -> tuple[dict[str, str], dict[str, str], dict[str, str], dict[str, Any]]:
    """Disks, detached disks, networks and other options."""
    disks, detached, networks, options = {}, {}, {}, {}
    for key, value in sorted(config.items()):
        bus = values.bus_of(key)
        if bus == "unused":
            detached[key] = str(value)
        elif bus == "net":
            networks[key] = str(value)
        elif bus is not None and values.is_disk(key, str(value)):
            disks[key] = str(value)
        elif key not in _NOT_OPTIONS:
            options[key] = hide_secrets("/nodes/{node}/lxc", value) if isinstance(value, list) else value
    return disks, detached, networks, options
