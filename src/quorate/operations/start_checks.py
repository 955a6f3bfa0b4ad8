"""What PVE accepts in the configuration of a guest and refuses only when the guest starts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from quorate.operations.preconditions import AttachedVolume, storages_on, volumes
from quorate.problems import NotFound, ParameterRejected, Problem, ServerFailed
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest

_CHECKED = frozenset({"cores", "sockets", "vcpus", "numa", "memory", "machine", "cpu", "kvm"})
_MAPPED = re.compile(r"(?:hostpci|usb)\d+")
_NUMA_NODE = re.compile(r"numa[0-7]")
_VERSION = re.compile(r"-(\d+)\.(\d+)")
_REMOVED = ((10, 1), (2, 6))
"""Since the first version, QEMU has no machine type older than the second. PVE still lists them."""


def affects_start(changed: Mapping[str, Any]) -> bool:
    return any(key in _CHECKED or _NUMA_NODE.fullmatch(key) or _MAPPED.fullmatch(key) for key in changed)


async def start_objections(pve: Cluster, node: str, config: Mapping[str, Any]) -> list[str]:
    """Why this node will refuse to start a VM of this configuration, each reason with PVE's own words."""
    cpus = int((await pve.inventory.node(node)).maxcpu)
    found = [
        _processors(node, cpus, config),
        _vcpu_problem(config),
        _cpu_model_problem(config),
        _numa(config),
        await _machine(pve, node, config),
        *await _mapping_problems(pve, node, config),
    ]
    return [f"PVE will refuse to start the VM: {reason}" for reason in found if reason]


async def start_obstacles(pve: Cluster, guest: Guest, config: Mapping[str, Any], *, closely: bool) -> list[str]:
    """Why a stopped guest cannot start as it is: missing storages, ISO images and bridges, or more than the node has.

    `closely`: each disk is looked for as well, which costs a request.
    """
    node, attached = guest.row.node, [one for one in volumes(config) if one.on_storage]
    known = await storages_on(pve, node, {one.storage for one in attached})
    away = [f"{one} is on {one.storage}, which {node} cannot reach" for one in attached if one.storage not in known]
    sought = [one for one in attached if one.storage in known and (closely or (one.cdrom and not one.is_cloudinit))]
    found = await asyncio.gather(
        _objections(pve, guest, config),
        _missing_bridges(pve, node, config),
        *(_missing_volume(pve, node, one) for one in sought),
    )
    return [*away, *(reason for part in found for reason in part)]


async def _objections(pve: Cluster, guest: Guest, config: Mapping[str, Any]) -> list[str]:
    found = await start_objections(pve, guest.row.node, config) if guest.is_vm else []
    return [reason.partition(": ")[2] for reason in found]


async def _missing_bridges(pve: Cluster, node: str, config: Mapping[str, Any]) -> list[str]:
    wanted = {key: values.parse(str(value)).get("bridge", "") for key, value in config.items() if _is_card(key)}
    if not any(wanted.values()):
        return []
    try:
        rows = await pve.get(f"/nodes/{node}/network", type="any_bridge")
    except Problem:
        return []
    known = {str(row["iface"]) for row in rows or ()}
    lacking = {key: bridge for key, bridge in sorted(wanted.items()) if bridge and bridge not in known}
    return [f"{key} is on the bridge {bridge}, which {node} does not have" for key, bridge in lacking.items() if known]


def _is_card(key: str) -> bool:
    return values.bus_of(key) == "net"


async def _missing_volume(pve: Cluster, node: str, one: AttachedVolume) -> list[str]:
    """Nothing if it is there, or if these credentials cannot see it."""
    try:
        await pve.get(f"/nodes/{node}/storage/{one.storage}/content/{one.volid}")
    except (ServerFailed, NotFound, ParameterRejected) as problem:
        said = problem.what.rpartition(": ")[2].rstrip(".")
        return [f"{one} is missing on {node}, or cannot be read ({said})"]
    except Problem:
        return []
    return []


NOTHING_TO_BOOT = "It has neither a disk nor an inserted ISO to boot from"


