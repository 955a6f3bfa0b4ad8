"""What the watch has found, as metrics. They come from the store, so every replica shows the same."""

from __future__ import annotations

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from quorate.state.findings import Findings
from quorate.state.outbox import Outbox
from quorate.state.store import Store
from quorate.state.watchers import Watchers


class WatchMetrics:
    def __init__(self, store: Store) -> None:
        self._findings = Findings(store)
        self._outbox = Outbox(store, owner="")
        self._watchers = Watchers(store)

    async def collect(self, clusters: frozenset[str] | None = None) -> list[Metric]:
        """Of these clusters or of all. Empty if nothing was ever watched: a zero would say that nothing is wrong."""
        watched = await self._watchers.all(clusters)
        if not watched:
            return []
        labels = ("cluster", "kind", "severity", "state")
        findings = GaugeMetricFamily("quorate_findings", "Findings that are not resolved.", labels=labels)
        for key, count in sorted((await self._findings.counts()).items()):
            if clusters is None or key[0] in clusters:
                findings.add_metric(key, count)
        last = _gauge("quorate_watch_last_cycle_timestamp_seconds", "When the last cycle over a cluster ended.")
        seconds = _gauge("quorate_watch_cycle_seconds", "How long that cycle took.")
        requests = _gauge("quorate_watch_cycle_requests", "Requests to Proxmox VE in that cycle.")
        unread = _gauge("quorate_watch_unread_facts", "Facts that were never read, so nothing is known about them.")
        for cluster, one in sorted(watched.items()):
            for family, value in (
                (last, one.last),
                (seconds, one.seconds),
                (requests, one.requests),
                (unread, one.unread),
            ):
                family.add_metric((cluster,), value)
        messages = GaugeMetricFamily(
            "quorate_deliveries", "Messages of the last 30 days by channel and state.", labels=("channel", "state")
        )
        for (channel, state), count in sorted((await self._outbox.counts()).items()):
            messages.add_metric((channel, state), count)
        return [findings, last, seconds, requests, unread, messages]


def _gauge(name: str, help_text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, labels=("cluster",))
