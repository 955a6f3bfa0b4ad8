"""Infrastructure plans: their deployment plans as our documents, devices of the map as hosts."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from quorate.operations.registry import Risk
from quorate.problems import BadArgument, NotFound
from quorate.surfaces.compat.declaring import Tool, may, need
from quorate.surfaces.compat.running import Done, Run
from quorate.surfaces.compat.washyu.shapes import DEVICE, PATIENCE, a_list, an_object, device, good, told
from quorate.surfaces.compat.washyu.workloads import CONFIG, IMAGE, workload

SCOPES = ("full", "partial", "device_specific")
DEVICES = may("device_ids", "array<integer>", about="For partial and device_specific")
LIMITS = ("image", "memory", "cpus", "restart", "restart_policy")
"""What of a container can be changed."""
LEVELS = ("basic", "comprehensive", "simulation")
ONLY_CHECK = may("validate_only", "boolean", False, "Only tell what it would do")
PARTS = ("name", "services", "network_changes")


# -- plans -------------------------------------------------------------------------------------------------------------


async def deploy(run: Run) -> dict[str, Any]:
    document = await documented(run, run["deployment_plan"])
    if run["validate_only"]:
        return await _validated(run, document, "simulation")
    done = await run.change("infra_apply", follow=PATIENCE, document=document)
    return told(done, message=f"{document['name']}: {done.facts['result']}", plan=document["name"])


async def validate(run: Run) -> dict[str, Any]:
    return await _validated(run, await documented(run, run["change_plan"]), run["validation_level"])


async def _validated(run: Run, document: dict[str, Any], level: str) -> dict[str, Any]:
    found = await run.facts("infra_validate", document=document, level=level)
    changes = await run.facts("infra_plan", document=document) if found["valid"] and level != "basic" else {}
    would = {"would_change": changes["changes"]} if changes else {}
    return {"status": "success" if found["valid"] else "error", **found, **would}


async def documented(run: Run, plan: Mapping[str, Any]) -> dict[str, Any]:
    """A plan of theirs as a document of ours. What is a document already stays as it is.

    Its name follows from the names in it, so that the same services are the same document later.
    """
    if not isinstance(plan.get("services", []), list):
        return dict(plan)
    if unknown := [name for name in plan if name not in PARTS]:
        raise BadArgument(f"A plan has no {', '.join(unknown)}", next_step=f"There are {', '.join(PARTS)}")
    if plan.get("network_changes"):
        raise BadArgument(
            "A plan cannot hold network_changes",
            why="VLANs, routes and packet filters of plain machines are their own affair; nothing was done",
            next_step="Leave them out; ssh_execute_command can make them on a machine",
        )
    items: dict[str, dict[str, Any]] = {"workloads": {}, "services": {}}
    for given in a_list(plan.get("services"), "services"):
        name, part, wanted = await _item(run, given)
        if any(name in one for one in items.values()):
            raise BadArgument(f"Two services are called {name}", next_step="Give each a name of its own")
        items[part][name] = wanted
    names = sorted(name for part in items.values() for name in part)
    named = plan.get("name") or f"plan-{zlib.crc32(' '.join(names).encode()):08x}"
    return {"name": named, **{part: wanted for part, wanted in items.items() if wanted}}


async def _item(run: Run, given: Any) -> tuple[str, str, dict[str, Any]]:
    """A container, or a service of the catalogue: its name, the part of the document, and what is wanted."""
    needed = {"name": str, "type": str, "target_device_id": int}
    if not isinstance(given, Mapping) or not all(isinstance(given.get(key), kind) for key, kind in needed.items()):
        raise BadArgument(
            "A service of the plan cannot be understood",
            next_step="Each has name, type (docker, lxd, service), target_device_id, and may have config",
        )
    host = await device(run, given["target_device_id"])
    config = an_object(given.get("config"), f"The config of {given['name']}")
    if given["type"] == "service":
        settings = {name: value for name, value in config.items() if name != "service"}
        service = {"service": config["service"]} if "service" in config else {}
        return given["name"], "services", {"host": host, **service, **({"settings": settings} if settings else {})}
    if given["type"] not in ("docker", "lxd"):
        raise BadArgument(f"There is no type {given['type']!r} of services", next_step="Choose docker, lxd or service")
    return given["name"], "workloads", {"host": host, "engine": given["type"], "image": IMAGE, **workload(config)}


# -- devices -----------------------------------------------------------------------------------------------------------


async def update(run: Run) -> dict[str, Any]:
    done = await run.change(
        "device_update",
        follow=PATIENCE,
        device=run["device_id"],
        changes=_changes(run["config_changes"]),
        backup=run["backup_before_change"],
        **_only_checked(run),
    )
    return _checked(run, told(done, device_id=run["device_id"]))


def _changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Their services are containers as well as what the system itself runs: `type` or an image tells them apart."""
    workloads, services = dict(an_object(given.get("workloads"), "workloads")), {}
    for name, value in an_object(given.get("services"), "services").items():
        told = value if isinstance(value, Mapping) else {"action": value}
        config = {**an_object(told.get("config"), "config"), **{key: told[key] for key in told if key in LIMITS}}
        if config or told.get("type") in ("docker", "lxd"):
            workloads[name] = {CONFIG.get(key, key): one for key, one in config.items()} or told.get("action")
        else:
            services[name] = told.get("action")
    return {**given, "workloads": workloads, "services": services}


