"""SSH to the nodes: login by key, pct and qm on the same world as the API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncssh
import pytest

from pve_simulator.api_client import Api


@asynccontextmanager
async def shell(api: Api, node: str = "pve1", **options: Any) -> AsyncIterator[asyncssh.SSHClientConnection]:
    cluster = api.cluster
    async with asyncssh.connect(
        "127.0.0.1",
        cluster.ssh_ports[node],
        username="root",
        config=None,
        **{
            "client_keys": [cluster.ssh_key_file],
            "known_hosts": cluster.ssh_known_hosts,
            "agent_path": None,
            **options,
        },
    ) as connection:
        yield connection


async def run_on_node(api: Api, command: str, node: str = "pve1", stdin: str = "") -> tuple[int | None, str, str]:
    async with shell(api, node) as connection:
        done = await connection.run(command, input=stdin, stdin=asyncssh.PIPE)
        return done.exit_status, str(done.stdout), str(done.stderr)


@pytest.mark.api(ssh=True)
async def test_a_node_answers_with_its_name_and_version(api: Api):
    assert await run_on_node(api, "hostname", "pve2") == (0, "pve2\n", "")
    code, version, _ = await run_on_node(api, "pveversion")
    assert code == 0
    assert version.startswith("pve-manager/9.1.8/")


@pytest.mark.api(ssh=True)
async def test_maintenance_of_a_node_is_a_command_of_its_shell(api: Api):
    assert (await run_on_node(api, "ha-manager crm-command node-maintenance enable pve2"))[0] == 0
    await api.clock.advance(20)
    rows = {row["id"]: row for row in (await api.get("/cluster/ha/status/current")).data}
    assert "maintenance" in rows["lrm:pve2"]["status"]
    assert (await run_on_node(api, "ha-manager crm-command node-maintenance enable pve9"))[0] == 255


@pytest.mark.api(ssh=True)
async def test_another_key_is_refused(api: Api):
    stranger = asyncssh.generate_private_key("ssh-ed25519")
    with pytest.raises(asyncssh.PermissionDenied):
        async with shell(api, client_keys=[stranger]):
            pass


@pytest.mark.api(ssh=True)
async def test_pct_exec_runs_a_command_in_a_container(api: Api):
    assert await run_on_node(api, "pct exec 200 -- hostname") == (0, "pihole\n", "")
    assert await run_on_node(api, "pct exec 200 -- sh -c 'echo out; echo err >&2; exit 7'") == (
        7,
        "out\n",
        "err\n",
    )
    assert await run_on_node(api, "pct exec 200 -- cat", stdin="through\n") == (0, "through\n", "")


@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        ("pct exec 206 -- true", 2, "Configuration file 'nodes/pve1/lxc/206.conf' does not exist"),
        ("pct exec 999 -- true", 2, "Configuration file 'nodes/pve1/lxc/999.conf' does not exist"),
        ("pct status 102", 2, "Configuration file 'nodes/pve1/lxc/102.conf' does not exist"),
        ("qm status 200", 2, "Configuration file 'nodes/pve1/qemu-server/200.conf' does not exist"),
        ("pct status abc", 255, "400 Parameter verification failed."),
        ("pct frobnicate", 255, "ERROR: unknown command 'pct frobnicate'"),
        ("qm guest exec 108 -- true", 255, "VM 108 is not running"),
        ("qm guest exec 100 -- true", 255, "QEMU guest agent is not running"),
        ("pct exec 200 -- nosuch", 127, 'Failed to exec "nosuch"'),
        ("pct push 206 /etc/hostname /tmp/x", 2, "Configuration file 'nodes/pve1/lxc/206.conf' does not exist"),
    ],
)
@pytest.mark.api(ssh=True)
async def test_the_tools_refuse_in_their_own_words(api: Api, command: str, code: int, error: str):
    status, _, text = await run_on_node(api, command)
    assert status == code
    assert error in text


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("pct push 200 /nope /tmp/x", "failed to open /nope for reading\n"),
        ("pct push 200 /etc/hostname /no/dir/x", "failed to create file: /no/dir/x: No such file or directory\n"),
        ("pct push 200 /etc/hostname /tmp/x --perms 9", "invalid mode: '09'\n"),
        ("pct pull 200 /nope /tmp/x", "failed to open /nope: No such file or directory\n"),
        ("pct pull 200 /etc/hostname /no/dir/x", "failed to create file: /no/dir/x: No such file or directory\n"),
    ],
)
@pytest.mark.api(ssh=True)
async def test_a_failed_copy_is_reported_but_does_not_show_in_the_exit_code(api: Api, command: str, error: str):
    assert await run_on_node(api, command) == (0, "", error)


@pytest.mark.api(ssh=True)
async def test_a_stopped_container_cannot_be_entered(api: Api):
    assert await run_on_node(api, "pct exec 206 -- true", "pve3") == (255, "", "container '206' not running!\n")
    pushed = await run_on_node(api, "pct push 206 /etc/hostname /tmp/x", "pve3")
    assert pushed == (255, "", "can only push files to a running CT\n")
    pulled = await run_on_node(api, "pct pull 206 /etc/hostname /tmp/x", "pve3")
    assert pulled[0] == 255
    assert "can only pull files from a running VM" in pulled[2]


@pytest.mark.api(ssh=True)
async def test_files_go_in_and_out_of_a_container(api: Api):
    await run_on_node(api, "cat > /tmp/local", stdin="content\n")
    assert (await run_on_node(api, "pct push 200 /tmp/local /srv/there --perms 0600"))[0] == 0
    assert await run_on_node(api, "pct exec 200 -- stat -c '%a %s' /srv/there") == (0, "600 8\n", "")
    assert (await run_on_node(api, "pct pull 200 /srv/there /tmp/back"))[0] == 0
    assert await run_on_node(api, "cat /tmp/back") == (0, "content\n", "")


@pytest.mark.api(ssh=True)
async def test_the_tools_and_the_api_see_the_same_guests(api: Api):
    assert await run_on_node(api, "pct status 200") == (0, "status: running\n", "")
    await api.finish_task(await api.post("/nodes/pve1/lxc/200/status/stop"))
    assert await run_on_node(api, "pct status 200") == (0, "status: stopped\n", "")
    _, config, _ = await run_on_node(api, "pct config 200")
    assert "hostname: pihole\n" in config
    _, listed, _ = await run_on_node(api, "qm list")
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["100", "101", "102", "108", "9000"]
    _, listed, _ = await run_on_node(api, "pct list")
    assert listed.splitlines()[0].split() == ["VMID", "Status", "Lock", "Name"]


@pytest.mark.api(ssh=True)
async def test_qm_guest_exec_prints_the_result_as_json(api: Api):
    code, text, _ = await run_on_node(api, "qm guest exec 102 -- sh -c 'echo hi; exit 3'")
    assert code == 0
    assert json.loads(text) == {"exitcode": 3, "exited": 1, "out-data": "hi\n", "out-truncated": 0}


@pytest.mark.api(ssh=True)
async def test_a_node_that_is_off_does_not_answer(api: Api):
    api.cluster.faults.set_online("pve2", online=False)
    with pytest.raises((OSError, asyncssh.Error)):
        await run_on_node(api, "hostname", "pve2")


async def test_without_the_option_there_is_no_ssh(api: Api):
    with pytest.raises(RuntimeError, match="ssh=True"):
        _ = api.cluster.ssh_ports
