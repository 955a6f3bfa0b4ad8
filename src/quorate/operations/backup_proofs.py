"""When a backup of a guest was last proved by a restore drill."""

from __future__ import annotations

from typing import Final

from quorate.pve.cluster import Cluster
from quorate.state.runs import RunStore

KIND: Final = "restore_drill"
ITEMS: Final = "items"
PASSED: Final = "passed"


async def last_proofs(pve: Cluster) -> dict[int, tuple[float, str]]:
    """By vmid: when that was, and which backup."""
    store = pve.attachment(RunStore)
    found: dict[int, tuple[float, str]] = {}
    for run in await store.list(kind=KIND, limit=500, shows=lambda run: run.is_of(pve.name, pve.endpoints)):
        for number, item in enumerate(run.scope[ITEMS]):
            state = run.memory.get(ITEMS, {}).get(str(number), {})
            if state.get("verdict") == PASSED and item["of"] is not None:
                found.setdefault(int(item["of"]), (run.changed, str(item["backup"])))
    return found
