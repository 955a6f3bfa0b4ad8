"""The freeze: while it lasts, no replica starts a change, and a running plan stops before its next step.

It is in the store and is read before every step, so it takes effect everywhere at once. If the store cannot be read,
nothing is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from quorate.problems import Refused
from quorate.quantity import moment
from quorate.state.records import Records
from quorate.state.store import Store
from quorate.state.trail import AuditTrail

LONGEST_REASON = 500
_CHANGES = "changes"


class FreezeState(msgspec.Struct, frozen=True):
    """Who froze all changes, when and why."""

    by: str
    at: float
    reason: str = ""

    def __str__(self) -> str:
        return f"by {self.by} at {moment(self.at)}" + (f": {self.reason}" if self.reason else "")


class ChangesFrozen(Refused):
    """All changes are refused."""


class Freeze:
    def __init__(self, store: Store) -> None:
        self._clock = store.clock
        self._store = store
        self._records = Records(store, "freeze", FreezeState)

    @property
    def may_hold(self) -> bool:
        """Whether a store exists; reading the status does not create one."""
        return self._store.exists

    async def state(self) -> FreezeState | None:
        """None if changes are allowed. Raises StateUnavailable if that cannot be read."""
        return await self._records.find(_CHANGES)

    async def require_none(self) -> None:
        frozen = await self.state()
        if frozen is not None:
            raise ChangesFrozen(
                "All changes are frozen",
                why=f"They were frozen {frozen}",
                next_step="Reads and dry runs still work. Only the operator can lift the freeze: `quorate unfreeze`",
                facts={"rule": "freeze"},
            )

    async def set(self, by: str, reason: str, trail: AuditTrail) -> tuple[FreezeState, bool]:
        """Freeze, and return the freeze in force and whether it is new. It takes effect before it is recorded."""
        wanted = FreezeState(by, self._clock.time(), " ".join(reason.split())[:LONGEST_REASON])
        new = await self._records.keep_new(_CHANGES, wanted)
        held = wanted if new else await self.state() or wanted
        if new:
            await trail.record(_entry("freeze", wanted.by, self._clock.time(), {"reason": wanted.reason}))
        return held, new

    async def lift(self, by: str, trail: AuditTrail) -> FreezeState | None:
        """Lift the freeze and return it. It stays in effect until that is recorded."""
        frozen = await self.state()
        if frozen is not None:
            await trail.record(_entry("unfreeze", by, self._clock.time(), {"frozen": str(frozen)}))
            await self._records.forget(_CHANGES)
        return frozen


def _entry(tool: str, by: str, now: float, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """An entry for the audit trail, like that of a change."""
    return {
        "time": moment(now),
        "caller": {"client": by, "transport": "operator"},
        "cluster": "",
        "tool": tool,
        "risk": "change",
        "arguments": {name: value for name, value in arguments.items() if value},
        "decision": "allowed",
        "dry_run": False,
        "plan": "Freeze all changes" if tool == "freeze" else "Allow changes again",
        "outcome": "done",
        "error": "",
    }
