"""Inspecting nodes: hardware, setup, and what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, Sentence, see, tools
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster
from quorate.units import moment, size, used_of, yes, yes_or_no

DAY = 86400

Aspect = Literal[
    "services",
    "updates",
    "repositories",
    "versions",
    "disks",
    "smart",
    "disk_pools",
    "certificates",
    "time",
    "dns",
    "hosts",
    "options",
    "subscription",
    "pci",
    "usb",
]


@operation(
    toolset="nodes",
    risk=Risk.READ,
    search_words=(
        "nvme ssd updates available packages pending smart health drives disks dying failing wear zfs pools "
        "certificate expire services subscription repositories dns time pci gpu usb devices hardware node"
    ),
    example="node=pve1 aspect=disks",
)
async def node_inspect(
    pve: Cluster,
    node: str,
    aspect: Aspect,
    disk: Annotated[str, Meta(description="For smart, such as /dev/sda")] | None = None,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table | dict[str, Any]:
    """One aspect of a node: services, pending updates, disks and their health, certificates and so on."""
    row = await pve.inventory.node(node)
    if row.status != "online":
        raise Conflict(
            f"Node {node} is {row.status} and cannot be queried", next_step=see("See the nodes", tools.node_list)
        )
    if aspect == "smart":
        return await _smart(pve, node, disk)
    answer = await _ASPECTS[aspect](pve, f"/nodes/{node}")
    if not isinstance(answer, Table):
        return answer
    shown = page(answer.columns, answer.rows, limit=limit, offset=offset)
    shown.note, shown.facts = answer.note, answer.facts
    return shown


def _table(columns: tuple[str, ...], rows: list[list[Any]], **facts: Any) -> Table:
    return Table(columns, rows, len(rows), facts={key: value for key, value in facts.items() if value})


async def _services(pve: Cluster, node: str) -> Table:
    rows = await pve.get(f"{node}/services")
    listed = [
        [row["service"], row["state"], row.get("active-state", ""), row.get("unit-state", ""), row.get("desc", "")]
        for row in sorted(rows, key=lambda row: str(row["service"]))
    ]
    return _table(("service", "state", "active", "unit", "description"), listed)


async def _updates(pve: Cluster, node: str) -> Table:
    rows = await pve.get(f"{node}/apt/update")
    listed = [
        [row["Package"], row.get("OldVersion", ""), row["Version"], row.get("Origin", ""), row.get("Title", "")]
        for row in rows
    ]
    text = "PVE has no API to install updates: run `apt dist-upgrade` on the node. Refresh the list"
    advice = Advice(text, tools.node_updates_refresh(node=node.rpartition("/")[2]))
    return _table(("package", "installed", "available", "origin", "title"), listed, next=advice)


async def _repositories(pve: Cluster, node: str) -> Table:
    answer = await pve.get(f"{node}/apt/repositories")
    rows = [
        [
            file["path"],
            index,
            yes_or_no(entry.get("Enabled")),
            " ".join(entry.get("URIs", [])),
            " ".join(entry.get("Suites", [])),
            " ".join(entry.get("Components", [])),
        ]
        for file in answer.get("files", [])
        for index, entry in enumerate(file.get("repositories", []))
    ]
    remarks = [
        f"{entry.get('path', '')} {entry.get('index', '')}: {entry['message']}" for entry in answer.get("infos", [])
    ]
    standard = {entry["handle"]: _repository_state(entry) for entry in answer.get("standard-repos", [])}
    errors = [f"{entry.get('path', '')}: {entry.get('error', '')}" for entry in answer.get("errors", [])]
    columns = ("file", "index", "enabled", "uris", "suites", "components")
    return _table(columns, rows, standard=standard, remarks=remarks, errors=errors)


def _repository_state(repository: Mapping[str, Any]) -> str:
    status = repository.get("status")
    return "not configured" if status is None else "enabled" if status else "disabled"


async def _versions(pve: Cluster, node: str) -> Table:
    rows = await pve.get(f"{node}/apt/versions")
    listed = [
        [row["Package"], row.get("OldVersion") or row.get("Version", ""), row.get("CurrentState", "")] for row in rows
    ]
    kernel = next((row["RunningKernel"] for row in rows if row.get("RunningKernel")), "")
    return _table(("package", "version", "state"), listed, running_kernel=kernel)


async def _disks(pve: Cluster, node: str) -> Table:
    rows = await pve.get(f"{node}/disks/list")
    listed = [
        [
            row["devpath"],
            row.get("type", ""),
            size(row.get("size", 0)),
            row.get("model", ""),
            row.get("serial", ""),
            row.get("used") or "unused",
            row.get("health", ""),
            row.get("wearout", ""),
        ]
        for row in rows
    ]
    columns = ("disk", "type", "size", "model", "serial", "used", "health", "life_left_percent")
    return _table(columns, listed, next=Advice("{aspect} {disk} shows the health in full", aspect="smart", disk="…"))


async def _smart(pve: Cluster, node: str, disk: str | None) -> dict[str, Any]:
    if disk is None:
        names = [row["devpath"] for row in await pve.get(f"/nodes/{node}/disks/list", skipsmart=1)]
        raise BadArgument(
            Sentence("{aspect} needs {disk}", aspect="smart", disk=NAMED), next_step=f"{node} has {', '.join(names)}"
        )
    answer = await pve.get(f"/nodes/{node}/disks/smart", disk=disk)
    return {
        "disk": disk,
        "health": answer.get("health", "unknown"),
        "attributes": {
            str(
                attribute.get("name")
            ): f"{attribute.get('raw')} (value {attribute.get('value')}, worst {attribute.get('worst')}, "
            f"threshold {attribute.get('threshold')})"
            + ("" if attribute.get("fail", "-") == "-" else f" FAILS {attribute['fail']}")
            for attribute in answer.get("attributes", [])
        },
        "report": str(answer.get("text", ""))[:4000],
    }


async def _disk_pools(pve: Cluster, node: str) -> Table:
    zfs, lvm, thin, folders = await asyncio.gather(
        *(pve.get(f"{node}/disks/{kind}") for kind in ("zfs", "lvm", "lvmthin", "directory"))
    )
    rows = [["zfs", pool["name"], used_of(pool["alloc"], pool["size"]), pool.get("health", "")] for pool in zfs]
    rows += [
        [
            "lvm",
            group["name"],
            used_of(group["size"] - group["free"], group["size"]),
            f"{group.get('lvcount', 0)} volumes",
        ]
        for group in lvm.get("children", [])
    ]
    rows += [
        [
            "lvmthin",
            f"{pool.get('vg', '')}/{pool['lv']}",
            used_of(pool["used"], pool["lv_size"]),
            f"metadata {used_of(pool.get('metadata_used', 0), pool.get('metadata_size', 0))}",
        ]
        for pool in thin
    ]
    rows += [
        ["directory", folder["path"], "", f"{folder.get('type', '')} on {folder.get('device', '')}"]
        for folder in folders
    ]
    return _table(("kind", "name", "used", "state"), rows)


async def _certificates(pve: Cluster, node: str) -> Table:
    now = pve.clock.time()
    rows = [
        [
            certificate["filename"],
            certificate.get("subject", ""),
            certificate.get("issuer", ""),
            moment(certificate["notafter"]) if certificate.get("notafter") else "",
            int((certificate["notafter"] - now) // DAY) if certificate.get("notafter") else "",
            ", ".join(certificate.get("san", [])),
            certificate.get("fingerprint", ""),
        ]
        for certificate in await pve.get(f"{node}/certificates/info")
    ]
    return _table(("file", "subject", "issuer", "expires", "days_left", "names", "fingerprint"), rows)


async def _time(pve: Cluster, node: str) -> dict[str, Any]:
    clock = await pve.get(f"{node}/time")
    return {
        "timezone": clock["timezone"],
        "time": moment(clock["time"]),
        "local_time": moment(clock["localtime"]).removesuffix("Z"),
        "ahead_of_us_seconds": round(clock["time"] - pve.clock.time()),
    }


async def _dns(pve: Cluster, node: str) -> dict[str, Any]:
    return dict(await pve.get(f"{node}/dns"))


async def _hosts(pve: Cluster, node: str) -> dict[str, Any]:
    answer = await pve.get(f"{node}/hosts")
    return {"hosts": str(answer["data"]).splitlines()[:500], "digest": answer.get("digest", "")}


async def _options(pve: Cluster, node: str) -> dict[str, Any]:
    return dict(await pve.get(f"{node}/config")) or {"options": "none are set"}


async def _subscription(pve: Cluster, node: str) -> dict[str, Any]:
    answer = await pve.get(f"{node}/subscription")
    shown = ("status", "message", "productname", "level", "regdate", "nextduedate", "sockets", "serverid", "url")
    return {key: answer[key] for key in shown if key in answer}


async def _pci(pve: Cluster, node: str) -> Table:
    rows = [
        [
            device["id"],
            device.get("vendor_name") or device.get("vendor", ""),
            device.get("device_name") or device.get("device", ""),
            device.get("class", ""),
            device.get("iommugroup", ""),
            yes(device.get("mdev")),
        ]
        for device in await pve.get(f"{node}/hardware/pci")
    ]
    return _table(("id", "vendor", "device", "class", "iommu_group", "mdev"), rows)


async def _usb(pve: Cluster, node: str) -> Table:
    rows = [
        [
            f"{device.get('busnum')}-{device.get('usbpath', device.get('port', ''))}",
            f"{device.get('vendid')}:{device.get('prodid')}",
            device.get("manufacturer", ""),
            device.get("product", ""),
            device.get("speed", ""),
        ]
        for device in await pve.get(f"{node}/hardware/usb")
    ]
    return _table(("port", "id", "manufacturer", "product", "mbit"), rows)


_ASPECTS: dict[str, Callable[[Cluster, str], Awaitable[Table | dict[str, Any]]]] = {
    "services": _services,
    "updates": _updates,
    "repositories": _repositories,
    "versions": _versions,
    "disks": _disks,
    "disk_pools": _disk_pools,
    "certificates": _certificates,
    "time": _time,
    "dns": _dns,
    "hosts": _hosts,
    "options": _options,
    "subscription": _subscription,
    "pci": _pci,
    "usb": _usb,
}
