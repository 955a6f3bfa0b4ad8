"""Packages of a node: versions, updates, repositories."""

from __future__ import annotations

from typing import Any

from quorate.sim.packages import Packages
from quorate.sim.routing import Call, route
from quorate.sim.tasks import TaskContext

_BASE = "/nodes/{node}/apt"


@route(f"GET {_BASE}")
def index(_call: Call) -> list[dict[str, str]]:
    return [{"id": name} for name in ("changelog", "repositories", "update", "versions")]


@route(f"GET {_BASE}/versions")
def versions(call: Call) -> list[dict[str, Any]]:
    return call.world.part(Packages).versions(call.world.nodes[call.node])


@route(f"GET {_BASE}/update")
def updates(call: Call) -> list[dict[str, Any]]:
    return call.world.part(Packages).updates()


@route(f"POST {_BASE}/update")
def refresh(call: Call) -> str:
    """Read the package lists again."""
    repositories = call.world.part(Packages).repositories(call.node)

    async def work(context: TaskContext) -> None:
        if not call.params.get("quiet"):
            context.log("starting apt-get update")
        sources = [entry for entries in repositories.files.values() for entry in entries if entry["Enabled"]]
        for number, source in enumerate(sources, start=1):
            await context.sleep(1.0)
            if "enterprise.proxmox.com" in source["URIs"][0]:
                context.warn("the enterprise repository needs a subscription (401  Unauthorized)")
            else:
                context.log(f"Hit:{number} {source['URIs'][0]} {source['Suites'][0]} InRelease")
        context.log("Reading package lists...")

    return call.start_task("aptupdate", "", work)


@route(f"GET {_BASE}/changelog")
def changelog(call: Call) -> str:
    return call.world.part(Packages).changelog(call.params["name"], call.params.get("version"))


@route(f"GET {_BASE}/repositories")
def repositories(call: Call) -> dict[str, Any]:
    return call.world.part(Packages).repositories(call.node).shown()


@route(f"POST {_BASE}/repositories")
def change_repository(call: Call) -> None:
    own = call.world.part(Packages).repositories(call.node)
    own.check_digest(call.params.get("digest"))
    if "enabled" in call.params:
        own.enable(call.params["path"], call.params["index"], enabled=call.params["enabled"])


@route(f"PUT {_BASE}/repositories")
def add_repository(call: Call) -> None:
    own = call.world.part(Packages).repositories(call.node)
    own.check_digest(call.params.get("digest"))
    own.add(call.params["handle"])
