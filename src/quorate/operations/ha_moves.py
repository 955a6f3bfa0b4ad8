"""Moves of guests under HA: where they would stay, and when they have settled there.

The HA manager takes up a request in its next turn, the guest's node in the turn after that, and a guest that has
arrived is started in a third one. PVE's own task only passes the request on and ends at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from quorate.hints import Advice, tools
from quorate.problems import Conflict, PermissionMissing, Problem, TaskFailed
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource
from quorate.pve.placement import UNMANAGED, Objection, find_objection

STATUS: Final = "/cluster/ha/status/current"
REACHED: Final = {
    "started": {"started"},
    "stopped": {"stopped"},
    "disabled": {"disabled", "stopped"},
    "ignored": {"ignored"},
}
"""What the manager shows when a resource has reached the requested state."""
TURNS_SECONDS: Final = 25.0
"""After that, the manager has had two turns, which take ten seconds each."""
MOVING: Final = ("migrate", "relocate")
AT_REST: Final = frozenset().union(*REACHED.values())


def sid_of(guest: Guest) -> str:
    """The guest's resource id in HA, such as vm:100."""
    return f"{guest.row.kind}:{guest.vmid}"


def is_under_ha(guest: Guest) -> bool:
    return guest.row.hastate not in UNMANAGED


async def read_states(pve: Cluster) -> dict[str, str]:
    """The state that the manager shows of each guest under HA."""
    return {str(row["sid"]): str(row["state"]) for row in await pve.get(STATUS) if "sid" in row}


async def read_state(pve: Cluster, sid: str) -> str:
    return (await read_states(pve)).get(sid, "unknown")


async def has_open_request(pve: Cluster, sid: str, since: float) -> bool:
    """Whether the manager moves the guest, or has not had the time since then to begin. Without quorum it waits."""
    rows = await pve.get(STATUS)
    if any(row.get("type") == "quorum" and not values.is_on(row.get("quorate", 1)) for row in rows):
        return True
    if any(row.get("sid") == sid and row.get("state") in MOVING for row in rows):
        return True
    latest = max((float(row["timestamp"]) for row in rows if row.get("type") == "master"), default=0.0)
    return latest < since + (pve.client.measured_skew or 0.0) + TURNS_SECONDS


async def refuse_where_it_would_not_stay(pve: Cluster, guest: Guest, node: str) -> None:
    """Refuse a move that PVE would accept, carry out and undo."""
    objection = await find_objection(pve, await pve.facts(), sid_of(guest), node)
    if objection is not None:
        raise Conflict(
            _describe(objection, guest, node),
            why=f"PVE would move it to {node} and then away again" if objection.rule else None,
            next_step=Advice("Choose another node, or change the rule", tools.ha_rule_set)
            if objection.rule
            else "Choose another node, or end the maintenance with `ha-manager crm-command node-maintenance disable`",
        )


def _describe(objection: Objection, guest: Guest, node: str) -> str:
    if not objection.rule:
        return f"{node} is in maintenance: the HA manager moves all guests under HA away from it"
    which = str(guest) if objection.sid == sid_of(guest) else f"{objection.sid}, which moves along with {guest},"
    if objection.apart_from:
        others = ", ".join(objection.apart_from)
        return f"The HA rule {objection.rule} keeps {which} away from {others}, which is on {node}"
    return f"The HA rule {objection.rule} keeps {which} on {', '.join(objection.nodes)}"


@dataclass(slots=True)
class HaMove:
    """A move that the HA manager was asked for: whether it is over, and whether the guest has settled."""

    pve: Cluster
    guest: Guest
    node: str
    earlier: frozenset[str] = frozenset()
    """Failed migrations before the request."""
    begun: bool = field(default=False, init=False)
    """Whether the manager has been seen at it."""

    @classmethod
    async def expect(cls, pve: Cluster, guest: Guest, node: str) -> HaMove:
        return cls(pve, guest, node, frozenset(str(row["upid"]) for row in await _failed_moves(pve, guest)))

    async def has_arrived(self) -> bool:
        """Whether it is on the node. It may not run there yet."""
        self.pve.inventory.forget()
        return (await self.pve.inventory.guest(self.guest.vmid)).node == self.node

    async def has_settled(self) -> bool:
        """Whether it is on the node and the manager has no more to do with it; TaskFailed if it never will be."""
        self.pve.inventory.forget()
        row = await self.pve.inventory.guest(self.guest.vmid)
        state = await self._state(row)
        self.begun |= state in MOVING
        if state in AT_REST and row.node == self.node:
            return not row.lock
        await self._refuse_failed()
        if self.begun and state in AT_REST:
            raise TaskFailed(
                f"{self.guest} is on {row.node}: the HA manager did not leave it on {self.node}",
                next_step=Advice("See its rules", tools.ha_status),
            )
        return False

    async def _state(self, row: Resource) -> str:
        try:
            return await read_state(self.pve, sid_of(self.guest))
        except PermissionMissing:  # what everyone who sees the guest may see
            return "starting" if row.hastate == "started" and row.status != "running" else row.hastate

    async def _refuse_failed(self) -> None:
        for row in await _failed_moves(self.pve, self.guest):
            if row["upid"] not in self.earlier:
                raise TaskFailed(
                    f"Moving {self.guest} to {self.node}: the HA manager tried and failed",
                    why=str(row["status"]),
                    next_step=Advice(
                        f"{self.guest} is still where it was; see the log", tools.task_get(task=row["upid"])
                    ),
                    facts={"task": row["upid"]},
                )


async def _failed_moves(pve: Cluster, guest: Guest) -> list[dict[str, Any]]:
    """Failed migrations of the guest off its node; none if these credentials may not see them."""
    try:
        rows = await pve.get(f"/nodes/{guest.row.node}/tasks", vmid=guest.vmid, errors=1, limit=50)
    except Problem:
        return []
    return [row for row in rows if row["type"] in ("qmigrate", "vzmigrate") and row.get("endtime")]
