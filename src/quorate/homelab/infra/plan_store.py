"""Stored infrastructure plans: planned documents, and for each document what it created and how its run went."""

from __future__ import annotations

from typing import Any

import msgspec

from quorate.hints import INFRA_PLAN, Advice
from quorate.homelab.infra.document import Document, read_document
from quorate.problems import NotFound
from quorate.state.records import Records
from quorate.state.store import Store

PLANS_KEPT = 200
STEPS_KEPT = 200


class ManagedObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """An object that a document created and may therefore remove."""

    kind: str
    name: str
    """Of the copy."""
    item: str
    place: str = ""
    """Its host, or the cluster of a guest."""
    engine: str = ""
    vmid: int = 0
    """Of a guest."""

    @property
    def key(self) -> str:
        return f"{self.kind} {self.place} {self.name}"


class StepRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a run. If `begun` is the last state, the server ended and the outcome is unknown."""

    step: str
    state: str
    time: float
    why: str = ""


class Entry(msgspec.Struct, omit_defaults=True):
    document: dict[str, Any]
    made: dict[str, ManagedObject] = {}
    run: str = ""
    steps: list[StepRecord] = []


class PlanStore:
    def __init__(self, store: Store) -> None:
        self._clock = store.clock
        self._entries = Records(store, "infra", dict[str, Any])
        self._plans = Records(store, "infra plan", dict[str, Any])

    async def plan(self, document: Document) -> str:
        """Store it under an id that is identical for identical documents."""
        await self._plans.keep(document.id, document.to_builtins())
        await self._plans.keep_newest(PLANS_KEPT)
        return document.id

    async def load_plan(self, name: str) -> Document:
        """The document of a plan id, or the one last applied under a name."""
        if stored := await self._plans.find(name):
            return read_document(stored)
        if entry := await self.entry(name):
            return read_document(entry.document)
        raise NotFound(f"There is no plan {name!r}", next_step=Advice("Make one, or give the document", INFRA_PLAN))

    async def entry(self, name: str) -> Entry | None:
        stored = await self._entries.find(name)
        return None if stored is None else msgspec.convert(stored, Entry)

    async def entries(self) -> dict[str, Entry]:
        return {name: msgspec.convert(stored, Entry) for name, stored in (await self._entries.all()).items()}

    async def begin(self, document: Document, run: str, step: str, made: ManagedObject | None) -> None:
        """From now on the object counts as created: it may appear after the caller has disconnected."""
        entry = await self.entry(document.name) or Entry(document.to_builtins())
        if entry.run != run:
            entry.run, entry.steps = run, []
        entry.document = document.to_builtins()
        if made is not None:
            entry.made[made.key] = made
        await self._note(document.name, entry, StepRecord(step, "begun", self._clock.time()))

    async def end(self, document: Document, step: str, *, made: ManagedObject, gone: bool) -> None:
        entry = await self.entry(document.name) or Entry(document.to_builtins())
        if gone:
            entry.made.pop(made.key, None)
        await self._note(document.name, entry, StepRecord(step, "done", self._clock.time()))

    async def fail(self, document: Document, step: str, why: str, state: str = "failed") -> None:
        entry = await self.entry(document.name) or Entry(document.to_builtins())
        await self._note(document.name, entry, StepRecord(step, state, self._clock.time(), why))

    async def _note(self, name: str, entry: Entry, done: StepRecord) -> None:
        """Replaces the previous state of the step."""
        entry.steps = [*(one for one in entry.steps if one.step != done.step), done][-STEPS_KEPT:]
        await self._entries.keep(name, msgspec.to_builtins(entry))
