"""An agent that takes one question at a time, or falls silent for a while: no wrong result follows."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any

import pytest

from pve_simulator.guest_os.agents import Agent, Agents, AgentSilent
from tests.rigs.mcp_session import Rig, rig
from tests.rigs.simulated_guests import VM, files

pytestmark = pytest.mark.anyio


class Watched:
    """The agent of the VM; who asks while it answers another hears what PVE hears from QEMU then: nothing."""

    def __init__(self, quorate: Rig) -> None:
        agents, guest = quorate.sim.world.part(Agents), quorate.sim.world.guests[VM]
        self._agent: Agent = agents.of(guest)
        self._clock = quorate.clock
        self._busy = False
        self._silent_until = float("-inf")
        self.asked: list[str] = []
        agents.attach(VM, self)

    def fall_silent(self, seconds: float) -> None:
        self._silent_until = self._clock.now() + seconds

    async def ask(self, command: str, arguments: Mapping[str, Any]) -> Any:
        self.asked.append(command)
        if self._busy or self._clock.now() < self._silent_until:
            raise AgentSilent("got timeout")
        self._busy = True
        try:
            for _ in range(20):
                await asyncio.sleep(0)
            return await self._agent.ask(command, arguments)
        finally:
            self._busy = False


async def test_calls_that_come_together_take_turns_with_the_agent(tmp_path):
    async with rig(tmp_path) as quorate:
        Watched(quorate)
        calls = [quorate.facts("guest_exec", guest=VM, command=["echo", str(number)]) for number in range(12)]
        others = [quorate.facts(tool, guest=VM) for tool in ("guest_info", "guest_network", "guest_get")]
        answers = await asyncio.gather(*calls, *others)
        assert [each["stdout"] for each in answers[:12]] == [f"{number}\n" for number in range(12)]
        assert "not_known" not in str(answers[12:])


async def test_those_who_waited_for_a_silent_agent_do_not_wait_again_one_after_the_other(tmp_path):
    async with rig(tmp_path) as quorate:
        agent = Watched(quorate)
        agent.fall_silent(1)
        calls = [quorate.refusal("guest_exec", guest=VM, command=["true"]) for _ in range(10)]
        for words in await asyncio.gather(*calls):
            assert "does not answer" in words
        assert len(agent.asked) < 5
        await quorate.clock.advance(1)
        assert (await quorate.facts("guest_exec", guest=VM, command=["true"]))["exit_code"] == 0


async def test_a_command_is_followed_across_a_short_silence(tmp_path):
    async with rig(tmp_path) as quorate:
        agent = Watched(quorate)
        begun = await quorate.facts("guest_exec", guest=VM, command="sleep 30; echo done", wait=0)
        agent.fall_silent(10)
        job = await quorate.facts("guest_job", action="poll", job=begun["job"], seconds=50)
        assert (job["state"], job["stdout"]) == ("ended", "done\n")


async def test_after_a_long_silence_the_command_is_reported_as_unknown_and_found_again(tmp_path):
    async with rig(tmp_path) as quorate:
        agent = Watched(quorate)
        begun = await quorate.facts("guest_exec", guest=VM, command="sleep 30; echo done", wait=0)
        agent.fall_silent(40)
        words = await quorate.refusal("guest_job", action="poll", job=begun["job"], seconds=50)
        assert "stopped answering" in words
        assert f"guest_job action=poll job={begun['job']}" in words
        await quorate.clock.advance(40)
        job = await quorate.facts("guest_job", action="poll", job=begun["job"], seconds=50)
        assert (job["state"], job["stdout"]) == ("ended", "done\n")


async def test_long_files_are_stored_in_pieces_where_nobody_else_can_read_them(tmp_path):
    text = "0123456789abcdef" * 20_000
    async with rig(tmp_path) as quorate:
        agent = Watched(quorate)
        await quorate.facts("guest_file_write", guest=VM, path="/srv/long", content=text)
        written = files(quorate, VM).read("/srv/long")
        assert hashlib.sha256(written).digest() == hashlib.sha256(text.encode()).digest()
        assert agent.asked.count("guest-file-write") == 7
        assert agent.asked.count("guest-exec") == 4  # look, make a folder, put together, rename
        assert [name for name in files(quorate, VM).get("/tmp").children if name.startswith("tmp.")] == []
