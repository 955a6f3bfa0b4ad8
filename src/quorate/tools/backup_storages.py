"""Storages on Proxmox Backup Servers: can a cluster read the backups there, and remove the old ones?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quorate.hints import tools
from quorate.pbs import BackupServers
from quorate.problems import PermissionMissing, Problem
from quorate.pve.cluster import Cluster
from quorate.tools.backup_jobs import is_enabled, read_jobs
from quorate.tools.health_findings import Finding, names, unchecked_finding
from quorate.tools.storages import StoredVolume
from quorate.units import count_of

if TYPE_CHECKING:
    from quorate.pbs.server import BackupServer

AREA = "backups"
_UNNAMED = "1"
"""What PVE shows instead of a key without a fingerprint."""
_PRUNES = ("Datastore.Prune", "Datastore.Modify")


@dataclass(frozen=True, slots=True)
class EncryptedBackup:
    """A backup of a guest that only its key opens."""

    vmid: int
    storages: frozenset[str]
    """The storages that show it."""
    key: str
    """Its fingerprint."""


async def read_backup_storages(pve: Cluster) -> list[Mapping[str, Any]]:
    """The configurations of the enabled storages on backup servers."""
    rows = await pve.get("/storage", type="pbs") or ()
    return sorted((row for row in rows if not row.get("disable")), key=lambda row: str(row["storage"]))


async def storage_findings(pve: Cluster, volumes: Iterable[StoredVolume]) -> list[Finding]:
    """What is wrong with the storages on backup servers, by the backups that the cluster lists there."""
    of_servers = [volume for volume in volumes if volume.format.startswith("pbs-")]
    if not of_servers and not pve.attachment(BackupServers).servers:
        return []
    storages = await read_backup_storages(pve)
    showing: dict[tuple[str, str], set[str]] = {}
    places = {str(row["storage"]): _place_of(row) for row in storages}
    for volume in of_servers:
        showing.setdefault((places.get(volume.storage, volume.storage), volume.name), set()).add(volume.storage)
    encrypted = [
        EncryptedBackup(
            volume.vmid or 0, frozenset(showing[places.get(volume.storage, volume.storage), volume.name]), volume.key
        )
        for volume in of_servers
        if volume.key
    ]
    return [*lost_keys(storages, encrypted), *await unpruned_storages(pve, storages)]


def _place_of(storage: Mapping[str, Any]) -> str:
    return "/".join(str(storage.get(part) or "") for part in ("server", "datastore", "namespace"))


def lost_keys(storages: Sequence[Mapping[str, Any]], backups: Iterable[EncryptedBackup]) -> list[Finding]:
    """A finding about backups that no storage which shows them has the key of."""
    keys = {str(row["storage"]): str(row.get("encryption-key") or "") for row in storages}
    closed: dict[str, set[int]] = {}
    for backup in backups:
        held = {keys.get(storage, _UNNAMED) for storage in backup.storages} - {""}
        if backup.key not in held and _UNNAMED not in held and (backup.key != _UNNAMED or not held):
            closed.setdefault(min(backup.storages), set()).add(backup.vmid)
    findings = []
    for storage, vmids in sorted(closed.items()):
        whose = f"{count_of(len(vmids), 'guest')}: {names(str(vmid) for vmid in sorted(vmids))}"
        what = f"Storage {storage} lacks the key of encrypted backups of {whose}"
        subjects = tuple(f"guest {vmid}" for vmid in sorted(vmids))
        call = tools.backup_list(storage=storage)
        findings.append(Finding("warning", AREA, what, call, "backup-locked", f"storage {storage}", subjects))
    return findings


async def unpruned_storages(
    pve: Cluster, storages: Sequence[Mapping[str, Any]], server: BackupServer | None = None
) -> list[Finding]:
    """Findings about retentions that remove nothing, because the login of the storage may not prune."""
    servers = pve.attachment(BackupServers)
    known = [(row, found) for row in storages if (found := servers.find(row)) and server in (None, found)]
    if not known:
        return []
    jobs = [job for job in await read_jobs(pve) if is_enabled(job)]
    findings = []
    for row, found in known:
        storage = str(row["storage"])
        sources = [f"job {job['id']}" for job in jobs if job.get("storage") == storage and _removes(job)]
        sources = [*(["the storage"] if _removes(row) else []), *sources]
        if not sources:
            continue
        user, path = str(row.get("username") or "root@pam"), _acl_path(row)
        call = tools.pbs_status(server=found.name, datastore=str(row["datastore"]))
        try:
            held = (await found.get("/access/permissions", **{"auth-id": user, "path": path}) or {}).get(path, {})
        except PermissionMissing as problem:
            findings.append(unchecked_finding(AREA, problem, call, f" at the rights of storage {storage}"))
            continue
        except Problem:
            continue  # that the server does not answer is a finding of its own
        if not any(held.get(privilege) for privilege in _PRUNES):
            what = (
                f"Storage {storage} never removes old backups: {user} may not prune {path} on {found.name}, although "
                f"{names(sources)} {'sets' if len(sources) == 1 else 'set'} a retention"
            )
            findings.append(Finding("warning", AREA, what, call, "backup-unpruned", f"storage {storage}"))
    return findings


def _acl_path(storage: Mapping[str, Any]) -> str:
    namespace = str(storage.get("namespace") or "")
    return f"/datastore/{storage['datastore']}" + (f"/{namespace}" if namespace else "")


def _removes(settings: Mapping[str, Any]) -> bool:
    """Whether a storage or a job has a retention that keeps only some backups."""
    retention = settings.get("prune-backups")
    if isinstance(retention, Mapping):
        return bool(retention) and not int(retention.get("keep-all") or 0)
    return bool(retention) and "keep-all=1" not in str(retention)
