"""Guests that are reached by SSH themselves."""

from __future__ import annotations

from quorate.inside.interfaces import from_pve, usable
from quorate.inside.over_ssh import SshWay, not_started
from quorate.problems import NotConfigured, Problem
from quorate.pve import values
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
            why="Proxmox VE tells none: its agent does not answer and its configuration names none",
            next_step=f"Give it in the configuration: [clusters.{cluster.name}.ssh.guests.{guest.vmid}] "
            f'host = "ADDRESS", or PROXMOX_VM_{guest.vmid}_SSH_HOST',
        )
    cluster.ssh.require_allowed(told)
    return cluster.ssh.guest_login(guest.vmid).at(told)


async def _told_address(guest: Guest) -> str | None:
    config = await guest.get("config")
    try:
        found = usable(await from_pve(guest), config)
    except Problem:
        found = []
    return next(iter([*found, *_static_addresses(config)]), None)


def _static_addresses(config: dict[str, object]) -> list[str]:
    """What cloud-init or the container's own configuration sets."""
    keys = sorted(key for key in config if key.startswith("ipconfig") or values.bus_of(key) == "net")
    parts = [values.parse(str(config[key])) for key in keys]
    found = [str(part.get(family, "")) for family in ("ip", "ip6") for part in parts]
    return [one.partition("/")[0] for one in found if "/" in one]
