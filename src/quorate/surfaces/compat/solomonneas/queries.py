"""Lists, single facts and tasks."""

from __future__ import annotations

from typing import Any

from quorate.problems import NodeOffline, Refused
from quorate.pve.tasks import Upid
from quorate.surfaces.compat.declaration import Recipe
from quorate.surfaces.compat.execution import LocatedGuest, ToolCall
from quorate.surfaces.compat.solomonneas.answers import LONGEST_WAIT, guest_facts

RECENT = 25
WAIT = 60
LOG_LINES = 50


async def status(call: ToolCall) -> dict[str, Any]:
    version = await call.get("/version")
    nodes = await call.get("/cluster/resources", type="node")
    return {"version": version["version"], "release": version["release"], "nodes": nodes}


async def containers(call: ToolCall) -> dict[str, Any]:
    rows = await _resources(call, "lxc")
    return {"count": len(rows), "containers": rows}


async def vms(call: ToolCall) -> dict[str, Any]:
    rows = await _resources(call, "qemu")
    return {"count": len(rows), "vms": rows}


async def _resources(call: ToolCall, type: str) -> list[dict[str, Any]]:
    return [row for row in await call.guests() if row["type"] == type]


async def resource(call: ToolCall) -> dict[str, Any]:
    guest = await call.guest(call["vmid"])
    now, config = await call.get(f"{guest.path}/status/current"), await call.get(f"{guest.path}/config")
    return {**guest_facts(guest), "status": now, "config": config}


async def vm_config(call: ToolCall) -> dict[str, Any]:
    return await _config(call, "qemu")


async def container_config(call: ToolCall) -> dict[str, Any]:
    return await _config(call, "lxc")


async def _config(call: ToolCall, type: str) -> dict[str, Any]:
    guest = await call.guest(call["vmid"], type=type)
    return {**guest_facts(guest), "config": await call.get(f"{guest.path}/config")}


async def usage(call: ToolCall) -> dict[str, Any]:
    guest = await call.guest(call["vmid"])
    timeframe = call["timeframe"] or "hour"
    samples = await call.get(f"{guest.path}/rrddata", timeframe=timeframe)
    return {**guest_facts(guest), "timeframe": timeframe, "samples": samples}


async def snapshots(call: ToolCall) -> dict[str, Any]:
    guest = await call.guest(call["vmid"])
    rows = await call.get(f"{guest.path}/snapshot")
    return {**guest_facts(guest), "count": len(rows), "snapshots": rows}


async def network(call: ToolCall) -> dict[str, Any]:
    guest = await call.guest(call["vmid"])
    interfaces = await _interfaces(call, guest)
    ipv4 = [address for interface in interfaces for address in _ipv4(interface)]
    return {**guest_facts(guest), "ipv4": ipv4, "interfaces": interfaces}


async def _interfaces(call: ToolCall, guest: LocatedGuest) -> list[dict[str, Any]]:
    if guest.type == "lxc":
        return list(await call.get(f"{guest.path}/interfaces") or ())  # null if it is stopped
    try:
        return list((await call.get(f"{guest.path}/agent/network-get-interfaces"))["result"])
    except Refused:  # without access to the inside, report the configured addresses
        addresses = (await call.facts("guest_get", guest=guest.vmid, detail=True)).get("addresses", {})
        return [
            {"name": name, "ip-addresses": [{"ip-address": part} for part in listed.split(", ")]}
            for name, listed in addresses.items()
        ]


def _ipv4(interface: dict[str, Any]) -> list[dict[str, Any]]:
    """Usable addresses: a list from the agent and newer versions, a single one from older versions."""
    listed = [(str(address["ip-address"]), address.get("prefix")) for address in interface.get("ip-addresses", ())]
    if not listed and interface.get("inet"):
        address, _, length = str(interface["inet"]).partition("/")
        listed = [(address, length or None)]
    return [
        {"interface": interface.get("name"), "address": address, **({} if length is None else {"prefix": int(length)})}
        for address, length in listed
        if ":" not in address and not address.startswith(("127.", "169.254.", "0."))
    ]


