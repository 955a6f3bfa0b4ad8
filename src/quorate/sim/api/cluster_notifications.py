"""Notification endpoints, matchers and targets."""

from __future__ import annotations

from typing import Any

from quorate.sim.notifications import ENDPOINTS, MATCHER, Entity, Notifications
from quorate.sim.routing import Call, route
from quorate.sim.sections import options_of

_BASE = "/cluster/notifications"
_PATHS = {**{kind: f"{_BASE}/endpoints/{kind}" for kind in ENDPOINTS}, MATCHER: f"{_BASE}/matchers"}
_EVENT_TYPES = ("package-updates", "fencing", "replication", "vzdump", "system-mail")


def _all(method: str, path: str = "") -> list[str]:
    return [f"{method} {base}{path}" for base in _PATHS.values()]


def _kind(call: Call) -> str:
    for kind, path in _PATHS.items():
        if call.endpoint.template.startswith(path):
            return kind
    raise AssertionError(call.endpoint.template)


def _notifications(call: Call) -> Notifications:
    return call.world.part(Notifications)


@route(*_all("GET"))
def list_entities(call: Call) -> list[Entity]:
    return _notifications(call).of_kind(_kind(call))


@route(*_all("GET", "/{name}"))
def one_entity(call: Call) -> Entity:
    notifications = _notifications(call)
    return {**notifications.get(_kind(call), call.values["name"]), "digest": notifications.digest()}


@route(*_all("POST"))
def create_entity(call: Call) -> None:
    _notifications(call).add(_kind(call), call.params["name"], options_of(call.params, "name"))


@route(*_all("PUT", "/{name}"))
def update_entity(call: Call) -> None:
    options = options_of(call.params, "name", "digest", "delete")
    delete: list[str] = call.params.get("delete", [])
    _notifications(call).change(_kind(call), call.values["name"], options, delete, call.params.get("digest"))


@route(*_all("DELETE", "/{name}"))
def delete_entity(call: Call) -> None:
    _notifications(call).remove(_kind(call), call.values["name"])


@route(f"GET {_BASE}/targets")
def targets(call: Call) -> list[Entity]:
    return _notifications(call).targets()


@route(f"POST {_BASE}/targets/{{name}}/test", needs_quorum=False)
def test_target(call: Call) -> None:
    _notifications(call).test(call.values["name"])


@route(f"GET {_BASE}/matcher-fields")
def fields(_call: Call) -> list[dict[str, Any]]:
    return [{"name": name} for name in ("type", "hostname", "job-id")]


@route(f"GET {_BASE}/matcher-field-values")
def field_values(call: Call) -> list[dict[str, Any]]:
    types = [{"field": "type", "value": name} for name in _EVENT_TYPES]
    return types + [{"field": "hostname", "value": node} for node in call.world.nodes]
