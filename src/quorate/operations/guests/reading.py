"""Finding and reading guests: VMs and containers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.inside.interfaces import bare, from_pve, is_usable
from quorate.operations.config_change import pending_changes
from quorate.operations.guests.selection import Filter
from quorate.operations.registry import GuestRef, Risk, Table, operation, page
from quorate.operations.units import duration, moment, percent, size, used_of
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.errors import Problem
from quorate.pve.inventory import Resource

COLUMNS = ("vmid", "name", "type", "node", "status", "cpu", "mem", "disk", "tags", "pool", "lock")
NOTES_SHOWN = 500

SORTS: Mapping[str, Callable[[Resource], Any]] = {
    "vmid": lambda row: row.vmid,
    "name": lambda row: (row.name, row.vmid),
    "cpu": lambda row: -row.cpu * row.maxcpu,
    "mem": lambda row: -row.mem,
    "disk": lambda row: -row.maxdisk,
    "uptime": lambda row: -row.uptime,
}


@operation(risk=Risk.READ)
async def guest_list(
    pve: Cluster,
    node: Annotated[str, Meta(description="Only on this node")] | None = None,
    type: Literal["vm", "ct"] | None = None,
    status: Literal["running", "stopped", "paused", "unknown"] | None = None,
    name: Annotated[str, Meta(description="Part of the name, or a pattern such as web*")] | None = None,
    tag: str | None = None,
    pool: str | None = None,
    template: Annotated[bool, Meta(description="true: only templates; false: none")] | None = None,
    sort: Annotated[
        Literal["vmid", "name", "cpu", "mem", "disk", "uptime"],
        Meta(description="cpu, mem, disk, uptime: largest first"),
    ] = "vmid",
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Find VMs and containers; cpu is the load of the guest's cores, mem and disk are used/given."""
    wanted = await Filter(node, type, status, name, tag, pool, template).apply(pve)
    wanted.sort(key=SORTS[sort])
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
        f"{percent(row.cpu)}/{row.maxcpu:g}" if running else (f"{row.maxcpu:g}" if row.maxcpu else ""),
        used_of(row.mem, row.maxmem) if running else (size(row.maxmem) if row.maxmem else ""),
        size(row.maxdisk) if row.maxdisk else "",
        row.tags,
        row.pool,
        row.lock,
    ]


@operation(risk=Risk.READ)
async def guest_get(
    pve: Cluster,
    guest: GuestRef,
    detail: Annotated[bool, Meta(description="Also OS, file systems, running tasks, digest")] = False,
) -> dict[str, Any]:
    """One guest: state, load, hardware, disks, networks, addresses, snapshots, changes that wait for a restart."""
    found = await pve.guest(guest)
    # A locked guest's snapshots may be changing just now, and its task is what the caller needs to know.
    locked = bool(found.row.lock)
    status, pending, addresses, snapshots, tasks, inside = await asyncio.gather(
        found.get("status/current"),
        found.get("pending"),
        _addresses(found),
        found.get("snapshot") if detail or not locked else _nothing(),
        _running_tasks(pve, found) if detail or locked else _nothing(),
        _inside(found) if detail else _nothing(),
    )
    config = {entry["key"]: entry["value"] for entry in pending if "value" in entry}
    waiting = pending_changes(pending)
    return {
        **_identity(found, status),
        **_load(status),
        **(inside or {}),
        "hardware": _hardware(config, found.is_vm),
        "disks": {key: str(value) for key, value in sorted(config.items()) if values.is_disk(key, str(value))},
        "detached": {key: str(value) for key, value in sorted(config.items()) if values.bus_of(key) == "unused"},
        "networks": {key: str(value) for key, value in sorted(config.items()) if values.bus_of(key) == "net"},
        "addresses": _joined(addresses or values.addresses_in_config(config)),
        "options": _options(config),
        "notes": str(config.get("description", ""))[:NOTES_SHOWN],
        "snapshots": None if snapshots is None else sum(row.get("name") != "current" for row in snapshots),
        "pending": waiting,
        "tasks": [_task_line(task) for task in tasks or []],
        **({"digest": config.get("digest")} if detail else {}),
        "next": _next_steps(found, status, tasks, waiting),
    }


