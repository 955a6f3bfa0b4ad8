"""/admin/datastore: what datastores contain, and what is done to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pve_simulator.pbs import maintenance, retention
from pve_simulator.pbs.datastores import DEEPEST, TYPES, Datastore, Group, Snapshot, depth_of, iso
from pve_simulator.pbs.refusals import Refusal, forbidden, no_such_file
from pve_simulator.pbs.routes.jobs import refuse_without
from pve_simulator.pbs.routing import Call, route
from pve_simulator.pbs.tasks import Task

_SUBDIRS = (
    "active-operations", "catalog", "change-owner", "download", "download-decoded", "files", "gc", "group-notes",
    "groups", "mount", "namespace", "notes", "protected", "prune", "prune-datastore", "pxar-file-download", "rrd",
    "s3-refresh", "snapshots", "status", "unmount", "upload-backup-log", "verify",
)  # fmt: skip
_NAMESPACE_PRIVILEGES = frozenset({"Datastore.Audit", "Datastore.Backup", "Datastore.Modify"})
_RRD = {
    "hour": (60, 61), "day": (60, 1441), "week": (1800, 337), "month": (1800, 1441), "year": (21600, 1441),
    "decade": (604800, 571),
}  # fmt: skip


# -- datastores --------------------------------------------------------------------------------------------------------


def store_row(store: Datastore, *, comment: bool = True) -> dict[str, Any]:
    row: dict[str, Any] = {
        "comment": store.config.get("comment") if comment else None,
        "mount-status": "nonremovable",
        "store": store.name,
    }
    if "maintenance-mode" in store.config:
        row["maintenance"] = store.config["maintenance-mode"]
    return row


def sees_some_namespace(call: Call, name: str) -> bool:
    """Whether the caller has a privilege on any namespace of a datastore."""
    return call.server.access.holds_below(call.auth_id, f"/datastore/{name}", _NAMESPACE_PRIVILEGES)


@route("GET", "/admin/datastore")
def list_datastores(call: Call) -> Any:
    rows = []
    for store in call.server.datastores.values():
        sees_all = call.holds("Datastore.Audit", "Datastore.Backup", path=f"/datastore/{store.name}")
        if sees_all or sees_some_namespace(call, store.name):
            rows.append(store_row(store, comment=sees_all))
    return rows


@route("GET", "/admin/datastore/{store}")
def index(_: Call) -> Any:
    return [{"subdir": name} for name in _SUBDIRS]


@route("GET", "/admin/datastore/{store}/status")
def read_status(call: Call) -> Any:
    sees_all = call.holds("Datastore.Audit", "Datastore.Backup")
    if not sees_all and not sees_some_namespace(call, str(call["store"])):
        raise forbidden()
    store = call.datastore()
    row: dict[str, Any] = dict(call.server.sizes())
    if call.params.get("verbose") and sees_all:
        row |= {"counts": _counts(store), "gc-status": store.gc.as_row()}
    return row


def _counts(store: Datastore) -> dict[str, Any]:
    counts: dict[str, Any] = dict.fromkeys((*TYPES, "other"))
    for _, group in store.everything():
        count = counts[group.type] = counts[group.type] or {"groups": 0, "snapshots": 0}
        count["groups"] += 1
        count["snapshots"] += len(group.snapshots)
    return counts


@route("GET", "/admin/datastore/{store}/active-operations")
def read_operations(call: Call) -> Any:
    call.datastore()
    return {"read": 0, "write": 0}


@route("GET", "/admin/datastore/{store}/rrd")
def read_rrd(call: Call) -> Any:
    call.datastore()
    step, count = _RRD[str(call["timeframe"])]
    last = int(call.server.clock.now()) // step * step
    return [{"time": last - step * back} for back in range(count - 1, -1, -1)]


# -- namespaces --------------------------------------------------------------------------------------------------------


@route("GET", "/admin/datastore/{store}/namespace")
def list_namespaces(call: Call) -> Any:
    store = call.datastore()
    parent = str(call.params.get("parent", ""))
    names = store.below(parent, call.params.get("max-depth")) or [parent]
    visible = [
        {"ns": name}
        for name in names
        if call.holds("Datastore.Audit", "Datastore.Backup", "Datastore.Modify", path=call.path(name))
    ]
    if not visible:
        raise forbidden()
    return visible


@route("POST", "/admin/datastore/{store}/namespace")
def create_namespace(call: Call) -> Any:
    parent = str(call.params.get("parent", ""))
    call.server.access.require(call.auth_id, call.path(parent), ["Datastore.Modify"])
    store = call.datastore(write=True)
    name = "/".join(part for part in (parent, str(call["name"])) if part)
    if depth_of(parent) >= DEEPEST:
        raise Refusal(f"namespace too deep, {depth_of(parent)} >= max {DEEPEST}")
    if parent not in store.namespaces:
        raise Refusal(f"cannot create new namespace, parent {parent} doesn't already exists")
    store.namespaces.setdefault(name, {})
    return name


@route("DELETE", "/admin/datastore/{store}/namespace")
def delete_namespace(call: Call) -> Any:
    call.server.access.require(call.auth_id, call.path(), ["Datastore.Modify"])
    store = call.datastore(write=True)
    names = [name for name in store.below(call.namespace) if call.namespace] if call.namespace else store.below("")[1:]
    removed = {"protected-snapshots": 0, "removed-groups": 0, "removed-snapshots": 0}
    for name in reversed(names):
        groups = list(store.namespaces[name].values())
        if groups and not call.params.get("delete-groups"):
            raise Refusal("only partially deleted due to existing groups but `delete-groups` not true")
        for group in groups:
            for counted, count in _delete_group(call, store, name, group).items():
                removed[counted] += count
        if not store.namespaces[name]:
            del store.namespaces[name]
    if removed["protected-snapshots"] and call.params.get("error-on-protected", True):
        raise Refusal("only partially deleted due to protected snapshots")
    return removed


# -- groups ------------------------------------------------------------------------------------------------------------


def group_row(group: Group) -> dict[str, Any]:
    newest = group.newest()
    row: dict[str, Any] = {
        "backup-count": len(group.snapshots),
        "backup-id": group.id,
        "backup-type": group.type,
        "files": [] if newest is None else [file.name for file in newest.all_files()],
        "last-backup": 0 if newest is None else newest.time,
        "owner": group.owner,
    }
    if group.notes:
        row["comment"] = group.notes.split("\n")[0] + ("\n" if "\n" in group.notes else "")
    return row


def _visible_groups(call: Call, store: Datastore) -> list[Group]:
    only_own = call.require("Datastore.Audit", "Datastore.Backup")
    groups = store.groups(call.namespace).values()
    return [group for group in groups if _is_visible(call, group, only_own=only_own)]


def _is_visible(call: Call, group: Group, *, only_own: bool) -> bool:
    try:
        call.refuse_foreign(group, only_own=only_own)
    except Refusal:
        return False
    return True


def _group(call: Call, full: str, own: str, *, write: bool = False) -> tuple[Datastore, Group]:
    """The group of a call, for a caller with the privilege for all groups or for own ones."""
    only_own = call.require(full, own)
    store = call.datastore(write=write)
    group = store.group(call.namespace, str(call["backup-type"]), str(call["backup-id"]))
    call.refuse_foreign(group, only_own=only_own)
    return store, group


@route("GET", "/admin/datastore/{store}/groups")
def list_groups(call: Call) -> Any:
    call.require("Datastore.Audit", "Datastore.Backup")
    return [group_row(group) for group in _visible_groups(call, call.datastore())]


@route("DELETE", "/admin/datastore/{store}/groups")
def delete_group(call: Call) -> Any:
    store, group = _group(call, "Datastore.Modify", "Datastore.Prune", write=True)
    removed = _delete_group(call, store, call.namespace, group)
    if removed["protected-snapshots"] and call.params.get("error-on-protected", True):
        raise Refusal("group only partially deleted due to protected snapshots")
    return removed


def _delete_group(call: Call, store: Datastore, namespace: str, group: Group) -> dict[str, int]:
    unprotected = [snapshot for snapshot in group.in_order() if not snapshot.protected]
    kept = len(group.snapshots) - len(unprotected)
    for snapshot in unprotected:
        store.remove(namespace, group, snapshot, call.server.clock.now())
    return {"protected-snapshots": kept, "removed-groups": 0 if kept else 1, "removed-snapshots": len(unprotected)}


@route("GET", "/admin/datastore/{store}/group-notes")
def read_group_notes(call: Call) -> Any:
    return _group(call, "Datastore.Audit", "Datastore.Backup")[1].notes


@route("PUT", "/admin/datastore/{store}/group-notes")
def update_group_notes(call: Call) -> None:
    try:
        _, group = _group(call, "Datastore.Modify", "Datastore.Backup", write=True)
    except Refusal as refusal:
        if refusal.text != no_such_file().text:
            raise
        folder = call.datastore().folder(call.namespace)
        file = f"{folder}/{call['backup-type']}/{call['backup-id']}/notes.tmp_XXXXXX"
        source = f'mkstemp \\"{file}\\" failed: {refusal.text}'
        context = '    context: "failed to replace group notes file",\n'
        raise Refusal(f'failed to set group notes - Error {{\n{context}    source: "{source}",\n}}') from refusal
    group.notes = str(call["notes"])


@route("POST", "/admin/datastore/{store}/change-owner")
def change_owner(call: Call) -> None:
    only_own = call.require("Datastore.Modify", "Datastore.Backup")
    store = call.datastore(write=True)
    group = store.group(call.namespace, str(call["backup-type"]), str(call["backup-id"]))
    new_owner = str(call["new-owner"])
    own_user = call.auth_id.partition("!")[0]
    may = not only_own or (
        "!" not in call.auth_id and {group.owner.partition("!")[0], new_owner.partition("!")[0]} == {own_user}
    )
    if not may:
        raise Refusal(
            f"{call.auth_id} does not have permission to change owner of backup group '{group.name}' to {new_owner}",
            401,
        )
    if not call.server.access.is_active(new_owner):
        kind = "API token" if "!" in new_owner else "user"
        raise Refusal(f"{kind} '{new_owner}' is inactive or non-existent")
    group.owner = new_owner


# -- snapshots ---------------------------------------------------------------------------------------------------------


def snapshot_row(snapshot: Snapshot, owner: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "backup-type": snapshot.type,
        "backup-id": snapshot.id,
        "backup-time": snapshot.time,
        "files": [file.as_row() for file in snapshot.all_files()],
        "owner": owner,
        "protected": snapshot.protected,
    }
    if not snapshot.running:
        row["size"] = snapshot.size
    if snapshot.notes:
        row["comment"] = snapshot.notes.split("\n")[0]
    if snapshot.fingerprint:
        row["fingerprint"] = snapshot.fingerprint
    if snapshot.verification is not None:
        row["verification"] = dict(snapshot.verification)
    return row


def snapshot_of(call: Call, full: str, own: str, *, write: bool = False) -> tuple[Datastore, Group, Snapshot | None]:
    store, group = _group(call, full, own, write=write)
    return store, group, group.snapshots.get(int(call["backup-time"]))


@route("GET", "/admin/datastore/{store}/snapshots")
def list_snapshots(call: Call) -> Any:
    call.require("Datastore.Audit", "Datastore.Backup")
    kind, backup_id = call.params.get("backup-type"), call.params.get("backup-id")
    return [
        snapshot_row(snapshot, group.owner)
        for group in _visible_groups(call, call.datastore())
        if kind in (None, group.type) and backup_id in (None, group.id)
        for snapshot in group.snapshots.values()
    ]


@route("DELETE", "/admin/datastore/{store}/snapshots")
def delete_snapshot(call: Call) -> None:
    store, group, snapshot = snapshot_of(call, "Datastore.Modify", "Datastore.Prune", write=True)
    if snapshot is None:
        path = f"{store.folder(call.namespace)}/{group.name}/{iso(int(call['backup-time']))}"
        text = f'removing backup snapshot \\"{path}\\" failed - No such file or directory (os error 2)'
        raise Refusal(f'failed to delete snapshot - "{text}"')
    if snapshot.protected:
        raise Refusal('failed to delete snapshot - "cannot remove protected snapshot"')
    if snapshot.running:
        locked = "unable to acquire snapshot lock - Resource temporarily unavailable (os error 11)"
        raise Refusal(f'failed to delete snapshot - "{locked}"')
    store.remove(call.namespace, group, snapshot, call.server.clock.now())


def _readable_snapshot(call: Call) -> Snapshot:
    snapshot = snapshot_of(call, "Datastore.Audit", "Datastore.Backup")[2]
    if snapshot is None:
        raise no_such_file()
    return snapshot


@route("GET", "/admin/datastore/{store}/notes")
def read_notes(call: Call) -> Any:
    return _readable_snapshot(call).notes


@route("PUT", "/admin/datastore/{store}/notes")
def update_notes(call: Call) -> None:
    store, group, snapshot = snapshot_of(call, "Datastore.Modify", "Datastore.Backup", write=True)
    if snapshot is None:
        path = f"{store.folder(call.namespace)}/{group.name}/{iso(int(call['backup-time']))}/index.json.blob"
        why = f"unable to load blob '\"{path}\"' - No such file or directory (os error 2)"
        raise Refusal(f"unable to update manifest blob - {why}")
    snapshot.notes = str(call["notes"])


@route("GET", "/admin/datastore/{store}/protected")
def read_protected(call: Call) -> Any:
    return _readable_snapshot(call).protected


@route("PUT", "/admin/datastore/{store}/protected")
def update_protected(call: Call) -> None:
    _, group, snapshot = snapshot_of(call, "Datastore.Modify", "Datastore.Backup", write=True)
    if snapshot is None:
        raise Refusal(f"snapshot {group.name}/{iso(int(call['backup-time']))} does not exist!")
    snapshot.protected = bool(call["protected"])


# -- pruning and verification ------------------------------------------------------------------------------------------


@route("POST", "/admin/datastore/{store}/prune")
def prune(call: Call) -> Any:
    """Answers with every snapshot, or starts a task; real either way unless it is a dry run."""
    store, group = _group(call, "Datastore.Modify", "Datastore.Prune", write=True)
    worker_id = f"{store.name}:{call.namespace}:{group.name}"
    server, params = call.server, call.params
    if params.get("use-task"):
        return call.start_task(
            "prune",
            worker_id,
            lambda task: _discard(
                maintenance.prune_group(task, store, call.namespace, group, params, server.clock.now())
            ),
        )
    if params.get("dry-run"):
        marks = retention.mark_snapshots(group.snapshots.values(), retention.keeps_of(params))
    else:
        task = server.tasks.record("prune", worker_id, call.auth_id)
        task.lines.clear()
        marks = maintenance.prune_group(task, store, call.namespace, group, params, server.clock.now())
        task.log("TASK OK")
    return [
        {
            "backup-id": snapshot.id,
            "backup-time": snapshot.time,
            "backup-type": snapshot.type,
            "keep": keep,
            "protected": snapshot.protected,
        }
        for snapshot, keep in marks
    ]


def _discard(_: object) -> None:
    """Tasks have no result."""


@route("POST", "/admin/datastore/{store}/prune-datastore")
def prune_datastore(call: Call) -> Any:
    refuse_without(call, call.path(), "Datastore.Modify", "Datastore.Prune")
    only_own = not call.holds("Datastore.Modify")
    store = call.datastore(write=True)
    max_depth = call.params.get("max-depth")
    namespaces = store.below(call.namespace, max_depth)
    where = f"namespace '{call.namespace}'" if call.namespace else "root namespace"
    how = "down to full depth" if max_depth is None else "non-recursive" if max_depth == 0 else f"max_depth {max_depth}"

    def work(task: Task) -> None:
        task.log(f"Starting datastore prune on datastore '{store.name}', {where}, {how}")
        groups = [
            (name, group)
            for name, group in store.everything()
            if name in namespaces and _is_visible(call, group, only_own=only_own)
        ]
        maintenance.prune_datastore(task, store, groups, call.params, call.server.clock.now())

    return call.start_task("prune", f"{store.name}:{call.namespace}", work)


@route("POST", "/admin/datastore/{store}/verify")
def verify(call: Call) -> Any:
    """The whole store, a group or a snapshot. A missing snapshot is skipped in the task."""
    only_own = call.require("Datastore.Verify", "Datastore.Backup")
    store = call.datastore()
    kind, backup_id, time = (call.params.get(name) for name in ("backup-type", "backup-id", "backup-time"))
    if kind is None and backup_id is None and time is None:
        return call.start_task("verify", store.name, lambda task: _verify_store(call, task, store, only_own=only_own))
    if kind is None or backup_id is None:
        raise Refusal("parameters do not specify a backup group or snapshot")
    group = store.groups(call.namespace).get((str(kind), str(backup_id)))
    if group is not None:
        call.refuse_foreign(group, only_own=only_own)
    name = f"{store.name}:{call.namespace}/{kind}/{backup_id}"
    if time is not None:
        work = _snapshot_work(call, store, group, f"{kind}/{backup_id}/{iso(time)}", int(time))
        return call.start_task("verify_snapshot", f"{name}/{int(time):08X}", work)

    def work_on_group(task: Task) -> None:
        failed = []
        if group is not None:
            now = call.server.clock.now()
            failed = maintenance.verify_group(task, store, call.namespace, group, call.params, now)
        maintenance.conclude_verification(task, failed)

    return call.start_task("verify_group", name, work_on_group)


def _verify_store(call: Call, task: Task, store: Datastore, *, only_own: bool) -> None:
    task.log(f"verify datastore {store.name}")
    namespaces = store.below(call.namespace, call.params.get("max-depth"))
    groups = [
        (name, group)
        for name, group in store.everything()
        if name in namespaces and _is_visible(call, group, only_own=only_own)
    ]
    maintenance.verify_all(task, store, groups, call.params, call.server.clock.now())


def _snapshot_work(call: Call, store: Datastore, group: Group | None, name: str, time: int) -> Callable[[Task], None]:
    def work(task: Task) -> None:
        snapshot = None if group is None else group.snapshots.get(time)
        if snapshot is None:
            task.log(f"SKIPPED: verify {store.name}:{name} - snapshot does not exist (anymore).")
            return
        now = call.server.clock.now()
        passed = maintenance.verify_snapshot(task, store, call.namespace, snapshot, call.params, now)
        maintenance.conclude_verification(task, [] if passed else [snapshot.name])

    return work
