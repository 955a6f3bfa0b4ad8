"""The composition root: settings -> cluster -> pipeline -> surface."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import logging
import tempfile
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from quorate.config import Approval, ClusterSettings, ConfigError, Settings
from quorate.config.clusters import GuestDefaults
from quorate.config.files import usual_audit_file, usual_state
from quorate.config.homelab import HomelabSettings
from quorate.config.images import ImageCatalog
from quorate.config.pbs import BackupServerSettings
from quorate.homelab.homelab import Homelab, job_book
from quorate.pbs import BackupServers
from quorate.pipeline.approval import ApprovalSettings, Approver
from quorate.pipeline.caller import ALL_BY_DEFAULT, Caller
from quorate.pipeline.pipeline import Pipeline
from quorate.pipeline.sites import govern, make_sites
from quorate.problems import Problem
from quorate.pve.cluster import Cluster, Defaults
from quorate.pve.connection import PBS, Clock, Connection, Secret, SystemClock, Token, Trust
from quorate.runs.store import RunStore
from quorate.ssh.settings import Login, SshAccess, SshSettings
from quorate.state.approvals import Approvals
from quorate.state.journal import Journal
from quorate.state.limits import Freeze
from quorate.state.passphrase import Passphrase
from quorate.state.store import Store, open_store
from quorate.state.tokens import Tokens
from quorate.state.trail import AuditTrail, open_trail

if TYPE_CHECKING:
    from pve_simulator.pbs.server import BackupServer as SimulatedBackupServer
    from pve_simulator.simulator import SimulatedCluster
    from quorate.config.http import HttpSettings
    from quorate.config.watch import WatchSettings
    from quorate.homelab.shells import Shells
    from quorate.pbs.server import BackupServer
    from quorate.pipeline.proof import Resolution
    from quorate.runs.runs import Runs
    from quorate.surfaces.compat.execution import CompatSettings
    from quorate.surfaces.native import Surface
    from quorate.surfaces.server import Server
    from quorate.surfaces.web.application import Core
    from quorate.surfaces.web.credentials import LocalLogin
    from quorate.watch.watch import Watch

RESOLVE_SECONDS = 60.0
_LOG = logging.getLogger(__name__)
LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


@dataclass(slots=True)
class App:
    settings: Settings
    pipeline: Pipeline
    store: Store
    audit: AuditTrail
    homelab: Homelab
    run_store: RunStore
    _runs: Runs | None = None
    _watch: Watch | None = None

    @property
    def cluster(self) -> Cluster | None:
        """The first cluster, in most homes the only one."""
        return next((site.cluster for site in self.pipeline.sites), None)

    @property
    def shells(self) -> Shells | None:
        """Terminals for people, if a tool can offer them."""
        offered = "hosts" in self.pipeline.gate(Caller(exposure=ALL_BY_DEFAULT)).toolsets
        return self.homelab.shells if offered else None

    def server(self, **options: Any) -> Server:
        from quorate.surfaces.server import Server  # the MCP SDK is the largest import; `call` does without it

        return Server(self.pipeline, self.surfaces(), **options)

    def core(self, http: HttpSettings, local_login: LocalLogin | None = None) -> Core:
        """What the HTTP server needs."""
        from quorate.surfaces.web.application import Core

        clusters = [site.cluster for site in self.pipeline.sites]
        return Core(http, self.store, clusters, self.server, self.audit, self.pipeline, self.shells, local_login)

    def surfaces(self) -> list[Surface]:
        """The chosen surfaces, in the operator's order. Raises ConfigError if two of them share a tool name."""
        chosen = {name: self._surface(name) for name in self.settings.surfaces}
        for (name, first), (other, second) in itertools.combinations(chosen.items(), 2):
            if both := next((tool.name for tool in second.tools(Caller()) if first.knows(tool.name)), None):
                raise ConfigError(
                    f"The surfaces {name} and {other} both have a tool {both}: start a server for each of them."
                )
        return list(chosen.values())

    def _surface(self, name: str) -> Surface:
        if name == "native":
            from quorate.surfaces.native import NativeSurface

            return NativeSurface(self.pipeline)
        if name == "lean":
            from quorate.surfaces.lean import LeanSurface

            return LeanSurface(self.pipeline)
        from quorate.surfaces.compat import system
        from quorate.surfaces.compat.surface import CompatSurface

        return CompatSurface(system(name), self.pipeline, self._compat_settings())

    def _compat_settings(self) -> CompatSettings:
        """Settings for the tools of other servers, which know one cluster: the first, or that of --cluster."""
        from quorate.surfaces.compat.execution import CompatSettings

        if self.cluster is None:
            return CompatSettings(self.settings.opt_ins)
        name = self.cluster.name if self.pipeline.sites.several else None
        return CompatSettings(
            self.settings.opt_ins,
            self.cluster.defaults,
            name,
            _names_by_endpoint(self.settings.clusters),
            container_password=self.settings.container_password,
        )

    def adopt(self, settings: Settings) -> None:
        """Apply access, approval, rules and limits of these settings from now on; connections stay as they are."""
        govern(self.pipeline.sites, settings)
        self.settings = settings

    @contextlib.asynccontextmanager
    async def resolving(self) -> AsyncIterator[None]:
        """While the server runs, close the entries of changes whose process died, at start and regularly."""
        task = asyncio.create_task(self._keep_resolving())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep_resolving(self) -> None:
        said: set[str] = set()
        while True:
            try:
                news = {_describe(resolution) for resolution in await self.pipeline.resolve_unfinished()}
                for text in sorted(news - said):
                    _LOG.warning("%s", text)
                said = news
            except Problem as problem:
                _LOG.warning("Unfinished changes cannot be resolved now: %s", problem)
            except Exception as error:  # noqa: BLE001 (an internal defect must not end the loop)
                _LOG.error("%s", self.pipeline.trace_of(error, {}))
            await asyncio.sleep(RESOLVE_SECONDS)

    @property
    def runs(self) -> Runs:
        """The workers of durable runs; a single call does without them."""
        if self._runs is None:
            from quorate.runs.runs import Runs

            self._runs = Runs(self.pipeline, self.run_store, Tokens(self.store))
        return self._runs

    @property
    def watch(self) -> Watch | None:
        """The watch over all clusters and hosts, if `[watch]` enables it."""
        if self._watch is None and self.settings.watch is not None:
            from quorate.watch.watch import Watch

            clusters = [site.cluster for site in self.pipeline.sites]
            self._watch = Watch(
                with_public_url(self.settings),
                self.store,
                clusters,
                self.homelab,
                trail=self.audit,
                sanitize=self.pipeline.sanitize,
            )
        return self._watch

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """While the server runs, watch if that is enabled."""
        async with self.watch.running() if self.watch is not None else contextlib.nullcontext():
            yield

    async def close(self) -> None:
        for site in self.pipeline.sites.everywhere:
            await site.backend.close()
        await self.pipeline.journal.finish()
        await self.store.close()


