"""Waiting until a guest's agent or SSH answers, or until it has an address."""

import socket

import pytest

from quorate.operations.registry import operations
from tests.rigs.mcp_session import rig
from tests.rigs.simulated_guests import CONTAINER, VM, reach_by_ssh

pytestmark = pytest.mark.anyio


async def test_what_is_already_there_is_reported_at_once(tmp_path):
    async with rig(tmp_path) as quorate:
        begun = quorate.clock.now()
        agent = await quorate.facts("guest_wait", guest=VM)
        assert (agent["until"], agent["reached"], agent["hostname"]) == ("agent", True, "docker01")
        address = await quorate.facts("guest_wait", guest=CONTAINER)
        assert (address["until"], address["addresses"]) == ("address", ["192.168.10.3"])
        assert (await quorate.facts("guest_wait", guest=VM, until="address"))["addresses"] == ["192.168.10.31"]
        assert quorate.clock.now() == begun


async def test_an_agent_that_comes_up_is_waited_for_with_progress(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[VM]
        guest.started_at = quorate.clock.now() + 8
        facts = await quorate.facts("guest_wait", guest=VM)
        assert facts["reached"] is True
        assert 10 <= facts["waited"] < 14
        assert len(quorate.progress) > 2
        done = [progress for progress, _, _ in quorate.progress]
        assert done == sorted(done)
        assert quorate.progress[0][1:] == (45, "waiting for the agent of vm 102 docker01")


async def test_a_wait_that_times_out_is_not_an_error_and_says_how_to_continue(tmp_path):
    async with rig(tmp_path) as quorate:
        begun = quorate.clock.now()
        facts = await quorate.facts("guest_wait", guest=100, wait=20)
        assert 20 <= quorate.clock.now() - begun < 21
        assert (facts["reached"], facts["waited"]) == (False, 20)
        assert "agent is not running" in facts["why"]
        assert "Call again to keep waiting" in facts["next"]
        assert "qemu-guest-agent" in facts["next"]


async def test_an_address_that_appears_is_waited_for(tmp_path):
    async with rig(tmp_path) as quorate:
        guest = quorate.sim.world.guests[CONTAINER]
        addresses, guest.addresses = guest.addresses, []

        async def comes():
            await quorate.clock.sleep(6)
            guest.addresses = addresses

        quorate.sim.world.tasks.in_background(comes())
        facts = await quorate.facts("guest_wait", guest=CONTAINER)
        assert (facts["reached"], facts["addresses"]) == (True, ["192.168.10.3"])


async def test_ssh_that_answers_is_reported_with_its_transport(tmp_path):
    async with rig(tmp_path, ssh=True) as quorate:
        reach_by_ssh(quorate, VM)
        facts = await quorate.facts("guest_wait", guest=VM, until="ssh")
        assert facts["reached"] is True
        assert facts["way"] == f"ssh to root@127.0.0.1:{quorate.sim.ssh_ports['pve1']}"


async def test_ssh_that_does_not_answer_is_waited_for(tmp_path):
    async with rig(tmp_path, ssh=True) as quorate:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))  # a port on which nobody listens
            reach_by_ssh(quorate, VM, port=listener.getsockname()[1])
            facts = await quorate.facts("guest_wait", guest=VM, until="ssh", wait=10)
            assert facts["reached"] is False
            assert "127.0.0.1" in facts["why"]


async def test_ssh_to_a_guest_of_unknown_address_waits_for_the_address(tmp_path):
    async with rig(tmp_path) as quorate:
        quorate.sim.world.guests[CONTAINER].addresses = []
        facts = await quorate.facts("guest_wait", guest=CONTAINER, until="ssh", wait=5)
        assert facts["reached"] is False
        assert "address" in facts["why"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"guest": 108}, "guest_power guest=108 action=start"),
        ({"guest": 9000}, "is a template"),
        ({"guest": CONTAINER, "until": "agent"}, "is a container and has no agent"),
        ({"guest": 109}, "qm set 109 --agent 1"),
        ({"guest": VM, "wait": 60}, "at most 50"),
    ],
)
async def test_what_waiting_cannot_bring_is_refused_at_once(tmp_path, arguments, words):
    async with rig(tmp_path) as quorate:
        begun = quorate.clock.now()
        assert words in await quorate.refusal("guest_wait", **arguments)
        assert quorate.clock.now() == begun


async def test_waiting_never_outlasts_a_client(tmp_path):
    async with rig(tmp_path) as quorate:
        tools = {tool.name: tool for tool in (await quorate.client.list_tools()).tools}
        assert operations()["guest_wait"].schema()["properties"]["wait"]["maximum"] == 50
        annotations = tools["guest_wait"].annotations
        assert annotations is not None
        assert annotations.read_only_hint is True
