"""One guest: what it is and does, why it does not start, and its screen."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Mapping
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import NAMED, Advice, Sentence, see, tools
from quorate.operations.registry import GuestRef, IllustratedFacts, Risk, operation
from quorate.problems import BadArgument, Conflict, Problem, catch_problem
from quorate.pve import values
from quorate.pve.backups import excluded_volumes
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.lookup import Resource
from quorate.pve.stored_objects import hide_secrets
from quorate.tools.guest_addresses import AddressFinder, read_reported
from quorate.tools.guests import PAUSED, PAUSED_VM, nodes_away, state_of
from quorate.tools.start_obstacles import find_obstacles
from quorate.units import Quantity, duration, load_of, moment, percent, size, unused_size, used_of

NOTES_SHOWN = 500


@operation(
    toolset="guests",
    risk=Risk.READ,
    search_words=(
        "location node vlan mac how long up details guest cores memory ip hardware config status alive agent running"
    ),
    example="guest=docker01",
)
async def guest_get(
    pve: Cluster,
    guest: GuestRef,
    detail: Annotated[bool, Meta(description="Also snapshots, OS, file systems, tasks, digest")] = False,
) -> dict[str, Any]:
    """One guest: state, IP addresses, load, hardware, disks, what waits for a restart, why it cannot start."""
    target = await pve.guest(guest)
    if target.row.node_is_offline:
        return _describe_last(target.row, pve.clock.time())
    was = target.row.status
    status, pending, snapshots, tasks, reported, inside = await _gather(
        target.get("status/current"),
        target.get("pending"),
        target.get("snapshot") if detail else None,
        # The task of a locked guest is what the caller needs to know.
        target.running_tasks() if detail or target.row.lock else None,
        read_reported(target),
        _inside(target) if detail else None,
    )
    if target.row.status == "running" != was:  # it was started after the cluster's view was made
        reported, inside = await _gather(read_reported(target), _inside(target) if detail else None)
    config = {entry["key"]: entry["value"] for entry in pending if "value" in entry}
    disks, detached, networks, options = _group_options(config)
    if status.get("status") != "running":
        reported = None
    addresses = await AddressFinder(pve).find(target, config, reported)
    excluded = excluded_volumes(config, is_vm=target.is_vm)
    waiting = values.pending_changes(pending)
    could_start = status.get("status") == "stopped" and not target.row.template and not status.get("lock")
    obstacles = await find_obstacles(pve, target, config) if could_start else []
    return {
        **_identity(target, status),
        **({"not_included": excluded} if excluded else {}),
        **({"protection": True} if values.is_on(config.get("protection", 0)) else {}),
        **({"cannot_start": [obstacle.as_dict() for obstacle in obstacles]} if obstacles else {}),
        **_load(status),
        **(inside or {}),
        "hardware": {key: config[key] for key in (_HARDWARE_VM if target.is_vm else _HARDWARE_CT) if key in config},
        "disks": disks,
        "detached": detached,
        "networks": networks,
        "addresses": addresses.by_interface,
        **({"addresses_from": addresses.source} if addresses.source else {}),
        **({"no_address": addresses.why_none} if addresses.why_none else {}),
        "options": options,
        "notes": str(config.get("description", ""))[:NOTES_SHOWN],
        "snapshots": None if snapshots is None else sum(row.get("name") != "current" for row in snapshots),
        "pending": waiting,
        "tasks": [_task_line(task) for task in tasks or []],
        **({"digest": config.get("digest")} if detail else {}),
        "next": _next_steps(target, status, tasks, waiting),
    }


def _describe_last(row: Resource, now: float) -> dict[str, Any]:
    """A guest whose node is offline: only that node could say more."""
    return {
        "vmid": row.vmid,
        "name": row.name,
        "type": row.kind,
        "node": row.node,
        "status": state_of(row),
        "offline": nodes_away([row], now),
        "pool": row.pool,
        "tags": row.tags,
        "lock": row.lock,
        "ha": row.hastate,
        "cores": row.maxcpu or "",
        "memory": unused_size(row.maxmem) if row.maxmem else "",
        "disk": size(row.maxdisk) if row.maxdisk else "",
        "not_read": ["state, hardware, disks, networks and snapshots: the node is offline"],
        "next": see("See which nodes are offline", tools.cluster_status),
    }


async def _gather(*reads: Awaitable[Any] | None) -> list[Any]:
    """The results of concurrent reads; None where there is no read."""
    results = iter(await asyncio.gather(*(read for read in reads if read is not None)))
    return [None if read is None else next(results) for read in reads]


async def _inside(guest: Guest) -> dict[str, Any]:
    """The facts that only the agent of a running VM knows."""
    if not guest.is_vm or guest.row.status != "running":
        return {}
    system, filesystems = await asyncio.gather(_os(guest), _filesystems(guest))
    return {"os": system, "filesystems": filesystems}


async def _os(guest: Guest) -> str:
    answer = await catch_problem(guest.get("agent/get-osinfo"))
    if isinstance(answer, Problem):
        return ""
    result = answer.get("result") or {}
    kernel = f", kernel {result['kernel-release']}" if result.get("kernel-release") else ""
    return f"{result.get('pretty-name') or result.get('name', '')}{kernel}"


async def _filesystems(guest: Guest) -> dict[str, str]:
    """Mount point -> used of whole; file systems without a size, such as a mounted snap, are left out."""
    answer = await catch_problem(guest.get("agent/get-fsinfo"))
    listed = answer.get("result") if isinstance(answer, dict) else answer
    filesystems: dict[str, str] = {}
    for volume in listed if isinstance(listed, list) else ():  # the agent returns an error instead of the list
        if volume.get("total-bytes"):
            used, kind = used_of(volume.get("used-bytes", 0), volume["total-bytes"]), str(volume.get("type", ""))
            value = used.value if isinstance(used, Quantity) else {}
            filesystems[str(volume.get("mountpoint", "?"))] = Quantity(
                f"{used} {kind}".rstrip(), {**value, "type": kind}
            )
    return filesystems


def _task_line(task: dict[str, Any]) -> str:
    return f"{task.get('type')} since {moment(task.get('starttime', 0))} by {task.get('user')}: {task.get('upid')}"


def _next_steps(
    guest: Guest, status: dict[str, Any], tasks: list[dict[str, Any]] | None, waiting: dict[str, str]
) -> str | Advice:
    lock = str(status.get("lock") or "")
    if tasks:
        return Advice("A task is working on it", tools.task_wait(task=tasks[0].get("upid")))
    if lock == "suspended":
        return Advice("It is suspended to disk; resume it", tools.guest_power(guest=guest.vmid, action="resume"))
    if lock and tasks is None:
        return Advice(f"It is locked ({lock}). Find the task that holds it", tools.task_list(guest=guest.vmid))
    if lock:
        unlock = f"{'qm' if guest.is_vm else 'pct'} unlock {guest.vmid}"
        return Advice(
            f"It is locked ({lock}) and none of its tasks is running. `{unlock}` on {guest.row.node} removes a lock "
            "that was left behind",
            tools.task_list(guest=guest.vmid),
        )
    if waiting and status.get("status") == "running":
        return Advice(
            "Apply what is pending, or revert it",
            tools.guest_power(guest=guest.vmid, action="reboot"),
            tools.guest_configure(guest=guest.vmid, revert=next(iter(waiting))),
        )
    return ""


def _identity(guest: Guest, status: dict[str, Any]) -> dict[str, Any]:
    row = guest.row
    state = status.get("qmpstatus") or status.get("status", row.status)
    if state == PAUSED:
        state = PAUSED_VM
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
    load, cores = status.get("cpu", 0), status.get("cpus", 0)
    return {
        "uptime": duration(status.get("uptime", 0)),
        "cpu": load_of(load, cores, text=f"{percent(load)} of {cores or '?'}"),
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


LEAST_WIDTH = 256
_SERIAL = re.compile(r"serial\d")


@operation(
    toolset="guests",
    risk=Risk.LOOK_INSIDE,
    search_words="screen picture console display monitor show say boot stuck see grub",
    example="guest=docker01",
)
async def guest_screenshot(pve: Cluster, guest: GuestRef, max_width: int = 1280) -> IllustratedFacts:
    """A running VM's screen, as an image."""
    if max_width < LEAST_WIDTH:
        raise BadArgument(
            Sentence("{max_width} is too small to show anything", max_width=max_width),
            next_step=f"Give at least {LEAST_WIDTH}",
        )
    target = await pve.guest(guest)
    await _refuse_without_screen(pve, target)
    # PVE wants a POST for a console, which a read does not send otherwise. It changes nothing: it starts a task that
    # waits for us on a port and ends when we hang up, and neither a key nor a pointer is ever sent to the guest.
    from quorate.pve.screens import look  # aiohttp and cryptography are not needed to list the tools

    picture = await look(pve.client, target.path())
    factor = -(-picture.width // max_width)
    png = await asyncio.to_thread(picture.png, factor)
    facts: dict[str, Any] = {"guest": target.label, "size": f"{picture.width}x{picture.height}"}
    if factor > 1:
        facts["shown"] = Advice(f"1/{factor} of each side").then(
            Advice("{max_width} shows every pixel", max_width=picture.width), "; "
        )
    if picture.plain:
        facts["note"] = "The whole screen has one color: it may be blank, asleep or just starting"
    return IllustratedFacts(facts, (png,))


async def _refuse_without_screen(pve: Cluster, guest: Guest) -> None:
    if not guest.is_vm:
        raise BadArgument(
            f"{guest} is a container and has no screen",
            next_step=Advice("Only VMs have a screen; see its state", tools.guest_get(guest=guest.vmid)),
        )
    if not await pve.may(f"/vms/{guest.vmid}", "VM.Console"):
        raise await pve.refusal(f"see the screen of {guest}", f"/vms/{guest.vmid}", ["VM.Console"])
    status, config = await asyncio.gather(guest.get("status/current"), guest.get("config", current=True))
    if guest.row.template:
        raise BadArgument(
            f"{guest} is a template and never runs",
            next_step=Advice("Clone it and start the clone", tools.guest_clone(guest=guest.vmid)),
        )
    if status.get("status") != "running":
        raise Conflict(
            f"{guest} is not running, so it has no screen",
            next_step=Advice("Start it first", tools.guest_power(guest=guest.vmid, action="start")),
        )
    if reason := _without_display(config):
        raise Conflict(
            f"{guest} has no screen to capture",
            why=reason,
            next_step=see("See its state", tools.guest_get).then(
                see("vga=std in {options} gives it a screen after a restart", tools.guest_configure, options=NAMED),
                "; ",
            ),
        )


def _without_display(config: Mapping[str, Any]) -> str | None:
    display = values.parse(str(config.get("vga", "")), "type").get("type", "")
    if display == "none":
        return "Its option vga is none"
    if _SERIAL.fullmatch(display):
        return f"Its option vga is {display}: the console is a serial line with text"
    devices = {key: values.parse(str(value), "host") for key, value in config.items() if key.startswith("hostpci")}
    passed = [key for key, device in devices.items() if values.is_on(device.get("x-vga", "0"))]
    # Without an option vga, PVE leaves the emulated card out when a real one is passed through.
    return f"Its display goes to a graphics card of the node ({passed[0]})" if passed and not display else None
