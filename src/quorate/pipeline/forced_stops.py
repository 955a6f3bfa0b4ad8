"""Calls by which the HA manager stops guests: by force, if they have not shut down within a minute.

A VM that is moved keeps running. A container is stopped and started again, whether a call moves it or a rule does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pve_schema.schema import Facts
from quorate.operations.api.risk import Effect, Reason
from quorate.operations.backend import Backend
from quorate.operations.plan import Call, Plan
from quorate.pve.inventory import Resource
from quorate.pve.placement import UNMANAGED, Relocation, affects_placement, find_relocations
from quorate.pve.wire import Request, read

_SHUTDOWN: Final = re.compile(r"/nodes/{node}/(?:qemu|lxc)/{vmid}/status/shutdown")
_OF_HA: Final = "/cluster/"
"""Calls below it may also move guests that are not under HA yet."""


async def forced_stops(backend: Backend, plan: Plan, facts: Facts | None) -> list[tuple[Call, Effect]]:
    """The calls of the plan that do so, each with its effect."""
    if facts is None:
        return []
    asked = [
        (call, request)
        for call in plan.api_calls
        if (request := read(facts, call.method, call.path, call.params)) is not None and _may_stop(request)
    ]
    if not asked:
        return []
    rows = {row.vmid: row for row in await backend.api.inventory.named_guests()}
    asked = [(call, request) for call, request in asked if _concerns_ha(request, rows)]
    requests = [request for _, request in asked]
    relocations: list[list[Relocation]] = [[] for _ in requests]
    if any(affects_placement(request) for request in requests):
        relocations = await find_relocations(backend.api, facts, requests)
    return [
        (call, Effect(Reason.STOPS_GUESTS, "under HA"))
        for (call, request), moved in zip(asked, relocations, strict=True)
        if _SHUTDOWN.fullmatch(request.template) or any(_is_stopped(one, rows) for one in moved)
    ]


def _may_stop(request: Request) -> bool:
    return affects_placement(request) or (request.method == "POST" and bool(_SHUTDOWN.fullmatch(request.template)))


def _concerns_ha(request: Request, rows: Mapping[int, Resource]) -> bool:
    """Whether a guest under HA can be concerned: of the calls about single guests, only those of such guests."""
    vmid = request.match.values.get("vmid", "")
    if vmid.isdecimal():
        return int(vmid) in rows and rows[int(vmid)].hastate not in UNMANAGED
    return request.template.startswith(_OF_HA) or any(row.hastate not in UNMANAGED for row in rows.values())


def _is_stopped(moved: Relocation, rows: Mapping[int, Resource]) -> bool:
    row = rows.get(moved.vmid)
    return bool(moved.managed and moved.next and row and row.type == "lxc" and row.status == "running")
