"""The homelab as operations see it."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quorate.command_rules import CommandRules
from quorate.config.clusters import HOMELAB
from quorate.config.homelab import HomelabSettings
from quorate.homelab.address_index import AddressIndex
from quorate.homelab.host import Host, Hosts, address_to_host, resolve_jumps
from quorate.homelab.secrets import Secrets
from quorate.homelab.shells import Shells
from quorate.inside.jobs import JobBook, JobRecord
from quorate.problems import NotConfigured, PermissionMissing, Problem
from quorate.pve.cluster import Cluster, Neighbors
from quorate.pve.connection import Clock, SystemClock
from quorate.pve.targets import DATASTORE, GUEST, HOST, Hides, Subject, TargetRef, subject_of
from quorate.server_files import ServerFiles
from quorate.ssh.settings import SshAccess
from quorate.state.store import Records, Store

if TYPE_CHECKING:
    from quorate.homelab.machines import Login  # which uses this class
    from quorate.pbs.server import BackupServer

PROBES_AT_ONCE = 128
"""Connections of all scans together: a server without free file handles cannot serve or write."""
JOBS = "job"
"""The kind of record of commands that their machines keep, of hosts and of guests."""


def job_book(store: Store) -> JobBook:
    return JobBook(Records(store, JOBS, JobRecord))


class Homelab:
    """The plain hosts around the clusters, and the clusters themselves, whose nodes and guests are hosts as well.

    It takes the place of a cluster in the pipeline, so gates, rules, approvals and the audit trail work the same way.
    """

    def __init__(
        self,
        settings: HomelabSettings,
        store: Store,
        clusters: Sequence[Cluster] = (),
        *,
        clock: Clock | None = None,
        command_rules: CommandRules | None = None,
        needs_passphrase: Callable[[], bool] = lambda: True,
        backup_servers: Sequence[BackupServer] = (),
    ) -> None:
        self.name = HOMELAB
        self.clock: Clock = clock or SystemClock()
        self.ssh = SshAccess(settings.ssh)
        self.command_rules = command_rules or CommandRules()
        self.settings = settings
        self.store = store
        self.clusters = tuple(clusters)
        self.every_cluster = tuple(clusters)
        """Unfiltered, to find the guests that backups belong to."""
        self.backup_servers = tuple(backup_servers)
        self.hides: Hides | None = None
        """What rules hide from the caller of this view."""
        self.hosts = Hosts(store)
        self.address_index = AddressIndex(self.clock)
        self.guarded: tuple[Cluster, ...] = ()
        """Clusters, unfiltered, whose nodes and guests must not be reached as if they were plain hosts."""
        self.login: Login | None = None
        """The caller's credentials, in the view of a call that brings them to an operation that takes none."""
        self.files = ServerFiles(folders=(settings.secrets_folder.absolute(),), setting="secrets_folder in [homelab]")
        """The private keys on this machine that the caller may name."""
        self.secret_store = Secrets(settings)
        self.shells = Shells(self.clock, needs_passphrase)
        self.probes = asyncio.Semaphore(PROBES_AT_ONCE)
        self.job_book = job_book(store)

    @property
    def endpoints(self) -> tuple[str, ...]:
        return ()

    @property
    def api(self) -> Cluster:
        raise NotConfigured(f"The {self.name} has no Proxmox VE API")

    async def close(self) -> None:
        await self.ssh.close()
        for server in self.backup_servers:
            await server.close()

    def secrets(self) -> list[str]:
        of_servers = (secret for server in self.backup_servers for secret in server.secrets())
        return [*self.ssh.secrets(), *self.secret_store.revealed, *of_servers]

    async def visible_view(
        self, hides: Hides | None, neighbors: Neighbors, login: Login | None = None, *, local: bool = True
    ) -> Homelab:
        """The same homelab without hidden hosts, among the clusters that the caller sees."""
        visible, guarded = await neighbors()
        view = copy.copy(self)
        view.clusters = tuple(visible)
        view.hosts = self.hosts.behind(hides)
        view.hides = hides
        view.guarded = tuple(guarded)
        view.login = login
        view.files = replace(self.files, local=local)
        return view

    async def blanker(self) -> Callable[[str], str]:
        blankers = [await cluster.blanker() for cluster in self.clusters]
        return lambda text: functools.reduce(lambda left, blank: blank(left), blankers, text)

    async def visibility(self) -> str:
        hidden = len(await self.hosts.everyone()) - len(await self.hosts.all())
        return f"all but {hidden} hosts that the rules hide from it" if hidden else "everything"

    async def lookup(self, arguments: Mapping[str, Any]) -> None:
        from quorate.homelab.machines import find_machine  # which uses this class
        from quorate.homelab.selection import expand

        named = arguments.get("host")
        for ref in (*(named if isinstance(named, list) else [named]), *(arguments.get("hosts") or ())):
            for name in (await expand(self, ref))[0] if isinstance(ref, str) else ():
                await find_machine(self, name)  # sends nothing

    async def subjects(
        self,
        reach: Sequence[Sequence[TargetRef]],
        *,
        by_name: bool = False,  # noqa: ARG002 - names of hosts are always known
    ) -> list[list[Subject]]:
        everyone = await self.hosts.everyone() if any(reach) else []
        groups = [
            [subject for thing in things for subject in await self._subjects(thing, everyone)] for things in reach
        ]
        return [list(dict.fromkeys(subjects)) for subjects in groups]

    async def _subjects(self, thing: TargetRef, everyone: list[Host]) -> list[Subject]:
        if thing.kind == HOST:
            return await self._host(thing, everyone)
        if thing.kind == DATASTORE:
            return [Subject(DATASTORE, thing.id)]
        return await self.find_guests(thing.id) if thing.kind == GUEST else []

    async def find_guests(self, vmid: str) -> list[Subject]:
        """The guests with this vmid, in any cluster: a backup does not say which one it came from.

        If there is none, one without a known name. A cluster that does not answer may have it, which is an error.
        """
        rows = [row for cluster in self.every_cluster for row in (await cluster.inventory.complete_view()).rows]
        subjects = [subject_of(row) for row in rows if row.is_guest and str(row.vmid) == vmid]
        return [subject for subject in subjects if subject] or [Subject(GUEST, vmid)]

    async def _host(self, thing: TargetRef, everyone: list[Host]) -> list[Subject]:
        """The host, other registered names of the same machine, and the machine that a new address leads to."""
        now = next((host for host in everyone if host.name == thing.id), None)
        new = Host(**thing.becomes) if thing.becomes else None
        here = now or new or address_to_host(thing.id)
        subjects = [here.subject if new is None else here.subject.becoming(new.subject)]
        subjects += [alias.subject for alias in await self.address_index.find_aliases(here, everyone)]
        if new is not None and (now is None or (now.address, now.port, now.jump) != (new.address, new.port, new.jump)):
            subjects.append(Subject(HOST, new.at, new.address))
            subjects += [alias.subject for alias in await self.address_index.find_aliases(new, everyone)]
        return subjects

    async def identity(self, id: str) -> str:
        """The host's name and route: an approval does not cover another machine that has the name later."""
        everyone = {host.name: host for host in await self.hosts.everyone()}
        if id not in everyone:
            return "not registered"
        route = [everyone[id], *await resolve_jumps(self.hosts, everyone[id])]
        return f"digest {'-'.join(host.digest for host in route)}"

    def forget(self, changed: Iterable[int] = ()) -> None:
        """Nothing about guests is cached here; plans name the cluster of each step."""

    async def explain(self, problem: Problem) -> Problem:
        if isinstance(problem, PermissionMissing):
            for cluster in self.clusters:
                cluster.forget_privileges()
        return problem
