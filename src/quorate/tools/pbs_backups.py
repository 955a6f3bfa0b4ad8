"""Backups on Proxmox Backup Servers: across datastores and namespaces, with their verification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import see, tools
from quorate.homelab.homelab import Homelab
from quorate.operations.registry import Risk, Table, operation, page
from quorate.pbs.server import Backup, BackupServer, Group, iso
from quorate.problems import BadArgument, Problem
from quorate.tools.backup_servers import (
    BackupRef,
    Datastore,
    Namespace,
    Server,
    ask_servers,
    choose_place,
    group_of_guest,
    require_visible,
    visible_backups,
)
from quorate.tools.backups import SECRET_OPTIONS, parse_config
from quorate.tools.pbs import DAY, describe_backups
from quorate.units import Quantity, duration, moment, size, yes

COLUMNS = (
    "server", "datastore", "namespace", "backup", "age", "size", "verified", "encrypted", "protected", "owner", "notes",
)  # fmt: skip
CONFIGS = ("qemu-server.conf.blob", "pct.conf.blob")

Only = Literal["unverified", "failed", "stale", "protected", "unencrypted"]


@operation(
    toolset="pbs",
    risk=Risk.READ,
    search_words=(
        "proxmox backup server snapshots groups namespaces list verified unverified failed verification stale old "
        "protected encrypted owner"
    ),
)
async def pbs_backup_list(
    homelab: Homelab,
    server: Server | None = None,
    datastore: Datastore | None = None,
    namespace: Annotated[str, Meta(description="Only this one; empty is the root. Default: all")] | None = None,
    guest: Annotated[int | str, Meta(description="vmid or name; host/NAME for other hosts")] | None = None,
    only: Annotated[Only, Meta(description="stale: the newest of its guest, and older than `days`")] | None = None,
    days: Annotated[int, Meta(ge=1, le=3650, description="For stale, and for how long a verification counts")] = 30,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Backups on backup servers, newest first: age, size, verification, encryption, protection, owner."""
    groups: Sequence[Group | None] = [None] if guest is None else await group_of_guest(homelab, guest)

    async def ask(chosen: BackupServer) -> list[Backup]:
        return [backup for group in groups for backup in await chosen.backups(datastore, namespace, group)]

    answers, silent = await ask_servers(homelab, server, ask)
    backups = await visible_backups(homelab, [backup for answer in answers.values() for backup in answer])
    backups.sort(key=lambda backup: (-backup.time, str(backup)))
    now = homelab.clock.time()
    chosen = [backup for backup in backups if only is None or backup in _select(backups, only, days * DAY, now)]
    table = page(COLUMNS, (_row(backup, now) for backup in chosen), limit=limit, offset=offset)
    table.facts = describe_backups(chosen, now) | ({"no_answer": silent} if silent else {})
    if table.next_offset is not None:
        table.note = "narrow with guest, datastore, namespace or only"
    return table


def _select(backups: Sequence[Backup], only: Only, seconds: float, now: float) -> set[Backup]:
    match only:
        case "unverified":
            return {backup for backup in backups if now - (backup.verified_at or 0) > seconds and not backup.running}
        case "failed":
            return {backup for backup in backups if backup.verified == "failed"}
        case "protected":
            return {backup for backup in backups if backup.protected}
        case "unencrypted":
            return {backup for backup in backups if backup.crypt_mode != "encrypt" and not backup.running}
    newest: dict[tuple[str, str], Backup] = {}
    for backup in backups:  # newest first
        newest.setdefault((str(backup.place), backup.group.name), backup)
    return {backup for backup in newest.values() if now - backup.time > seconds}


def _row(backup: Backup, now: float) -> list[Any]:
    return [
        backup.place.server,
        backup.place.store,
        backup.place.namespace,
        str(backup.group),
        duration(max(0.0, now - backup.time)),
        size(backup.size) if backup.size is not None else "",
        "in progress" if backup.running else verification_of(backup),
        {"encrypt": yes(True), "sign-only": Quantity("signed only", False)}.get(backup.crypt_mode, ""),
        yes(backup.protected),
        backup.owner,
        backup.notes,
    ]


def verification_of(backup: Backup) -> str:
    if not backup.verified:
        return "never"
    when = f" {iso(backup.verified_at)[:10]}" if backup.verified_at else ""
    return f"{backup.verified}{when}"


@operation(
    toolset="pbs",
    risk=Risk.READ,
    search_words="proxmox backup server snapshot details files guest configuration inside verification notes key",
    example="backup=vm/100/2025-01-01T00:00:00Z",
)
async def pbs_backup_get(
    homelab: Homelab,
    backup: BackupRef,
    datastore: Datastore | None = None,
    namespace: Namespace = "",
    server: Server | None = None,
) -> dict[str, Any]:
    """One backup: files, notes, verification, encryption, and the guest's configuration at that time."""
    reference = Group.parse(backup)
    chosen, place = await choose_place(homelab, server, datastore, namespace)
    await require_visible(homelab, place, reference)
    found = await chosen.find_backup(place.store, place.namespace, reference)
    config = await _read_config(chosen, found)
    notes = await chosen.get(f"{place.path}/notes", **place.params, **found.group.params)
    return {
        "backup": str(found.group),
        "server": chosen.name,
        "datastore": place.store,
        **({"namespace": place.namespace} if place.namespace else {}),
        "made": moment(found.time),
        "age": duration(max(0.0, chosen.clock.time() - found.time)),
        **({"size": size(found.size)} if found.size is not None else {"state": "in progress"}),
        "owner": found.owner,
        "protected": found.protected,
        "verified": verification_of(found),
        **({"verified_by": found.verified_by} if found.verified_by else {}),
        "encryption": {"encrypt": "encrypted", "sign-only": "signed, not encrypted"}.get(found.crypt_mode, "none"),
        **({"key": found.key} if found.key else {}),
        "notes": notes or "",
        "files": {name: size(count) for name, count in found.files},
        **config,
    }


async def _read_config(server: BackupServer, backup: Backup) -> dict[str, Any]:
    """The configuration of the guest in it, as far as it can be read."""
    name = next((name for name, _ in backup.files if name in CONFIGS), None)
    if name is None:
        return {}
    if backup.crypt_mode == "encrypt":
        return {"configuration": "encrypted: only a client with the key can read it"}
    try:
        content = await server.client.download(
            f"{backup.place.path}/download-decoded", **backup.place.params, **backup.group.params, **{"file-name": name}
        )
    except Problem as problem:
        return {"configuration": f"not readable: {problem}"}
    options = parse_config(content.decode("utf-8", "replace"))
    return {"configuration": {key: value for key, value in options.items() if key not in SECRET_OPTIONS}}


def require_one(reference: Group) -> Group:
    """Refuse a group where one backup is needed."""
    if reference.time is None:
        raise BadArgument(
            f"{reference} is all backups of a guest or host",
            next_step=see("Name one with its time", tools.pbs_backup_list),
        )
    return reference
