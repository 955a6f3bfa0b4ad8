"""The map of the network: devices, what deserves attention, where something new would fit, what has changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.operations.registry import Risk
from quorate.problems import BadArgument, GuestRefused
from quorate.surfaces.compat.declaring import Tool, may, need
from quorate.surfaces.compat.running import Run
from quorate.surfaces.compat.washyu.shapes import (
    ACCOUNT,
    DEVICE,
    HOSTNAME,
    KEY_PATH,
    PASSWORD,
    PORT,
    USERNAME,
    at,
    good,
    lending,
)

MOST_TARGETS = 200
TARGET = {"hostname": str, "username": str, "password": str, "key_path": str, "port": int}
KINDS = {
    "load_balancer_candidates": "service",
    "container_candidates": "docker",
    "database_candidates": "database",
    "backup_candidates": "backup",
    "monitoring_candidates": "monitoring",
    "vm_candidates": "vm",
}
"""What is suggested -> the native kind."""


async def discover(run: Run) -> dict[str, Any]:
    found = await _discovered(run, run.arguments)
    if found["status"] == "error":
        raise GuestRefused(f"{run['hostname']} could not be discovered", why=found["error"])
    return found


async def discover_all(run: Run) -> dict[str, Any]:
    """Each with its own login. Who does not answer is told beside the others."""
    targets = run["targets"]
    if len(targets) > MOST_TARGETS:
        raise BadArgument(f"{len(targets)} targets are too many", next_step=f"Give at most {MOST_TARGETS} at once")
    for target in targets:
        _check(target)
    results = [await _discovered(run, {"username": ACCOUNT, **target}) for target in targets]
    failed = sum(one["status"] == "error" for one in results)
    return good(total_targets=len(results), successful=len(results) - failed, failed=failed, results=results)


async def _discovered(run: Run, target: Mapping[str, Any]) -> dict[str, Any]:
    with lending(target):
        (row,) = await run.rows(
            "network_discover", hosts=[at(target["hostname"], target["username"], target.get("port"))]
        )
    about = {"hostname": target["hostname"]}
    if "device" not in row:
        return {"status": "error", **about, "error": row["why_not"]}
    facts = {key: row[key] for key in ("name", "address", "system") if key in row}
    return good(**about, device_id=row["device"], changed=bool(row.get("changed")), **facts)


def _check(target: Mapping[str, Any]) -> None:
    wrong = [name for name, value in target.items() if not isinstance(value, TARGET.get(name, ())) and value]
    if wrong or not target.get("hostname"):
        raise BadArgument(
            f"A target cannot be understood: {', '.join(wrong) or 'it has no hostname'}",
            next_step="Each has hostname, and may have username, password, key_path, port",
        )


async def sitemap(run: Run) -> dict[str, Any]:
    rows, beside = await run.listing("network_map")
    devices = [{"id": row.pop("device"), **row} for row in rows if "device" in row]
    others = [row for row in rows if "device" not in row]
    return good(total_devices=len(devices), devices=devices, not_yet_discovered=others, **beside)


async def analyse(run: Run) -> dict[str, Any]:
    rows, beside = await run.listing("network_analyze")
    return good(analysis={**beside, "findings": rows})


async def suggest(run: Run) -> dict[str, Any]:
    suggestions = {name: await run.facts("network_suggest", kind=kind) for name, kind in KINDS.items()}
    findings = await run.rows("network_analyze", severity="warning")
    upgrades = [{key: one.get(key) for key in ("about", "finding", "evidence", "to_do")} for one in findings]
    return good(suggestions={**suggestions, "upgrade_recommendations": upgrades})


async def changes(run: Run) -> dict[str, Any]:
    if run["limit"] < 1:
        raise BadArgument(f"limit={run['limit']} is no number of changes", next_step="Give 1 to 500")
    rows = await run.some_rows("network_changes", device=run["device_id"], limit=min(run["limit"], 500))
    return good(device_id=run["device_id"], total_changes=len(rows), changes=rows)


TOOLS = (
    Tool(
        "discover_and_map",
        "Look into a machine over SSH and put it on the map.",
        (HOSTNAME, USERNAME, PASSWORD, KEY_PATH, PORT),
        Risk.LOOK_INSIDE,
        "network_discover hosts=[user@address]",
        discover,
    ),
    Tool(
        "bulk_discover_and_map",
        "Look into several machines over SSH and put them on the map.",
        (need("targets", "array<object>", "Each: hostname, username, password, key_path, port"),),
        Risk.LOOK_INSIDE,
        "network_discover hosts=[…]",
        discover_all,
    ),
    Tool("get_network_sitemap", "All devices on the map.", (), Risk.READ, "network_map", sitemap),
    Tool(
        "analyze_network_topology",
        "What deserves attention on the network: segments, duplicate addresses, full disks, old systems.",
        (),
        Risk.READ,
        "network_analyze",
        analyse,
    ),
    Tool(
        "suggest_deployments",
        "Where something new would fit, by measured free memory, disk and cores.",
        (),
        Risk.READ,
        "network_suggest",
        suggest,
    ),
    Tool(
        "get_device_changes",
        "What has changed on a device, newest first.",
        (DEVICE, may("limit", "integer", 10)),
        Risk.READ,
        "network_changes",
        changes,
    ),
)
