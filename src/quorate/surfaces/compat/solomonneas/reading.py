"""Lists, single facts and tasks."""

from __future__ import annotations

from typing import Any

from quorate.operations.registry import Risk
from quorate.pve.errors import NodeOffline, Refused
from quorate.pve.tasks import Upid
from quorate.surfaces.compat.declaring import Tool, may, one_of
from quorate.surfaces.compat.running import Found, Run
from quorate.surfaces.compat.solomonneas.shapes import INTERVAL, LONGEST_WAIT, NODE, UPID, VMID, place

RECENT = 25
WAIT = 60
LOG_LINES = 50


async def status(run: Run) -> dict[str, Any]:
    version = await run.get("/version")
    nodes = await run.get("/cluster/resources", type="node")
    return {"version": version["version"], "release": version["release"], "nodes": nodes}


async def containers(run: Run) -> dict[str, Any]:
    found = await _resources(run, "lxc")
    return {"count": len(found), "containers": found}


async def vms(run: Run) -> dict[str, Any]:
    found = await _resources(run, "qemu")
    return {"count": len(found), "vms": found}


async def _resources(run: Run, type: str) -> list[dict[str, Any]]:
    return [row for row in await run.get("/cluster/resources", type="vm") if row["type"] == type]


async def resource(run: Run) -> dict[str, Any]:
    guest = await run.guest(run["vmid"])
    now, config = await run.get(f"{guest.path}/status/current"), await run.get(f"{guest.path}/config")
    return {**place(guest), "status": now, "config": config}


async def vm_config(run: Run) -> dict[str, Any]:
    return await _config(run, "qemu")


async def container_config(run: Run) -> dict[str, Any]:
    return await _config(run, "lxc")


async def _config(run: Run, type: str) -> dict[str, Any]:
    guest = await run.guest(run["vmid"], type=type)
    return {**place(guest), "config": await run.get(f"{guest.path}/config")}


async def usage(run: Run) -> dict[str, Any]:
    guest = await run.guest(run["vmid"])
    timeframe = run["timeframe"] or "hour"
    samples = await run.get(f"{guest.path}/rrddata", timeframe=timeframe)
    return {**place(guest), "timeframe": timeframe, "samples": samples}


async def snapshots(run: Run) -> dict[str, Any]:
    guest = await run.guest(run["vmid"])
    found = await run.get(f"{guest.path}/snapshot")
    return {**place(guest), "count": len(found), "snapshots": found}


async def network(run: Run) -> dict[str, Any]:
    guest = await run.guest(run["vmid"])
    interfaces = await _interfaces(run, guest)
    ipv4 = [one for interface in interfaces for one in _ipv4(interface)]
    return {**place(guest), "ipv4": ipv4, "interfaces": interfaces}


async def _interfaces(run: Run, guest: Found) -> list[dict[str, Any]]:
    if guest.type == "lxc":
        return list(await run.get(f"{guest.path}/interfaces"))
    try:
        return list((await run.get(f"{guest.path}/agent/network-get-interfaces"))["result"])
    except Refused:  # where the operator lets nobody look inside, the addresses alone are told
        addresses = (await run.facts("guest_get", guest=guest.vmid)).get("addresses", {})
        return [
            {"name": name, "ip-addresses": [{"ip-address": one} for one in listed.split(", ")]}
            for name, listed in addresses.items()
        ]


def _ipv4(interface: dict[str, Any]) -> list[dict[str, Any]]:
    """Usable addresses, as the agent and newer versions list them or as older versions write the first."""
    listed = [(str(one["ip-address"]), one.get("prefix")) for one in interface.get("ip-addresses", ())]
    if not listed and interface.get("inet"):
        address, _, length = str(interface["inet"]).partition("/")
        listed = [(address, length or None)]
    return [
        {"interface": interface.get("name"), "address": address, **({} if length is None else {"prefix": int(length)})}
        for address, length in listed
        if ":" not in address and not address.startswith(("127.", "169.254.", "0."))
    ]


async def backups(run: Run) -> dict[str, Any]:
    """Of one node, or of all: a shared storage is then asked once."""
    found: dict[str, dict[str, Any]] = {}
    for node in [run["node"]] if run["node"] else await run.nodes():
        for storage in await run.get(f"/nodes/{node}/storage", content="backup", enabled=1):
            if not storage.get("active"):
                continue
            name = storage["storage"]
            place = name if storage.get("shared") else f"{node}:{name}"
            if any(one["place"] == place for one in found.values()):
                continue
            for one in await run.get(f"/nodes/{node}/storage/{name}/content", content="backup"):
                found[f"{place} {one['volid']}"] = {**one, "storage": name, "node": node, "place": place}
    wanted = [one for one in found.values() if run["vmid"] in (None, one.get("vmid"))]
    for one in wanted:
        del one["place"]
    return {"node": run["node"] or "all", "count": len(wanted), "backups": wanted}


