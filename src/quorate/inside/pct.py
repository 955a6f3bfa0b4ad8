"""Containers: `pct exec` over SSH, on the node that holds the container."""

from __future__ import annotations

import re

from quorate.inside.node_addresses import how_to_configure, ssh_of_node
from quorate.inside.over_ssh import SshWay, not_started
from quorate.problems import Conflict, NotConfigured, PermissionMissing, Problem
from quorate.pve.cluster import Cluster, Guest
from quorate.ssh.process import Ended, Place

_ELSEWHERE = re.compile(r"Configuration file 'nodes/(?P<node>[^/']+)/lxc/\d+\.conf' does not exist")


async def pct_way(cluster: Cluster, guest: Guest) -> SshWay:
    target = await ssh_of_node(cluster, guest.row.node)
    become = () if target.user == "root" else ("sudo", "-n")
    place = Place(cluster.ssh.pool, target, (*become, "pct", "exec", str(guest.vmid), "--"))

    def explain(ended: Ended) -> Problem:
        return _explained(cluster, guest, ended, target.user, target.address)

    description = f"pct exec {guest.vmid} on {guest.row.node} as {target.user}"
    return SshWay("pct", description, place, explain, most=cluster.ssh.settings.max_output)


def _explained(cluster: Cluster, guest: Guest, ended: Ended, user: str, address: str) -> Problem:
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
            f"{address} is node {elsewhere['node']}, but {guest} is on {node}",
            why="Nothing was run: a container can only be entered on its own node",
            next_step=how_to_configure(cluster, node),
        )
    if "not running" in words:
        return Conflict(f"{guest} is not running", next_step="Start it first with guest_power action=start")
    if "not found" in words and "pct" in words and ended.exit_code == 127:
        return NotConfigured(
            f"{address} has no command pct, so it is no Proxmox VE node",
            why=f"It said: {words}",
            next_step=how_to_configure(cluster, node),
        )
    if "sudo" in words or "please run as root" in words.lower():
        return PermissionMissing(
            f"{user} may not run pct on {node}",
            why=f"It said: {words}",
            next_step=f"Log in as root, or allow it on {node}: "
            f"`echo '{user} ALL=(root) NOPASSWD: /usr/sbin/pct' > /etc/sudoers.d/quorate`",
        )
    return not_started(guest, ended.exit_code, words)
