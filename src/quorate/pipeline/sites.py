"""The clusters that this server runs, each with the rules that hold there."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from quorate.config import Access
from quorate.config.rules import NO_POLICY, Policy
from quorate.operations.registry import Operation, Risk
from quorate.pipeline.caller import Caller
from quorate.pipeline.gate import Gate, wider_token
from quorate.pipeline.limits import Meter
from quorate.pipeline.policy import NO_RULES, Rulebook
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument, NotConfigured


@dataclass(slots=True)
class Site:
    """One cluster and what the operator wants there; the latter may be read anew while the server runs."""

    cluster: Cluster
    access: Access | None = None
    """Takes the place of the server's access level."""
    own: Policy = NO_POLICY
    """What is written for this cluster alone."""
    rules: Rulebook = NO_RULES
    """Its own, and those for all that hold here, too."""
    meters: tuple[Meter, ...] = ()

    @property
    def name(self) -> str:
        return self.cluster.name

    @property
    def guards(self) -> bool:
        """Whether something holds here that does not hold around the clusters."""
        return self.rules.about_targets or self.access is not None

    def gate(self, general: Gate) -> Gate:
        access = general.access if self.access is None else self.access
        own_level = self.access is not None
        return replace(general, access=access, own_level=own_level, cluster=self.name, rules=self.rules)


@contextmanager
def counting(parts: Sequence[tuple[Site, int]], operation: Operation, risk: Risk) -> Iterator[None]:
    """While a plan is carried out that has so many steps at each site; a meter that several share counts them all."""
    meters = {id(meter): meter for site, _ in parts for meter in site.meters}
    with ExitStack() as stack:
        for key, meter in meters.items():
            steps = sum(count for site, count in parts if key in map(id, site.meters))
            now = parts[0][0].cluster.clock.monotonic()
            stack.enter_context(meter.counting(operation, risk, steps, now))
        yield


class Sites:
    def __init__(self, sites: Sequence[Site] = (), *, home: Site | None = None, problem: str | None = None) -> None:
        self.general = Gate()
        """What holds where a cluster has nothing of its own."""
        self.refresh: Callable[[], None] = lambda: None
        """Called before every call and list: reads the settings anew if they have changed."""
        self.home = home
        """The homelab around the clusters; it is none of them."""
        self._sites = {site.name: site for site in sites}
        self._problem = problem

    def __iter__(self) -> Iterator[Site]:
        return iter(self._sites.values())

    @property
    def everywhere(self) -> list[Site]:
        return [*self, *([self.home] if self.home else [])]

    def having(self, cluster: Cluster) -> Site:
        """The site of a cluster that is one of ours, as a caller may see it."""
        return self._sites[cluster.name]

    def for_operation(self, operation: Operation, caller: Caller) -> list[Site]:
        """Where the caller's own credentials would let it run."""
        if not operation.about_homelab:
            return self.open_to(caller)
        return [self.home] if self.home else []

    @property
    def several(self) -> bool:
        return len(self._sites) > 1

    def open_to(self, caller: Caller) -> list[Site]:
        """Those that the caller's own credentials reach."""
        wanted = caller.scope.clusters
        return [site for site in self if wanted is None or site.name in wanted]

    def reachable(self, caller: Caller) -> list[Site]:
        """The same, but never none."""
        if not self._sites:
            raise NotConfigured(self._problem or "No Proxmox VE cluster is configured")
        if found := self.open_to(caller):
            return found
        raise BadArgument(
            f"No cluster is within the scope of {caller.subject or 'this token'}",
            next_step=wider_token("other --clusters"),
        )

    def named(self, name: object, caller: Caller) -> Site:
        """The cluster that was asked for; one outside the caller's scope is as unknown as one that there is not."""
        known = {site.name: site for site in self.reachable(caller)}
        text = str(name).strip()
        if text in known:
            return known[text]
        near = difflib.get_close_matches(text, known, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"The clusters are {', '.join(known)}"
        raise BadArgument(f"There is no cluster {text!r}", next_step=hint)
