"""Infrastructure plans: their deployment plans as our documents, devices of the map as hosts."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from quorate.problems import BadArgument, NotFound
from quorate.surfaces.compat.declaration import Recipe
from quorate.surfaces.compat.execution import ChangeResult, ToolCall
from quorate.surfaces.compat.washyu.answers import as_list, as_object, change_answer, success
from quorate.surfaces.compat.washyu.machines import PATIENCE, device, host_as_admin, servers
from quorate.surfaces.compat.washyu.workloads import CONFIG, IMAGE, workload

SCOPES = ("full", "partial", "device_specific")
LIMITS = ("image", "ports", "volumes", "environment", "env", "memory", "cpus", "restart", "restart_policy")
"""What of a container can be changed."""
UNIT = {"service_file": "unit", "enabled": "enabled", "running": "running"}
"""What of a unit of systemd can be changed -> our own word for it."""
IMAGES = {"docker": "nginx:latest", "lxd": IMAGE}
"""What a plan runs that names no image."""
LEVELS = ("basic", "comprehensive", "simulation")
PARTS = ("name", "services", "network_changes")


# -- plans -------------------------------------------------------------------------------------------------------------


async def deploy(call: ToolCall) -> dict[str, Any]:
    document = await native_document(call, call["deployment_plan"])
    if call["validate_only"]:
        return await _validate(call, document, "simulation")
    done = await call.change("infra_apply", follow=PATIENCE, document=document)
    return change_answer(done, message=f"{document['name']}: {done.facts['result']}", plan=document["name"])


async def validate(call: ToolCall) -> dict[str, Any]:
    return await _validate(call, await native_document(call, call["change_plan"]), call["validation_level"])


async def _validate(call: ToolCall, document: dict[str, Any], level: str) -> dict[str, Any]:
    facts = await call.facts("infra_validate", document=document, level=level)
    changes = await call.facts("infra_plan", document=document) if facts["valid"] and level != "basic" else {}
    would = {"would_change": changes["changes"]} if changes else {}
    return {"status": "success" if facts["valid"] else "error", **facts, **would}


async def native_document(call: ToolCall, plan: Mapping[str, Any]) -> dict[str, Any]:
    """A washyu plan as an infrastructure document. A document is left unchanged.

    Its name follows from the names in it, so that the same services are the same document later.
    """
    if not isinstance(plan.get("services", []), list):
        return dict(plan)
    if unknown := [name for name in plan if name not in PARTS]:
        raise BadArgument(
            f"A plan has no part {', '.join(map(repr, unknown))}", next_step=f"Available: {', '.join(PARTS)}"
        )
    if plan.get("network_changes"):
        raise BadArgument(
            "A plan cannot contain network_changes",
            why="VLANs, routes and packet filters of plain machines are not managed here; nothing was done",
            next_step="Leave them out; ssh_execute_command can make them on a machine",
        )
    items: dict[str, dict[str, Any]] = {"workloads": {}, "services": {}}
    for listed in as_list(plan.get("services"), "services"):
        name, part, item = await _item(call, listed)
        if any(name in part_items for part_items in items.values()):
            raise BadArgument(f"Two services are called {name}", next_step="Give each a name of its own")
        items[part][name] = item
    names = sorted(name for part in items.values() for name in part)
    plan_name = plan.get("name") or f"plan-{zlib.crc32(' '.join(names).encode()):08x}"
    return {"name": plan_name, **{part: part_items for part, part_items in items.items() if part_items}}


async def _item(call: ToolCall, item: Any) -> tuple[str, str, dict[str, Any]]:
    """A container, or a service of the catalog: its name, the part of the document, and what is wanted."""
    needed = {"name": str, "type": str, "target_device_id": int}
    if not isinstance(item, Mapping) or not all(isinstance(item.get(key), kind) for key, kind in needed.items()):
        raise BadArgument(
            "A service of the plan cannot be understood",
            next_step="Each has name, type (docker, lxd, service), target_device_id, and may have config",
        )
    host = await device(call, item["target_device_id"])
    config = as_object(item.get("config"), f"The config of {item['name']}")
    if item["type"] in ("service", "systemd") and "service_file" in config:
        if unknown := [name for name in config if name != "service_file"]:
            raise BadArgument(f"{item['name']} cannot combine service_file with other settings", why=", ".join(unknown))
        return item["name"], "services", {"host": host, "unit": config["service_file"]}
    if item["type"] == "service":
        settings = {name: value for name, value in config.items() if name != "service"}
        service = {"service": config["service"]} if "service" in config else {}
        return item["name"], "services", {"host": host, **service, **({"settings": settings} if settings else {})}
    if item["type"] not in ("docker", "lxd"):
        raise BadArgument(f"There is no type {item['type']!r} of services", next_step="Choose docker, lxd or service")
    engine = item["type"]
    return item["name"], "workloads", {"host": host, "engine": engine, "image": IMAGES[engine], **workload(config)}


# -- devices -----------------------------------------------------------------------------------------------------------


async def update(call: ToolCall) -> dict[str, Any]:
    done = await call.change(
        "device_update",
        follow=PATIENCE,
        device=await device(call, call["device_id"]),
        changes=_changes(call["config_changes"]),
        backup=call["backup_before_change"],
        **_dry_run_option(call),
    )
    return _mark_validated(call, change_answer(done, device_id=call["device_id"]))


def _changes(document: Mapping[str, Any]) -> dict[str, Any]:
    """Their services are containers or systemd units; `type` or an image distinguishes them."""
    workloads: dict[str, Any] = dict(as_object(document.get("workloads"), "workloads"))
    services: dict[str, Any] = {}
    for name, value in as_object(document.get("services"), "services").items():
        service = value if isinstance(value, Mapping) else {"action": value}
        kind = service.get("type")
        if kind not in (None, "docker", "lxd", "systemd", "service"):
            raise BadArgument(f"There is no type {kind!r} of services", next_step="Choose docker, lxd or systemd")
        config = {
            **as_object(service.get("config"), "config"),
            **{key: service[key] for key in service if key in LIMITS},
        }
        unit = {ours: service[theirs] for theirs, ours in UNIT.items() if theirs in service}
        if unit or kind in ("systemd", "service"):
            services[name] = unit or service.get("action")
        elif config or kind in ("docker", "lxd"):
            workloads[name] = _container(name, config) or service.get("action")
        else:
            services[name] = service.get("action")
    return {**document, "workloads": workloads, "services": services}


def _container(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    if bad := [port for port in as_list(config.get("ports"), "ports") if ":" not in str(port)]:
        raise BadArgument(
            f"The port mapping {bad[0]!r} of {name} is not valid", next_step="Write HOST:CONTAINER: 8080:80"
        )
    changed = {CONFIG.get(key, key): value for key, value in config.items()}
    if "env" in changed:
        changed["env"] = {str(key): str(value) for key, value in as_object(changed["env"], "environment").items()}
    return changed


async def decommission(call: ToolCall) -> dict[str, Any]:
    """What runs on it is moved with its data, to the one device that the plan names."""
    plan = call["migration_plan"] or {}
    mapped = as_object(plan.get("service_mapping"), "service_mapping").values()
    targets = [*as_list(plan.get("target_devices"), "target_devices"), *mapped]
    if any(target != targets[0] for target in targets):
        raise BadArgument("Containers cannot be moved to several devices at once", next_step="Name one of them")
    target = await device(call, targets[0]) if targets else None
    done = await call.change(
        "device_decommission",
        follow=PATIENCE,
        device=await device(call, call["device_id"]),
        move_to=target,
        data=target is not None,
        force=call["force_removal"],
        **_dry_run_option(call),
    )
    return _mark_validated(call, change_answer(done, device_id=call["device_id"]))


async def back_up(call: ToolCall) -> dict[str, Any]:
    done = await call.change(
        "infra_backup",
        follow=PATIENCE,
        devices=await _devices(call, call["backup_scope"]) or await _whole_map(call) or None,
        name=call["backup_name"],
        data=call["include_data"],
    )
    number = next((step["backup"] for step in done.facts.get("steps", ()) if "backup" in step), None)
    return change_answer(done, backup_scope=call["backup_scope"], **({"backup_id": number} if number else {}))


async def roll_back(call: ToolCall) -> dict[str, Any]:
    done = await call.change(
        "infra_rollback",
        follow=PATIENCE,
        backup=call["backup_id"],
        devices=await _devices(call, call["rollback_scope"]),
        data=True,  # if the backup contains it
        **_dry_run_option(call),
    )
    return _mark_validated(call, change_answer(done, backup_id=call["backup_id"]))


async def _devices(call: ToolCall, scope: str) -> list[str] | None:
    """The devices of the call; None for all."""
    numbers = call["device_ids"]
    if scope != "full" and not numbers:
        raise BadArgument(f"{scope} is about some devices", next_step="Give device_ids, or full")
    return [await device(call, number) for number in numbers] if numbers else None


async def _whole_map(call: ToolCall) -> list[str]:
    """Every device with a known login, and every registered server."""
    mapped = [row["device"] for row in await call.rows("network_map") if "device" in row and row.get("host")]
    devices = {(name := await device(call, number)).rpartition("@")[2]: name for number in mapped}
    missing = [name for name in await servers(call) if name not in devices]
    return [*devices.values(), *[await host_as_admin(call, name) for name in missing]]


def _dry_run_option(call: ToolCall) -> dict[str, Any]:
    return {"dry_run": True} if call["validate_only"] else {}


def _mark_validated(call: ToolCall, answer: dict[str, Any]) -> dict[str, Any]:
    """A validation that passes is a success."""
    return {**answer, **success(validate_only=True)} if call["validate_only"] else answer


# -- scaling -----------------------------------------------------------------------------------------------------------


async def scale(call: ToolCall) -> dict[str, Any]:
    """Scale services one after the other; nothing starts before all of them are checked."""
    scaling = _parse_scaling(call["scaling_plan"])
    if len(scaling) > 1 and call.arguments.get("plan_token"):
        raise BadArgument("A plan token is valid for one service", next_step="Scale them one by one")
    looked = [await _scale(call, change, dry_run=True) for change in scaling]
    for change, plan in zip(scaling, looked, strict=True):
        await _require_place(call, change, plan)
    if call["validate_only"] or call.arguments.get("dry_run"):
        return _mark_validated(
            call, success(services=[_scale_answer(change, plan) for change, plan in zip(scaling, looked, strict=True)])
        )
    return success(services=[_scale_answer(change, await _scale(call, change)) for change in scaling])


def _scale_answer(change: Mapping[str, Any], done: ChangeResult) -> dict[str, Any]:
    name, replicas = change["service_name"], change["target_replicas"]
    return change_answer(done, message=f"Scale {name} to {replicas}: {done.facts['result']}", service_name=name)


def _parse_scaling(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    changes = [change for name in ("scale_up", "scale_down") for change in as_list(plan.get(name), name)]
    if not changes:
        raise BadArgument("There is nothing to scale", next_step="Give scale_up or scale_down")
    for change in changes:
        if (
            not isinstance(change, Mapping)
            or not change.get("service_name")
            or type(change.get("target_replicas")) is not int
        ):
            raise BadArgument(
                "A service to scale cannot be understood",
                next_step="Each has service_name and target_replicas, and may have device_id",
            )
        if change.get("resource_allocation"):
            raise BadArgument(
                f"What {change['service_name']} may use is not changed by scaling it",
                next_step="deploy_infrastructure with memory and cpus in its config changes that",
            )
    return changes


async def _scale(call: ToolCall, change: Mapping[str, Any], **more: Any) -> ChangeResult:
    return await call.change(
        "infra_scale", follow=PATIENCE, name=change["service_name"], replicas=change["target_replicas"], **more
    )


async def _require_place(call: ToolCall, change: Mapping[str, Any], plan: ChangeResult) -> None:
    """Refuse another device than that of the first copy, where all copies run."""
    places = {change["on"] for change in plan.facts.get("changes", ()) if "on" in change}
    if change.get("device_id") is None or not places:
        return
    host = await device(call, change["device_id"])
    if places != {host}:
        raise NotFound(
            f"{change['service_name']} is not on device {change['device_id']}",
            why=f"It is on {', '.join(sorted(places))}",
        )


RECIPES: dict[str, Recipe] = {
    "deploy_infrastructure": deploy,
    "update_device_config": update,
    "decommission_device": decommission,
    "create_infrastructure_backup": back_up,
    "rollback_infrastructure_changes": roll_back,
    "scale_services": scale,
    "validate_infrastructure_changes": validate,
}
