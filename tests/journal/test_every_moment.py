"""A server is killed during a change, at any await or write. Whatever the moment: no change without an entry, nothing
is sent twice, and after a restart every entry is closed with what really happened."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.journal.kills import Scene, around_writes, chosen, run_and_kill, scene
from tests.journal.truth import Writes, announced, assert_truthful, resolved_on
from tests.pipeline.test_interrupted_writes import CHANGES

pytestmark = pytest.mark.anyio

Calls = tuple[tuple[str, Mapping[str, Any]], ...]
SAMPLED = ("pool_set",)
MOMENTS = 12
"""Of each kind, unless EVERY_MOMENT is set."""
LEAVES_NO_TRACE = ("firewall_delete",)
"""Tools whose effect looks the same before and after, or cannot be read back: their fate may stay unknown."""


class Killings:
    """One kind of change, killed again and again; worlds that nothing was sent to are used again."""

    def __init__(self, folder: Path, before: Calls, tool: str, arguments: Mapping[str, Any]) -> None:
        self._folder = folder
        self._before = before
        self._tool = tool
        self._arguments = arguments
        self._stack = AsyncExitStack()
        self._stage: Scene | None = None
        self._worlds = 0

    async def __aenter__(self) -> Killings:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def undisturbed(self) -> tuple[list[str], Writes]:
        stage = await self._world()
        death = await run_and_kill(stage, self._tool, self._arguments)
        assert not death.killed
        sent = stage.writes()
        assert sent, death.told
        await self._leave()
        return death.moments, sent

    async def at(self, moment: int, usual: Writes) -> None:
        stage = await self._world()
        lines = len(stage.lines())
        death = await run_and_kill(stage, self._tool, self._arguments, moment)
        if not death.killed:  # this time there were fewer moments
            return await self._leave()
        written = stage.lines()[lines:]
        sent = stage.writes()
        assert sent <= usual, "something was sent twice"
        assert sent <= announced(stage.entries()), "something was sent before it was written down"
        if not written:
            assert not sent
            return None
        entries = await resolved_on(stage)
        assert stage.writes() == sent, "finding out has changed something"
        entry = entries[-1]
        assert entry["change"] == written[0]["change"]
        assert_truthful(entry, sent, traceable=self._tool not in LEAVES_NO_TRACE)
        if sent:
            await self._leave()
        return None

    async def _world(self) -> Scene:
        if self._stage is None:
            self._worlds += 1
            folder = self._folder / str(self._worlds)
            folder.mkdir()
            self._stage = await self._stack.enter_async_context(scene(folder))
            await self._stage.prepare(self._before)
        return self._stage

    async def _leave(self) -> None:
        self._stage = None
        await self._stack.aclose()


@pytest.mark.parametrize(("before", "tool", "arguments"), [change for change in CHANGES if change.id in SAMPLED])
async def test_a_server_that_is_killed_leaves_the_truth_behind(
    tmp_path: Path, before: Calls, tool: str, arguments: Mapping[str, Any]
) -> None:
    async with Killings(tmp_path, before, tool, arguments) as killings:
        moments, usual = await killings.undisturbed()
        for moment in around_writes(moments):
            await killings.at(moment, usual)


@pytest.mark.thorough
@pytest.mark.parametrize(("before", "tool", "arguments"), CHANGES)
async def test_a_server_may_be_killed_at_any_moment_of_a_change(
    tmp_path: Path, before: Calls, tool: str, arguments: Mapping[str, Any]
) -> None:
    async with Killings(tmp_path, before, tool, arguments) as killings:
        moments, usual = await killings.undisturbed()
        for moment in chosen(moments, MOMENTS, f"{tool} {arguments}"):
            await killings.at(moment, usual)