def _describe(resolution: Resolution) -> str:
    outcome = resolution.outcome or "not known yet"
    entry, says = resolution.entry, " ".join(resolution.says)
    return f"{entry.get('plan')} ({entry.get('time')}) was cut off; {outcome}. {says}"


def _names_by_endpoint(clusters: Iterable[ClusterSettings]) -> dict[str, str]:
    """Cluster names by name and by the host of each API endpoint."""
    named = {cluster.name.lower(): cluster.name for cluster in clusters}
    hosts = ((urlsplit(url).hostname, cluster.name) for cluster in clusters for url in cluster.connection.endpoints)
    return named | {host: name for host, name in hosts if host}


def approval_settings_of(settings: Settings) -> ApprovalSettings:
    page = f"{settings.http.url}/console" if settings.http else ""
    return ApprovalSettings(settings.approval, settings.approve_changes, page=page, state=settings.state)


def with_public_url(settings: Settings) -> WatchSettings:
    """How to watch; links lead to the address of the HTTP server unless `[watch]` names another."""
    assert settings.watch is not None
    known = settings.watch.public_url or (settings.http.public_url if settings.http else None)
    return replace(settings.watch, public_url=known)


def build(
    settings: Settings, *, clock: Clock | None = None, store: Store | None = None, audit: AuditTrail | None = None
) -> App:
    store = store or open_store(settings.state, clock=clock or SystemClock())
    audit = audit or open_trail(store, settings.audit_file)
    journal = Journal(audit, store)
    run_store = RunStore(store, journal.entry)
    backup_servers = _backup_servers(settings, clock)
    attached = (run_store, journal, BackupServers(backup_servers))
    clusters = [_cluster(cluster, settings, clock, store, attached) for cluster in settings.clusters]
    home = Homelab(
        settings.homelab,
        store,
        clusters,
        clock=clock,
        command_rules=settings.command_rules,
        needs_passphrase=lambda: approval_settings_of(app.settings).mode is not Approval.NONE,
        backup_servers=backup_servers,
    )
    for cluster in clusters:
        cluster.attach(home.secret_store)
    sites = make_sites(settings, clusters, home)
    approver = Approver(Approvals(store), Passphrase(store), lambda: approval_settings_of(app.settings))
    pipeline = Pipeline(sites, journal, approver, wait_seconds=settings.wait_seconds, upload_dirs=settings.upload_dirs)
    app = App(settings, pipeline, store, audit, home, run_store)
    home.secret_store.revealed |= _channel_secrets(settings)
    return app