async def decommission(run: Run) -> dict[str, Any]:
    """What runs on it is moved with its data, to the one device that the plan names."""
    plan = run["migration_plan"] or {}
    mapped = an_object(plan.get("service_mapping"), "service_mapping").values()
    targets = [*a_list(plan.get("target_devices"), "target_devices"), *mapped]
    if any(one != targets[0] for one in targets):
        raise BadArgument("Containers cannot be moved to several devices at once", next_step="Name one of them")
    target = await device(run, targets[0]) if targets else None
    done = await run.change(
        "device_decommission",
        follow=PATIENCE,
        device=run["device_id"],
        move_to=target,
        data=target is not None,
        force=run["force_removal"],
        **_only_checked(run),
    )
    return _checked(run, told(done, device_id=run["device_id"]))


async def back_up(run: Run) -> dict[str, Any]:
    done = await run.change(
        "infra_backup",
        follow=PATIENCE,
        devices=await _devices(run, run["backup_scope"]),
        name=run["backup_name"],
        data=run["include_data"],
    )
    number = next((step["backup"] for step in done.facts.get("steps", ()) if "backup" in step), None)
    return told(done, backup_scope=run["backup_scope"], **({"backup_id": number} if number else {}))


async def roll_back(run: Run) -> dict[str, Any]:
    done = await run.change(
        "infra_rollback",
        follow=PATIENCE,
        backup=run["backup_id"],
        devices=await _devices(run, run["rollback_scope"]),
        data=True,  # as far as the backup was asked to have it
        **_only_checked(run),
    )
    return _checked(run, told(done, backup_id=run["backup_id"]))


async def _devices(run: Run, scope: str) -> list[str] | None:
    """None are all of them."""
    numbers = run["device_ids"]
    if scope != "full" and not numbers:
        raise BadArgument(f"{scope} is about some devices", next_step="Give device_ids, or full")
    return [await device(run, number) for number in numbers] if numbers else None


def _only_checked(run: Run) -> dict[str, Any]:
    return {"dry_run": True} if run["validate_only"] else {}


def _checked(run: Run, answer: dict[str, Any]) -> dict[str, Any]:
    """Who only wanted it checked has got what they asked for."""
    return {**answer, **good(validate_only=True)} if run["validate_only"] else answer


# -- scaling -----------------------------------------------------------------------------------------------------------


async def scale(run: Run) -> dict[str, Any]:
    """One after the other; nothing is begun before all of them have been looked at."""
    wanted = _scaled(run["scaling_plan"])
    if len(wanted) > 1 and run.arguments.get("plan_token"):
        raise BadArgument("A plan token is good for one service", next_step="Scale them one by one")
    looked = [await _scale(run, one, dry_run=True) for one in wanted]
    for one, plan in zip(wanted, looked, strict=True):
        await _require_place(run, one, plan)
    if run["validate_only"] or run.arguments.get("dry_run"):
        return _checked(run, good(services=[_told(one, plan) for one, plan in zip(wanted, looked, strict=True)]))
    return good(services=[_told(one, await _scale(run, one)) for one in wanted])


