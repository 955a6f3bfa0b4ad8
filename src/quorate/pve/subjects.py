"""What rules are about: guests, nodes, storages, pools and hosts, with the facts that rules can match."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from quorate.problems import Problem
from quorate.pve.inventory import Resource
from quorate.pve.targets import GUEST, GUESTS, NODE, POOL, STORAGE, TargetRef


@dataclass(frozen=True, slots=True)
class Subject:
    kind: str
    id: str
    name: str | None = None
    """None if unknown: a guest's name is missing while its node is offline. For a host, its address."""
    node: str = ""
    pool: str = ""
    tags: tuple[str, ...] = ()
    """The tags of a guest, or the labels of a host."""
    level: str | None = None
    """What the call does to this one, if less than its overall risk."""
    secret: bool = False
    """The call reaches it without naming it, so a refusal does not name it either: it may be hidden."""
    after: tuple[Subject, ...] = ()
    """The subject after the call, if it sets facts that rules match; several if PVE decides which of them."""

    def becoming(self, after: Subject) -> Subject:
        return replace(self, after=(after,))

    def __str__(self) -> str:
        return f"{self.kind} {self.id}" + (f" {self.name}" if self.name else "")


Hides = Callable[[Subject], Problem | None]
"""Why a caller must not see something; None if it may."""


def subject_of(row: Resource) -> Subject | None:
    """A row of the inventory; None for what rules cannot match."""
    if row.is_guest:
        return Subject(GUEST, str(row.vmid), row.name or None, row.node, row.pool, tuple(row.tag_list))
    match row.type:
        case "node":
            return Subject(NODE, row.node, node=row.node)
        case "storage":
            return Subject(STORAGE, row.storage, node=row.node)
        case "pool":
            return Subject(POOL, row.pool, pool=row.pool)
    return None


class Census:
    """The existing guests, and those that the calls so far would create."""

    def __init__(self, rows: Iterable[Resource]) -> None:
        self._guests = {str(row.vmid): found for row in rows if row.is_guest and (found := subject_of(row))}
        self._born: dict[str, Subject] = {}

    @property
    def guests(self) -> Collection[Subject]:
        return self._guests.values()

    def subjects(self, things: Sequence[TargetRef]) -> list[Subject]:
        """What one call reaches. Pass calls in order: a later one may act on what an earlier one creates."""
        found = [one for thing in things for one in (self._many(thing) if thing.kind == GUESTS else [self._one(thing)])]
        return list(dict.fromkeys(found))

    def _one(self, thing: TargetRef) -> Subject:
        if thing.kind != GUEST:
            return Subject(thing.kind, thing.id, node=thing.node, pool=thing.id if thing.kind == POOL else "")
        now = self._guests.get(thing.id)
        if now is not None:
            return _with_effect(now, thing)
        known = self._born.get(thing.id) or Subject(GUEST, thing.id, node=thing.node)
        new = replace(known, **thing.becomes)
        if thing.born or thing.id in self._born:
            self._born[thing.id] = new
        return replace(new, level=thing.level, after=_elsewhere(new, thing))

    def _many(self, thing: TargetRef) -> list[Subject]:
        return [
            _with_effect(guest, thing)
            for guest in self._guests.values()
            if thing.node in ("", guest.node) and _is_within(guest.pool, thing.pool) and guest.id not in thing.without
        ]


def _is_within(pool: str, outer: str) -> bool:
    """Whether a pool is this one or nested in it; an empty `outer` contains every pool."""
    return not outer or pool == outer or pool.startswith(f"{outer}/")


def _with_effect(now: Subject, thing: TargetRef) -> Subject:
    after = replace(now, **thing.becomes)
    return replace(now, level=thing.level, after=((after,) if thing.becomes else ()) + _elsewhere(after, thing))


def _elsewhere(guest: Subject, thing: TargetRef) -> tuple[Subject, ...]:
    return tuple(replace(guest, node=node) for node in sorted(thing.may_run_on))
