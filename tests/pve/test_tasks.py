"""Tasks: which are ours, remembered for as long as it matters, and work side by side."""

import asyncio

import pytest

from quorate.problems import NotFound
from quorate.pve.tasks import OwnTasks, gather_bounded


def test_the_newest_are_remembered_and_the_oldest_forgotten():
    own = OwnTasks(most=3)
    for name in "abcab":
        own.add(name)
    assert all(name in own for name in "abc")
    own.add("d")
    assert "a" not in own
    assert all(name in own for name in "bcd")


@pytest.mark.anyio
async def test_when_one_of_many_fails_the_others_end_with_it():
    begun = []

    async def endless():
        begun.append("endless")
        await asyncio.Event().wait()

    async def failing():
        begun.append("failing")
        raise NotFound("It is gone")

    async def late():
        begun.append("late")

    before = asyncio.all_tasks()
    with pytest.raises(NotFound):
        await gather_bounded(2, [endless, failing, endless, late])
    assert asyncio.all_tasks() == before
    assert begun[:2] == ["endless", "failing"]
    assert "late" not in begun
