"""Containers on the devices of the map, by Docker or LXD."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from quorate.problems import BadArgument
from quorate.surfaces.compat.declaration import Recipe
from quorate.surfaces.compat.execution import ToolCall
from quorate.surfaces.compat.washyu.answers import change_answer, success
from quorate.surfaces.compat.washyu.machines import PATIENCE, device

PLATFORMS = ("docker", "lxd")
IMAGE = "ubuntu:22.04"
LIMIT = 1000
CONFIG = {
    "image": "image",
    "ports": "ports",
    "volumes": "volumes",
    "environment": "env",
    "env": "env",
    "command": "command",
    "memory": "memory",
    "cpus": "cpus",
    "restart": "restart",
    "restart_policy": "restart",
    "network": "network",
    "labels": "labels",
}
"""Keys of vm_config -> our own names."""
USUAL: dict[str, tuple[Any, ...]] = {
    "type": (None, "", "container"),
    "profiles": (None, [], ["default"]),
    "config": (None, {}),
}
"""Keys of LXD's own requests -> what every container is created with anyway."""


async def deploy(call: ToolCall) -> dict[str, Any]:
    host = await device(call, call["device_id"])
    arguments = {"image": IMAGE, **workload(call["vm_config"] or {})}
    done = await call.change(
        "workload_deploy", follow=PATIENCE, host=host, name=call["vm_name"], engine=call["platform"], **arguments
    )
    return change_answer(done, **_about(call))


def workload(config: Mapping[str, Any]) -> dict[str, Any]:
    """A washyu configuration as arguments of workload_deploy. Settings that equal the default are left out."""
    config = {name: value for name, value in config.items() if name not in USUAL or value not in USUAL[name]}
    if unknown := [name for name in config if name not in CONFIG]:
        raise BadArgument(
            f"{', '.join(unknown)} cannot be set on a container here",
            next_step=f"Available: {', '.join(CONFIG)}",
        )
    ours = {CONFIG[name]: value for name, value in config.items()}
    if isinstance(command := ours.get("command"), str):
        ours["command"] = _words(command)
    if isinstance(variables := ours.get("env"), Mapping):
        ours["env"] = {str(name): str(value) for name, value in variables.items()}
    return ours


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise BadArgument(f"The command {command!r} cannot be split into words", why=str(error)) from None


async def control(call: ToolCall) -> dict[str, Any]:
    host = await device(call, call["device_id"])
    done = await call.change(
        "workload_power", host=host, name=call["vm_name"], engine=call["platform"], action=call["action"]
    )
    return change_answer(done, **_about(call), action=call["action"])


async def status(call: ToolCall) -> dict[str, Any]:
    host = await device(call, call["device_id"])
    return success(
        **_about(call), vm=await call.facts("workload_get", host=host, name=call["vm_name"], engine=call["platform"])
    )


async def list_all(call: ToolCall) -> dict[str, Any]:
    """The workloads of the requested platforms, by default both. A platform that is not installed has none."""
    host = await device(call, call["device_id"])
    platforms = call["platforms"] or list(PLATFORMS)
    rows, rest = await call.listing("workload_list", host=host)
    workloads = [{"platform": row.pop("engine"), **row} for row in rows if row["engine"] in platforms]
    silent = {name: why for name, why in rest.get("no_answer", {}).items() if name in platforms}
    return success(
        device_id=call["device_id"],
        total_vms=len(workloads),
        vms=workloads,
        **({"no_answer": silent} if silent else {}),
    )


async def logs(call: ToolCall) -> dict[str, Any]:
    if not 1 <= call["lines"] <= LIMIT:
        raise BadArgument(f"lines={call['lines']} is not a number of lines", next_step=f"Give 1 to {LIMIT}")
    host = await device(call, call["device_id"])
    facts = await call.facts(
        "workload_logs", host=host, name=call["vm_name"], engine=call["platform"], lines=call["lines"]
    )
    return success(**_about(call), lines_requested=call["lines"], logs="\n".join(facts.get("log", ())))


async def remove(call: ToolCall) -> dict[str, Any]:
    host = await device(call, call["device_id"])
    done = await call.change("workload_remove", host=host, name=call["vm_name"], engine=call["platform"])
    return change_answer(done, **_about(call))


def _about(call: ToolCall) -> dict[str, Any]:
    return {"device_id": call["device_id"], "vm_name": call["vm_name"], "platform": call["platform"]}


RECIPES: dict[str, Recipe] = {
    "deploy_vm": deploy,
    "control_vm": control,
    "get_vm_status": status,
    "list_vms": list_all,
    "get_vm_logs": logs,
    "remove_vm": remove,
}
