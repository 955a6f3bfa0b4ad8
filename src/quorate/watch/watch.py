"""The watch: cycles over all clusters and hosts by one process at a time, and messages about what they find."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any

from quorate.config.clusters import HOMELAB, SERVER
from quorate.config.watch import WatchSettings
from quorate.homelab.homelab import Homelab
from quorate.problems import Problem
from quorate.pve.cluster import Cluster
from quorate.runs.store import RunState, RunStore
from quorate.state.approvals import Approvals
from quorate.state.limits import Freeze
from quorate.state.store import Lease, Store, new_owner
from quorate.state.trail import AuditTrail
from quorate.tools.health_findings import KINDS
from quorate.watch.channels import Channel
from quorate.watch.checks import backup_servers, hosts, server
from quorate.watch.cycle import ClusterWatch
from quorate.watch.finding_store import Events, Finding, Findings
from quorate.watch.notifier import Notifier
from quorate.watch.outbox import Delivery, Notice, Outbox
from quorate.watch.watchers import Watchers

TICK_SECONDS = 5.0
"""How often approvals, the freeze and the outbox are checked: a few reads of the store."""
LEASE_SECONDS = 300.0
"""Half of it outlasts a cycle and the deliveries after it."""
CYCLE_SECONDS = 90.0
"""A cycle that takes longer is abandoned: a cluster that hangs must not stop the others."""
FORGET_SECONDS = 3600.0
_LOG = logging.getLogger(__name__)


class Watch:
    def __init__(
        self,
        settings: WatchSettings,
        store: Store,
        clusters: Sequence[Cluster],
        homelab: Homelab,
        *,
        trail: AuditTrail | None = None,
        sanitize: Callable[[Any], Any] = lambda data: data,
    ) -> None:
        self.settings = settings
        self._sanitize = sanitize
        self._store = store
        self._clock = store.clock
        owner = new_owner()
        names = [*(cluster.name for cluster in clusters), HOMELAB, SERVER]
        self._leases = {name: Lease(store, f"watch {name}", LEASE_SECONDS, owner) for name in names}
        """One for each cluster: servers with different clusters share a store."""
        self._held: set[str] = set()
        self._findings = Findings(store)
        self._outbox = Outbox(store, owner)
        self._watchers = Watchers(store)
        self._clusters = [ClusterWatch(cluster, settings, store, trail) for cluster in clusters]
        self._by_name = {cluster.name: cluster for cluster in clusters}
        self._hosts = hosts.HostFacts(homelab)
        self._backup_servers = backup_servers.BackupServerFacts(homelab)
        self._approvals = Approvals(store)
        self._freeze = Freeze(store)
        self._runs = RunStore(store)
        self._events = Events(store)
        self.channels = [
            Channel(channel, homelab.secret_store.fetch, self._clock.time) for channel in settings.channels
        ]
        self._notifier = Notifier(
            self.channels,
            self._findings,
            self._outbox,
            page=lambda finding: server.page(settings, f"/findings/{finding}"),
            sanitize=sanitize,
        )
        self._next_cycles: dict[str, float] = {}
        self._next_forgetting = float("-inf")

    # -- what people use -------------------------------------------------------------------------------------------

    async def findings(self) -> list[Finding]:
        """The open ones, worst first."""
        return await self._findings.open()

    async def describe_status(self) -> dict[str, Any]:
        """When it last looked, and what it has not seen."""
        return await self._watchers.describe(self._clock.time())

    async def acknowledge(self, id: str, by: str, note: str = "") -> Finding:
        return await self._findings.acknowledge(id, by, note)

    async def silence(self, id: str, until: float, by: str, note: str = "") -> Finding:
        return await self._findings.silence(id, until, by, note)

    async def deliveries(self, limit: int, channel: str | None = None) -> list[Delivery]:
        """The log of messages, newest first."""
        return await self._outbox.log(limit, channel)

    async def test(self, channel: Channel) -> str:
        """Send a test message; returns why it failed, or nothing. It appears in the log."""
        kind, name = "watch-test", f"test {secrets.token_hex(8)}"
        notice = Notice("opened", "info", SERVER, kind, f"A test of channel {channel.name}", KINDS[kind])
        await self._outbox.put(channel.name, name, 1, notice, due=self._clock.time(), together=False)
        parcel = await self._outbox.claim_of(channel.name, name)
        return "another process sends it" if parcel is None else await self._notifier.send(channel, parcel, once=True)

    # -- running ---------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch in the background for as long as the context lasts."""
        task = asyncio.create_task(self.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            with contextlib.suppress(Problem):
                for lease in self._leases.values():
                    await lease.release()

    async def run(self) -> None:
        while True:
            try:
                await self.step()
            except Problem as problem:
                _LOG.warning("The watch cannot continue now: %s", problem)
            except Exception as error:  # noqa: BLE001 (an internal defect must not end the watch)
                _LOG.error("%s", self._sanitize("".join(traceback.format_exception(error))))
            await self._clock.sleep(TICK_SECONDS)

    async def step(self) -> bool:
        """Do what is due of what no other process watches; False if there is nothing."""
        before, self._held = self._held, {name for name, lease in self._leases.items() if await lease.take()}
        for watch in self._clusters:
            if watch.name in self._held - before:
                watch.forget()  # another process has watched it since
        if not self._held:
            return False
        now = self._clock.time()
        due = {name for name in self._held if now >= self._next_cycles.get(name, now)}
        self._next_cycles |= dict.fromkeys(due - {SERVER}, now + self.settings.every)
        await self.cycle(due)
        await self.notify(self._held)
        if now >= self._next_forgetting:
            self._next_forgetting = now + FORGET_SECONDS
            await self._forget_old()
        return True

    async def cycle(self, names: Collection[str] | None = None) -> None:
        """Look once at these clusters, at the hosts and at this server, as far as they are named; by default at all."""
        chosen = self._leases.keys() if names is None else names
        cycles = [self._cycle_of(watch) for watch in self._clusters if watch.name in chosen]
        if HOMELAB in chosen:
            cycles.append(self._cycle_of_hosts())
        ended = await asyncio.gather(*cycles, return_exceptions=True)
        if SERVER in chosen:
            await self._observe_server()
        for result in ended:
            if isinstance(result, BaseException):
                raise result

    async def notify(self, names: Collection[str] | None = None) -> None:
        """Send what is new about these clusters, the hosts and this server; by default about all."""
        now = self._clock.time()
        chosen = self._leases.keys() if names is None else names
        others = {name for name, status in (await self._watchers.all()).items() if status.is_current(now)} - {*chosen}
        await self._notifier.enqueue(now, lambda finding: _is_ours(finding, chosen, others))
        await self._notifier.deliver()

    async def _cycle_of(self, watch: ClusterWatch) -> None:
        client = self._by_name[watch.name].client
        begun, asked = self._clock.monotonic(), client.asked.total()
        try:
            async with asyncio.timeout(CYCLE_SECONDS):
                await watch.run()
        except TimeoutError:
            _LOG.warning("A cycle over %s took longer than %g s", watch.name, CYCLE_SECONDS)
            await watch.note_unreachable(f"everything could not be read within {CYCLE_SECONDS:g} s")
            return
        await self._watchers.note(
            watch.name,
            self._clock.time(),
            self.settings.every,
            requests=client.asked.total() - asked,
            seconds=self._clock.monotonic() - begun,
            unread=watch.snapshot.waiting if watch.snapshot else 0,
        )

    async def _cycle_of_hosts(self) -> None:
        begun = self._clock.monotonic()
        try:
            async with asyncio.timeout(CYCLE_SECONDS):
                await asyncio.gather(self._hosts.read(), self._backup_servers.read())
        except TimeoutError:
            return
        states, servers = self._hosts.states, self._backup_servers.states
        observations = [
            *hosts.judge(states),
            *backup_servers.judge(servers, self.settings, self._clock.time()),
        ]
        await self._findings.observe(
            HOMELAB,
            observations,
            lambda source: (
                backup_servers.covers(servers, source) if source.startswith("pbs ") else hosts.covers(states, source)
            ),
        )
        await self._watchers.note(
            HOMELAB,
            self._clock.time(),
            self.settings.every,
            seconds=self._clock.monotonic() - begun,
            unread=sum(state.reached is True and state.disks is None for state in states.values()),
        )

    async def _observe_server(self) -> None:
        waiting = await self._approvals.list(limit=200)
        paused = await self._runs.list((RunState.PAUSED,), limit=1000)  # however many have failed since
        stopped = [*paused, *await self._runs.list((RunState.FAILED,))]
        observations = [
            *server.approvals(waiting, self.settings),
            *server.runs(stopped, self._clock.time(), self.settings),
            *server.freeze(await self._freeze.state(), self.settings),
            *server.channels(await self._outbox.failing()),
        ]
        await self._findings.observe(SERVER, observations, lambda _: True, may_flap=False)

    async def _forget_old(self) -> None:
        await self._findings.forget_old()
        await self._events.forget_old()
        await self._outbox.forget_old(channel.name for channel in self.channels)


def _is_ours(finding: Finding, watched: Collection[str], others: Collection[str]) -> bool:
    """Whether this process reports the finding: it watches what it is about, or no other process does."""
    about = finding.seen_as.evidence.get("cluster", SERVER) if finding.cluster == SERVER else finding.cluster
    return about in watched or (SERVER in watched and about not in others)
