"""The composition root: settings -> cluster -> pipeline -> surface."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from quorate.config import Access, Approval, ClusterSettings, ConfigError, Settings
from quorate.config.folders import usual_audit_file, usual_state
from quorate.homelab.home import Homelab
from quorate.homelab.settings import HomelabSettings
from quorate.operations.registry import EVERY, MOST_TOOLS, operations
from quorate.pipeline.approval import Approver, Wish
from quorate.pipeline.caller import Caller
from quorate.pipeline.carrying import carry_out
from quorate.pipeline.gate import Gate
from quorate.pipeline.governing import govern, make_sites
from quorate.pipeline.run import Pipeline
from quorate.pve.clock import Clock, SystemClock
from quorate.pve.cluster import Cluster, Defaults
from quorate.pve.connection import Connection, Secret, Token, Trust
from quorate.ssh.access import SshAccess
from quorate.ssh.settings import Login, SshSettings
from quorate.state.approvals import Approvals
from quorate.state.passphrase import Passphrase
from quorate.state.store import Store, open_store
from quorate.state.trail import AuditTrail, open_trail

if TYPE_CHECKING:
    from quorate.homelab.shells import Shells
    from quorate.sim.cluster import SimulatedCluster
    from quorate.surfaces.compat.declaring import System
    from quorate.surfaces.compat.running import House
    from quorate.surfaces.server import Server
    from quorate.surfaces.surface import Surface

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


@dataclass(slots=True)
class App:
    settings: Settings
    pipeline: Pipeline
    store: Store
    audit: AuditTrail

    @property
    def cluster(self) -> Cluster | None:
        """The first one: in most homes, the only one."""
        return next((site.cluster for site in self.pipeline.sites), None)

    @property
    def shells(self) -> Shells | None:
        """Terminals for people, where a tool can offer them."""
        offered = "hosts" in self._with_all_toolsets(self.pipeline.gate).toolsets
        home = self.pipeline.sites.home
        return home.cluster.shells if offered and home and isinstance(home.cluster, Homelab) else None

    def server(self, **options: Any) -> Server:
        from quorate.surfaces.server import Server  # the MCP SDK is the largest import; `call` does without it

        return Server(self.pipeline.variant(adapt=self._with_all_toolsets), self.surfaces(), **options)

    def surfaces(self) -> list[Surface]:
        """In the order in which the operator named them; a tool name that two of them have is refused."""
        chosen = {name: self._surface(name) for name in self.settings.surfaces}
        for (one, first), (other, second) in itertools.combinations(chosen.items(), 2):
            if both := next((tool.name for tool in second.tools(Caller()) if first.knows(tool.name)), None):
                raise ConfigError(
                    f"The surfaces {one} and {other} both have a tool {both}: start a server for each of them."
                )
        return list(chosen.values())

    def _surface(self, name: str) -> Surface:
        if name == "native":
            from quorate.surfaces.native import NativeSurface

            self._refuse_too_many()
            return NativeSurface(self.pipeline)
        if name == "lean":
            from quorate.surfaces.lean import LeanSurface

            return LeanSurface(self.pipeline.variant(adapt=self._with_all_toolsets))
        from quorate.surfaces.compat import system
        from quorate.surfaces.compat.surface import CompatSurface

        chosen = system(name)
        return CompatSurface(chosen, self._opened_for(chosen), self._house())

    def _refuse_too_many(self) -> None:
        """A client that is given more tools than that picks the wrong ones, if it takes them at all."""
        count = len(operations(self.pipeline.gate.toolsets))
        if count > MOST_TOOLS:
            raise ConfigError(
                f"These toolsets make {count} tools, more than the {MOST_TOOLS} that a client can use well: leave some "
                "out, or start Quorate with --surface lean, whose few tools reach everything."
            )

    def _house(self) -> House:
        """The other servers know one cluster; here it is the first, unless --cluster has chosen another."""
        from quorate.surfaces.compat.running import House

        if self.cluster is None:
            return House(self.settings.opt_ins)
        name = self.cluster.name if self.pipeline.sites.several else None
        return House(self.settings.opt_ins, self.cluster.defaults, name, _by_endpoint(self.settings.clusters))

    def _opened_for(self, system: System) -> Pipeline:
        """The pipeline behind another server's tools: all toolsets, unless the operator chose some.

        That server's own opt-in in the environment speaks for the operator where Quorate has not been told anything:
        a set-up that works there goes on working. It never loosens what was chosen here.
        """

        def adapt(gate: Gate) -> Gate:
            open_wide = opt_in_of(self.settings, system) is not None
            return replace(self._with_all_toolsets(gate), access=Access.ADMIN if open_wide else gate.access)

        def wish() -> Wish:
            opt_in = opt_in_of(self.settings, system)
            return Wish(Approval.NONE, opted_in=opt_in) if opt_in else wish_of(self.settings)

        return self.pipeline.variant(adapt=adapt, approver=replace(self.pipeline.approver, wish=wish))

    def _with_all_toolsets(self, gate: Gate) -> Gate:
        """The default set spares a client's tokens. Where more cost none, all are on unless the operator chose some."""
        return gate if self.settings.toolsets else replace(gate, toolsets=frozenset(EVERY))

    def adopt(self, settings: Settings) -> None:
        """Let access, approval, rules and limits of these settings hold from now on; connections stay as they are."""
        govern(self.pipeline.sites, settings)
        self.settings = settings

    async def close(self) -> None:
        for site in self.pipeline.sites.everywhere:
            await site.cluster.close()
        await self.audit.close()
        await self.store.close()


