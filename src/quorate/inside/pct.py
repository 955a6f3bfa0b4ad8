"""Commands in containers by pct on their node, and the SSH addresses of nodes.

A command for one node is never sent to another.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial

from quorate.hints import Advice, tools
from quorate.inside.ssh_transport import SshTransport, start_problem
from quorate.problems import Conflict, GuestRefused, NotConfigured, PermissionMissing, Problem, TimedOut
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.tasks import gather_bounded
from quorate.ssh.launcher import command_line
from quorate.ssh.process import ExecutionTarget, ExitStatus
from quorate.ssh.target import SshTarget, split_port

REPORTED_SECONDS = 300.0
TRY_SECONDS = 20.0
AT_ONCE = 8
_ELSEWHERE = re.compile(r"Configuration file 'nodes/(?P<node>[^/']+)/lxc/\d+\.conf' does not exist")


async def ssh_of_node(cluster: Cluster, node: str) -> SshTarget:
    """The configured address, else the one that the cluster reports, else the node's name."""
    ssh = cluster.ssh
    if configured := ssh.configured_node(node):
        return configured
    reported = await _reported_addresses(cluster)
    if ssh.single_host and _is_node(ssh.single_host, node, reported):
        return ssh.node_at(ssh.single_host)
    if node in reported:
        ssh.require_allowed(reported[node] or node)
        return ssh.node_at(reported[node] or node)
    if ssh.single_host:
        raise NotConfigured(
            f"The SSH address of node {node} is unknown",
            why=f"Only {ssh.single_host} is configured, and the cluster does not say which node that is",
            next_step=how_to_configure(cluster, node),
        )
    ssh.require_allowed(node)
    return ssh.node_at(node)


async def reported_address(cluster: Cluster, node: str) -> str:
    """The address that the cluster itself uses for the node; empty if it reports none."""
    return (await _reported_addresses(cluster)).get(node, "")


async def node_addresses(cluster: Cluster) -> frozenset[str]:
    """Every known address of a node."""
    ssh = cluster.ssh
    written = [*ssh.settings.node_hosts.values(), *([ssh.single_host] if ssh.single_host else [])]
    return frozenset([*(await _reported_addresses(cluster)).values(), *(split_port(host)[0] for host in written)])


async def addresses_of_nodes(cluster: Cluster) -> dict[str, list[str]]:
    """All known addresses of each node: configured ones with their port, its own ones, and its name."""
    ssh, reported = cluster.ssh, await _reported_addresses(cluster)
    names = [row.node for row in await cluster.inventory.of_type("node")]
    own = await gather_bounded(AT_ONCE, [partial(_own_addresses, cluster, node) for node in names])
    known = {}
    for node, addresses in zip(names, own, strict=True):
        single = [ssh.single_host] if ssh.single_host and _is_node(ssh.single_host, node, reported) else []
        written = [ssh.settings.node_hosts[node]] if node in ssh.settings.node_hosts else []
        known[node] = [*written, *single, *([reported[node]] if reported.get(node) else []), *addresses, node]
    return known


async def _own_addresses(cluster: Cluster, node: str) -> list[str]:
    """The addresses of the node's network cards; none if it is offline or the privilege is missing."""
    try:
        cards = await cluster.get(f"/nodes/{node}/network")
    except Problem:
        return []
    return [str(card[key]) for card in cards for key in ("address", "address6") if card.get(key)]


def how_to_configure(cluster: Cluster, node: str) -> str:
    return (
        f'Set its address in the configuration: [clusters.{cluster.name}.ssh] nodes = {{ {node} = "ADDRESS" }}, '
        f'or [ssh] nodes = {{ {node} = "ADDRESS" }} if environment variables describe the cluster'
    )


async def _reported_addresses(cluster: Cluster) -> dict[str, str]:
    """Node -> address (which may be empty), as the cluster reports them; empty if the privilege is missing."""
    ssh = cluster.ssh
    if cluster.clock.monotonic() - ssh.reported_at > REPORTED_SECONDS:
        try:
            rows = await cluster.get("/cluster/status")
        except PermissionMissing:
            rows = []
        ssh.reported = {str(row["name"]): str(row.get("ip") or "") for row in rows if row.get("type") == "node"}
        ssh.reported_at = cluster.clock.monotonic()
    return ssh.reported


def _is_node(host: str, node: str, reported: dict[str, str]) -> bool:
    """Whether the only configured SSH host is this node."""
    name, _ = split_port(host)
    if list(reported) == [node]:
        return True
    return name in (node, reported.get(node) or node) or name.partition(".")[0] == node


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
        start = tools.guest_power(guest=guest.vmid, action="start")
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
