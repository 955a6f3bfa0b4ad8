"""The operator's rules and limits as data."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, fields

LEVELS = ("read", "look_inside", "change", "destroy")
"""In order of severity. Denying one denies everything more severe; allowing one allows everything less severe."""
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class Hours:
    """Hours of certain days. A span across midnight belongs to the day it starts on."""

    text: str
    days: frozenset[int]
    begin: int
    """Minutes since midnight, like `end`."""
    end: int
    zone: datetime.tzinfo | None = None
    """None means the server's."""

    def cover(self, seconds: float) -> bool:
        now = datetime.datetime.fromtimestamp(seconds, self.zone)
        minute, today, yesterday = now.hour * 60 + now.minute, now.weekday(), (now.weekday() - 1) % 7
        if self.begin < self.end:
            return today in self.days and self.begin <= minute < self.end
        return (today in self.days and minute >= self.begin) or (yesterday in self.days and minute < self.end)

    def __str__(self) -> str:
        return f"{self.text} {self.zone}" if self.zone else self.text


@dataclass(frozen=True, slots=True)
class Rule:
    """All given conditions must match; of a list, one entry."""

    name: str
    allows: bool
    level: str
    because: str = ""
    """Shown to the caller who is refused."""
    tools: tuple[str, ...] = ()
    toolsets: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    storages: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    vmids: tuple[range, ...] = ()
    hosts: tuple[str, ...] = ()
    """Registered hosts: names, addresses, and labels as `label:prod`."""
    hours: tuple[Hours, ...] = ()

    @property
    def about_guests(self) -> bool:
        """Whether it has a condition that only guests can match."""
        return bool(self.tags or self.names or self.vmids)

    @property
    def about_targets(self) -> bool:
        return bool(self.about_guests or self.pools or self.nodes or self.storages or self.hosts)

    def __str__(self) -> str:
        """`deny destroy: tags prod; vmids 100-199; hours 22:00-06:00`"""
        conditions = [
            f"{one.name} {_join(getattr(self, one.name))}"
            for one in fields(self)
            if one.name not in ("name", "allows", "level", "because") and getattr(self, one.name)
        ]
        verdict = f"{'allow' if self.allows else 'deny'} {self.level}"
        return f"{verdict}: {'; '.join(conditions) or 'everything'}"


@dataclass(frozen=True, slots=True)
class Limits:
    """None means no limit."""

    destroys_per_hour: int | None = None
    concurrent_changes: int | None = None
    guests_per_call: int | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Policy:
    rules: tuple[Rule, ...] = ()
    limits: Limits = NO_LIMITS

    def of_cluster(self, name: str) -> tuple[Rule, ...]:
        """The rules that apply there."""
        return tuple(rule for rule in self.rules if not rule.clusters or name in rule.clusters)


NO_POLICY = Policy()


def _join(values: tuple[object, ...]) -> str:
    return ", ".join(_span(one) if isinstance(one, range) else str(one) for one in values)


def _span(ids: range) -> str:
    return str(ids[0]) if len(ids) == 1 else f"{ids[0]}-{ids[-1]}"