def _by_endpoint(clusters: Iterable[ClusterSettings]) -> dict[str, str]:
    """Cluster by its own name, and by the host of each of its API endpoints."""
    named = {one.name.lower(): one.name for one in clusters}
    hosts = ((urlsplit(url).hostname, one.name) for one in clusters for url in one.connection.endpoints)
    return named | {host: name for host, name in hosts if host}


def wish_of(settings: Settings) -> Wish:
    return Wish(settings.approval, settings.approve_changes)


def opt_in_of(settings: Settings, system: System) -> str | None:
    """The variable by which another server's operator allows everything, where Quorate was told nothing else."""
    return system.opt_in if system.opt_in in settings.opt_ins and not settings.gate_chosen else None


def build(settings: Settings, *, clock: Clock | None = None) -> App:
    store = open_store(settings.state, clock=clock or SystemClock())
    clusters = [_cluster(one, settings, clock) for one in settings.clusters]
    home = Homelab(settings.homelab, store, clusters, clock=clock, command_rules=settings.command_rules)
    home.carry_out = carry_out
    sites = make_sites(settings, clusters, home)
    audit = open_trail(store, settings.audit_file)
    approver = Approver(Approvals(store), Passphrase(store), lambda: wish_of(app.settings))
    app = App(settings, Pipeline(sites, audit, approver, wait_seconds=settings.wait_seconds), store, audit)
    home.shells.needs_passphrase = lambda: wish_of(app.settings).mode is not Approval.NONE
    return app


def _cluster(one: ClusterSettings, settings: Settings, clock: Clock | None) -> Cluster:
    return Cluster(
        one.name,
        one.connection,
        defaults=Defaults(one.default_node, one.default_storage, one.default_bridge),
        clock=clock,
        ssh=SshAccess(one.ssh),
        command_rules=settings.command_rules,
    )


@contextlib.asynccontextmanager
async def demo_settings(settings: Settings) -> AsyncIterator[Settings]:
    """The same settings, pointed at a simulated cluster that lives as long as the context.

    So do its approvals and its audit trail, unless the operator chose a place for them: what is tried out has no
    place among the operator's own.
    """
    import tempfile

    from quorate.sim.cluster import SimulatedCluster

    with tempfile.TemporaryDirectory(prefix="quorate-demo-") as name:
        if settings.state == usual_state():
            settings = replace(settings, state=f"{name}/state.sqlite")
        if settings.audit_file == usual_audit_file():
            settings = replace(settings, audit_file=Path(name, "audit.jsonl"))
        async with SimulatedCluster(ssh=True) as simulated:
            alone = replace(settings, homelab=_on_loopback(settings.homelab))
            yield replace(alone, clusters=(simulated_cluster(simulated),), problem=None)


def _on_loopback(homelab: HomelabSettings) -> HomelabSettings:
    """The demo's homelab: whatever a caller tries, nobody but this machine is asked."""
    ssh = replace(homelab.ssh, nodes=replace(homelab.ssh.nodes, jump=None), networks=LOOPBACK)
    return replace(homelab, ssh=ssh, networks=LOOPBACK)


def simulated_cluster(simulated: SimulatedCluster) -> ClusterSettings:
    """How to reach a simulated cluster: as any other, by URL, CA and token."""
    token = Token(simulated.token_id, Secret(simulated.token_secret))
    connection = Connection(tuple(simulated.urls), token, Trust(ca_file=str(simulated.ca_file)))
    return ClusterSettings("demo", connection, ssh=_simulated_ssh(simulated))


def _simulated_ssh(simulated: SimulatedCluster) -> SshSettings:
    """The addresses that simulated nodes and guests tell belong to nobody or to somebody else: they are not tried."""
    if not simulated.has_ssh:
        return SshSettings(networks=LOOPBACK)
    hosts = {node: f"127.0.0.1:{port}" for node, port in simulated.ssh_ports.items()}
    return SshSettings(
        Login(user="root", key=Path(simulated.ssh_key_file)),
        hosts,
        known_hosts=(Path(simulated.ssh_known_hosts),),
        networks=LOOPBACK,
    )
