"""Settings at work: what the operator wrote about access, rules and limits becomes what holds at each cluster.

Done at the start, and again whenever the settings are read anew. What has been counted so far stays counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorate.config import ConfigError, Settings
from quorate.config.rules import NO_LIMITS, Rule
from quorate.config.spellings import did_you_mean
from quorate.operations.registry import DEFAULT_TOOLSETS, EVERY, HOMELAB, TOOLSETS, operations
from quorate.pipeline.gate import Gate
from quorate.pipeline.limits import Meter
from quorate.pipeline.policy import Rulebook, matches
from quorate.pipeline.sites import Site, Sites
from quorate.pve.cluster import Cluster


def make_sites(settings: Settings, clusters: Sequence[Cluster], home: Cluster | None = None) -> Sites:
    together = Meter(settings.policy.limits)

    def site(cluster: Cluster) -> Site:
        return Site(cluster, meters=(together, Meter(NO_LIMITS, cluster.name)))

    sites = Sites(list(map(site, clusters)), home=site(home) if home else None, problem=settings.problem)
    govern(sites, settings)
    return sites


def govern(sites: Sites, settings: Settings) -> None:
    """Let the settings hold from now on, or raise ConfigError. Clusters that come or go wait for a new start."""
    general = Gate(settings.access, chosen_toolsets(settings), settings.look_inside)
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
    chosen = frozenset(settings.toolsets or DEFAULT_TOOLSETS)
    for group, members in (("all", TOOLSETS), ("homelab", HOMELAB)):
        if group in chosen:
            chosen = chosen - {group} | set(members)
    if unknown := sorted(chosen - set(EVERY)):
        raise ConfigError(f"There is no toolset {unknown[0]!r}: choose from {', '.join(EVERY)}, all or homelab.")
    return chosen


def refuse_mistakes(rules: Sequence[Rule]) -> None:
    """A rule about a tool that there is not would silently do nothing."""
    names = list(operations()) if any(rule.tools for rule in rules) else []
    for rule in rules:
        for known, patterns, word in ((names, rule.tools, "tool"), (list(EVERY), rule.toolsets, "toolset")):
            for pattern in patterns:
                if not matches(known, pattern):
                    hint = did_you_mean(pattern, known) or f" {word}s are {', '.join(known[:5])} …"
                    raise ConfigError(
                        f'The rule "{rule.name}" is about the {word} "{pattern}", which there is not:{hint}'
                    )
