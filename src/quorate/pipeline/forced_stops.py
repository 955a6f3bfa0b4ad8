"""Calls by which the HA manager stops guests: by force, if they have not shut down within a minute.

A VM that is moved keeps running. A container is stopped and started again, whether a call moves it or a rule does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pve_schema.formats import split_list
from pve_schema.schema import Facts
from quorate.operations.api.risk import Effect, Reason
from quorate.operations.backend import Backend
from quorate.operations.plan import Call, Plan
from quorate.pipeline.reach import reach_of_call, stored_reach
from quorate.pve.inventory import Resource
from quorate.pve.targets import GUEST

_SHUTDOWN: Final = re.compile(r"/nodes/[^/]+/(?:qemu|lxc)/\d+/status/shutdown")
_MOVE: Final = re.compile(
    r"/nodes/[^/]+/lxc/\d+/migrate|/nodes/[^/]+/migrateall|/cluster/bulk-action/guest/migrate"
    r"|/cluster/ha/resources/[^/]+/migrate"
)
_PLACEMENT: Final = re.compile(r"/cluster/ha/(?:rules|groups|resources)(?:/[^/]+)?")
_PLACES: Final = frozenset(
    {"nodes", "resources", "affinity", "strict", "restricted", "nofailback", "group", "failback", "auto-rebalance"}
)
"""What decides where the HA manager runs a guest."""
_SWITCH: Final = "disable"
"""The parameter of a rule that switches it off; removed or set to 0, the rule takes effect."""
_UNMANAGED: Final = ("", "ignored")


async def forced_stops(backend: Backend, plan: Plan, facts: Facts | None) -> list[tuple[Call, Effect]]:
    """The calls of the plan that do so, each with its effect."""
    asked = [call for call in plan.api_calls if _may_stop(call)]
    if facts is None or not asked:
        return []
    rows = {str(row.vmid): row for row in await backend.api.inventory.named_guests()}
    found = []
    for call in asked:
        things = [*reach_of_call(call, facts), *await stored_reach(backend.api, facts, call)]
        (subjects,) = await backend.api.subjects([things])
        guests = [rows[one.id] for one in subjects if one.kind == GUEST and one.id in rows]
        if any(_is_stopped(row, call) for row in guests):
            found.append((call, Effect(Reason.STOPS_GUESTS, "under HA")))
    return found


def _may_stop(call: Call) -> bool:
    if call.method == "POST" and (_SHUTDOWN.fullmatch(call.path) or _MOVE.fullmatch(call.path)):
        return True
    removed = {*split_list(str(call.params.get("delete", "")))}
    decides = bool(_PLACES & (call.params.keys() | removed)) or _SWITCH in removed or call.params.get(_SWITCH) == "0"
    return call.method in ("POST", "PUT") and _PLACEMENT.fullmatch(call.path) is not None and decides


def _is_stopped(row: Resource, call: Call) -> bool:
    if row.hastate in _UNMANAGED and not call.path.endswith("/ha/resources"):
        return False
    if _SHUTDOWN.fullmatch(call.path):
        return True
    return row.type == "lxc" and row.status == "running" and row.node not in _preferred_nodes(call.params)


def _preferred_nodes(params: Mapping[str, Any]) -> set[str]:
    """The nodes of the highest priority: a guest that is there stays. Empty if the call does not say."""
    listed = [one.partition(":") for one in split_list(str(params.get("nodes", "")))]
    priorities = {node: int(number) if number.isdecimal() else 0 for node, _, number in listed}
    return {node for node, priority in priorities.items() if priority == max(priorities.values())}
