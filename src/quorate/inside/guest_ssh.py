"""Guests that are reached by SSH themselves."""

from __future__ import annotations

from quorate.inside.interfaces import from_pve, usable
from quorate.inside.node_addresses import node_addresses
from quorate.inside.over_ssh import SshWay, not_started
from quorate.problems import NotConfigured, Problem, Refused
from quorate.pve.cluster import Cluster, Guest
from quorate.ssh.process import Ended, Place
from quorate.ssh.target import SshTarget


async def ssh_way(cluster: Cluster, guest: Guest) -> SshWay:
    target = await ssh_of_guest(cluster, guest)
    place = Place(cluster.ssh.pool, target)

    def explain(ended: Ended) -> Problem:
        return not_started(guest, ended.exit_code, ended.words)

    return SshWay("ssh", f"ssh to {target}", place, explain, most=cluster.ssh.settings.max_output)


async def ssh_of_guest(cluster: Cluster, guest: Guest) -> SshTarget:
    """At the address that is configured, else at the one that PVE tells."""
    if configured := cluster.ssh.guest(guest.vmid):
        return configured
    told = await _told_address(guest)
    if told is None:
        raise NotConfigured(
            f"The address of {guest} is not known",
            why="Proxmox VE tells none: the guest is off, or its agent does not answer",
            next_step=f"Give it in the configuration: [clusters.{cluster.name}.ssh.guests.{guest.vmid}] "
            f'host = "ADDRESS", or PROXMOX_VM_{guest.vmid}_SSH_HOST',
        )
    cluster.ssh.require_allowed(told)
    if told in await node_addresses(cluster):
        raise Refused(
            f"{guest} claims the address {told}, which is a node's",
            why="What a guest tells of itself must not lead a command for it anywhere else",
            next_step="Look at its network; the operator can give its true address in the configuration",
        )
    return cluster.ssh.told_login(guest.vmid).at(told)


async def _told_address(guest: Guest) -> str | None:
    """What the guest itself shows; what its configuration says anybody who may change it could have written."""
    try:
        found = usable(await from_pve(guest), await guest.get("config"))
    except Problem:
        return None
    return next(iter(found), None)
