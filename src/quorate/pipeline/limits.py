"""How much may happen at once: counted in this process, for all clusters together and for each by itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from quorate.config.rules import Limits
from quorate.operations.registry import Operation, Risk
from quorate.pve.errors import Refused

HOUR = 3600.0


@dataclass(slots=True)
class Meter:
    """Counts for one set of limits. `where` is the cluster it is for, empty for all of them."""

    limits: Limits
    where: str = ""
    _running: int = 0
    _destroyed: deque[float] = field(default_factory=deque)

    def objection(self, operation: Operation, risk: Risk, steps: int, guests: int, now: float) -> Refused | None:
        """Why a plan of so many steps on so many guests is too much right now."""
        most = self.limits.guests_per_call
        if most is not None and guests > most:
            return self._refusal(
                operation,
                "guests_per_call",
                f"It would act on {guests} guests, at most {most} are allowed in one call",
                "Choose fewer guests",
            )
        most = self.limits.destroys_per_hour
        if most is not None and risk is Risk.DESTROY and self._recently(now) + steps > most:
            return self._refusal(
                operation,
                "destroys_per_hour",
                f"At most {most} steps that destroy are allowed in an hour; {self._recently(now)} were made, "
                f"this would make {steps} more",
                "Wait, or ask the operator",
            )
        most = self.limits.concurrent_changes
        if most is not None and self._running >= most:
            return self._refusal(
                operation,
                "concurrent_changes",
                f"At most {most} changes are allowed at the same time, and {self._running} are under way",
                "Try again when they are done",
            )
        return None

    @contextmanager
    def counting(self, operation: Operation, risk: Risk, steps: int, now: float) -> Iterator[None]:
        """While a plan is carried out. What destroys counts from the moment that it may be sent.

        Looks once more: others may have begun since the plan was judged, and from here on nobody comes in between.
        """
        if refusal := self.objection(operation, risk, steps, 0, now):
            raise refusal
        if risk is Risk.DESTROY:
            self._destroyed.extend([now] * steps)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def _recently(self, now: float) -> int:
        while self._destroyed and self._destroyed[0] <= now - HOUR:
            self._destroyed.popleft()
        return len(self._destroyed)

    def _refusal(self, operation: Operation, limit: str, why: str, next_step: str) -> Refused:
        place = f" of {self.where}" if self.where else ""
        return Refused(
            f"{operation.name} is refused by the limit {limit}{place}",
            why=why,
            next_step=next_step,
            facts={"rule": f"limit {limit}{place}"},
        )