async def storage(run: Run) -> dict[str, Any]:
    nodes = []
    for node in [run["node"]] if run["node"] else await run.nodes():
        try:
            nodes.append({"node": node, "storage": await run.get(f"/nodes/{node}/storage")})
        except NodeOffline as problem:  # it has gone meanwhile; the others can still be told
            nodes.append({"node": node, "storage": [], "error": str(problem)})
    return {"count": sum(len(one["storage"]) for one in nodes), "nodes": nodes}


async def templates(run: Run) -> dict[str, Any]:
    node = run["node"] or (await run.nodes())[0]
    name, kind = run["storage"] or "local", run["kind"] or "both"
    content = f"/nodes/{node}/storage/{name}/content"
    answer: dict[str, Any] = {"node": node, "storage": name}
    if kind in ("vztmpl", "both"):
        answer["container_templates"] = await run.get(content, content="vztmpl")
    if kind in ("iso", "both"):
        answer["vm_isos"] = await run.get(content, content="iso")
    if kind == "both":
        answer["guest_templates"] = [
            row for row in await run.get("/cluster/resources", type="vm") if row.get("template") and row["node"] == node
        ]
    return answer


async def next_vmid(run: Run) -> dict[str, Any]:
    return {"vmid": int(await run.get("/cluster/nextid"))}


async def recent_tasks(run: Run) -> dict[str, Any]:
    rows = sorted(await run.get("/cluster/tasks"), key=lambda row: -row["starttime"])
    wanted = [row for row in rows if run["vmid"] is None or row.get("id") == str(run["vmid"])]
    shown = wanted[: run["limit"] or RECENT]
    return {"count": len(shown), "tasks": shown}


async def task_status(run: Run) -> dict[str, Any]:
    return await run.task_status(run["upid"])


async def task_log(run: Run) -> dict[str, Any]:
    path = f"{Upid.parse(run['upid']).path}/log"
    lines = await run.get(path, start=run["start"] or 0, limit=min(run["limit"] or LOG_LINES, 500))
    return {"lines": lines, "total": len(lines)}


async def wait_task(run: Run) -> dict[str, Any]:
    upid = Upid.parse(run["upid"])
    now = await run.wait_for(upid.text, min(run["timeoutSeconds"] or WAIT, LONGEST_WAIT))
    return {"upid": upid.text, "node": upid.node, "done": now["status"] == "stopped", "status": now}


def read(name: str, about: str, native: str, recipe: Any, *parameters: Any) -> Tool:
    return Tool(name, about, parameters, Risk.READ, native, recipe)


TOOLS = (
    read("proxmox_status", "Version of PVE and how the nodes stand.", "cluster_status", status),
    read("proxmox_list_containers", "All containers of the cluster.", "guest_list type=ct", containers),
    read("proxmox_list_vms", "All VMs of the cluster.", "guest_list type=vm", vms),
    read("proxmox_get_resource", "State and configuration of one guest.", "guest_get", resource, VMID),
    read("proxmox_get_vm_config", "Configuration of a VM.", "guest_get", vm_config, VMID),
    read("proxmox_get_container_config", "Configuration of a container.", "guest_get", container_config, VMID),
    read(
        "proxmox_recent_tasks",
        "Recent tasks, newest first.",
        "task_list",
        recent_tasks,
        may("limit", "integer", about=f"Default {RECENT}"),
        may("vmid", "integer", about="Only of this guest"),
    ),
    read("proxmox_list_backups", "Backups of a node or of all.", "backup_list", backups, NODE, may("vmid", "integer")),
    read(
        "proxmox_resource_usage",
        "Load of a guest over time: CPU, memory, disk, network.",
        "metrics_get",
        usage,
        VMID,
        one_of("timeframe", "hour", "day", "week"),
    ),
    read(
        "proxmox_list_templates",
        "Container templates, installation images and guests that are templates.",
        "template_list",
        templates,
        NODE,
        may("storage", "string", about="Default local"),
        one_of("kind", "vztmpl", "iso", "both"),
    ),
    read("proxmox_list_storage", "Storages of a node or of all, with their room.", "storage_list", storage, NODE),
    read("proxmox_list_snapshots", "Snapshots of a guest.", "snapshot_list", snapshots, VMID),
    read("proxmox_guest_network", "Network interfaces and addresses of a guest.", "guest_get", network, VMID),
    read(
        "proxmox_wait_task",
        "Wait until a task has ended or the time is over.",
        "task_wait",
        wait_task,
        UPID,
        may("timeoutSeconds", "integer", about=f"Default {WAIT}"),
        INTERVAL,
    ),
    read("proxmox_next_vmid", "A vmid that is free.", "api_call method=GET path=/cluster/nextid", next_vmid),
    read("proxmox_get_task_status", "How a task stands.", "task_get", task_status, UPID),
    read(
        "proxmox_get_task_log",
        "Lines of a task's log.",
        "task_get log_lines=50",
        task_log,
        UPID,
        may("start", "integer", about="First line"),
        may("limit", "integer", about=f"Lines, default {LOG_LINES}"),
    ),
)