def _channel_secrets(settings: Settings) -> set[str]:
    """Secrets of notification channels, to be redacted from every result."""
    channels = settings.watch.channels if settings.watch else ()
    return {
        secret.reveal() for channel in channels for secret in channel.secrets.values() if not isinstance(secret, str)
    }


def _backup_servers(settings: Settings, clock: Clock | None) -> tuple[BackupServer, ...]:
    if not settings.backup_servers:
        return ()
    from quorate.pbs.server import BackupServer  # most setups have none

    return tuple(BackupServer(server.name, server.connection, clock=clock) for server in settings.backup_servers)


def _cluster(
    cluster: ClusterSettings,
    settings: Settings,
    clock: Clock | None,
    store: Store,
    attachments: Iterable[object],
) -> Cluster:
    return Cluster(
        cluster.name,
        cluster.connection,
        defaults=_defaults_of(cluster, settings.guest_defaults),
        clock=clock,
        ssh=SshAccess(cluster.ssh),
        command_rules=settings.command_rules,
        attachments=(*attachments, Freeze(store), job_book(store), ImageCatalog(settings.image_catalog)),
    )


def _defaults_of(cluster: ClusterSettings, usual: GuestDefaults) -> Defaults:
    return Defaults(
        cluster.default_node,
        cluster.default_storage or usual.storage,
        cluster.default_bridge or usual.bridge,
        usual.user,
        usual.ssh_keys,
        usual.dns,
        usual.tags,
    )


@contextlib.asynccontextmanager
async def demo_settings(settings: Settings) -> AsyncIterator[Settings]:
    """Point the settings at a simulated cluster that lasts as long as the context.

    Approvals and audit trail are temporary as well, unless the operator chose where to keep them.
    """
    from pve_simulator.pbs.server import BackupServer
    from pve_simulator.simulator import SimulatedCluster
    from pve_simulator.storage.backup_server import connect

    with tempfile.TemporaryDirectory(prefix="quorate-demo-") as name:
        if settings.state == usual_state():
            settings = replace(settings, state=f"{name}/state.sqlite")
        if settings.audit_file == usual_audit_file():
            settings = replace(settings, audit_file=Path(name, "audit.jsonl"))
        simulated = SimulatedCluster(ssh=True)
        async with simulated, BackupServer(clock=simulated.clock) as backup_server:
            connect(simulated.world, backup_server)
            watch = replace(settings.watch, channels=()) if settings.watch else None  # a demo sends no messages
            alone = replace(settings, homelab=_limit_to_loopback(settings.homelab), watch=watch)
            yield replace(
                alone,
                clusters=(simulated_cluster(simulated),),
                backup_servers=(simulated_backup_server(backup_server),),
                problem=None,
            )


def _limit_to_loopback(homelab: HomelabSettings) -> HomelabSettings:
    """The demo's homelab contacts nothing but this machine."""
    ssh = replace(homelab.ssh, nodes=replace(homelab.ssh.nodes, jump=None), networks=LOOPBACK)
    return replace(homelab, ssh=ssh, networks=LOOPBACK)


def simulated_cluster(simulated: SimulatedCluster) -> ClusterSettings:
    """How to reach a simulated cluster: like any other, by URL, CA and token."""
    token = Token(simulated.token_id, Secret(simulated.token_secret))
    connection = Connection(tuple(simulated.urls), token, Trust(ca_file=str(simulated.ca_file)))
    return ClusterSettings("demo", connection, ssh=_simulated_ssh(simulated))


def simulated_backup_server(simulated: SimulatedBackupServer) -> BackupServerSettings:
    """The same for a simulated backup server."""
    token = Token(simulated.token_id, Secret(simulated.token_secret))
    trust = Trust(fingerprint=simulated.fingerprint)
    return BackupServerSettings("vault", Connection((simulated.url,), token, trust, product=PBS))


def _simulated_ssh(simulated: SimulatedCluster) -> SshSettings:
    """Addresses of simulated nodes and guests may belong to someone else, so they are never contacted."""
    if not simulated.has_ssh:
        return SshSettings(networks=LOOPBACK)
    hosts = {node: f"127.0.0.1:{port}" for node, port in simulated.ssh_ports.items()}
    return SshSettings(
        Login(user="root", key=Path(simulated.ssh_key_file)),
        hosts,
        known_hosts=(Path(simulated.ssh_known_hosts),),
        networks=LOOPBACK,
    )
