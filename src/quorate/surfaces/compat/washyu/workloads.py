"""Containers on the devices of the map, by Docker or LXD."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from quorate.operations.registry import Risk
from quorate.pve.errors import BadArgument
from quorate.surfaces.compat.declaring import Tool, may, need
from quorate.surfaces.compat.running import Run
from quorate.surfaces.compat.washyu.shapes import DEVICE, PATIENCE, device, good, told

PLATFORMS = ("docker", "lxd")
IMAGE = "ubuntu:22.04"
LIMIT = 1000
PLATFORM = need("platform", "string", choices=PLATFORMS)
NAME = need("vm_name", "string")
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
"""What may stand in vm_config -> our own name for it."""


async def deploy(run: Run) -> dict[str, Any]:
    host = await device(run, run["device_id"])
    arguments = {"image": IMAGE, **workload(run["vm_config"] or {})}
    done = await run.change(
        "workload_deploy", follow=PATIENCE, host=host, name=run["vm_name"], engine=run["platform"], **arguments
    )
    return told(done, **_about(run))


def workload(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of theirs as arguments of workload_deploy."""
    if unknown := [name for name in config if name not in CONFIG]:
        raise BadArgument(
            f"{', '.join(unknown)} is nothing that a container can be given here",
            next_step=f"There are {', '.join(CONFIG)}",
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


async def control(run: Run) -> dict[str, Any]:
    host = await device(run, run["device_id"])
    done = await run.change(
        "workload_power", host=host, name=run["vm_name"], engine=run["platform"], action=run["action"]
    )
    return told(done, **_about(run), action=run["action"])


async def status(run: Run) -> dict[str, Any]:
    host = await device(run, run["device_id"])
    return good(
        **_about(run), vm=await run.facts("workload_get", host=host, name=run["vm_name"], engine=run["platform"])
    )


async def listing(run: Run) -> dict[str, Any]:
    """Of those platforms; of both, unless told otherwise. One that is not there has no containers."""
    host = await device(run, run["device_id"])
    wanted = run["platforms"] or list(PLATFORMS)
    rows, beside = await run.listing("workload_list", host=host)
    found = [{"platform": row.pop("engine"), **row} for row in rows if row["engine"] in wanted]
    silent = {name: why for name, why in beside.get("no_answer", {}).items() if name in wanted}
    return good(
        device_id=run["device_id"], total_vms=len(found), vms=found, **({"no_answer": silent} if silent else {})
    )


async def logs(run: Run) -> dict[str, Any]:
    if not 1 <= run["lines"] <= LIMIT:
        raise BadArgument(f"lines={run['lines']} is no number of lines", next_step=f"Give 1 to {LIMIT}")
    host = await device(run, run["device_id"])
    found = await run.facts("workload_logs", host=host, name=run["vm_name"], engine=run["platform"], lines=run["lines"])
    return good(**_about(run), lines_requested=run["lines"], logs="\n".join(found.get("log", ())))


async def remove(run: Run) -> dict[str, Any]:
    host = await device(run, run["device_id"])
    done = await run.change("workload_remove", host=host, name=run["vm_name"], engine=run["platform"])
    return told(done, **_about(run))


def _about(run: Run) -> dict[str, Any]:
    return {"device_id": run["device_id"], "vm_name": run["vm_name"], "platform": run["platform"]}


TOOLS = (
    Tool(
        "deploy_vm",
        "Run a container on a device.",
        (
            DEVICE,
            PLATFORM,
            NAME,
            may("vm_config", "object", about="image, ports [8080:80], volumes, environment, command, memory, cpus …"),
        ),
        Risk.CHANGE,
        "workload_deploy",
        deploy,
    ),
    Tool(
        "control_vm",
        "Start, stop or restart a container on a device.",
        (DEVICE, PLATFORM, NAME, need("action", "string", choices=("start", "stop", "restart"))),
        Risk.CHANGE,
        "workload_power",
        control,
    ),
    Tool(
        "get_vm_status",
        "State, health, ports and limits of a container on a device.",
        (DEVICE, PLATFORM, NAME),
        Risk.LOOK_INSIDE,
        "workload_get",
        status,
    ),
    Tool(
        "list_vms",
        "Containers on a device.",
        (DEVICE, may("platforms", "array<string>", about="Default: both", choices=PLATFORMS)),
        Risk.LOOK_INSIDE,
        "workload_list",
        listing,
    ),
    Tool(
        "get_vm_logs",
        "The last lines that a container has printed.",
        (DEVICE, PLATFORM, NAME, may("lines", "integer", 100)),
        Risk.LOOK_INSIDE,
        "workload_logs",
        logs,
    ),
    Tool(
        "remove_vm",
        "Stop a container and take it away. Named volumes stay.",
        (
            DEVICE,
            PLATFORM,
            NAME,
            may("force", "boolean", False, "Accepted; it is stopped first in any case, by force if it must be"),
        ),
        Risk.DESTROY,
        "workload_remove",
        remove,
    ),
)
