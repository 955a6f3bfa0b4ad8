"""Containers."""

from __future__ import annotations

from typing import Any

from quorate.operations.registry import Risk
from quorate.surfaces.compat.brynnjocelyn.shapes import CONTAINER, NODE, task
from quorate.surfaces.compat.declaring import Tool, may, need
from quorate.surfaces.compat.placed import changing_guest, number, placed
from quorate.surfaces.compat.recipes import changing, reading
from quorate.surfaces.compat.running import Run


async def status(run: Run) -> Any:
    return await run.get(f"{(await placed(run, 'lxc')).path}/status/current")


async def config(run: Run) -> Any:
    return await run.get(f"{(await placed(run, 'lxc')).path}/config")


def keys(run: Run) -> list[str] | None:
    return run["ssh_public_keys"].splitlines() if run["ssh_public_keys"] else None


TOOLS = (
    Tool(
        "list_containers",
        "The containers of a node.",
        (NODE,),
        Risk.READ,
        "guest_list type=ct",
        reading("/nodes/{node}/lxc"),
    ),
    Tool("get_container_status", "State and load of a container.", (NODE, CONTAINER), Risk.READ, "guest_get", status),
    Tool("get_container_config", "Configuration of a container.", (NODE, CONTAINER), Risk.READ, "guest_get", config),
    Tool(
        "start_container",
        "Start a container.",
        (NODE, CONTAINER),
        Risk.CHANGE,
        "guest_power action=start",
        changing_guest("guest_power", type="lxc", action="start", shape=task),
    ),
    Tool(
        "stop_container",
        "Stop a container at once; unsaved data is lost.",
        (NODE, CONTAINER),
        Risk.DESTROY,
        "guest_stop",
        changing_guest("guest_stop", type="lxc", shape=task),
    ),
    Tool(
        "create_container",
        "Make a container.",
        (
            NODE,
            may("vmid", "number", about="Left out: the next free one"),
            need("ostemplate", "string", "Such as local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst"),
            may("hostname", "string"),
            may("memory", "number", 512, "MiB"),
            need("storage", "string", "For its root file system"),
            may("password", "string", about="Of root"),
            may("ssh_public_keys", "string", about="One a line"),
        ),
        Risk.CHANGE,
        "container_create",
        changing(
            "container_create",
            {
                **{name: name for name in ("node", "hostname", "storage", "password")},
                **{name: number(name) for name in ("vmid", "memory")},
                "template": "ostemplate",
                "ssh_keys": keys,
            },
            shape=task,
        ),
    ),
)
