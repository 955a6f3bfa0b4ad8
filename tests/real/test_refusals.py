"""When a real guest cannot be entered: the answer comes soon, says why and what to do, and nothing was run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quorate.ssh import connection
from quorate.ssh.settings import Login
from tests.real.keys import known_hosts, make_key
from tests.real.lab import Lab
from tests.real.network import run
from tests.real.transports import logins, reached, serving
from tests.rigs.mcp_session import text_of

pytestmark = pytest.mark.anyio

TOUCH = ["touch", "/srv/entered"]


async def refused(lab: Lab, folder: Path, guest: int = 101, **changes) -> str:
    """The answer to a command that must not run, and has not."""
    async with serving(lab, folder, **changes) as quorate:
        words = await quorate.refusal("guest_exec", guest=guest, command=TOUCH)
    for container in lab.containers:
        assert not (container.rootfs / "srv/entered").exists()
    return words


# -- guests ------------------------------------------------------------------------------------------------------------


async def test_a_stopped_agent_is_reported_and_can_be_waited_for(lab: Lab, tmp_path: Path):
    async with reached(lab, "agent", tmp_path) as inside:
        with lab.vm.agent_stopped():
            words = await inside.refusal("guest_exec", command=TOUCH)
            assert "The guest agent of vm 100 vm does not answer" in words
            assert "apt install qemu-guest-agent" in words
            waited = await inside.facts("guest_wait", wait=0)
            assert (waited["reached"], "is not running" in waited["why"]) == (False, True)
        waited = await inside.facts("guest_wait", wait=40)
        assert (waited["reached"], waited["hostname"]) == (True, "vm")
        assert await inside.look("ls", "/srv/entered") == ""


async def test_a_paused_vm_is_reported_and_its_command_is_found_again(lab: Lab, tmp_path: Path):
    async with reached(lab, "agent", tmp_path) as inside:
        begun = await inside.exec("sleep 3; echo later", wait=0)
        with lab.vm.frozen():
            words = await inside.quorate.refusal("guest_job", action="poll", job=begun["job"])
            assert "stopped answering" in words
            assert f"guest_job action=poll job={begun['job']}" in words
            calls = [inside.refusal("guest_exec", command=TOUCH) for _ in range(4)]
            async with asyncio.timeout(20):  # each of them alone is reported after three seconds
                for words in await asyncio.gather(*calls):
                    assert "does not answer" in words
        told = await inside.quorate.facts("guest_job", action="poll", job=begun["job"], seconds=40)
        assert (told["state"], told["stdout"]) == ("ended", "later\n")
        assert await inside.look("ls", "/srv/entered") == ""


async def test_pct_reports_a_stopped_container_before_the_cluster_view_does(lab: Lab, tmp_path: Path):
    async with reached(lab, "pct", tmp_path) as inside:
        with lab.debian.stopped():
            words = await inside.refusal("guest_exec", command=TOUCH)
            assert "ct 101 web is not running" in words
            assert "action=start" in words
        assert (await inside.exec(["echo", "back"]))["stdout"] == "back\n"


async def test_a_login_other_than_root_is_refused_with_what_it_lacks(lab: Lab, tmp_path: Path):
    async with serving(lab, tmp_path, guests={101: Login(lab.debian.address, user="worker")}) as quorate:
        ran = await quorate.facts("guest_exec", guest=101, command=["id", "-un"])
        assert (ran["stdout"], ran["way"]) == ("worker\n", f"ssh to worker@{lab.debian.address}")
        words = await quorate.refusal("guest_exec", guest=101, command=["id"], user="root")
        assert "there is no sudo to become root" in words
        for tool, more in (("guest_file_write", {"content": "x"}), ("guest_file_read", {})):
            assert "Permission denied" in await quorate.refusal(tool, guest=101, path="/root/x", **more)
        words = await quorate.refusal("guest_service_control", guest=101, service="cron", action="stop")
        assert "cron.service was not stopped" in words


# -- keys --------------------------------------------------------------------------------------------------------------


async def test_a_refused_key_is_reported_and_works_once_it_is_accepted(lab: Lab, tmp_path: Path):
    async with reached(lab, "pct", tmp_path) as inside:
        with lab.nodes["pve1"].without_key():
            words = await inside.refusal("guest_exec", command=TOUCH)
            assert "10.77.1.2 did not let root in over SSH" in words
            assert str(lab.key) in words
            assert "authorized_keys" in words
        assert (await inside.exec(["true"]))["exit_code"] == 0
    for guest in (Login(lab.debian.address, key=lab.strange_key), Login(lab.debian.address, user="nobody")):
        assert "did not let" in await refused(lab, tmp_path, guests={101: guest})


@pytest.mark.parametrize("way", ["pct", "ssh", "jump"])
async def test_a_host_that_is_not_known_is_refused_until_the_operator_trusts_it(lab: Lab, tmp_path: Path, way: str):
    node = lab.nodes["pve1"]
    host = lab.debian.address if way == "ssh" else node.host
    async with reached(lab, way, tmp_path, ssh={"known_hosts": ()}) as inside:
        before = node.log.count("Accepted")
        words = await inside.refusal("guest_exec", command=TOUCH)
        assert f"The host key of {host} is not known" in words
        assert f"quorate trust {host}" in words
        assert fingerprint(lab, way) in words
        assert node.log.count("Accepted") == before
        (tmp_path / "pins").write_text(lab.known_hosts(tmp_path).read_text())
        assert (await inside.exec(["true"]))["exit_code"] == 0


def fingerprint(lab: Lab, way: str) -> str:
    """Of the host key that the connection meets first, as OpenSSH tells it."""
    key = lab.debian.rootfs / "etc/ssh/ssh_host_ed25519_key" if way == "ssh" else lab.nodes["pve1"].folder / "host_key"
    return run("ssh-keygen", "-lf", key).split()[1]


@pytest.mark.parametrize("way", ["pct", "ssh", "jump"])
async def test_a_changed_host_key_is_refused_loudly(lab: Lab, tmp_path: Path, way: str):
    stranger = make_key(tmp_path / "stranger")
    host = lab.debian.address if way == "ssh" else lab.nodes["pve1"].host
    true = [line for line in lab.known_hosts(tmp_path).read_text().splitlines(True) if not line.startswith(f"{host} ")]
    (tmp_path / "old").write_text("".join(true) + known_hosts(host, 22, stranger))
    words = await refused(lab, tmp_path, guests=logins(lab, way), ssh={"known_hosts": (tmp_path / "old",)})
    assert f"THE HOST KEY OF {host} HAS CHANGED" in words
    assert "Nothing was sent" in words


# -- nodes -------------------------------------------------------------------------------------------------------------


async def test_a_node_whose_ssh_server_is_down_is_named(lab: Lab, tmp_path: Path):
    async with reached(lab, "openrc", tmp_path) as inside:
        with lab.nodes["pve2"].stopped():
            words = await inside.refusal("guest_exec", command=TOUCH)
            assert "10.77.2.2:2222 cannot be reached over SSH" in words
            assert "nothing listens on that port" in words
        assert (await inside.exec(["true"]))["exit_code"] == 0


async def test_a_container_is_never_entered_on_another_node(lab: Lab, tmp_path: Path):
    other = lab.nodes["pve2"]
    words = await refused(lab, tmp_path, ssh={"node_hosts": {"pve1": f"{other.host}:{other.port}"}})
    assert "10.77.2.2:2222 is node pve2, but ct 101 web is on pve1" in words
    assert 'nodes = { pve1 = "ADDRESS" }' in words
    words = await refused(
        lab, tmp_path, guest=102, ssh={"nodes": Login(lab.nodes["pve1"].host, key=lab.key), "node_hosts": {}}
    )
    assert "10.77.2.2 cannot be reached" in words  # at the address that the cluster tells: nobody listens at port 22


async def test_a_host_that_is_not_a_node_is_reported(lab: Lab, tmp_path: Path):
    words = await refused(lab, tmp_path, ssh={"node_hosts": {"pve1": lab.debian.address}})
    assert "has no command pct, so it is not a Proxmox VE node" in words


async def test_a_container_that_has_moved_is_looked_for_again(lab: Lab, tmp_path: Path):
    async with serving(lab, tmp_path) as quorate:
        guest = quorate.sim.world.guests[102]
        guest.node = "pve1"
        assert "is no longer on node pve1" in await quorate.refusal("guest_exec", guest=102, command=["true"])
        guest.node = "pve2"
        assert (await quorate.facts("guest_exec", guest=102, command=["true"]))["exit_code"] == 0


async def test_an_unplugged_cable_is_reported_in_bounded_time_until_it_is_back(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Commands that run notice by silence, new connections are given up; both while packets vanish without a word."""
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 4.0)  # somewhat less patient than usual
    monkeypatch.setattr(connection, "KEEPALIVE_SECONDS", 1.0)
    async with reached(lab, "pct", tmp_path) as inside, serving(lab, tmp_path, guests=logins(lab, "ssh")) as direct:
        running = asyncio.ensure_future(inside.quorate.call("guest_exec", guest=101, command="sleep 4722"))
        await inside.there("sleep 4722")
        with lab.nodes["pve1"].unplugged():
            async with asyncio.timeout(20):
                on_old = inside.refusal("guest_exec", command=TOUCH)
                on_new = direct.refusal("guest_exec", guest=101, command=TOUCH)
                again, new = await asyncio.gather(on_old, on_new)
                broken = await running
        assert f"{lab.debian.address} did not answer SSH within 4 s" in new
        assert f"{lab.nodes['pve1'].host} did not answer SSH within 4 s" in again  # the old one was given up before
        assert "broke while a command ran" in text_of(broken)
        assert (await inside.exec(["echo", "again"]))["stdout"] == "again\n"
        assert (await direct.facts("guest_exec", guest=101, command=["echo", "too"]))["stdout"] == "too\n"
    await inside.look("pkill", "-f", "sleep 4722")
