"""The homelab, as its operations see it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from quorate.command_rules import CommandRules
from quorate.homelab.network.probing import AT_ONCE
from quorate.homelab.registry import Hides, Hosts
from quorate.homelab.secrets import Secrets, lent
from quorate.homelab.settings import NAME, HomelabSettings
from quorate.homelab.shells import Shells
from quorate.homelab.whereabouts import Whereabouts
from quorate.pve.clock import Clock
from quorate.pve.cluster import Cluster
from quorate.pve.inventory import Inventory, Resource
from quorate.pve.tasks import Report
from quorate.ssh.access import SshAccess
from quorate.state.store import Store

CarryOut = Callable[[Cluster, Any, float, Report | None], Awaitable[Mapping[str, Any]]]


class Homelab(Cluster):
    """The plain hosts around the clusters.

    It stands in the pipeline where a cluster stands, so that gates, rules, approvals and the audit are the same. It
    has no API and no guests of its own, but it knows the clusters, whose nodes and guests are hosts, too.
    """

    def __init__(
        self,
        settings: HomelabSettings,
        store: Store,
        clusters: Sequence[Cluster] = (),
        *,
        clock: Clock | None = None,
        command_rules: CommandRules | None = None,
    ) -> None:
        super().__init__(NAME, None, clock=clock, ssh=SshAccess(settings.ssh), command_rules=command_rules)
        self._inventory = _NoGuests(self.clock)
        self.settings = settings
        self.store = store
        self.clusters = tuple(clusters)
        self.hosts = Hosts(store)
        self.whereabouts = Whereabouts(self.clock)
        self.guarded: tuple[Cluster, ...] = ()
        """Clusters, unveiled, whose nodes and guests must not be reached as if they were plain hosts."""
        self.secret_store = Secrets(settings)
        self.shells = Shells(self.clock)
        self.probes = asyncio.Semaphore(AT_ONCE)
        """Places for the connections of scans."""
        self.carry_out: CarryOut
        """Carries out the plan of a cluster as one step of a plan here; the pipeline lends it."""

    def among(
        self, clusters: Sequence[Cluster], hides: Hides | None = None, guarded: Sequence[Cluster] = ()
    ) -> Homelab:
        """The same homelab as a caller may see it: without what is hidden, among those clusters only."""
        other = copy.copy(self)
        other.clusters = tuple(clusters)
        other.hosts = self.hosts.behind(hides)
        other.guarded = tuple(guarded)
        return other

    def secrets(self) -> list[str]:
        return [*super().secrets(), *self.secret_store.revealed, *lent()]


class _NoGuests(Inventory):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def rows(self) -> list[Resource]:
        return []

    def forget(self) -> None:
        pass

    async def close(self) -> None:
        pass
