"""Containers: `pct exec` over SSH, on the node that holds the container."""

from __future__ import annotations

import asyncio
import re

from quorate.hints import GUEST_POWER, Advice
from quorate.inside.node_addresses import how_to_configure, ssh_of_node
from quorate.inside.ssh_transport import SshTransport, start_problem
from quorate.problems import Conflict, GuestRefused, NotConfigured, PermissionMissing, Problem, TimedOut
from quorate.pve.cluster import Cluster, Guest
from quorate.ssh.launcher import command_line
from quorate.ssh.process import ExecutionTarget, ExitStatus
from quorate.ssh.target import SshTarget

_ELSEWHERE = re.compile(r"Configuration file 'nodes/(?P<node>[^/']+)/lxc/\d+\.conf' does not exist")


TRY_SECONDS = 20.0


class SshNotSetUp(NotConfigured):
    """Nothing about SSH to the nodes is configured, and no host key is known."""


async def pct_transport(cluster: Cluster, guest: Guest) -> SshTransport:
    target = await _reachable_node(cluster, guest.row.node)
    place = ExecutionTarget(cluster.ssh.pool, target, (*_pct(target), "exec", str(guest.vmid), "--"))

    def explain(ended: ExitStatus) -> Problem:
        return _explain_start_failure(cluster, guest, ended, target)

    description = f"pct exec {guest.vmid} on {guest.row.node} as {target.user}"
    return SshTransport("pct", description, place, explain, max_output=cluster.ssh.settings.max_output)


async def try_pct(cluster: Cluster, node: str) -> SshTarget:
    """Log in to the node and list its containers, which changes nothing. Raises the Problem that prevents it."""
    target = await _reachable_node(cluster, node)
    channel = await cluster.ssh.pool.open(target, command_line((*_pct(target), "list")))
    process = channel.process
    try:
        async with asyncio.timeout(TRY_SECONDS):
            stdout, stderr = await asyncio.gather(process.stdout.read(), process.stderr.read())
            await channel.wait()
    except TimeoutError:
        raise TimedOut(
            f"pct on {node} did not end within {TRY_SECONDS:g} s", next_step=f"Run `pct list` on {node} and see why"
        ) from None
    finally:
        channel.close()
    if process.exit_status != 0:
        words = " ".join((stderr or stdout).decode("utf-8", "replace").split())
        raise _pct_problem(cluster, node, words, process.exit_status, target) or GuestRefused(
            f"pct does not work on {node}", why=f"It said: {words}", next_step=f"Run `pct list` on {node} to see why"
        )
    return target


async def _reachable_node(cluster: Cluster, node: str) -> SshTarget:
    """Refused at once where SSH was never set up: a connection could only time out or show an unknown host key."""
    target = await ssh_of_node(cluster, node)
    if not cluster.ssh.is_set_up(target):
        raise SshNotSetUp(
            f"Commands in containers need SSH to their node, and SSH to {node} ({target.address}) is not set up",
            why="PVE's API runs no commands in containers. No setting under [ssh] exists, and no known_hosts file has "
            "the node's key",
            next_step=f"The operator can set it up at a terminal: `quorate trust {target.address}`, then let root log "
            f"in there with a key of this user (`ssh-copy-id root@{target.host}`); `quorate doctor` checks it",
        )
    return target


def _pct(target: SshTarget) -> tuple[str, ...]:
    return ("pct",) if target.user == "root" else ("sudo", "-n", "pct")


def _explain_start_failure(cluster: Cluster, guest: Guest, ended: ExitStatus, target: SshTarget) -> Problem:
    """Why pct did not start the command, from its own message."""
    words, node = ended.message, guest.row.node
    if elsewhere := _ELSEWHERE.search(words):
        cluster.inventory.forget()
        if elsewhere["node"] == node:
            return Conflict(
                f"{guest} is no longer on node {node}",
                why=f"pct said: {words}",
                next_step="It was moved or deleted in the meantime; call again",
            )
        return NotConfigured(
            f"{target.address} is node {elsewhere['node']}, but {guest} is on {node}",
            why="Nothing ran: a container can only be entered on its own node",
            next_step=how_to_configure(cluster, node),
        )
    if "not running" in words:
        start = GUEST_POWER(guest=guest.vmid, action="start")
        return Conflict(f"{guest} is not running", next_step=Advice("Start it first", start))
    return _pct_problem(cluster, node, words, ended.exit_code, target) or start_problem(guest, ended.exit_code, words)


def _pct_problem(cluster: Cluster, node: str, words: str, code: int | None, target: SshTarget) -> Problem | None:
    """The problem if the message shows that pct itself cannot run there."""
    if "not found" in words and "pct" in words and code == 127:
        return NotConfigured(
            f"{target.address} has no command pct, so it is not a Proxmox VE node",
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
