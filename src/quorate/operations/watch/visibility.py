"""Which findings and events a caller may see: nothing about clusters, guests, nodes and hosts that rules hide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from quorate.config.settings import HOMELAB, SERVER
from quorate.homelab.homelab import Homelab
from quorate.problems import Problem
from quorate.pve.cluster import Cluster
from quorate.pve.hidden_words import BLANK
from quorate.pve.lookup import View
from quorate.state.events import Event
from quorate.state.findings import Finding


@dataclass(frozen=True, slots=True)
class _Filter:
    """What a caller sees of one cluster; `view` is None if that is everything."""

    view: View | None
    blank: Callable[[str], str]

    def shows(self, target: str) -> bool:
        kind, _, name = target.partition(" ")
        if self.view is None or kind not in ("guest", "node"):
            return True
        return name in self.view.nodes if kind == "node" else int(name) in self.view.by_vmid


async def _filter_of(cluster: Cluster) -> _Filter:
    """If it is not known what to hide, everything about a single guest or node is hidden."""
    if cluster.original is cluster:
        return _Filter(None, str)
    try:
        return _Filter(await cluster.inventory.view(), await cluster.blanker())
    except Problem:
        return _Filter(View([]), lambda _: "(hidden: the cluster does not answer)")


class Visibility:
    def __init__(self, clusters: dict[str, _Filter], hosts: frozenset[str]) -> None:
        self._clusters = clusters
        self._hosts = hosts

    @classmethod
    async def of(cls, homelab: Homelab) -> Visibility:
        filters = {}
        for cluster in homelab.clusters:
            filters[cluster.name] = await _filter_of(cluster)
        return cls(filters, frozenset(host.name for host in await homelab.hosts.all()))

    def event(self, event: Event) -> Event | None:
        found = self._clusters.get(event.cluster)
        if found is None or not found.shows(event.target):
            return None
        return replace(event, says=found.blank(event.says))

    def finding(self, finding: Finding) -> Finding | None:
        """The finding without what is hidden; None if it is about something hidden."""
        seen = finding.seen_as
        if finding.cluster == HOMELAB:
            visible = seen.target.partition(" ")[2].split(":")[0] in self._hosts
            return self._blank_finding(finding, *self._clusters.values()) if visible else None
        if finding.cluster == SERVER:
            about = seen.evidence.get("cluster")
            if about in (None, HOMELAB):
                return self._blank_finding(finding, *self._clusters.values())
            cluster_filter = self._clusters.get(str(about))
            return None if cluster_filter is None else self._blank_finding(finding, cluster_filter)
        found = self._clusters.get(finding.cluster)
        if found is None or not found.shows(seen.target):
            return None
        subjects = tuple(one for one in seen.subjects if found.shows(one))
        if seen.subjects and not subjects:
            return None
        return self._blank_finding(replace(finding, seen_as=msgspec.structs.replace(seen, subjects=subjects)), found)

    def _blank_finding(self, finding: Finding, *filters: _Filter) -> Finding:
        """The finding with hidden names blanked, in the note of its acknowledgment, too."""
        for one in filters if any(one.view is not None for one in filters) else ():
            seen, blank = finding.seen_as, one.blank
            visible = msgspec.structs.replace(
                seen,
                what=blank(seen.what),
                evidence=_blank_value(seen.evidence, blank),
                next=msgspec.structs.replace(seen.next, arguments=_blank_value(seen.next.arguments, blank)),
            )
            finding = replace(finding, seen_as=visible, note=blank(finding.note))
        return finding


def _blank_value(value: Any, blank: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return blank(value)
    if type(value) is int:  # it may be a vmid
        return value if blank(text := f"guest {value}") == text else BLANK
    if isinstance(value, dict):
        return {blank(name): _blank_value(one, blank) for name, one in value.items()}
    return [_blank_value(one, blank) for one in value] if isinstance(value, list) else value