def _told(one: Mapping[str, Any], done: Done) -> dict[str, Any]:
    name, replicas = one["service_name"], one["target_replicas"]
    return told(done, message=f"Scale {name} to {replicas}: {done.facts['result']}", service_name=name)


def _scaled(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    wanted = [one for name in ("scale_up", "scale_down") for one in a_list(plan.get(name), name)]
    if not wanted:
        raise BadArgument("There is nothing to scale", next_step="Give scale_up or scale_down")
    for one in wanted:
        if not isinstance(one, Mapping) or not one.get("service_name") or type(one.get("target_replicas")) is not int:
            raise BadArgument(
                "A service to scale cannot be understood",
                next_step="Each has service_name and target_replicas, and may have device_id",
            )
        if one.get("resource_allocation"):
            raise BadArgument(
                f"What {one['service_name']} may use is not changed by scaling it",
                next_step="deploy_infrastructure with memory and cpus in its config changes that",
            )
    return wanted


async def _scale(run: Run, one: Mapping[str, Any], **more: Any) -> Done:
    return await run.change(
        "infra_scale", follow=PATIENCE, name=one["service_name"], replicas=one["target_replicas"], **more
    )


async def _require_place(run: Run, one: Mapping[str, Any], plan: Done) -> None:
    """Copies are made where the first one is; a caller who thinks of another device is told."""
    places = {change["on"] for change in plan.facts.get("changes", ()) if "on" in change}
    if one.get("device_id") is None or not places:
        return
    host = await device(run, one["device_id"])
    if places != {host}:
        raise NotFound(
            f"{one['service_name']} is not on device {one['device_id']}", why=f"It is on {', '.join(sorted(places))}"
        )


TOOLS = (
    Tool(
        "deploy_infrastructure",
        "Deploy containers and services on devices, in one plan.",
        (need("deployment_plan", "object", "services: [{name, type, target_device_id, config}]"), ONLY_CHECK),
        Risk.DESTROY,
        "infra_apply",
        deploy,
    ),
    Tool(
        "update_device_config",
        "Change a device: services, containers, host name, SSH logins; of a guest its cores and memory.",
        (
            DEVICE,
            need(
                "config_changes",
                "object",
                "services {name: restart, or {type, image, memory, cpus}}, network {hostname}, security, resources",
            ),
            may("backup_before_change", "boolean", True),
            ONLY_CHECK,
        ),
        Risk.DESTROY,
        "device_update",
        update,
    ),
    Tool(
        "decommission_device",
        "Take a device out of service: what runs on it is moved, or it is refused.",
        (
            DEVICE,
            may("migration_plan", "object", about="target_devices: [the device that takes its containers]"),
            may("force_removal", "boolean", False, "Although others depend on it"),
            ONLY_CHECK,
        ),
        Risk.DESTROY,
        "device_decommission",
        decommission,
    ),
    Tool(
        "create_infrastructure_backup",
        "Back up the configuration of devices.",
        (
            may("backup_scope", "string", "full", "full: all registered servers", choices=SCOPES),
            DEVICES,
            may("include_data", "boolean", False, "What is in their volumes, too"),
            may("backup_name", "string"),
        ),
        Risk.CHANGE,
        "infra_backup",
        back_up,
    ),
    Tool(
        "rollback_infrastructure_changes",
        "Make devices as they were when a backup was made, data too if it has any, and compare.",
        (
            need("backup_id", "string", "As create_infrastructure_backup told it"),
            may("rollback_scope", "string", "full", "full: all of the backup", choices=SCOPES),
            DEVICES,
            ONLY_CHECK,
        ),
        Risk.DESTROY,
        "infra_rollback",
        roll_back,
    ),
    Tool(
        "scale_services",
        "Run more or fewer copies of services that deploy_infrastructure has made.",
        (need("scaling_plan", "object", "scale_up, scale_down: [{service_name, target_replicas}]"), ONLY_CHECK),
        Risk.DESTROY,
        "infra_scale",
        scale,
    ),
    Tool(
        "validate_infrastructure_changes",
        "Check a plan: grammar, names, ports, reachability, capacity.",
        (need("change_plan", "object", "As of deploy_infrastructure"),
         may("validation_level", "string", "comprehensive", choices=LEVELS)),
        Risk.LOOK_INSIDE,
        "infra_validate",
        validate,
    ),
)  # fmt: skip
