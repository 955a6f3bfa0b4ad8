"""Containers: `pct exec` over SSH, on the node that holds the container."""

from __future__ import annotations

import asyncio
import re

from quorate.inside.node_addresses import how_to_configure, ssh_of_node
from quorate.inside.over_ssh import SshWay, not_started
from quorate.problems import Conflict, GuestRefused, NotConfigured, PermissionMissing, Problem, TimedOut
from quorate.pve.cluster import Cluster, Guest
from quorate.ssh.launching import command_line
from quorate.ssh.process import Ended, Place
from quorate.ssh.target import SshTarget

_ELSEWHERE = re.compile(r"Configuration file 'nodes/(?P<node>[^/']+)/lxc/\d+\.conf' does not exist")


TRY_SECONDS = 20.0


async def pct_way(cluster: Cluster, guest: Guest) -> SshWay:
    target = await ssh_of_node(cluster, guest.row.node)
    place = Place(cluster.ssh.pool, target, (*_pct(target), "exec", str(guest.vmid), "--"))

    def explain(ended: Ended) -> Problem:
        return _explained(cluster, guest, ended, target)

    description = f"pct exec {guest.vmid} on {guest.row.node} as {target.user}"
    return SshWay("pct", description, place, explain, most=cluster.ssh.settings.max_output)


async def try_pct(cluster: Cluster, node: str) -> SshTarget:
    """Log in at the node and let pct list its containers, which changes nothing. Raises what stands in the way."""
    target = await ssh_of_node(cluster, node)
    channel = await cluster.ssh.pool.open(target, command_line((*_pct(target), "list")))
    process = channel.process
    try:
        async with asyncio.timeout(TRY_SECONDS):
            said, complained = await asyncio.gather(process.stdout.read(), process.stderr.read())
            await channel.finished()
    except TimeoutError:
        raise TimedOut(f"pct on {node} did not end within {TRY_SECONDS:g} s", next_step="See why it hangs") from None
    finally:
        channel.close()
    if process.exit_status != 0:
        words = " ".join((complained or said).decode("utf-8", "replace").split())
        raise _barred(cluster, node, words, process.exit_status, target) or GuestRefused(
            f"pct does not work on {node}", why=f"It said: {words}", next_step=f"Run `pct list` on {node} and see"
        )
    return target


def _pct(target: SshTarget) -> tuple[str, ...]:
    return ("pct",) if target.user == "root" else ("sudo", "-n", "pct")


def _explained(cluster: Cluster, guest: Guest, ended: Ended, target: SshTarget) -> Problem:
    """Why pct did not start the command, by its own words."""
    words, node = ended.words, guest.row.node
    if elsewhere := _ELSEWHERE.search(words):
        cluster.inventory.forget()
        if elsewhere["node"] == node:
            return Conflict(
                f"{guest} is not on node {node} any more",
                why=f"pct said: {words}",
                next_step="It was moved or deleted meanwhile; call again",
            )
        return NotConfigured(
            f"{target.address} is node {elsewhere['node']}, but {guest} is on {node}",
            why="Nothing was run: a container can only be entered on its own node",
            next_step=how_to_configure(cluster, node),
        )
    if "not running" in words:
        return Conflict(f"{guest} is not running", next_step="Start it first with guest_power action=start")
    return _barred(cluster, node, words, ended.exit_code, target) or not_started(guest, ended.exit_code, words)


def _barred(cluster: Cluster, node: str, words: str, code: int | None, target: SshTarget) -> Problem | None:
    """Why pct itself cannot be run there, if that is what the words say."""
    if "not found" in words and "pct" in words and code == 127:
        return NotConfigured(
            f"{target.address} has no command pct, so it is no Proxmox VE node",
            why=f"It said: {words}",
            next_step=how_to_configure(cluster, node),
        )
    if "sudo" in words or "please run as root" in words.lower():
        return PermissionMissing(
            f"{target.user} may not run pct on {node}",
            why=f"It said: {words}",
            next_step=f"Log in as root, or allow it on {node}: "
            f"`echo '{target.user} ALL=(root) NOPASSWD: /usr/sbin/pct' > /etc/sudoers.d/quorate`",
        )
    return None
