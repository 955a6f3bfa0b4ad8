"""The map of the network: devices, what deserves attention, where something new would fit, what has changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.problems import BadArgument, GuestRefused, NotFound
from quorate.surfaces.compat.declaration import Recipe
from quorate.surfaces.compat.execution import ToolCall
from quorate.surfaces.compat.washyu.answers import ACCOUNT, success
from quorate.surfaces.compat.washyu.machines import host_address, lend_login

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


async def discover(call: ToolCall) -> dict[str, Any]:
    facts = await _discover_target(call, call.arguments)
    if facts["status"] == "error":
        raise GuestRefused(f"{call['hostname']} could not be discovered", why=facts["error"])
    return facts


async def discover_all(call: ToolCall) -> dict[str, Any]:
    """Discover each target with its own login; those that do not answer are listed as well."""
    targets = call["targets"]
    if len(targets) > MOST_TARGETS:
        raise BadArgument(f"{len(targets)} targets are too many", next_step=f"Give at most {MOST_TARGETS} at once")
    for target in targets:
        _check(target)
    results = [await _discover_target(call, {"username": ACCOUNT, **target}) for target in targets]
    failed = sum(result["status"] == "error" for result in results)
    return success(total_targets=len(results), successful=len(results) - failed, failed=failed, results=results)


async def _discover_target(call: ToolCall, target: Mapping[str, Any]) -> dict[str, Any]:
    with lend_login(call, target):
        (row,) = await call.rows(
            "network_discover", hosts=[host_address(target["hostname"], target["username"], target.get("port"))]
        )
    about = {"hostname": target["hostname"]}
    if "device" not in row:
        return {"status": "error", **about, "error": row["why_not"]}
    facts = {key: row[key] for key in ("name", "address", "system") if key in row}
    return success(**about, device_id=row["device"], changed=bool(row.get("changed")), **facts)


def _check(target: Mapping[str, Any]) -> None:
    wrong = [name for name, value in target.items() if not isinstance(value, TARGET.get(name, ())) and value]
    if wrong or not target.get("hostname"):
        raise BadArgument(
            f"A target cannot be understood: {', '.join(wrong) or 'it has no hostname'}",
            next_step="Each has hostname, and may have username, password, key_path, port",
        )


async def sitemap(call: ToolCall) -> dict[str, Any]:
    rows, rest = await call.listing("network_map")
    devices = [{"id": row.pop("device"), **row} for row in rows if "device" in row]
    seen = {value for device in devices for name in ("host", "name", "address") if (value := device.get(name))}
    others = [row for row in rows if "device" not in row and not seen & _names(row)]
    return success(total_devices=len(devices), devices=devices, not_yet_discovered=others, **rest)


def _names(row: Mapping[str, Any]) -> set[str]:
    """What may identify a device: a registered server or a guest is the same device once it is discovered."""
    return {str(row[name]) for name in ("host", "name", "address") if row.get(name)}


async def analyse(call: ToolCall) -> dict[str, Any]:
    rows, rest = await call.listing("network_analyze")
    return success(analysis={**rest, "findings": rows})


async def suggest(call: ToolCall) -> dict[str, Any]:
    suggestions = {name: await _suggestion(call, kind) for name, kind in KINDS.items()}
    if not any("looked_at" in suggestion for suggestion in suggestions.values()):
        await call.facts("network_suggest")  # raises with what is missing
    findings = await call.rows("network_analyze", severity="warning")
    upgrades = [{key: finding.get(key) for key in ("about", "finding", "evidence", "to_do")} for finding in findings]
    return success(suggestions={**suggestions, "upgrade_recommendations": upgrades})


async def _suggestion(call: ToolCall, kind: str) -> dict[str, Any]:
    """Without a cluster there is no place for a VM, but there may be one for other kinds."""
    try:
        return await call.facts("network_suggest", kind=kind)
    except NotFound as problem:
        return {"fits": [], "why_not": problem.what}


async def changes(call: ToolCall) -> dict[str, Any]:
    if call["limit"] < 1:
        raise BadArgument(f"limit={call['limit']} is not a number of changes", next_step="Give 1 to 500")
    rows = await call.some_rows("network_changes", device=call["device_id"], limit=min(call["limit"], 500))
    return success(device_id=call["device_id"], total_changes=len(rows), changes=rows)


RECIPES: dict[str, Recipe] = {
    "discover_and_map": discover,
    "bulk_discover_and_map": discover_all,
    "get_network_sitemap": sitemap,
    "analyze_network_topology": analyse,
    "suggest_deployments": suggest,
    "get_device_changes": changes,
}
