"""What a hostile caller or a hostile host tries, and what prevents it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from dataclasses import replace
from typing import Any

import pytest

from quorate.config import Access, Approval
from quorate.config.policy import Limits, Policy, Rule
from quorate.homelab import map_drawing
from quorate.homelab.devices.device import Device, Sighting, merge
from quorate.homelab.devices.sitemap import sitemap
from quorate.homelab.host import Host, Hosts
from quorate.inside.facts.collector import read_facts
from quorate.inside.facts.script import Answers
from quorate.problems import Conflict
from quorate.state.store import open_store
from tests.inside.test_ssh import until
from tests.rigs.homelab import House, house
from tests.rigs.manual_clock import HandClock
from tests.rigs.processes import PATIENCE
from tests.rigs.simulated_guests import reach_by_ssh
from tests.rigs.ssh_server import HOST

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
        assert "is not valid for this call" in text
        assert "nas" in [row["name"] for row in await built.quorate.rows("host_list")]


async def test_an_approval_for_a_host_is_void_once_its_jump_host_leads_elsewhere(tmp_path):
    async with house(tmp_path, {"nas": {}, "pi": {}}, approval=Approval.TOKEN) as built:
        await built.quorate.facts("host_update", host="nas", jump="pi")
        plan = await built.quorate.facts("host_remove", host="nas", dry_run=True)
        await built.quorate.facts("host_update", host="pi", address="192.0.2.7")
        assert "is not valid for this call" in await built.quorate.refusal(
            "host_remove", host="nas", plan_token=plan["plan_token"]
        )


async def test_trying_a_host_leaves_its_approval_as_it_is(tmp_path):
    async with house(tmp_path, approval=Approval.TOKEN) as built:
        plan = await built.quorate.facts("host_remove", host="nas", dry_run=True)
        await built.quorate.facts("host_verify", host="nas")
        await built.quorate.facts("host_remove", host="nas", plan_token=plan["plan_token"])


async def test_a_job_on_a_host_that_is_hidden_from_the_caller_is_neither_listed_nor_shown_nor_stopped(tmp_path):
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
        limited: dict[str, Any] = {"policy": Policy(limits=Limits(concurrent_changes=1)), "access": Access.ADMIN}
        app.adopt(
            replace(app.settings, clusters=tuple(replace(cluster, **limited) for cluster in app.settings.clusters))
        )
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        async with asyncio.TaskGroup() as both:
            first = both.create_task(quorate.facts("host_exec", host="nas", command=["cat", str(pipe)]))
            await until(lambda: bool(nas.commands))
            for tool, arguments in (("host_exec", {"host": "nas"}), ("guest_exec", {"guest": 102})):
                assert "limit concurrent_changes of demo" in await quorate.refusal(tool, command=["true"], **arguments)
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


async def test_a_name_server_that_is_silent_about_nodes_holds_up_no_call_where_pve_reports_their_addresses(
    tmp_path, monkeypatch
):
    asked, over, resolve = set(), threading.Event(), socket.getaddrinfo

    def resolve_late(name, *more, **options):
        if name in ("pve1", "pve2", "pve3"):
            asked.add(name)
            over.wait(PATIENCE)
        return resolve(name, *more, **options)

    monkeypatch.setattr("quorate.homelab.address_index.RESOLVE_SECONDS", PATIENCE)
    monkeypatch.setattr(socket, "getaddrinfo", resolve_late)
    async with house(tmp_path) as built:
        assert built.quorate.app.cluster is not None
        rows = await built.quorate.app.cluster.get("/cluster/status")
        [address] = [row["ip"] for row in rows if row["name"] == "pve2"]
        try:
            plan = await built.quorate.facts("host_exec", host=address, command=["true"], dry_run=True)
            assert plan["host"] == "node pve2"
            assert asked == {"pve1", "pve2", "pve3"}
        finally:
            over.set()


async def test_an_address_is_never_the_name_of_a_guest(tmp_path):
    async with house(tmp_path) as built:
        quorate, nas = built.quorate, built.hosts["nas"]
        quorate.sim.world.guests[102].config["name"] = HOST
        plan = await quorate.facts("host_exec", host=f"{HOST}:{nas.port}", command=["true"], dry_run=True)
        assert plan["host"] == "host nas"


async def test_a_login_name_is_not_a_command_in_the_line_that_the_operator_should_type(tmp_path):
    async with house(tmp_path, {"nas": {}, "pi": {}}) as built:
        key = str(built.hosts["pi"].key_file)
        text = await built.quorate.refusal("host_exec", host="nas", user="x; reboot #", key=key, command=["true"])
        assert "'x; reboot #@127.0.0.1'" in text


async def test_changes_of_a_host_at_the_same_time_are_all_kept(tmp_path):
    async with open_store(str(tmp_path / "state.db"), clock=HandClock()) as store:
        hosts = Hosts(store)
        await hosts.add(Host("nas", "192.168.1.5"))
        changes: dict[str, Any] = {
            "display_name": "The NAS",
            "user": "admin",
            "labels": ("prod",),
            "port": 2222,
            "jump": "pi",
        }
        await asyncio.gather(*(hosts.change("nas", **{name: value}) for name, value in changes.items()))
        kept = await hosts.get("nas")
        assert {name: getattr(kept, name) for name in changes} == changes
        with pytest.raises(Conflict, match="changed in the meantime"):
            await hosts.change("nas", Host("nas", "192.168.1.5"), port=22)


@pytest.mark.parametrize("zone", ["$(reboot)", ";reboot;", "a b", "`id`", '"]', "x" * 16, ""])
async def test_an_address_holds_nothing_that_a_shell_would_run(tmp_path, zone, monkeypatch):
    """It is part of the command with which the operator trusts a host."""
    monkeypatch.setattr("quorate.ssh.connection.CONNECT_SECONDS", 0.2)
    async with house(tmp_path, {}) as built:
        for tool, arguments in (
            ("host_exec", {"host": f"fe80::1%{zone}", "command": ["true"]}),
            ("host_exec", {"host": f"root@[fe80::1%{zone}]:22", "command": ["true"]}),
            ("host_register", {"host": "new", "address": f"fe80::1%{zone}"}),
        ):
            assert "address" in await built.quorate.refusal(tool, **arguments)
        await built.quorate.facts("host_exec", host="fe80::1%eth0", command=["true"], dry_run=True)


def test_an_address_that_a_host_reports_draws_nothing():
    name = "fd00::1%</text><script>"
    cards = [{"ifname": "eth0", "addr_info": [{"local": name, "prefixlen": 64}]}]
    facts = read_facts(Answers({"ip_json": json.dumps(cards)}), ["network"])
    seen = merge(Device(changed=1.0), Sighting(ref="nas", name="nas", facts=facts), 2.0)
    assert seen.addresses == ("fd00::1/64",)
    picture = map_drawing.render_svg(map_drawing.draw_map(sitemap([seen], []), "x", "y"))
    assert "fd00::1" in picture
    assert "script" not in picture


@pytest.mark.parametrize("user", ["x -o PermitLocalCommand=yes -o LocalCommand=reboot", "$(reboot)", "x;reboot"])
async def test_a_login_adds_nothing_to_the_command_line_of_ssh_in_an_inventory(tmp_path, user):
    async with house(tmp_path, {"nas": {}, "pi": {}}) as built:
        await built.quorate.facts("host_update", host="nas", jump="pi")
        await built.quorate.facts("host_update", host="pi", user=user)
        facts = await built.quorate.facts("host_export", hosts=["nas"])
        assert facts["hosts"] == 0
        assert "cannot be written to an inventory" in facts["left_out"]["nas"]
