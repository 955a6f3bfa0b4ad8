"""Names to complete: guests, nodes and storages of the clusters, registered hosts, stored secrets."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorate.config import Settings
    from quorate.operations.registry import Operation

CLUSTER_SECONDS = 1.5


def kinds_of(operation: Operation, argument: str) -> tuple[str, ...]:
    """The kinds of object that an argument names: as its type says, else by its name."""
    kinds = (kind for kind in ("node", "storage") if argument in (kind, f"{kind}s") or argument.endswith(f"_{kind}"))
    return operation.names_in(argument) or tuple(kinds)


def names(*kinds: str) -> list[str]:
    """The candidates that are available quickly."""
    from quorate.config import load

    if not kinds:
        return []
    settings = load(tolerate=True)
    has_state = "://" in settings.state or Path(settings.state).expanduser().exists()  # opening it would create it
    return asyncio.run(_names(settings, kinds, has_state))


def secret_names() -> list[str]:
    from quorate.config import load
    from quorate.homelab.vault import Vault

    return Vault(load(tolerate=True).homelab.secrets_file, None).names()


async def _names(settings: Settings, kinds: tuple[str, ...], has_state: bool) -> list[str]:
    hosts = await _hosts(settings) if "host" in kinds and has_state else []
    found: list[str] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLUSTER_SECONDS):
            for kind in kinds:
                found += await _names_in_clusters(settings, kind) if kind != "host" else []
    return [*hosts, *found]


async def _hosts(settings: Settings) -> list[str]:
    from quorate.homelab.registry import Hosts
    from quorate.pve.clock import SystemClock
    from quorate.state.store import open_store

    async with open_store(settings.state, clock=SystemClock()) as store:
        return [host.name for host in await Hosts(store).all()]


async def _names_in_clusters(settings: Settings, kind: str) -> list[str]:
    from quorate.pve.client import PveClient

    key, found = {"guest": "name"}.get(kind, kind), list[str]()
    for cluster in settings.clusters:
        client = PveClient(cluster.connection)
        with contextlib.suppress(Exception):  # another cluster may answer
            rows = await client.get("/cluster/resources", type={"guest": "vm"}.get(kind, kind))
            found += sorted({str(row[key]) for row in rows if row.get(key)})
        await client.close()
    return found
