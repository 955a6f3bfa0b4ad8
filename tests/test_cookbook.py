"""Every call in docs/cookbook.md does on the demo cluster what the page says, one task after the other."""

import re
import shlex

import pytest

from pve_simulator.world_file import load
from quorate.operations.registry import operations
from quorate.surfaces.arguments import parse_pairs
from tests.paths import ROOT
from tests.rigs.mcp_session import rig, text_of

pytestmark = pytest.mark.anyio

PAGE, _, TWO_NODES = (ROOT / "docs" / "cookbook.md").read_text().partition("## A cluster of two nodes")
TASK = re.compile(r"^### (“.+?)\n\n```\n(.+?)```", re.M | re.S)
TASKS, SCENE = TASK.findall(PAGE), TASK.findall(TWO_NODES)


def test_there_are_twenty_tasks_and_each_has_its_calls():
    assert len(TASKS) >= 20
    assert len(TASKS) == PAGE.count("\n### ")
    assert len(SCENE) == TWO_NODES.count("\n### ") >= 3


def calls(block):
    """Each call, and what its answer contains."""
    for call in re.split(r"\n(?! )", block.strip("\n")):
        line, *expected = call.split("\n")
        tool, *pairs = shlex.split(line)
        yield tool, parse_pairs(pairs, operations()[tool].schema()), [words.strip() for words in expected]


async def test_the_calls_do_what_the_page_says(tmp_path):
    async with rig(tmp_path, toolsets=("all", "homelab")) as quorate:
        for task, block in TASKS:
            for tool, arguments, expected in calls(block):
                answer = await quorate.call(tool, **arguments)
                shown = text_of(answer)
                assert not answer.is_error, f"{task}\n{tool} {arguments}: {shown}"
                for words in expected:
                    assert words in shown, f"{task}\n{tool} {arguments}: {shown}"


EVENTS = {"pve2 loses its power": "node-dead:pve2", "pve2 has power again": ""}


async def test_the_scene_of_two_nodes_goes_as_the_page_says(tmp_path):
    """In memory, because PVE itself waits for a node that is gone."""
    async with rig(tmp_path, in_memory=True, build=load("stock").build) as quorate:
        for task, block in SCENE:
            for event in re.findall(r"^# (.+)\n", block, re.M):
                quorate.sim.faults.clear()
                if EVENTS[event]:
                    quorate.sim.faults.add(EVENTS[event])
                await quorate.clock.advance(60)
            for tool, arguments, expected in calls(re.sub(r"^# .+\n", "", block, flags=re.M)):
                answer = await quorate.call(tool, **arguments)
                shown = text_of(answer)
                assert answer.is_error == any(words.startswith("refused: ") for words in expected), f"{task}: {shown}"
                for words in expected:
                    assert words.removeprefix("refused: ") in shown, f"{task}\n{tool}: {shown}"


async def test_what_the_page_calls_destructive_waits_for_a_person_and_nothing_else_does(tmp_path):
    from quorate.config import Access, Approval

    async with rig(tmp_path, toolsets=("all", "homelab"), access=Access.OPERATE, approval=Approval.ASK) as quorate:
        await quorate.facts("snapshot_create", guest="docker01", snapshot="before-29-1")
        for task, block in TASKS:
            refused = []
            for tool, arguments, _ in calls(block):
                if not operations()[tool].changes:
                    continue
                answer = await quorate.call(tool, **{**arguments, "dry_run": True})
                refused.append("needs admin" in text_of(answer))
            assert any(refused) is ("(*admin*)" in task), task
