"""Proxmox Backup Servers: their API, backups and tasks.

Most setups have none, so this much is all that they import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorate.pbs.server import BackupServer


@dataclass(frozen=True, slots=True)
class BackupServers:
    """The configured backup servers, for clusters: some of their storages are datastores there."""

    servers: tuple[BackupServer, ...] = ()

    def find(self, storage: Mapping[str, Any]) -> BackupServer | None:
        """The server that a storage of PVE leads to: by its certificate, otherwise by its address."""
        pinned = str(storage.get("fingerprint") or "").replace(":", "").lower()
        address = str(storage.get("server") or "").lower()
        for server in self.servers:
            if (pinned and server.fingerprint == pinned) or server.host == address:
                return server
        return None
