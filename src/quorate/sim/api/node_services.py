"""Services of a node."""

from __future__ import annotations

from typing import Any

from quorate.sim.routing import Call, Handler, route
from quorate.sim.services import Service, Services, service_work

_BASE = "/nodes/{node}/services"
_ACTIONS = ("start", "stop", "restart", "reload")


def _service(call: Call) -> Service:
    return call.world.part(Services).of(call.node)[call.values["service"]]


@route(f"GET {_BASE}")
def services(call: Call) -> list[dict[str, Any]]:
    return [service.row() for service in call.world.part(Services).of(call.node).values()]


@route(f"GET {_BASE}/{{service}}")
def index(_call: Call) -> list[dict[str, str]]:
    return [{"subdir": name} for name in ("state", *_ACTIONS)]


@route(f"GET {_BASE}/{{service}}/state")
def state(call: Call) -> dict[str, Any]:
    return _service(call).row()


def _action(action: str) -> Handler:
    def handler(call: Call) -> str:
        service = _service(call)
        return call.start_task(f"srv{action}", service.name, service_work(service, action))

    return handler


for _name in _ACTIONS:
    route(f"POST {_BASE}/{{service}}/{_name}", needs_quorum=False)(_action(_name))
