"""The firewall's configuration: rules, options, aliases and IP sets of the cluster, of nodes, guests and vnets."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quorate.sim.config_files import digest_of
from quorate.sim.world import World

Entry = dict[str, Any]


@dataclass(slots=True)
class FirewallFile:
    """What one `.fw` file holds. Only the cluster's has security groups."""

    rules: list[Entry] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    aliases: dict[str, Entry] = field(default_factory=dict)  # by name in lower case
    ipsets: dict[str, list[Entry]] = field(default_factory=dict)
    ipset_comments: dict[str, str] = field(default_factory=dict)
    groups: dict[str, list[Entry]] = field(default_factory=dict)
    group_comments: dict[str, str] = field(default_factory=dict)


class Firewalls:
    """All firewall files of a cluster; a file that nobody has written is as good as an empty one."""

    def __init__(self, world: World) -> None:
        self.cluster = FirewallFile()
        self._nodes: dict[str, FirewallFile] = {}
        self._guests: dict[int, FirewallFile] = {}
        self._vnets: dict[str, FirewallFile] = {}
        world.on_guest_removed.append(self.forget_guest)

    def node(self, name: str) -> FirewallFile:
        return self._nodes.setdefault(name, FirewallFile())

    def guest(self, vmid: int) -> FirewallFile:
        return self._guests.setdefault(vmid, FirewallFile())

    def vnet(self, name: str) -> FirewallFile:
        return self._vnets.setdefault(name, FirewallFile())

    def copy_guest(self, source: int, target: int) -> None:
        """A clone starts with the rules of its original."""
        if source in self._guests:
            self._guests[target] = copy.deepcopy(self._guests[source])

    def forget_guest(self, vmid: int) -> None:
        """The file goes away with the guest."""
        self._guests.pop(vmid, None)


def with_digest(entries: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """The entries as the API lists them: each carries the fingerprint of the whole list."""
    listed = [dict(entry) for entry in entries]
    digest = digest_of(listed)
    return [{**entry, "digest": digest} for entry in listed]
