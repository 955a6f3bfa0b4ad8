"""Inspecting nodes: hardware, setup, and what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, NODE_LIST, NODE_UPDATES_REFRESH, Advice, Sentence, see
from quorate.operations.registry import Risk, Table, operation, page
from quorate.operations.units import moment, size, used_of, yes, yes_or_no
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster

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
        raise Conflict(f"Node {node} is {row.status} and cannot be queried", next_step=see("See the nodes", NODE_LIST))
    if aspect == "smart":
        return await _smart(pve, node, disk)
    found = await _ASPECTS[aspect](pve, f"/nodes/{node}")
    if not isinstance(found, Table):
        return found
    shown = page(found.columns, found.rows, limit=limit, offset=offset)
    shown.note, shown.facts = found.note, found.facts
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
    advice = Advice(text, NODE_UPDATES_REFRESH(node=node))
    return _table(("package", "installed", "available", "origin", "title"), listed, next=advice)


async def _repositories(pve: Cluster, node: str) -> Table:
    found = await pve.get(f"{node}/apt/repositories")
    rows = [
        [
            file["path"],
            index,
            yes_or_no(one.get("Enabled")),
            " ".join(one.get("URIs", [])),
            " ".join(one.get("Suites", [])),
            " ".join(one.get("Components", [])),
        ]
        for file in found.get("files", [])
        for index, one in enumerate(file.get("repositories", []))
    ]
    remarks = [f"{one.get('path', '')} {one.get('index', '')}: {one['message']}" for one in found.get("infos", [])]
    standard = {one["handle"]: _repository_state(one) for one in found.get("standard-repos", [])}
    errors = [f"{one.get('path', '')}: {one.get('error', '')}" for one in found.get("errors", [])]
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
    found = await pve.get(f"/nodes/{node}/disks/smart", disk=disk)
    return {
        "disk": disk,
        "health": found.get("health", "unknown"),
        "attributes": {
            str(one.get("name")): f"{one.get('raw')} (value {one.get('value')}, worst {one.get('worst')}, "
            f"threshold {one.get('threshold')})" + ("" if one.get("fail", "-") == "-" else f" FAILS {one['fail']}")
            for one in found.get("attributes", [])
        },
        "report": str(found.get("text", ""))[:4000],
    }


async def _disk_pools(pve: Cluster, node: str) -> Table:
    zfs, lvm, thin, folders = await asyncio.gather(
        *(pve.get(f"{node}/disks/{kind}") for kind in ("zfs", "lvm", "lvmthin", "directory"))
    )
    rows = [["zfs", one["name"], used_of(one["alloc"], one["size"]), one.get("health", "")] for one in zfs]
    rows += [
        ["lvm", one["name"], used_of(one["size"] - one["free"], one["size"]), f"{one.get('lvcount', 0)} volumes"]
        for one in lvm.get("children", [])
    ]
    rows += [
        [
            "lvmthin",
            f"{one.get('vg', '')}/{one['lv']}",
            used_of(one["used"], one["lv_size"]),
            f"metadata {used_of(one.get('metadata_used', 0), one.get('metadata_size', 0))}",
        ]
        for one in thin
    ]
    rows += [["directory", one["path"], "", f"{one.get('type', '')} on {one.get('device', '')}"] for one in folders]
    return _table(("kind", "name", "used", "state"), rows)


async def _certificates(pve: Cluster, node: str) -> Table:
    now = pve.clock.time()
    rows = [
        [
            one["filename"],
            one.get("subject", ""),
            one.get("issuer", ""),
            moment(one["notafter"]) if one.get("notafter") else "",
            int((one["notafter"] - now) // DAY) if one.get("notafter") else "",
            ", ".join(one.get("san", [])),
            one.get("fingerprint", ""),
        ]
        for one in await pve.get(f"{node}/certificates/info")
    ]
    return _table(("file", "subject", "issuer", "expires", "days_left", "names", "fingerprint"), rows)


async def _time(pve: Cluster, node: str) -> dict[str, Any]:
    found = await pve.get(f"{node}/time")
    return {
        "timezone": found["timezone"],
        "time": moment(found["time"]),
        "local_time": moment(found["localtime"]).removesuffix("Z"),
        "ahead_of_us_seconds": round(found["time"] - pve.clock.time()),
    }


async def _dns(pve: Cluster, node: str) -> dict[str, Any]:
    return dict(await pve.get(f"{node}/dns"))


async def _hosts(pve: Cluster, node: str) -> dict[str, Any]:
    found = await pve.get(f"{node}/hosts")
    return {"hosts": str(found["data"]).splitlines()[:500], "digest": found.get("digest", "")}


async def _options(pve: Cluster, node: str) -> dict[str, Any]:
    return dict(await pve.get(f"{node}/config")) or {"options": "none are set"}


async def _subscription(pve: Cluster, node: str) -> dict[str, Any]:
    found = await pve.get(f"{node}/subscription")
    shown = ("status", "message", "productname", "level", "regdate", "nextduedate", "sockets", "serverid", "url")
    return {key: found[key] for key in shown if key in found}


async def _pci(pve: Cluster, node: str) -> Table:
    rows = [
        [
            one["id"],
            one.get("vendor_name") or one.get("vendor", ""),
            one.get("device_name") or one.get("device", ""),
            one.get("class", ""),
            one.get("iommugroup", ""),
            yes(one.get("mdev")),
        ]
        for one in await pve.get(f"{node}/hardware/pci")
    ]
    return _table(("id", "vendor", "device", "class", "iommu_group", "mdev"), rows)


async def _usb(pve: Cluster, node: str) -> Table:
    rows = [
        [
            f"{one.get('busnum')}-{one.get('usbpath', one.get('port', ''))}",
            f"{one.get('vendid')}:{one.get('prodid')}",
            one.get("manufacturer", ""),
            one.get("product", ""),
            one.get("speed", ""),
        ]
        for one in await pve.get(f"{node}/hardware/usb")
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
