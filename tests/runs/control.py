"""Acting at a known moment of a run, such as aborting it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from quorate.runs.store import Run
from tests.rigs.mcp_session import Rig


async def work_and_abort_when(quorate: Rig, id: str, moment: Callable[[Run], bool]) -> Run:
    """Carry the run on, and abort it as soon as its worker has written down something of which `moment` holds."""
    return await work_and_act_when(quorate, id, moment, lambda: quorate.app.runs.store.abort(id, "the operator"))


async def work_and_act_when(
    quorate: Rig, id: str, moment: Callable[[Run], bool], act: Callable[[], Awaitable[object]]
) -> Run:
    store = quorate.app.runs.store
    original, acted = store.change_ours, False

    async def watched(id: str, edit: Any) -> Run:
        nonlocal acted
        run = await original(id, edit)
        if moment(run) and not acted:
            acted = True
            await act()
        return run

    store.change_ours = watched  # type: ignore[method-assign]
    await quorate.app.runs.work()
    assert acted
    return await store.get(id)