def has_nothing_to_boot(config: Mapping[str, Any]) -> bool:
    """A VM without any volume that its firmware could start from; network cards do not count."""
    return not any(values.bus_of(one.key) in values.BOOTABLE and not one.is_cloudinit for one in volumes(config))


def _processors(node: str, cpus: int, config: Mapping[str, Any]) -> str | None:
    given = _count(config)
    if not cpus or given <= cpus:
        return None
    return f"it would have {given} CPUs, and {node} has {cpus} (MAX {cpus} vcpus allowed per vm on this node)"


def _vcpu_problem(config: Mapping[str, Any]) -> str | None:
    vcpus, given = int(config.get("vcpus") or 0), _count(config)
    if vcpus <= given:
        return None
    return f"vcpus={vcpus} is more than cores times sockets, which is {given} (Invalid SMP CPUs)"


def _cpu_model_problem(config: Mapping[str, Any]) -> str | None:
    model = values.parse(str(config.get("cpu", "")), "cputype").get("cputype")
    if model != "host" or values.is_on(config.get("kvm", 1)):
        return None
    return "kvm is off (CPU model 'host' requires KVM)"


async def _mapping_problems(pve: Cluster, node: str, config: Mapping[str, Any]) -> list[str]:
    """Mapped devices that are not on this node, or not what their mapping says."""
    found = []
    for key in sorted(config):
        name = values.parse(str(config[key]), "host").get("mapping") if _MAPPED.fullmatch(key) else None
        if name is None:
            continue
        kind = "pci" if key.startswith("hostpci") else "usb"
        try:
            rows = await pve.get(f"/cluster/mapping/{kind}", **{"check-node": node})
        except Problem:
            continue  # the start will show it
        row = next((one for one in rows if one["id"] == name), None)
        problems = row.get("checks", []) if row is not None else [{"message": "no such mapping"}]
        reasons = "; ".join(str(one["message"]).strip().rstrip(".") for one in problems)
        if reasons:
            found.append(f"{key} is mapped to {name}, which {node} cannot use ({reasons})")
    return found


def _count(config: Mapping[str, Any]) -> int:
    return int(config.get("cores", 1)) * int(config.get("sockets", 1))


def _numa(config: Mapping[str, Any]) -> str | None:
    """NUMA nodes that are described one by one must add up to the memory of the VM."""
    if not values.is_on(config.get("numa", 0)):
        return None
    nodes = {key: values.parse(str(config[key]), "cpus") for key in sorted(config) if _NUMA_NODE.fullmatch(key)}
    for key, parts in nodes.items():
        if not float(parts.get("memory") or 0):
            return f"{key} has no memory (missing NUMA node{key[4:]} memory value)"
        if "hostnodes" in parts and "policy" not in parts:
            return f"{key} has hostnodes without policy (you need to define a policy for hostnode {parts['hostnodes']})"
    total = sum(int(float(parts["memory"])) for parts in nodes.values())
    memory = int(values.parse(str(config.get("memory", 512)), "current").get("current", 512))
    if not nodes or total == memory:
        return None
    return (
        f"the NUMA nodes have {total} MiB and the VM {memory} MiB "
        "(total memory for NUMA nodes must be equal to vm static memory)"
    )


async def _machine(pve: Cluster, node: str, config: Mapping[str, Any]) -> str | None:
    """A versioned machine type must be one that the node's QEMU has."""
    machine = values.parse(str(config.get("machine", "")), "type").get("type", "")
    version = _VERSION.search(machine)
    if version is None:
        return None
    try:
        rows = await pve.get(f"/nodes/{node}/capabilities/qemu/machines")
    except Problem:
        return None  # the start will show it
    known = [tuple(map(int, found.groups())) for row in rows if (found := _VERSION.search(str(row["id"])))]
    wanted = (int(version[1]), int(version[2]))
    newest = max(known, default=wanted)
    if wanted > newest:
        return f"{node} has QEMU {newest[0]}.{newest[1]}, which is too old to run machine type '{machine}'"
    if newest >= _REMOVED[0] and wanted < _REMOVED[1]:
        return f"QEMU {newest[0]}.{newest[1]} on {node} no longer has it (unsupported machine type '{machine}')"
    return None
