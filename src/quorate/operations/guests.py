"""Finding and reading guests: VMs and containers."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.operations.registry import GuestRef, Risk, Table, operation, page
from quorate.operations.selection import Filter
from quorate.operations.units import duration, percent, size, used_of
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.errors import Problem
from quorate.pve.inventory import Resource

COLUMNS = ("vmid", "name", "type", "node", "status", "cpu", "mem", "disk", "tags", "pool", "lock")
NOTES_SHOWN = 500

SORTS = {
    "vmid": lambda row: row.vmid,
    "name": lambda row: (row.name, row.vmid),
    "cpu": lambda row: -row.cpu * row.maxcpu,
    "mem": lambda row: -row.mem,
    "disk": lambda row: -row.maxdisk,
    "uptime": lambda row: -row.uptime,
}


@operation(toolset="guests", risk=Risk.READ)
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


@operation(toolset="guests", risk=Risk.READ)
async def guest_get(pve: Cluster, guest: GuestRef) -> dict[str, Any]:
    """One guest: state, load, hardware, disks, networks, addresses, snapshots, changes that wait for a restart."""
    found = await pve.guest(guest)
    status, pending, snapshots, addresses = await asyncio.gather(
        found.get("status/current"), found.get("pending"), found.get("snapshot"), _addresses(found)
    )
    config = {entry["key"]: entry["value"] for entry in pending if "value" in entry}
    return {
        **_identity(found, status),
        **_load(status),
        "hardware": _hardware(config, found.is_vm),
        "disks": {key: str(value) for key, value in sorted(config.items()) if values.is_disk(key, str(value))},
        "networks": {key: str(value) for key, value in sorted(config.items()) if values.bus_of(key) == "net"},
        "addresses": addresses or values.addresses_in_config(config),
        "options": _options(config),
        "notes": str(config.get("description", ""))[:NOTES_SHOWN],
        "snapshots": sum(snapshot.get("name") != "current" for snapshot in snapshots),
        "pending": _pending(pending),
    }


async def _addresses(guest: Guest) -> list[str]:
    """What the guest itself says. A stopped guest or one without agent has nothing to say; that is no error here."""
    if guest.row.status != "running":
        return []
    try:
        if guest.is_vm:
            answer = await guest.get("agent/network-get-interfaces")
            return _agent_addresses(answer.get("result"))
        return _container_addresses(await guest.get("interfaces"))
    except Problem:
        return []


def _agent_addresses(interfaces: Any) -> list[str]:
    if not isinstance(interfaces, list):  # the agent's own error stands in place of the list
        return []
    return [
        address["ip-address"]
        for interface in interfaces
        for address in interface.get("ip-addresses", [])
        if _is_useful(address["ip-address"])
    ]


def _container_addresses(interfaces: Any) -> list[str]:
    found: list[str] = []
    for interface in interfaces or []:
        for key in ("inet", "inet6"):
            address = str(interface.get(key) or "").partition("/")[0]
            if _is_useful(address):
                found.append(address)
    return found


def _is_useful(address: str) -> bool:
    return bool(address) and not address.startswith(("127.", "::1", "fe80:", "169.254."))


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


def _pending(entries: list[dict[str, Any]]) -> dict[str, str]:
    """Changes that wait for a restart: key -> what it becomes."""
    waiting = {entry["key"]: str(entry["pending"]) for entry in entries if "pending" in entry}
    return waiting | {entry["key"]: "(removed)" for entry in entries if entry.get("delete")}
