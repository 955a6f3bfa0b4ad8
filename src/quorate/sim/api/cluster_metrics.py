"""External metric servers."""

from __future__ import annotations

from typing import Any

from quorate.sim.datacenter import Datacenter
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route
from quorate.sim.sections import Section, options_of

_ONE = "/cluster/metrics/server/{id}"


@route("GET /cluster/metrics/server")
def list_servers(call: Call) -> list[dict[str, Any]]:
    servers = call.world.part(Datacenter).metric_servers.sections
    return [
        {"id": name, "disable": server.get("disable", 0), **_address(server)}
        for name, server in sorted(servers.items())
    ]


def _address(server: Section) -> Section:
    return {key: server[key] for key in ("type", "server", "port")}


@route(f"GET {_ONE}")
def one_server(call: Call) -> Section:
    name = call.values["id"]
    server = call.world.part(Datacenter).metric_servers.sections.get(name)
    if server is None:
        raise failure(f"status server entry '{name}' does not exist")
    return options_of(server, "token")  # the secret is kept in a file of its own


@route(f"POST {_ONE}")
def create_server(call: Call) -> None:
    file, name = call.world.part(Datacenter).metric_servers, call.values["id"]
    if name in file.sections:
        raise failure(f"Metric server '{name}' already exists")
    file.sections[name] = file.new_section(call.params["type"], options_of(call.params, "id", "type"))


@route(f"PUT {_ONE}")
def update_server(call: Call) -> None:
    file, name = call.world.part(Datacenter).metric_servers, call.values["id"]
    file.check_digest(call.params.get("digest"))
    if name not in file.sections:
        raise failure(f"no such server '{name}'")
    options = options_of(call.params, "id", "digest", "delete")
    file.change(file.sections[name], options, call.params.get("delete"))


@route(f"DELETE {_ONE}")
def delete_server(call: Call) -> None:
    call.world.part(Datacenter).metric_servers.sections.pop(call.values["id"], None)


@route("GET /cluster/metrics/export")
def export(_call: Call) -> dict[str, Any]:
    """The status daemon's memory is empty as long as nobody pulls metrics regularly."""
    return {"data": []}
