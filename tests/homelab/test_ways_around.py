"""What a hostile caller or a hostile host tries, and what stands there."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import replace

import pytest

from quorate.config import Approval
from quorate.config.rules import Limits, Policy, Rule
from tests.homelab.house import House, house
from tests.inside_guests import reach_by_ssh
from tests.ssh_server import HOST
from tests.test_ssh import until

pytestmark = pytest.mark.anyio


def adopt(built: House, policy: Policy) -> None:
    app = built.quorate.app
    app.adopt(replace(app.settings, policy=policy))


@pytest.mark.parametrize("moved", [{"address": "192.0.2.7"}, {"port": 1}, {"jump": "pi"}, {"user": "somebody"}])
async def test_an_approval_for_a_host_is_void_once_its_name_leads_elsewhere(tmp_path, moved):
    async with house(tmp_path, {"nas": {}, "pi": {}}, approval=Approval.TOKEN) as built:
        plan = await built.quorate.facts("host_remove", host="nas", dry_run=True)
        await built.quorate.facts("host_update", host="nas", **moved)
        text = await built.quorate.refusal("host_remove", host="nas", plan_token=plan["plan_token"])
        assert "does not fit" in text
        assert "nas" in [row["name"] for row in await built.quorate.rows("host_list")]


async def test_an_approval_for_a_host_is_void_once_its_jump_host_leads_elsewhere(tmp_path):
    async with house(tmp_path, {"nas": {}, "pi": {}}, approval=Approval.TOKEN) as built:
        await built.quorate.facts("host_update", host="nas", jump="pi")
        plan = await built.quorate.facts("host_remove", host="nas", dry_run=True)
        await built.quorate.facts("host_update", host="pi", address="192.0.2.7")
        assert "does not fit" in await built.quorate.refusal("host_remove", host="nas", plan_token=plan["plan_token"])


async def test_trying_a_host_leaves_its_approval_as_it_is(tmp_path):
    async with house(tmp_path, approval=Approval.TOKEN) as built:
        plan = await built.quorate.facts("host_remove", host="nas", dry_run=True)
        await built.quorate.facts("host_verify", host="nas")
        await built.quorate.facts("host_remove", host="nas", plan_token=plan["plan_token"])


async def test_a_job_on_a_host_that_is_hidden_from_the_caller_is_neither_listed_nor_told_nor_stopped(tmp_path):
    async with house(tmp_path, {"nas": {}, "pi": {}}) as built:
        quorate, port = built.quorate, built.hosts["nas"].port
        refs = ("nas", f"tester@{HOST}:{port}")
        key = str(built.hosts["nas"].key_file)
        jobs = [
            (await quorate.facts("host_exec", host=ref, command="echo secret; sleep 999", key=key, wait=0.5))["job"]
            for ref in refs
        ]
        adopt(built, Policy((Rule("not for you", False, "read", hosts=("nas",)),)))
        assert await quorate.rows("host_job") == []
        for job in jobs:
            for action in ("poll", "stop"):
                assert "not for you" in await quorate.refusal("host_job", action=action, job=job)
        adopt(built, Policy())
        for job in jobs:
            assert (await quorate.facts("host_job", action="stop", job=job))["signal"] == "TERM"


async def test_the_limits_of_a_cluster_count_what_is_done_to_its_guests_by_way_of_a_host(tmp_path):
    async with house(tmp_path) as built:
        quorate, nas, app = built.quorate, built.hosts["nas"], built.quorate.app
        reach_by_ssh(quorate, 102, port=nas.port)
        limited = Policy(limits=Limits(concurrent_changes=1))
        app.adopt(replace(app.settings, clusters=tuple(replace(one, policy=limited) for one in app.settings.clusters)))
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        async with asyncio.TaskGroup() as both:
            first = both.create_task(quorate.facts("host_exec", host="nas", command=["cat", str(pipe)]))
            await until(lambda: bool(nas.commands))
            for tool, given in (("host_exec", {"host": "nas"}), ("guest_exec", {"guest": 102})):
                assert "limit concurrent_changes of demo" in await quorate.refusal(tool, command=["true"], **given)
            await asyncio.to_thread(pipe.write_text, "through")
        assert first.result()["stdout"] == "through"
        await quorate.facts("host_exec", host="nas", command=["true"])


def own_addresses() -> list[str]:
    """Of the machine that this runs on, but for loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            return []
        return [asking.getsockname()[0]]


async def test_the_servers_own_machine_is_denied_by_every_address_that_it_has(tmp_path):
    async with house(tmp_path) as built:
        quorate, port = built.quorate, built.hosts["nas"].port
        adopt(built, Policy((Rule("mine", False, "change", hosts=("nas",)),)))
        for address in (HOST, "127.0.0.2", "0.0.0.0", "[::1]", "[::ffff:127.0.0.3]", *own_addresses()):
            assert "'mine'" in await quorate.refusal("host_exec", host=f"{address}:{port}", command=["true"]), address
        await quorate.facts("host_exec", host=f"198.51.100.9:{port}", command=["true"], dry_run=True)