async def backups(call: ToolCall) -> dict[str, Any]:
    """The backups on one node, or on all of them; a shared storage is asked only once."""
    volumes: dict[str, dict[str, Any]] = {}
    for node in [call["node"]] if call["node"] else await call.nodes():
        for storage in await call.get(f"/nodes/{node}/storage", content="backup", enabled=1):
            if not storage.get("active"):
                continue
            name = storage["storage"]
            place = name if storage.get("shared") else f"{node}:{name}"
            if any(volume["place"] == place for volume in volumes.values()):
                continue
            for volume in await call.get(f"/nodes/{node}/storage/{name}/content", content="backup"):
                volumes[f"{place} {volume['volid']}"] = {**volume, "storage": name, "node": node, "place": place}
    selected = [volume for volume in volumes.values() if call["vmid"] in (None, volume.get("vmid"))]
    for volume in selected:
        del volume["place"]
    return {"node": call["node"] or "all", "count": len(selected), "backups": selected}


async def storage(call: ToolCall) -> dict[str, Any]:
    nodes = []
    for node in [call["node"]] if call["node"] else await call.nodes():
        try:
            nodes.append({"node": node, "storage": await call.get(f"/nodes/{node}/storage")})
        except NodeOffline as problem:  # it went offline since the list was read; report the others
            nodes.append({"node": node, "storage": [], "error": str(problem)})
    return {"count": sum(len(node["storage"]) for node in nodes), "nodes": nodes}


async def templates(call: ToolCall) -> dict[str, Any]:
    node = call["node"] or (await call.nodes())[0]
    name, kind = call["storage"] or "local", call["kind"] or "both"
    content = f"/nodes/{node}/storage/{name}/content"
    answer: dict[str, Any] = {"node": node, "storage": name}
    if kind in ("vztmpl", "both"):
        answer["container_templates"] = await call.get(content, content="vztmpl")
    if kind in ("iso", "both"):
        answer["vm_isos"] = await call.get(content, content="iso")
    if kind == "both":
        answer["guest_templates"] = [row for row in await call.guests() if row.get("template") and row["node"] == node]
    return answer


async def next_vmid(call: ToolCall) -> dict[str, Any]:
    return {"vmid": int(await call.get("/cluster/nextid"))}


async def recent_tasks(call: ToolCall) -> dict[str, Any]:
    rows = sorted(await call.get("/cluster/tasks"), key=lambda row: -row["starttime"])
    selected = [row for row in rows if call["vmid"] is None or row.get("id") == str(call["vmid"])]
    shown = selected[: call["limit"] or RECENT]
    return {"count": len(shown), "tasks": shown}


async def task_status(call: ToolCall) -> dict[str, Any]:
    return await call.task_status(call["upid"])


async def task_log(call: ToolCall) -> dict[str, Any]:
    path = f"{Upid.parse(call['upid']).path}/log"
    lines = await call.get(path, start=call["start"] or 0, limit=min(call["limit"] or LOG_LINES, 500))
    return {"lines": lines, "total": len(lines)}


async def wait_task(call: ToolCall) -> dict[str, Any]:
    upid = Upid.parse(call["upid"])
    now = await call.wait_for(upid.text, min(call["timeoutSeconds"] or WAIT, LONGEST_WAIT))
    return {"upid": upid.text, "node": upid.node, "done": now["status"] == "stopped", "status": now}


RECIPES: dict[str, Recipe] = {
    "proxmox_status": status,
    "proxmox_list_containers": containers,
    "proxmox_list_vms": vms,
    "proxmox_get_resource": resource,
    "proxmox_get_vm_config": vm_config,
    "proxmox_get_container_config": container_config,
    "proxmox_recent_tasks": recent_tasks,
    "proxmox_list_backups": backups,
    "proxmox_resource_usage": usage,
    "proxmox_list_templates": templates,
    "proxmox_list_storage": storage,
    "proxmox_list_snapshots": snapshots,
    "proxmox_guest_network": network,
    "proxmox_wait_task": wait_task,
    "proxmox_next_vmid": next_vmid,
    "proxmox_get_task_status": task_status,
    "proxmox_get_task_log": task_log,
}
