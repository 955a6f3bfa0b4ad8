"""What is kept of infrastructure plans: planned documents, and of each document what it has made and how it went."""

from __future__ import annotations

from typing import Any

import msgspec

from quorate.homelab.infra.document import Document, read
from quorate.problems import NotFound
from quorate.state.records import Records
from quorate.state.store import Store

PLANS_KEPT = 200
STEPS_KEPT = 200


class Made(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that a document has brought about, and that may therefore be taken away with it."""

    kind: str
    name: str
    """Of the copy."""
    item: str
    place: str = ""
    """Its host; of a guest its cluster."""
    engine: str = ""
    vmid: int = 0
    """Of a guest."""

    @property
    def key(self) -> str:
        return f"{self.kind} {self.place} {self.name}"


class Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a run. `begun` and nothing after it: the server ended meanwhile, and what came of it is not known."""

    step: str
    state: str
    time: float
    why: str = ""


class Entry(msgspec.Struct, omit_defaults=True):
    document: dict[str, Any]
    made: dict[str, Made] = {}
    run: str = ""
    steps: list[Done] = []


class Kept:
    def __init__(self, store: Store) -> None:
        self._clock = store.clock
        self._entries = Records(store, "infra", dict[str, Any])
        self._plans = Records(store, "infra plan", dict[str, Any])

    async def plan(self, document: Document) -> str:
        """Keep it under an id that is the same for the same document."""
        await self._plans.keep(document.id, document.to_builtins())
        await self._plans.keep_newest(PLANS_KEPT)
        return document.id

    async def planned(self, name: str) -> Document:
        """The document of a plan id, or the one that was applied last under a name."""
        if told := await self._plans.find(name):
            return read(told)
        if entry := await self.entry(name):
            return read(entry.document)
        raise NotFound(
            f"There is no plan {name!r}", next_step="infra_plan document=… makes one and tells its id; or give document"
        )

    async def entry(self, name: str) -> Entry | None:
        told = await self._entries.find(name)
        return None if told is None else msgspec.convert(told, Entry)

    async def entries(self) -> dict[str, Entry]:
        return {name: msgspec.convert(told, Entry) for name, told in (await self._entries.all()).items()}

    async def begin(self, document: Document, run: str, step: str, made: Made | None) -> None:
        """What is being made counts from here on: it may come to be after nobody waits for it any more."""
        entry = await self.entry(document.name) or Entry(document.to_builtins())
        if entry.run != run:
            entry.run, entry.steps = run, []
        entry.document = document.to_builtins()
        if made is not None:
            entry.made[made.key] = made
        await self._note(document.name, entry, Done(step, "begun", self._clock.time()))

    async def end(self, document: Document, step: str, *, made: Made, gone: bool) -> None:
        entry = await self.entry(document.name) or Entry(document.to_builtins())
        if gone:
            entry.made.pop(made.key, None)
        await self._note(document.name, entry, Done(step, "done", self._clock.time()))

    async def fail(self, document: Document, step: str, why: str, state: str = "failed") -> None:
        entry = await self.entry(document.name) or Entry(document.to_builtins())
        await self._note(document.name, entry, Done(step, state, self._clock.time(), why))

    async def _note(self, name: str, entry: Entry, done: Done) -> None:
        """In the place of what was told of the step before."""
        entry.steps = [*(one for one in entry.steps if one.step != done.step), done][-STEPS_KEPT:]
        await self._entries.keep(name, msgspec.to_builtins(entry))