async def _nothing() -> None:
    return None


async def _addresses(guest: Guest) -> dict[str, list[str]]:
    """What the guest itself says. A stopped guest or one without agent has nothing to say; that is no error here."""
    if guest.row.status != "running":
        return {}
    try:
        interfaces = await from_pve(guest)
    except Problem:
        return {}
    found = {one.name: [bare(address) for address in one.addresses if is_usable(address)] for one in interfaces}
    return {name: own for name, own in found.items() if own}


async def _asked(guest: Guest, what: str) -> list[dict[str, Any]]:
    """A list from inside the guest, empty if it cannot be had: the agent's own error stands in place of the list."""
    try:
        answer = await guest.get(what)
    except Problem:
        return []
    listed = answer.get("result") if isinstance(answer, dict) else answer
    return listed if isinstance(listed, list) else []


def _joined(addresses: dict[str, list[str]]) -> dict[str, str]:
    return {name: ", ".join(own) for name, own in addresses.items()}


async def _inside(guest: Guest) -> dict[str, Any]:
    """What only the agent of a running VM knows."""
    if not guest.is_vm or guest.row.status != "running":
        return {}
    system, volumes = await asyncio.gather(_os(guest), _asked(guest, "agent/get-fsinfo"))
    return {"os": system, "filesystems": _usage(volumes)}


async def _os(guest: Guest) -> str:
    try:
        result = (await guest.get("agent/get-osinfo")).get("result") or {}
    except Problem:
        return ""
    kernel = f", kernel {result['kernel-release']}" if result.get("kernel-release") else ""
    return f"{result.get('pretty-name') or result.get('name', '')}{kernel}"


def _usage(volumes: list[dict[str, Any]]) -> dict[str, str]:
    """Mount point -> used of whole; what has no size, such as a mounted snap, tells nothing."""
    return {
        str(volume.get("mountpoint", "?")): f"{used_of(volume.get('used-bytes', 0), volume['total-bytes'])}"
        f" {volume.get('type', '')}".rstrip()
        for volume in volumes
        if volume.get("total-bytes")
    }


async def _running_tasks(pve: Cluster, guest: Guest) -> list[dict[str, Any]] | None:
    """None if we may not see them."""
    try:
        rows = await pve.get(f"/nodes/{guest.row.node}/tasks", vmid=guest.vmid, source="active")
    except Problem:
        return None
    return [row for row in rows or [] if "endtime" not in row]


def _task_line(task: dict[str, Any]) -> str:
    return f"{task.get('type')} since {moment(task.get('starttime', 0))} by {task.get('user')}: {task.get('upid')}"


def _next_steps(
    guest: Guest, status: dict[str, Any], tasks: list[dict[str, Any]] | None, waiting: dict[str, str]
) -> str:
    lock = str(status.get("lock") or "")
    if tasks:
        return f"A task is at work on it: task_wait task={tasks[0].get('upid')}"
    if lock == "suspended":
        return "It sleeps on disk: guest_power action=resume wakes it"
    if lock and tasks is None:
        return f"It is locked ({lock}): task_list shows the task that holds it"
    if lock:
        unlock = f"{'qm' if guest.is_vm else 'pct'} unlock {guest.vmid}"
        return (
            f"It is locked ({lock}) and no running task of it is to be seen: see task_list; "
            f"a lock left behind goes with `{unlock}` on {guest.row.node}"
        )
    if waiting and status.get("status") == "running":
        return "guest_power action=reboot applies what is pending; guest_configure revert drops it"
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
        "cpu": f"{percent(status.get('cpu', 0))} of {status.get('cpus', '?')}",
        "memory": used_of(status.get("mem", 0), status.get("maxmem", 0)),
        "rootfs": used_of(status["disk"], status.get("maxdisk", 0)) if status.get("disk") else "",
    }


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
}
_SECRET = {"cipassword"}


def _options(config: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in sorted(config.items())
        if key not in _NOT_OPTIONS | _SECRET
        and not values.is_disk(key, str(value))
        and values.bus_of(key) not in ("net", "unused")
        and key != "sshkeys"
    }
