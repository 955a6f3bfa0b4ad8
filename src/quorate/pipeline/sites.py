"""The clusters that this server manages, each with its policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from quorate.config import Access, ConfigError, Settings
from quorate.config.names import suggest_setting
from quorate.config.rules import NO_LIMITS, NO_POLICY, Policy, Rule
from quorate.operations import toolsets
from quorate.operations.backend import Backend
from quorate.operations.registry import EVERY, Operation, Risk, operations
from quorate.pipeline.caller import Caller
from quorate.pipeline.gate import Gate, wider_token
from quorate.pipeline.policy import NO_RULES, Meter, Rulebook, matches
from quorate.problems import BadArgument, NotConfigured
from quorate.pve.cluster import Cluster
from quorate.state.tally import Reservation
from quorate.suggestions import suggest


@dataclass(slots=True)
class Site:
    """A cluster or the homelab with its policy, which can change while the server runs."""

    backend: Backend
    access: Access | None = None
    """Overrides the server's access level."""
    own: Policy = NO_POLICY
    """The policy of this cluster alone."""
    rules: Rulebook = NO_RULES
    """Its own rules and the general ones that apply here."""
    meters: tuple[Meter, ...] = ()

    @property
    def name(self) -> str:
        return self.backend.name

    @property
    def cluster(self) -> Cluster:
        return self.backend.api

    @property
    def guards(self) -> bool:
        """Whether its policy is stricter than that of the homelab."""
        return self.rules.about_targets or self.access is not None

    def gate(self, general: Gate) -> Gate:
        access = general.access if self.access is None else self.access
        own_level = self.access is not None
        return replace(general, access=access, own_level=own_level, cluster=self.name, rules=self.rules)


def reservations(parts: Sequence[tuple[Site, int]], operation: Operation, risk: Risk) -> list[Reservation]:
    """What a plan uses of each limit. `parts` are the numbers of steps at each site; sites may share a meter.

    Destructive steps are counted even where nothing limits them: a limit that is set later applies to the whole hour.
    """
    meters = {id(meter): meter for site, _ in parts for meter in site.meters}
    return [
        meter.reservation(operation, risk, sum(count for site, count in parts if key in map(id, site.meters)))
        for key, meter in meters.items()
        if risk is Risk.DESTROY or meter.counts(risk)
    ]


class Sites:
    def __init__(self, sites: Sequence[Site] = (), *, home: Site | None = None, problem: str | None = None) -> None:
        self.general = Gate()
        """Applies where a cluster has no settings of its own."""
        self.refresh: Callable[[], None] = lambda: None
        """Called before every call and list; loads the settings again if they changed."""
        self.home = home
        """The homelab around the clusters."""
        self._sites = {site.name: site for site in sites}
        self._problem = problem

    def __iter__(self) -> Iterator[Site]:
        return iter(self._sites.values())

    @property
    def everywhere(self) -> list[Site]:
        return [*self, *([self.home] if self.home else [])]

    def site_of(self, cluster: Cluster) -> Site:
        """The site of one of our clusters or a filtered view of it."""
        return self._sites[cluster.name]

    def for_operation(self, operation: Operation, caller: Caller) -> list[Site]:
        """The sites where the caller's credentials allow the operation."""
        if not operation.about_homelab:
            return self.open_to(caller)
        return [self.home] if self.home else []

    @property
    def several(self) -> bool:
        return len(self._sites) > 1

    def open_to(self, caller: Caller) -> list[Site]:
        """The clusters in the scope of the caller's credentials."""
        wanted = caller.scope.clusters
        return [site for site in self if wanted is None or site.name in wanted]

    def reachable(self, caller: Caller) -> list[Site]:
        """Like `open_to`, but raises if there is none."""
        if not self._sites:
            raise NotConfigured(self._problem or "No Proxmox VE cluster is configured")
        if found := self.open_to(caller):
            return found
        raise BadArgument(
            f"No cluster is within the scope of {caller.subject or 'this token'}",
            next_step=wider_token("other --clusters"),
        )

    def find(self, name: object, caller: Caller) -> Site:
        """The requested cluster. One outside the caller's scope is as unknown as one that does not exist."""
        known = {site.name: site for site in self.reachable(caller)}
        text = str(name).strip()
        if text in known:
            return known[text]
        hint = suggest(text, known, f"The clusters are {', '.join(known)}")
        raise BadArgument(f"There is no cluster {text!r}", next_step=hint)


def make_sites(settings: Settings, clusters: Sequence[Cluster], home: Backend | None = None) -> Sites:
    together = Meter(settings.policy.limits)

    def site(backend: Backend) -> Site:
        return Site(backend, meters=(together, Meter(NO_LIMITS, backend.name)))

    sites = Sites(list(map(site, clusters)), home=site(home) if home else None, problem=settings.problem)
    govern(sites, settings)
    return sites


def govern(sites: Sites, settings: Settings) -> None:
    """Apply the settings from now on, or raise ConfigError. Added or removed clusters need a restart."""
    chosen = chosen_toolsets(settings)
    general = Gate(settings.access, chosen, settings.look_inside, opt_ins=settings.applicable_opt_ins)
    refuse_mistakes([*settings.policy.rules, *(rule for one in settings.clusters for rule in one.policy.rules)])
    own = {one.name: one for one in settings.clusters}
    sites.general = general
    for site in sites.everywhere:
        if there := own.get(site.name):
            site.access, site.own = there.access, there.policy
        site.rules = Rulebook((*settings.policy.of_cluster(site.name), *site.own.rules))
        together, alone = site.meters
        together.limits, alone.limits = settings.policy.limits, site.own.limits


def chosen_toolsets(settings: Settings) -> frozenset[str]:
    chosen = settings.toolsets or (toolsets.DEFAULT,)
    if settings.watch is not None and toolsets.DEFAULT in chosen:
        chosen = (*chosen, "watch")
    try:
        return toolsets.expand(chosen)
    except KeyError as unknown:
        raise ConfigError(f"{toolsets.describe_unknown(unknown.args[0])}.") from None


def refuse_mistakes(rules: Sequence[Rule]) -> None:
    """A rule about a tool that does not exist would silently do nothing."""
    names = list(operations()) if any(rule.tools for rule in rules) else []
    for rule in rules:
        for known, patterns, word in ((names, rule.tools, "tool"), (list(EVERY), rule.toolsets, "toolset")):
            for pattern in patterns:
                if not matches(known, pattern):
                    hint = suggest_setting(pattern, known, f"Known {word}s are {', '.join(known[:5])} …")
                    raise ConfigError(
                        f'The rule "{rule.name}" is about the {word} "{pattern}", which does not exist.{hint}'
                    )
