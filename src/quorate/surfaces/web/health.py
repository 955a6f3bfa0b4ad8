"""Health and metrics for monitoring, and a shutdown that finishes what is running."""

from __future__ import annotations

import asyncio
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive

from quorate import __version__
from quorate.log import CallRecord
from quorate.state.limits import Freeze
from quorate.state.store import StateUnavailable, Store
from quorate.surfaces.web.replies import reply
from quorate.watch.finding_store import Findings
from quorate.watch.outbox import Outbox
from quorate.watch.watchers import Watchers


class GracefulShutdown:
    def __init__(self) -> None:
        self.leaving = False
        """Not ready any more; calls are still accepted, because load balancers need a moment to notice."""
        self._closing = asyncio.Event()

    @property
    def closing(self) -> bool:
        """Nothing new is accepted; streams on which a client only listens end."""
        return self._closing.is_set()

    def close(self) -> None:
        self.leaving = True
        self._closing.set()

    def until_closing(self, receive: Receive) -> Receive:
        """For a stream on which the client only listens: closing looks as if the client had disconnected."""

        async def either() -> Message:
            waiting = {asyncio.ensure_future(receive()), asyncio.ensure_future(self._closing.wait())}
            try:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                message = next((result for task in done if isinstance(result := task.result(), dict)), None)
                return message or {"type": "http.disconnect"}
            finally:
                for task in waiting:
                    task.cancel()

        return either


HEALTH_PATHS = ("/healthz", "/readyz")
STORE_TIMEOUT = 1.0


def health_routes(store: Store, shutdown: GracefulShutdown) -> list[Route]:
    freeze = Freeze(store)

    async def changes() -> str:
        """Reason and author are for authenticated callers; a slow store must not look like a dead process."""
        try:
            async with asyncio.timeout(STORE_TIMEOUT):
                return "allowed" if await freeze.state() is None else "frozen"
        except (StateUnavailable, TimeoutError):
            return "not known, so none are made"

    async def alive(_: Request) -> Response:
        return reply(200, {"status": "alive", "version": __version__, "changes": await changes()})

    async def ready(_: Request) -> Response:
        """Clusters are not asked: calls to one that is down fail on their own, and the others work."""
        if shutdown.leaving:
            return reply(503, {"status": "leaving"})
        try:
            await store.ready()
        except StateUnavailable:
            return reply(503, {"status": "not ready", "why": "the state store cannot be reached"})
        return reply(200, {"status": "ready", "changes": await changes()})

    return [Route("/healthz", alive), Route("/readyz", ready)]


CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
disable_created_metrics()  # type: ignore[no-untyped-call] # a second series for every counter, which nobody reads
BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """What the server counts as it works. One registry for each server, so that two in one process stay apart."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        own: Any = {"registry": self._registry}
        self.calls = Counter("quorate_calls", "Tool calls by tool and outcome.", ("tool", "outcome"), **own)
        self.seconds = Histogram("quorate_call_seconds", "How long tool calls take.", ("tool",), buckets=BOUNDS, **own)
        self.running = Gauge("quorate_calls_running", "Tool calls that run now.", **own)
        self.refused_credentials = Counter(
            "quorate_auth_failures", "Requests without valid credentials, by reason.", ("reason",), **own
        )
        self.rate_limited = Counter(
            "quorate_rate_limited", "Requests refused because there were too many, by what is counted.", ("by",), **own
        )

    def text(
        self,
        *,
        pve: Mapping[str, Counts[tuple[str, str]]],
        pending: int | None,
        frozen: bool | None,
        watch: Iterable[Metric] = (),
    ) -> bytes:
        """`pve` counts requests to each cluster by method and response; `pending` and `frozen` are None if unknown."""
        return generate_latest(_Families([*self._registry.collect(), *_current(pve, pending, frozen), *watch]))


def _current(pve: Mapping[str, Counts[tuple[str, str]]], pending: int | None, frozen: bool | None) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "quorate_pve_requests", "Requests to Proxmox VE.", labels=("cluster", "method", "answer")
    )
    for cluster, counted in sorted(pve.items()):
        for (method, answer), count in sorted(counted.items()):
            requests.add_metric((cluster, method, answer), count)
    yield requests
    yield GaugeMetricFamily(
        "quorate_event_loop_tasks",
        "Asyncio tasks inside the server; at rest their number stays the same.",
        len(asyncio.all_tasks()),
    )
    if pending is not None:
        yield GaugeMetricFamily("quorate_approvals_pending", "Requests that wait for an operator.", pending)
    if frozen is not None:
        yield GaugeMetricFamily("quorate_changes_frozen", "1 while all changes are frozen.", int(frozen))


class _Families(Collector):
    """Families that are already collected."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


class CallMetrics:
    """Counts and times tool calls."""

    def __init__(self, metrics: Metrics, knows: Callable[[str], bool]) -> None:
        self._metrics = metrics
        self._knows = knows

    def start_call(self) -> None:
        self._metrics.running.inc()

    def end_call(self, call: CallRecord) -> None:
        """Only known names become labels: callers choose names, and each label takes memory."""
        tool = call.tool if self._knows(call.tool) else "unknown"
        self._metrics.running.dec()
        self._metrics.calls.labels(tool, call.outcome).inc()
        self._metrics.seconds.labels(tool).observe(call.seconds)


class WatchMetrics:
    """What the watch has found. It comes from the store, so every replica shows the same."""

    def __init__(self, store: Store) -> None:
        self._findings = Findings(store)
        self._outbox = Outbox(store, owner="")
        self._watchers = Watchers(store)

    async def collect(self, clusters: frozenset[str] | None = None) -> list[Metric]:
        """Metrics of these clusters or of all; empty if nothing was ever watched, because a zero would look healthy."""
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
        for cluster, measured in sorted(watched.items()):
            for family, value in (
                (last, measured.last),
                (seconds, measured.seconds),
                (requests, measured.requests),
                (unread, measured.unread),
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
