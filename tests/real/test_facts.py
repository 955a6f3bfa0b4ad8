"""What real guests tell about themselves, and where they are found."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.real.lab import Lab
from tests.real.transports import EVERY_TRANSPORT, TRANSPORTS, logins, reached, serving

pytestmark = pytest.mark.anyio


@EVERY_TRANSPORT
async def test_a_guest_describes_its_system_and_its_network(lab: Lab, tmp_path: Path, way: str):
    async with reached(lab, way, tmp_path) as inside:
        info = await inside.facts("guest_info")
        assert info["way"] == TRANSPORTS[way]
        assert info["hostname"] == (await inside.look("cat", "/proc/sys/kernel/hostname")).strip()
        assert info["os"] == ("BusyBox with OpenRC" if inside.is_busybox else "Debian GNU/Linux 12 (bookworm)")
        assert info["memory"]
        assert len(info["load"].split()) == 3
        assert "/" in info["filesystems"]
        network = await inside.facts("guest_network")
        [gateway, *_] = network["gateways"]
        assert gateway.split()[0] in await inside.look("ip", "route")
        assert network["usable"][0] in await inside.look("ip", "address")
        assert "not_known" not in info
        assert "not_known" not in network


@pytest.mark.parametrize(("way", "until"), [("pct", "address"), ("ssh", "ssh"), ("jump", "ssh"), ("agent", "agent")])
async def test_a_guest_is_waited_for(lab: Lab, tmp_path: Path, way: str, until: str):
    async with reached(lab, way, tmp_path) as inside:
        waited = await inside.facts("guest_wait", until=until)
        assert (waited["reached"], waited["until"]) == (True, until)


async def test_a_container_that_comes_up_is_waited_for_over_ssh(lab: Lab, tmp_path: Path):
    async with reached(lab, "ssh", tmp_path) as inside:
        await asyncio.to_thread(lab.debian.stop)
        waiting = asyncio.ensure_future(inside.facts("guest_wait", until="ssh", wait=45))
        await asyncio.to_thread(lab.debian.start)
        waited = await waiting
        assert (waited["reached"], waited["way"]) == (True, TRANSPORTS["ssh"])


@pytest.mark.parametrize("way", ["ssh", "jump"])
async def test_the_inventory_leads_ssh_to_the_guest(lab: Lab, tmp_path: Path, way: str):
    async with serving(lab, tmp_path, guests=logins(lab, way)) as quorate:
        told = await quorate.facts("inventory_export", format="json", guest=[101, 102])
        assert told["inventory"]["node_pve1"]["hosts"] == ["web"]
        hosts = told["inventory"]["_meta"]["hostvars"]
        assert hosts["small"]["ansible_host"] == lab.openrc.address
        assert await logged_in(hosts["web"], tmp_path) == "web\n"


async def logged_in(host: dict[str, str], folder: Path) -> str:
    """What `hostname` says there, by OpenSSH's own client and as Ansible would call it."""
    wrapper = folder / "bin/ssh"  # also for the call that the arguments for the jump host make
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F none -o UserKnownHostsFile={folder}/known_hosts "$@"\n')
    wrapper.chmod(0o755)
    extra = host.get("ansible_ssh_common_args", "")
    command = f"ssh {extra} -i {host['ansible_ssh_private_key_file']} {host['ansible_user']}@{host['ansible_host']}"
    asking = await asyncio.create_subprocess_shell(
        f"{command} hostname",
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PATH": f"{wrapper.parent}:{os.environ['PATH']}"},
    )
    out, _ = await asking.communicate()
    return out.decode()
