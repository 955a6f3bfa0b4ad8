"""Which tasks are ours: remembered for as long as it matters, not for ever."""

from quorate.pve.tasks import OwnTasks


def test_the_newest_are_remembered_and_the_oldest_forgotten():
    own = OwnTasks(most=3)
    for name in "abcab":
        own.add(name)
    assert all(name in own for name in "abc")
    own.add("d")
    assert "a" not in own
    assert all(name in own for name in "bcd")
