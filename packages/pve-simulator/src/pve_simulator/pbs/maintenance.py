"""What keeps datastores in order: verification, pruning, garbage collection and synchronization."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pve_simulator.pbs import retention
from pve_simulator.pbs.datastores import CHUNK, Datastore, GcStatus, Group, Snapshot, iso
from pve_simulator.pbs.refusals import Refusal
from pve_simulator.pbs.tasks import Task, TaskFailure

if TYPE_CHECKING:
    from pve_simulator.pbs.server import BackupServer

VERIFICATION_FAILED = "verification failed - please check the log for details"
CUTOFF = 24 * 3600 + 300
"""Chunks without a use are removed by a garbage collection that runs that many seconds later."""
_MIB = 1 << 20


# -- verification ------------------------------------------------------------------------------------------------------


def verify_all(
    task: Task, store: Datastore, groups: Iterable[tuple[str, Group]], params: Mapping[str, Any], now: float
) -> None:
    """Verify groups of a datastore one after the other."""
    chosen = [(namespace, group) for namespace, group in groups if group.snapshots]
    task.log(f"found {len(chosen)} groups")
    task.log(f"using {params.get('read-threads', 1)} read and {params.get('verify-threads', 4)} verify thread(s)")
    failed: list[str] = []
    for position, (namespace, group) in enumerate(chosen):
        failed += verify_group(task, store, namespace, group, params, now, done=position, total=len(chosen))
    conclude_verification(task, failed)


def verify_group(
    task: Task,
    store: Datastore,
    namespace: str,
    group: Group,
    params: Mapping[str, Any],
    now: float,
    *,
    done: int = 0,
    total: int = 1,
) -> list[str]:
    """Verify a group, newest snapshot first; returns the failed ones."""
    where = _where(store, namespace)
    newest_first = group.in_order()[::-1]
    task.log(f"verify group {where}:{group.name} ({len(newest_first)} snapshots)")
    failed = []
    for count, snapshot in enumerate(newest_first, 1):
        if not verify_snapshot(task, store, namespace, snapshot, params, now):
            failed.append(snapshot.name)
        share = 100 * (done + count / len(newest_first)) / total
        if count == len(newest_first):
            task.log(f"percentage done: {share:.2f}% ({done + 1}/{total} groups)")
        else:
            progress = f"({done}/{total} groups, {count}/{len(newest_first)} snapshots in group #{done + 1})"
            task.log(f"percentage done: {share:.2f}% {progress}")
    return failed


def verify_snapshot(
    task: Task, store: Datastore, namespace: str, snapshot: Snapshot, params: Mapping[str, Any], now: float
) -> bool:
    """Verify one snapshot and remember the result; a recent result is not repeated."""
    where = f"{_where(store, namespace)}:{snapshot.name}"
    if snapshot.running:
        task.log(f"SKIPPED: verify {where} - could not acquire snapshot lock (another operation is running)")
        return True
    if params.get("ignore-verified", True) and snapshot.verification is not None:
        outdated_after = params.get("outdated-after")
        verified_at = int(snapshot.verification["upid"].split(":")[5], 16)
        if outdated_after is None or now - verified_at < outdated_after * 86400:
            task.log(f"SKIPPED: verify {where} (recently verified)")
            return True
    task.log(f"verify {where}")
    for file in snapshot.files:
        task.log(f"  check {file.name}")
        if file.name.endswith("idx"):
            errors = int(file.name in snapshot.damaged)
            mib = 0.0 if errors else file.size / _MIB
            speed = f"speed {mib * 48:.2f}/{mib * 48:.2f} MiB/s ({errors} errors)"
            task.log(f"  verified {mib:.2f}/{mib:.2f} MiB in 0.02 seconds, {speed}")
        if file.name in snapshot.damaged:
            task.log(f"verify {where}/{file.name} failed: chunks could not be verified")
    snapshot.verification = {"upid": task.upid, "state": "failed" if snapshot.damaged else "ok"}
    return not snapshot.damaged


def conclude_verification(task: Task, failed: list[str]) -> None:
    """Name the failed snapshots and fail the task, if there are any."""
    if failed:
        task.log("Failed to verify the following snapshots/groups:")
        for name in failed:
            task.log(f"\t{name}")
        raise TaskFailure(VERIFICATION_FAILED)


def _where(store: Datastore, namespace: str) -> str:
    return f"{store.name}:{namespace}" if namespace else store.name


# -- pruning -----------------------------------------------------------------------------------------------------------


def prune_group(
    task: Task, store: Datastore, namespace: str, group: Group, params: Mapping[str, Any], now: float
) -> list[tuple[Snapshot, bool]]:
    """Prune one group as a call for it does; returns each snapshot and whether it is kept."""
    keeps = retention.keeps_of(params)
    where = f"namespace '{namespace}'" if namespace else "root namespace"
    marks = retention.mark_snapshots(group.snapshots.values(), keeps)
    if keeps:
        task.log(f"retention options: {retention.options_text(params)}")
        task.log(f"Starting prune on datastore '{store.name}', {where} group \"{group.name}\"")
    else:
        task.log("No prune selection - keeping all files.")
    for snapshot, keep in marks:
        if params.get("dry-run"):
            continue
        task.log(f"{snapshot.name} {'keep' if keep else 'remove'}")
        if not keep:
            _remove(task, store, namespace, group, snapshot, now)
    return marks


def prune_datastore(
    task: Task, store: Datastore, groups: Iterable[tuple[str, Group]], params: Mapping[str, Any], now: float
) -> None:
    """Prune every group. Without any `keep` the log says `remove`, but nothing is removed."""
    keeps, dry_run = retention.keeps_of(params), bool(params.get("dry-run"))
    if dry_run:
        task.log("(dry test run)")
    task.log(
        f"retention options: {retention.options_text(params)}" if keeps else "No prune selection - keeping all files."
    )
    for namespace, group in list(groups):
        task.log(f'Pruning group {namespace}:"{group.name}"')
        for snapshot, kept in retention.mark_snapshots(group.snapshots.values(), keeps):
            keep = kept if keeps else snapshot.protected
            verb = "keep protected" if snapshot.protected else "keep" if keep else "remove"
            task.log(f"{'would ' if dry_run else ''}{verb} {snapshot.name}")
            if keeps and not keep and not dry_run:
                _remove(task, store, namespace, group, snapshot, now)


def _remove(task: Task, store: Datastore, namespace: str, group: Group, snapshot: Snapshot, now: float) -> None:
    task.log(f'removing backup snapshot "{store.folder(namespace)}/{snapshot.name}"')
    store.remove(namespace, group, snapshot, now)


# -- garbage collection ------------------------------------------------------------------------------------------------


def collect_garbage(task: Task, store: Datastore, now: float) -> None:
    """Mark used chunks, remove those unused for a day, and note the result."""
    indexes = [
        file
        for _, group in store.everything()
        for snapshot in group.snapshots.values()
        for file in snapshot.files
        if file.name.endswith("idx")
    ]
    damaged = {
        snapshot.name for _, group in store.everything() for snapshot in group.snapshots.values() if snapshot.damaged
    }
    task.log(f"starting garbage collection on store {store.name}")
    task.log("Access time update check successful, proceeding with GC.")
    task.log(f"Using access time cutoff 1d 5m, minimum access time is {iso(now - CUTOFF)}")
    task.log("Start GC phase1 (mark used chunks)")
    for count in range(1, len(indexes) + 1):
        task.log(f"marked {100 * count // len(indexes)}% ({count} of {len(indexes)} index files)")
    for name in sorted(damaged):
        task.warn(f"warning: unable to access non-existent chunk, required by {name}")
    task.log("Start GC phase2 (sweep unused chunks)")
    chunks = -(-sum(file.size for file in indexes) // (6 * CHUNK))
    for percent in range(1, 100) if chunks else ():
        task.log(f"processed {percent}% ({percent * chunks // 100} chunks)")
    removed = sum(size for since, size in store.garbage if now - since >= CUTOFF)
    pending = [(since, size) for since, size in store.garbage if now - since < CUTOFF]
    store.garbage = pending
    data = sum(file.size for file in indexes)
    waiting = sum(size for _, size in pending)
    store.gc = GcStatus(
        upid=task.upid,
        index_files=len(indexes),
        index_bytes=data,
        disk_bytes=data // 6 + waiting,
        pending_bytes=waiting,
        removed_bytes=removed,
        last_end=now,
        last_state=f"WARNINGS: {task.warnings}" if task.warnings else "OK",
        seconds=int(now - task.start),
    )
    task.log(f"Removed garbage: {removed} B")
    task.log(f"Pending removals: {waiting} B")
    task.log(f"Original data usage: {data / _MIB:.3f} MiB")
    task.log(f"On-Disk usage: {store.gc.disk_bytes / _MIB:.3f} MiB")


# -- synchronization ---------------------------------------------------------------------------------------------------


def sync_groups(
    task: Task,
    source: Datastore,
    target: Datastore,
    params: Mapping[str, Any],
    *,
    owner: str,
    now: float,
    pushes: bool = False,
) -> None:
    """Copy the snapshots that the target lacks, with their verification and its task."""
    task.log("----")
    source_ns, target_ns = str(params.get("remote-ns", "")), str(params.get("ns", ""))
    if source_ns not in source.namespaces:
        raise TaskFailure("sync failed with some errors.")
    failed = False
    for namespace in source.below(source_ns, params.get("max-depth")):
        relative = namespace[len(source_ns) :].strip("/")
        into = "/".join(part for part in (target_ns, relative) if part)
        origin = f"'{source.name}', {_describe_namespace(namespace)}"
        task.log(f"Syncing datastore {origin} into datastore '{target.name}', {_describe_namespace(into)}")
        if into not in target.namespaces:
            target.namespaces[into] = {}
            task.log(f"Successfully created new namespace {into} on remote" if pushes else f"Created namespace {into}")
        groups = source.groups(namespace)
        chosen = [group for group in groups.values() if _selected(group, params.get("group-filter", []))]
        verb = "Found" if pushes else "found"
        task.log(f"{verb} {len(chosen)} groups to sync (out of {len(groups)} total)")
        for count, group in enumerate(chosen, 1):
            complete = _sync_group(task, group, target, into, owner=owner, is_quiet=pushes)
            failed = failed or not complete
            task.log(f"percentage done: {100 * count / len(chosen):.2f}% ({count}/{len(chosen)} groups)")
            if params.get("remove-vanished"):
                _remove_vanished(group, target, into, now)
        if pushes:
            task.log(f"Percentage done: 100.00% ({len(chosen)}/{len(chosen)} snapshots)")
            size = sum(snapshot.size for group in chosen for snapshot in group.in_order())
            chunks = f"{size / _MIB:.3f} MiB in {-(-size // CHUNK)} chunks"
            task.log(f"Summary: sync job pushed {chunks} (average rate: 32.00 MiB/s)")
    if failed:
        raise TaskFailure("sync failed with some errors.")


def _sync_group(task: Task, group: Group, target: Datastore, into: str, *, owner: str, is_quiet: bool) -> bool:
    """Copy what is missing of one group; a damaged snapshot cannot be read."""
    existing = target.namespaces[into].get((group.type, group.id))
    complete = True
    for snapshot in group.in_order():
        if existing is not None and snapshot.time in existing.snapshots:
            continue
        if not is_quiet:
            _log_transfer(task, snapshot)
        if snapshot.damaged:
            task.log(f"sync snapshot {snapshot.name} failed - reading remote chunk failed")
            complete = False
            continue
        target.add(copy.deepcopy(snapshot), owner=owner, namespace=into).protected = False
        if not is_quiet:
            task.log(f"sync snapshot {snapshot.name} done")
    return complete


def _log_transfer(task: Task, snapshot: Snapshot) -> None:
    task.log(f"sync snapshot {snapshot.name}")
    for file in snapshot.files:
        task.log(f"sync archive {file.name}")
        if file.name.endswith("idx"):
            task.log(f"downloaded {file.size / 1024:.3f} KiB (24.0 MiB/s)")


def _remove_vanished(group: Group, target: Datastore, into: str, now: float) -> None:
    copied = target.namespaces[into].get((group.type, group.id))
    for snapshot in [] if copied is None else copied.in_order():
        if copied is not None and snapshot.time not in group.snapshots and not snapshot.protected:
            target.remove(into, copied, snapshot, now)


def _selected(group: Group, filters: Iterable[str]) -> bool:
    """Whether the filters of a job include a group; an excluding one wins."""
    including = [text for text in filters if not text.startswith("exclude:")]
    excluding = [text.removeprefix("exclude:") for text in filters if text.startswith("exclude:")]
    fits = not including or any(_fits(group, text.removeprefix("include:")) for text in including)
    return fits and not any(_fits(group, text) for text in excluding)


def _fits(group: Group, text: str) -> bool:
    kind, _, value = text.partition(":")
    if kind == "type":
        return group.type == value
    if kind == "group":
        return group.name == value
    return re.search(value, group.name) is not None


def _describe_namespace(namespace: str) -> str:
    return f"namespace '{namespace}'" if namespace else "root namespace"


def remote_store(server: BackupServer, remote: str, store: str) -> Datastore:
    """The datastore behind a remote. Raises the refusal of a connection or login that fails."""
    settings = server.sections["remote"].get(remote)
    if settings is None:
        raise Refusal(f"no such remote '{remote}'")
    return remote_server(server, settings).datastore(store)


def remote_server(server: BackupServer, settings: Mapping[str, Any]) -> BackupServer:
    """The server that a remote leads to, after its certificate and login were checked."""
    host, port = str(settings["host"]), int(settings.get("port", 8007))
    peer = server.peers.get((host, port))
    if peer is None:
        raise Refusal(f"remote connection to '{host}' failed - client error (Connect)")
    pinned = settings.get("fingerprint")
    if pinned is not None and pinned != peer.fingerprint:
        raise Refusal("client error (Connect)")
    if not peer.access.knows_secret(str(settings["auth-id"]), str(settings["password"])):
        raise Refusal("authentication failed - invalid credentials", delay=3.0)
    return peer
