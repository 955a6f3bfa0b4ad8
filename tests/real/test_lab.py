"""The laboratory itself: its parts work, and can be broken and mended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tests.real.containers import Container
from tests.real.lab import Lab
from tests.real.nodes import Node

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def connection(
    lab: Lab, host: str, port: int, folder: Path, **options: Any
) -> AsyncIterator[asyncssh.SSHClientConnection]:
    settings = {"username": "root", "client_keys": [str(lab.key)], "config": None, "agent_path": None, **options}
    known = str(lab.known_hosts(folder))
    async with asyncio.timeout(30), asyncssh.connect(host, port, known_hosts=known, **settings) as made:
        yield made


@asynccontextmanager
async def to_node(lab: Lab, node: Node, folder: Path, **options: Any) -> AsyncIterator[asyncssh.SSHClientConnection]:
    async with connection(lab, node.host, node.port, folder, **options) as made:
        yield made


async def said(
    lab: Lab, container: Container, folder: Path, command: str, stdin: str = ""
) -> tuple[int | None, str, str]:
    async with to_node(lab, container.node, folder) as ssh:
        done = await ssh.run(command, input=stdin)
        return done.exit_status, str(done.stdout), str(done.stderr)


async def test_nodes_are_hosts_of_their_own(lab: Lab, tmp_path: Path):
    for node in lab.nodes.values():
        async with to_node(lab, node, tmp_path) as ssh:
            done = await ssh.run("hostname; id -un; pwd; ip -o -4 address show eth0")
            name, user, home, address = str(done.stdout).splitlines()
            assert (name, user, home) == (node.name, "root", "/root")
            assert node.host in address


async def test_a_command_runs_in_a_container_with_its_outputs_and_exit_code(lab: Lab, tmp_path: Path):
    for container in lab.containers:
        command = f"pct exec {container.vmid} -- sh -c 'hostname; cat; echo err >&2; exit 3'"
        assert await said(lab, container, tmp_path, command, "in\n") == (3, f"{container.name}\nin\n", "err\n")


async def test_a_container_has_its_own_users_and_its_own_network(lab: Lab):
    for container in lab.containers:
        assert container.run("cat", "/proc/self/uid_map").stdout.split() == ["0", "100000", "65536"]
        assert container.address in container.run("ip", "address", "show", "eth0").stdout


@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        ("pct exec 102 -- true", 2, "Configuration file 'nodes/pve1/lxc/102.conf' does not exist\n"),
        ("pct status abc", 255, "400 Parameter verification failed.\n"),
        ("pct frobnicate", 255, "ERROR: unknown command 'pct frobnicate'\n"),
        ("pct exec 101 -- nosuch", 127, 'Failed to exec "nosuch"'),
        ("pct push 101 /nope /tmp/x", 0, "failed to open /nope for reading\n"),
        ("pct push 101 /etc/hostname /no/dir/x", 0, "failed to create file: /no/dir/x: No such file or directory\n"),
        ("pct push 101 /etc/hostname /tmp/x --user nobody9", 0, "failed to get uid for: nobody9\n"),
        ("pct push 101 /etc/hostname /tmp/x --perms 9", 0, "invalid mode: '09'\n"),
        ("pct pull 101 /nope /tmp/x", 0, "failed to open /nope: No such file or directory\n"),
    ],
)
async def test_pct_refuses_in_its_own_words(lab: Lab, tmp_path: Path, command: str, code: int, error: str):
    status, out, text = await said(lab, lab.debian, tmp_path, command)
    assert (status, out) == (code, "")
    assert error in text


async def test_pct_shows_its_containers(lab: Lab, tmp_path: Path):
    assert await said(lab, lab.debian, tmp_path, "pct status 101") == (0, "status: running\n", "")
    _, listed, _ = await said(lab, lab.debian, tmp_path, "pct list")
    assert [line.split() for line in listed.splitlines()] == [
        ["VMID", "Status", "Lock", "Name"],
        ["101", "running", "web"],
    ]
    _, config, _ = await said(lab, lab.openrc, tmp_path, "pct config 102")
    assert "hostname: small\n" in config
    assert "unprivileged: 1\n" in config


async def test_files_go_in_and_out_with_owner_and_mode(lab: Lab, tmp_path: Path):
    for container in lab.containers:
        where = f"{container.vmid} /tmp/local /tmp/there"
        pushed = f"cat > /tmp/local && pct push {where} --perms 640 --user worker --group 1000"
        assert await said(lab, container, tmp_path, pushed, "content") == (0, "", "")
        assert container.run("stat", "-c", "%a %U %g %s", "/tmp/there").stdout == "640 worker 1000 7\n"
        pulled = f"pct pull {container.vmid} /tmp/there /tmp/back && cat /tmp/back"
        assert await said(lab, container, tmp_path, pulled) == (0, "content", "")


async def test_links_in_a_container_do_not_lead_out_of_it(lab: Lab, tmp_path: Path):
    lab.debian.run("ln", "-sf", "/etc/hostname", "/tmp/link")
    await said(lab, lab.debian, tmp_path, "echo changed > /tmp/local; pct push 101 /tmp/local /tmp/link")
    assert lab.debian.run("cat", "/etc/hostname").stdout == "changed\n"
    outside = await said(lab, lab.debian, tmp_path, "cat /etc/hostname")
    assert outside[1] != "changed\n"
    lab.debian.run("sh", "-c", "echo web > /etc/hostname")


async def test_a_stopped_container_is_refused_and_comes_back(lab: Lab, tmp_path: Path):
    with lab.debian.stopped():
        assert await said(lab, lab.debian, tmp_path, "pct status 101") == (0, "status: stopped\n", "")
        refused = await said(lab, lab.debian, tmp_path, "pct exec 101 -- true")
        assert refused == (255, "", "container '101' not running!\n")
        refused = await said(lab, lab.debian, tmp_path, "pct push 101 /etc/hostname /tmp/x")
        assert refused == (255, "", "can only push files to a running CT\n")
    assert await said(lab, lab.debian, tmp_path, "pct exec 101 -- hostname") == (0, "web\n", "")


def test_systemd_runs_the_services_of_one_container(lab: Lab):
    inside = lab.debian
    assert inside.run("systemctl", "is-active", "cron").stdout == "active\n"
    inside.run("systemctl", "start", "napping")
    assert inside.run("systemctl", "is-active", "napping").stdout == "active\n"
    inside.run("systemctl", "reload", "napping")
    inside.run("systemctl", "stop", "napping")
    assert inside.run("systemctl", "show", "-P", "ActiveState", "napping").stdout == "inactive\n"
    inside.run("systemctl", "start", "failing")
    inside.run("sh", "-c", "while systemctl is-active -q failing; do :; done")
    assert inside.run("systemctl", "is-failed", "failing").stdout == "failed\n"
    inside.run("systemctl", "reset-failed")


def test_openrc_runs_the_services_of_the_other(lab: Lab):
    inside = lab.openrc
    assert "started" in inside.run("rc-service", "crond", "status").stdout
    inside.run("rc-service", "napping", "start")
    assert inside.run("rc-service", "napping", "status").returncode == 0
    inside.run("rc-service", "napping", "stop")
    assert inside.run("rc-service", "napping", "status", check=False).returncode == 3
    inside.run("rc-update", "add", "napping", "default")
    assert "napping" in inside.run("rc-update", "show", "default").stdout
    inside.run("rc-update", "del", "napping", "default")
    assert inside.run("rc-service", "crond", "reload").returncode == 0
    assert inside.run("rc-service", "failing", "start", check=False).returncode == 1


async def test_a_guest_is_reached_directly_as_root_and_as_worker(lab: Lab, tmp_path: Path):
    for user in ("root", "worker"):
        async with connection(lab, lab.debian.address, 22, tmp_path, username=user) as ssh:
            assert (await ssh.run("id -un; hostname")).stdout == f"{user}\nweb\n"


async def test_a_guest_behind_its_node_is_reached_through_it_only(lab: Lab, tmp_path: Path):
    with pytest.raises(OSError, match="unreachable"):
        async with connection(lab, lab.debian.inner_address, 22, tmp_path):
            pass
    async with (
        to_node(lab, lab.debian.node, tmp_path) as jump,
        connection(lab, lab.debian.inner_address, 22, tmp_path, tunnel=jump) as ssh,
    ):
        assert (await ssh.run("hostname")).stdout == "web\n"


async def test_a_changed_host_key_is_noticed(lab: Lab, tmp_path: Path):
    node = lab.nodes["pve1"]
    old = lab.known_hosts(tmp_path).read_text()
    node.new_host_key()
    lab.debian.new_host_key()
    assert lab.known_hosts(tmp_path).read_text() != old
    (tmp_path / "old").write_text(old)
    for host in (node.host, lab.debian.address):
        with pytest.raises(asyncssh.HostKeyNotVerifiable):
            await asyncssh.connect(host, 22, known_hosts=str(tmp_path / "old"), client_keys=[str(lab.key)], config=None)
        async with connection(lab, host, 22, tmp_path) as ssh:
            assert (await ssh.run("true")).exit_status == 0


async def test_a_strange_key_is_refused(lab: Lab, tmp_path: Path):
    node = lab.nodes["pve1"]
    with pytest.raises(asyncssh.PermissionDenied):
        async with to_node(lab, node, tmp_path, client_keys=[str(lab.strange_key)]):
            pass
    with node.without_key(), pytest.raises(asyncssh.PermissionDenied):
        async with to_node(lab, node, tmp_path):
            pass
    async with to_node(lab, node, tmp_path) as ssh:
        assert (await ssh.run("true")).exit_status == 0


async def test_connections_can_be_cut(lab: Lab, tmp_path: Path):
    node = lab.nodes["pve1"]
    async with to_node(lab, node, tmp_path) as ssh:
        process = await ssh.create_process("echo on; sleep 4711")
        await process.stdout.readline()
        while not node.processes("sleep 4711"):  # the shell writes before it starts it
            await asyncio.sleep(0)
        node.drop_connections()
        with pytest.raises(asyncssh.Error, match=r"closed|lost"):
            await ssh.run("true")
    assert not node.processes("sleep 4711")
    assert node.connections() == []


async def test_a_node_can_vanish_and_come_back(lab: Lab, tmp_path: Path):
    node = lab.nodes["pve1"]
    with node.stopped(), pytest.raises(ConnectionRefusedError):
        async with to_node(lab, node, tmp_path):
            pass
    async with to_node(lab, node, tmp_path) as ssh:
        with node.unplugged():
            before = packets_sent_again()
            waiting = asyncio.ensure_future(ssh.run("echo back"))
            while packets_sent_again() == before:
                await asyncio.sleep(0)
            assert not waiting.done()
        assert (await waiting).stdout == "back\n"


def packets_sent_again() -> int:
    """How often the kernel has repeated itself because nobody answered."""
    names, values = [
        line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Tcp:")
    ]
    return int(values[names.index("RetransSegs")])


async def test_openssh_keeps_to_ten_sessions_on_a_connection(lab: Lab, tmp_path: Path):
    async with to_node(lab, lab.nodes["pve1"], tmp_path) as ssh:
        sessions = [await ssh.create_process("cat") for _ in range(10)]
        with pytest.raises(asyncssh.ChannelOpenError):
            await ssh.create_process("cat")
        for session in sessions:
            session.stdin.write_eof()
            await session.wait()
