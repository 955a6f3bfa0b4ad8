"""Aborting a run at a known moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorate.state.runs import Run
from tests.rigs.mcp_session import Rig


async def work_and_abort_when(quorate: Rig, id: str, moment: Callable[[Run], bool]) -> Run:
    """Carry the run on, and abort it as soon as its worker has written down something of which `moment` holds."""
    store = quorate.app.runs.store
    original, aborted = store.change_ours, False

    async def watched(id: str, edit: Any) -> Run:
        nonlocal aborted
        run = await original(id, edit)
        if moment(run) and not aborted:
            aborted = True
            await store.abort(id, "the operator")
        return run

    store.change_ours = watched  # type: ignore[method-assign]
    await quorate.app.runs.work()
    assert aborted
    return await store.get(id)
