"""Whether the journal tells the truth about what a cluster was sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tests.journal.kills import Scene

Writes = Counter[tuple[str, str]]
BEGUN = ("done", "warnings", "failed", "running")


def calls_of(entry: Mapping[str, Any]) -> list[tuple[str, tuple[str, str]]]:
    """Every call that the entry announced, with the state of the step that it belongs to."""
    return [
        (step["state"], (call["method"], call["path"]))
        for step, wire in zip(entry["steps"], entry["wire"], strict=True)
        for call in (wire["calls"] if "action" in wire else (wire,))
    ]


def announced(entries: Iterable[Mapping[str, Any]]) -> Writes:
    """What all intents together said would be sent."""
    calls: Writes = Counter()
    for entry in entries:
        for wire in entry.get("wire", ()):
            for call in wire["calls"] if "action" in wire else (wire,):
                calls[call["method"], call["path"]] += 1
    return calls


def assert_truthful(entry: Mapping[str, Any], sent: Writes, *, traceable: bool) -> None:
    """The states of the steps fit what the cluster has received."""
    recorded = calls_of(entry)
    for state, call in recorded:
        if state == "not tried":
            assert not sent[call], f"{call} was sent, and the entry says that it was not: {entry}"
        elif state in BEGUN and "resolved" in entry and entry["outcome"] in ("done", "done with warnings"):
            assert sent[call], f"{call} was not sent, and the entry says {state}: {entry}"
        elif state == "unknown":
            assert not traceable, f"PVE could have shown the outcome of {call}: {entry}"
            assert any("Look at it" in line for line in entry["found"])
    assert entry["outcome"] not in ("unfinished", "interrupted")


async def resolved_on(stage: Scene) -> list[dict[str, Any]]:
    """A new server looks into what the dead one left, until there is nothing left to ask; the entries after that."""
    app = stage.server()
    try:
        for _ in range(100):
            await app.pipeline.resolve_unfinished()
            checked = await app.audit.verify()
            assert checked.intact, checked.broken
            if not checked.unfinished:
                break
            await stage.time.sleep(5)
        assert checked.unfinished == ()
        assert await app.store.fetch("SELECT * FROM quorate_changes") == []
        return await app.audit.entries(limit=1000)
    finally:
        await app.close()
