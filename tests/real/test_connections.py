"""Connections to real nodes: shared by many commands, left to long ones, replaced when they are dead."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.real.lab import Lab
from tests.real.nodes import Node
from tests.real.transports import reached, ssh_of

pytestmark = pytest.mark.anyio


def logins(node: Node) -> int:
    return node.log.count("Accepted publickey")


async def test_a_hundred_commands_at_once_share_a_few_connections_to_the_node(lab: Lab, tmp_path: Path):
    async with reached(lab, "pct", tmp_path) as inside:
        node = lab.nodes["pve1"]
        before = logins(node)

        async def use(number: int) -> None:
            ran = await inside.exec(
                ["sh", "-c", 'read line; echo "$1 $line"; exit "$1"', "sh", str(number)], stdin="é\n"
            )
            assert (ran["exit_code"], ran["stdout"]) == (number, f"{number} é\n")

        await asyncio.gather(*(use(number) for number in range(100)))
        assert logins(node) - before <= 4  # one, and another only if commands run for five seconds or more
        assert len(node.connections()) <= 4


async def test_long_commands_do_not_keep_the_others_waiting(lab: Lab, tmp_path: Path):
    """OpenSSH allows ten at once on a connection."""
    async with reached(lab, "pct", tmp_path) as inside:
        waited_for = [asyncio.ensure_future(inside.exec("sleep 4720", wait=45)) for _ in range(14)]
        async with asyncio.timeout(40):
            while len(await inside.running("sleep 4720")) < 14:
                await asyncio.sleep(0.1)
        assert (await inside.exec(["echo", "through"]))["stdout"] == "through\n"
        assert not any(waiting.done() for waiting in waited_for)
        assert 2 <= ssh_of(inside.quorate).pool.connections <= 4
        await inside.look("pkill", "-f", "sleep 4720")
        await asyncio.gather(*waited_for)
        await inside.gone("sleep 4720")


async def test_a_dead_connection_is_noticed_and_replaced(lab: Lab, tmp_path: Path):
    async with reached(lab, "pct", tmp_path) as inside:
        node = lab.nodes["pve1"]
        assert (await inside.exec(["echo", "one"]))["stdout"] == "one\n"
        before = logins(node)
        node.drop_connections()
        assert (await inside.exec(["echo", "two"]))["stdout"] == "two\n"
        assert logins(node) - before == 1


async def test_after_a_broken_connection_a_command_is_reported_as_unknown_and_not_sent_again(lab: Lab, tmp_path: Path):
    async with reached(lab, "pct", tmp_path) as inside:
        command = "echo ran >> /srv/times; sleep 4721"
        calling = asyncio.ensure_future(inside.quorate.call("guest_exec", guest=101, command=command))
        async with asyncio.timeout(30):
            while await inside.look("cat", "/srv/times") != "ran\n":
                await asyncio.sleep(0.05)
        lab.nodes["pve1"].drop_connections()
        answer = await calling
        times = await inside.look("cat", "/srv/times")
        await inside.look("rm", "/srv/times")
        await inside.look("pkill", "-f", "sleep 4721")
        assert times == "ran\n"
        if answer.is_error:
            assert "broke while a command ran" in str(answer.content)
            assert "not sent again" in str(answer.content)
            assert inside.quorate.audit()[-1]["outcome"] == "unknown"
        else:  # it broke before anyone waited for the command, which is then followed on a new connection
            assert answer.structured_content["result"] == "running"


async def test_a_guest_behind_its_node_is_found_again_after_either_connection_died(lab: Lab, tmp_path: Path):
    async with reached(lab, "jump", tmp_path) as inside:
        assert (await inside.exec(["echo", "one"]))["stdout"] == "one\n"
        lab.nodes["pve1"].drop_connections()
        assert (await inside.exec(["echo", "two"]))["stdout"] == "two\n"
        lab.debian.run("systemctl", "kill", "--kill-whom=all", "ssh")
        lab.debian.run("systemctl", "restart", "ssh")
        assert (await inside.exec(["echo", "three"]))["stdout"] == "three\n"


async def test_many_calls_to_one_agent_take_turns(lab: Lab, tmp_path: Path):
    """Its port takes one at a time, and PVE takes an agent for dead that lets it wait for three seconds."""
    async with reached(lab, "agent", tmp_path) as inside:
        ran = await asyncio.gather(*(inside.exec(["echo", str(number)]) for number in range(16)))
        assert [each["stdout"] for each in ran] == [f"{number}\n" for number in range(16)]
