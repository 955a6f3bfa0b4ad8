"""What rules are decided on: guests, nodes, storages, pools and hosts with the facts that a rule can name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from quorate.pve.inventory import Resource
from quorate.pve.reach import GUEST, GUESTS, NODE, POOL, STORAGE, Reached


@dataclass(frozen=True, slots=True)
class Subject:
    kind: str
    id: str
    name: str | None = None
    """None is not known: a guest's name is missing while its node is away. Of a host, its address."""
    node: str = ""
    pool: str = ""
    tags: tuple[str, ...] = ()
    """Of a host, its labels."""
    level: str | None = None
    """How far a call goes with it, where that is less than what the call does as a whole."""
    after: Subject | None = None
    """What a guest that is there would become, where a call sets what rules rest on."""

    def __str__(self) -> str:
        return f"{self.kind} {self.id}" + (f" {self.name}" if self.name else "")


def of_row(row: Resource) -> Subject | None:
    """A row of the inventory; None for what no rule can name."""
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
    """The guests as they are, and those that the calls seen so far would make."""

    def __init__(self, rows: Iterable[Resource]) -> None:
        self._guests = {str(row.vmid): found for row in rows if row.is_guest and (found := of_row(row))}
        self._born: dict[str, Subject] = {}

    def subjects(self, things: Sequence[Reached]) -> list[Subject]:
        """What one call reaches. Calls are to be told in their order: a later one may act on what an earlier makes."""
        found = [one for thing in things for one in (self._many(thing) if thing.kind == GUESTS else [self._one(thing)])]
        return list(dict.fromkeys(found))

    def _one(self, thing: Reached) -> Subject:
        if thing.kind != GUEST:
            return Subject(thing.kind, thing.id, node=thing.node, pool=thing.id if thing.kind == POOL else "")
        now = self._guests.get(thing.id)
        if now is not None:
            return _changed(now, thing)
        known = self._born.get(thing.id) or Subject(GUEST, thing.id, node=thing.node)
        new = replace(known, **thing.becomes)
        if thing.born or thing.id in self._born:
            self._born[thing.id] = new
        return replace(new, level=thing.level)

    def _many(self, thing: Reached) -> list[Subject]:
        return [
            _changed(guest, thing)
            for guest in self._guests.values()
            if thing.node in ("", guest.node) and thing.pool in ("", guest.pool)
        ]


def _changed(now: Subject, thing: Reached) -> Subject:
    after = replace(now, **thing.becomes) if thing.becomes else None
    return replace(now, level=thing.level, after=after)
