"""Backups on Proxmox Backup Servers: across datastores and namespaces, with their verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import NAMED, Advice, either, see, tools
from quorate.homelab.homelab import Homelab
from quorate.operations.plan import Action, Plan
from quorate.operations.registry import Risk, Table, operation, page
from quorate.pbs.server import Backup, BackupServer, FoundBackups, Group, iso
from quorate.problems import BadArgument, Conflict, Problem
from quorate.tools.backup_servers import (
    BackupOrGroup,
    BackupRef,
    Datastore,
    Namespace,
    Server,
    ask_servers,
    choose_namespace,
    group_of_guest,
    require_visible,
    server_action,
    shows_to,
    visible_backups,
)
from quorate.tools.backups import head_of, parse_config, visible_options
from quorate.tools.pbs import DAY, describe_backups
from quorate.tools.pbs_maintenance import CHANGED, PRUNES, SHOWN, describe_loss
from quorate.units import Quantity, count_of, duration, moment, size, yes

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
    namespace: Annotated[str, Meta(description="Default: all; empty: root")] | None = None,
    guest: Annotated[int | str, Meta(description="vmid or name; host/NAME for other hosts")] | None = None,
    only: Annotated[Only, Meta(description="stale: newest, older than `days`")] | None = None,
    days: Annotated[int, Meta(ge=1, le=3650, description="Also how long a verification counts")] = 30,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Backups on backup servers, newest first."""
    groups: Sequence[Group | None] = [None] if guest is None else await group_of_guest(homelab, guest)

    async def ask(chosen: BackupServer) -> list[FoundBackups]:
        shows = shows_to(homelab)
        return [await chosen.find_backups(datastore, namespace, group, shows=shows) for group in groups]

    answers, silent = await ask_servers(homelab, server, ask)
    parts = [part for answer in answers.values() for part in answer]
    backups = await visible_backups(homelab, [backup for part in parts for backup in part.backups])
    not_read = {place: str(problem) for part in parts for place, problem in part.not_read.items()}
    backups.sort(key=lambda backup: (-backup.time, str(backup)))
    now = homelab.clock.time()
    chosen = [backup for backup in backups if only is None or backup in _select(backups, only, days * DAY, now)]
    table = page(COLUMNS, (_row(backup, now) for backup in chosen), limit=limit, offset=offset)
    table.facts = describe_backups(chosen, now) | ({"no_answer": silent} if silent else {})
    table.facts |= {"not_read": not_read} if not_read else {}
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
    example="backup=vm/102",
)
async def pbs_backup_get(
    homelab: Homelab,
    backup: BackupRef,
    datastore: Datastore | None = None,
    namespace: Namespace = "",
    server: Server | None = None,
) -> dict[str, Any]:
    """One backup in full, with the guest's configuration at that time."""
    reference = Group.parse(backup)
    chosen, place = await choose_namespace(homelab, server, datastore, namespace)
    await require_visible(homelab, place, reference)
    stored = await chosen.find_backup(place.store, place.namespace, reference)
    config = await _read_config(chosen, stored)
    notes = await chosen.get(f"{place.path}/notes", **place.params, **stored.group.params)
    return {
        "backup": str(stored.group),
        "server": chosen.name,
        "datastore": place.store,
        **({"namespace": place.namespace} if place.namespace else {}),
        "made": moment(stored.time),
        "age": duration(max(0.0, chosen.clock.time() - stored.time)),
        **({"size": size(stored.size)} if stored.size is not None else {"state": "in progress"}),
        "owner": stored.owner,
        "protected": stored.protected,
        "verified": verification_of(stored),
        **({"verified_by": stored.verified_by} if stored.verified_by else {}),
        "encryption": {"encrypt": "encrypted", "sign-only": "signed, not encrypted"}.get(stored.crypt_mode, "none"),
        **({"key": stored.key} if stored.key else {}),
        "notes": notes or "",
        "files": {name: size(count) for name, count in stored.files},
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
    return {"configuration": visible_options(parse_config(head_of(content.decode("utf-8", "replace"))))}


# -- changing ----------------------------------------------------------------------------------------------------------

EXPOSES = "backups that are not protected can be pruned and deleted"
HANDS_OVER = "the new owner may restore, prune and delete these backups"


def _update_risk(arguments: Mapping[str, Any]) -> Risk:
    weakens = arguments["protected"] is False or arguments["owner"] is not None
    return Risk.DESTROY if weakens else Risk.CHANGE


@operation(
    toolset="pbs",
    risk=Risk.DESTROY,
    risk_of=_update_risk,
    least=Risk.CHANGE,
    idempotent=True,
    shown_by=("pbs_backup_get", "backup", "datastore", "namespace", "server"),
    search_words="proxmox backup server notes comment protect unprotect keep forever change owner of backup",
    example='backup=vm/102 notes="before the upgrade"',
)
async def pbs_backup_update(
    homelab: Homelab,
    backup: BackupOrGroup,
    datastore: Datastore | None = None,
    namespace: Namespace = "",
    notes: Annotated[str, Meta(description="Empty removes them")] | None = None,
    protected: bool | None = None,
    owner: Annotated[str, Meta(description="user or token; of the whole guest")] | None = None,
    server: Server | None = None,
) -> Plan:
    """Set notes, protection or owner; to unprotect needs access admin."""
    reference = Group.parse(backup)
    chosen, place = await choose_namespace(homelab, server, datastore, namespace)
    await require_visible(homelab, place, reference)
    current = await chosen.find_backup(place.store, place.namespace, reference)
    group = Group(reference.type, reference.id)
    if protected is not None:
        require_one(reference)
    if notes is None and protected is None and owner is None:
        raise BadArgument("No changes were specified", next_step=Advice("Give {notes}, {protected} or {owner}", **_ALL))
    summary = f"Change {reference} in {place}"
    actions: list[Action] = []
    unchanged: list[str] = []
    if notes is not None:
        path = f"{place.path}/{'group-notes' if reference.time is None else 'notes'}"
        if (await chosen.get(path, **place.params, **reference.params) or "") == notes:
            unchanged.append("The notes are the same")
        else:
            request = ("PUT", path, {**place.params, **reference.params, "notes": notes})
            actions.append(
                await server_action(homelab, chosen, place, f"Set the notes of {reference}", request, group=reference)
            )
    if protected is not None and protected == current.protected:
        unchanged.append(f"{reference} is {'' if protected else 'not '}protected already")
    elif protected is not None:
        request = ("PUT", f"{place.path}/protected", {**place.params, **reference.params, "protected": protected})
        does = f"{'Protect' if protected else 'Remove the protection of'} {reference}"
        risk = None if protected else Risk.DESTROY
        actions.append(
            await server_action(
                homelab, chosen, place, does, request, group=reference, risk=risk, because="" if protected else EXPOSES
            )
        )
    if owner is not None and owner == current.owner:
        unchanged.append(f"{group} already belongs to {owner}")
    elif owner is not None:
        request = ("POST", f"{place.path}/change-owner", {**place.params, **group.params, "new-owner": owner})
        does = f"Make {owner} the owner of {group} instead of {current.owner}"
        actions.append(
            await server_action(
                homelab, chosen, place, does, request, group=group, risk=Risk.DESTROY, because=HANDS_OVER
            )
        )
    return Plan(summary, tuple(actions), unchanged=tuple(unchanged))


_ALL = {"notes": NAMED, "protected": NAMED, "owner": NAMED}


@operation(
    toolset="pbs",
    risk=Risk.DESTROY,
    shown_by=("pbs_backup_list", "datastore", "namespace", "server"),
    search_words="proxmox backup server delete remove backup snapshot group forget guest",
    example="backup=vm/100/2025-01-01T00:00:00Z",
)
async def pbs_backup_delete(
    homelab: Homelab,
    backup: BackupOrGroup,
    datastore: Datastore | None = None,
    namespace: Namespace = "",
    keep_protected: Annotated[bool, Meta(description="Delete the others")] = False,
    server: Server | None = None,
) -> Plan:
    """Delete a backup, or all of a guest. Refused if one is protected."""
    reference = Group.parse(backup)
    chosen, place = await choose_namespace(homelab, server, datastore, namespace)
    await require_visible(homelab, place, reference)
    everything = await chosen.backups_in(place, Group(reference.type, reference.id))
    doomed = [each for each in everything if reference.time in (None, each.time)]
    if not doomed:
        await chosen.find_backup(place.store, place.namespace, reference)  # says that it does not exist
    protected = [each for each in doomed if each.protected]
    if protected and (reference.time is not None or not keep_protected):
        raise Conflict(
            f"{', '.join(str(each.group) for each in protected)} {'is' if len(protected) == 1 else 'are'} protected",
            why=None if reference.time else "PBS would delete the others and then refuse",
            next_step=either(
                Advice("Remove the protection first", tools.pbs_backup_update(protected=False)),
                *((Advice("give {keep_protected}", keep_protected=True),) if reference.time is None else ()),
            ),
        )
    removed = [each for each in doomed if not each.protected]
    planned = {each.time for each in removed}

    async def check() -> None:
        now = await chosen.backups_in(place, Group(reference.type, reference.id))
        if {each.time for each in now if reference.time in (None, each.time) and not each.protected} != planned:
            raise Conflict(CHANGED, next_step="Nothing was deleted; call again to see what would be")

    path = "snapshots" if reference.time is not None else "groups"
    params = {**place.params, **reference.params}
    if protected:
        params["error-on-protected"] = False
    action = await server_action(
        homelab,
        chosen,
        place,
        f"Delete {reference} in {place}" + ("" if reference.time else f": {count_of(len(removed), 'backup')}"),
        ("DELETE", f"{place.path}/{path}", params),
        group=reference,
        risk=Risk.DESTROY,
        because=PRUNES,
        removes=[str(each.group) for each in removed],
        check=check,
    )
    left = [each for each in everything if each not in removed]
    return Plan(
        action.summary,
        (action,),
        facts={
            "removes": [str(each.group) for each in removed][:SHOWN],
            **({"protected": [str(each.group) for each in protected]} if protected else {}),
        },
        warnings=tuple(describe_loss(removed, left)),
        next_step=see("Garbage collection frees the space a day later", tools.pbs_gc),
    )


def require_one(reference: Group) -> None:
    """Refuse a group where one backup is needed."""
    if reference.time is None:
        raise BadArgument(
            f"{reference} is all backups of a guest or host",
            next_step=see("Name one with its time", tools.pbs_backup_list),
        )
