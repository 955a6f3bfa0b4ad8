"""Quorate with a simulated Proxmox Backup Server, on the clock of the simulated cluster."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pve_simulator.clock import ManualClock
from pve_simulator.http.certificates import shared_identity
from pve_simulator.pbs.access import Credential
from pve_simulator.pbs.archives import Tree
from pve_simulator.pbs.datastores import container_snapshot, host_snapshot, vm_snapshot, with_key
from pve_simulator.pbs.server import BackupServer
from quorate.config.pbs import BackupServerSettings
from quorate.pve.connection import PBS, Connection, Secret, Token, Trust
from tests.rigs.mcp_session import Rig, rig
from tests.rigs.processes import PATIENCE

DAY = 86400
KEY = "36:3b:aa:57:eb:85:33:00:ac:e6:17:bc:6d:45:f6:17:0f:25:f7:9e:ea:03:8a:9b:8d:fd:cc:35:28:bb:a3:af"
OWNER = "root@pam!backup"


@dataclass
class BackupRig(Rig):
    """The rig of a cluster, with its backup server."""

    pbs: BackupServer | None = None

    @property
    def store(self) -> Any:
        assert self.pbs is not None
        return self.pbs.datastores["store1"]


def fill(server: BackupServer) -> None:
    """Two datastores: backups of a VM, a container in a namespace, and hosts; one of them is damaged."""
    now = int(server.clock.now())
    store = server.add_datastore("store1", **{"gc-schedule": "daily"})
    server.add_datastore("archive")
    config = "name: web01\nmemory: 2048\ncipassword: secret-of-the-guest\nscsi0: local:100/vm-100-disk-0.raw,size=64M\n"
    for days in (9, 5, 1):
        store.add(vm_snapshot("100", now - days * DAY, config, {"drive-scsi0": 64 << 20}), owner=OWNER)
    damaged = vm_snapshot("101", now - 2 * DAY, "name: db\n", {"drive-scsi0": 8 << 20})
    damaged.damaged = frozenset({"drive-scsi0.img.fidx"})
    store.add(damaged, owner=OWNER)
    files = Tree.of({"etc/hostname": "ct\n"}, now - DAY)
    container = container_snapshot("102", now - DAY, "hostname: dns\n", files)
    store.add(container, owner=OWNER, namespace="prod").protected = True
    host = host_snapshot("nas", now - 40 * DAY, {"etc": files})
    store.add(with_key(host, KEY), owner=OWNER)


def settings_of(server: BackupServer, name: str = "vault", **changes: Any) -> BackupServerSettings:
    """How Quorate reaches it: like any other, by URL, fingerprint and token."""
    usual: dict[str, Any] = {
        "endpoints": (server.url,),
        "credentials": Token(server.token_id, Secret(server.token_secret)),
        "trust": Trust(fingerprint=server.fingerprint),
        "product": PBS,
    }
    return BackupServerSettings(name, Connection(**{**usual, **changes}))


def add_token(server: BackupServer, name: str, **roles: str) -> Token:
    """A user and its token, with the same role at each path: `store1="DatastoreAudit"`, `_="Audit"` for everything."""
    user, token = f"{name}@pbs", f"{name}@pbs!mcp"
    server.access.users[user] = Credential("password")
    server.access.tokens[token] = Credential(f"secret-of-{name}")
    for store, role in roles.items():
        path = "/" if store == "_" else f"/datastore/{store}"
        for who in (user, token):
            server.access.acl[path, who, role] = True
    server.access.forget_cache()
    return Token(token, Secret(f"secret-of-{name}"))


@asynccontextmanager
async def backup_rig(
    tmp_path: Path,
    *,
    connect: Callable[[BackupServer], tuple[BackupServerSettings, ...]] = lambda server: (settings_of(server),),
    toolsets: tuple[str, ...] | None = ("all",),
    more: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[BackupRig]:
    """Start a cluster, a backup server and Quorate, all on one clock."""
    clock = ManualClock()
    async with (
        BackupServer(clock=clock, auth_delay=False, build=fill, identity=shared_identity) as pbs,
        rig(
            tmp_path, clock=clock, toolsets=toolsets, more={**(more or {}), "backup_servers": connect(pbs)}, **options
        ) as quorate,
    ):
        yield BackupRig(quorate.sim, quorate.app, quorate.client, quorate.audit_file, pbs=pbs)


@contextmanager
def running_backup_server(**options: Any) -> Iterator[BackupServer]:
    """A backup server in its own thread and in real time, for tests of commands."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def wait_for(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE)

    server = BackupServer(**{"auth_delay": False, "build": fill, "identity": shared_identity, **options})
    wait_for(server.__aenter__())
    try:
        yield server
    finally:
        wait_for(server.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()
