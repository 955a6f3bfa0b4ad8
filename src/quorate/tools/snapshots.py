"""Snapshots of guests: list, take, describe, roll back, delete."""

from __future__ import annotations

import asyncio
import datetime
import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import NAMED, OMITTED, Advice, Sentence, Wording, either, see, tools
from quorate.operations.plan import Call, Failure, Plan, guest_call
from quorate.operations.preconditions import (
    NEWEST_ONLY,
    data_volumes,
    existing_snapshot,
    has_feature,
    only_for_vms,
    refuse_locked,
    snapshots_of,
    storages_on,
)
from quorate.operations.registry import NAMES, GuestRef, Risk, Table, operation, page
from quorate.problems import BadArgument, Conflict, NotFound, Problem, catch_problem
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.tasks import gather_bounded
from quorate.tools.guest_power import power_call, state_of
from quorate.tools.guests import Filter
from quorate.units import count_of, duration, moment, parse_span, yes

COLUMNS = ("snapshot", "level", "parent", "taken", "age", "ram", "description")
LONGEST_NAME = 40
READS_AT_ONCE = 8
MOST_AT_ONCE = 100
_WITH_SNAPSHOTS = frozenset({"btrfs", "lvmthin", "rbd", "zfspool"})
_NAME = re.compile(r"[a-z][a-z0-9_-]+", re.I)
_RESERVED = {"vm": ("current", "pending"), "ct": ("current", "vzdump")}


@operation(
    toolset="snapshots",
    risk=Risk.READ,
    search_words="snapshots exist show",
    example="guest=docker01",
)
async def snapshot_list(pve: Cluster, guest: GuestRef) -> Table:
    """The snapshots of a guest as a tree, each below its parent; ram: the memory was saved, too."""
    target = await pve.guest(guest)
    rows = await target.get("snapshot")
    now = pve.clock.time() + pve.client.clock_skew
    tree = _tree([row for row in rows if row.get("name") != "current"])
    table = page(COLUMNS, [_rows(row, level, now) for row, level in tree], limit=len(tree) or 1, offset=0)
    current: dict[str, Any] = next((row for row in rows if row.get("name") == "current"), {})
    table.facts = {"guest": str(target), "now_after": current.get("parent", "")} if tree else {"guest": str(target)}
    return table


def _tree(rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Depth first, older ones before newer ones; a snapshot whose parent is gone is a root."""
    names = {row["name"] for row in rows}
    children: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (row.get("snaptime", 0), row["name"])):
        parent = str(row.get("parent") or "")
        children.setdefault(parent if parent in names else "", []).append(row)
    ordered: list[tuple[dict[str, Any], int]] = []
    waiting = [(row, 0) for row in reversed(children.get("", []))]
    while waiting:
        row, level = waiting.pop()
        ordered.append((row, level))
        waiting += [(child, level + 1) for child in reversed(children.get(row["name"], []))]
    return ordered


def _rows(row: dict[str, Any], level: int, now: float) -> list[Any]:
    time = row.get("snaptime", 0)
    state = f" ({row['snapstate']})" if row.get("snapstate") else ""
    return [
        row["name"],
        level,
        row.get("parent", ""),
        moment(time) if time else "",
        duration(max(0, now - time)) if time else "",
        yes(row.get("vmstate")),
        (str(row.get("description") or "").strip() + state).strip(),
    ]


@operation(
    toolset="snapshots",
    risk=Risk.CHANGE,
    search_words="make snapshot before upgrade update save state go back",
    example="guest=docker01 snapshot=before-update",
)
async def snapshot_create(
    pve: Cluster,
    guest: GuestRef,
    snapshot: Annotated[str, Meta(description="Name; default: the current time")] | None = None,
    description: str | None = None,
    ram: Annotated[bool, Meta(description="Save the memory of a running VM, too")] = False,
) -> Plan:
    """Take a snapshot of a guest."""
    target = await pve.guest(guest)
    only_for_vms(target, "ram", ram, "Leave it out; the memory of containers cannot be saved")
    name = snapshot or name_from_time(pve)
    call, warnings = await creation(target, name, description, ram=ram)
    chosen = () if snapshot else (name,)
    return Plan(call.summary, (call,), facts={"snapshot": name}, warnings=tuple(warnings), chosen_names=chosen)


def name_from_time(pve: Cluster) -> str:
    now = datetime.datetime.fromtimestamp(pve.clock.time() + pve.client.clock_skew, datetime.UTC)
    return now.strftime("auto-%Y%m%d-%H%M%S")


async def creation(guest: Guest, name: str, description: str | None, *, ram: bool = False) -> tuple[Call, list[str]]:
    """The call that takes a snapshot, and warnings; a Problem if PVE would not take it."""
    check_name(guest.row.kind, name)
    status, existing, able = await asyncio.gather(
        guest.get("status/current"), snapshots_of(guest), has_feature(guest, "snapshot")
    )
    if guest.row.template:
        raise Conflict(f"{guest} is a template, and those have no snapshots", next_step="It does not change anyway")
    refuse_locked(guest, status)
    if name in (row["name"] for row in existing):
        raise Conflict(
            f"{guest} already has a snapshot {name!r}",
            next_step=either("Choose another name", Advice("leave {snapshot} out", snapshot=OMITTED)),
        )
    if not able:
        raise await _unable(guest)
    running = status.get("status") == "running"
    warnings = [f"{guest} is not running, so there is no memory to save"] if ram and not running else []
    summary = f"Take snapshot {name} of {guest}" + (" with its memory" if ram and running else "")
    call = guest_call(
        guest,
        "POST",
        "snapshot",
        summary,
        snapname=name,
        description=description,
        vmstate=1 if ram and running else None,
    )
    return call, warnings


def check_name(kind: str, name: str) -> None:
    rules = f"A name begins with a letter, then has letters, digits, - and _; it has 2 to {LONGEST_NAME} characters"
    if not _NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        near = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:LONGEST_NAME]
        leave_out = Advice("leave {snapshot} out", snapshot=OMITTED)
        hint = Advice(f"{near!r} would work") if _NAME.fullmatch(near) else either("Choose another", leave_out)
        raise BadArgument(f"{name!r} is not a name for a snapshot", why=rules, next_step=hint)
    if name in _RESERVED[kind]:
        raise BadArgument(f"PVE reserves the name {name!r}", next_step="Choose another name")


async def _unable(guest: Guest) -> Conflict:
    config, known = await asyncio.gather(guest.get("config"), storages_on(guest.cluster, guest.row.node))
    able = {name for name, storage in known.items() if storage.plugintype in _WITH_SNAPSHOTS}
    volumes = [volume for volume in data_volumes(config) if not volume.is_cloudinit]
    unable = [volume for volume in volumes if volume.storage not in able and not volume.volid.endswith(".qcow2")]
    disks = ", ".join(map(str, unable or volumes))
    return Conflict(
        f"The storage of {guest} cannot take snapshots",
        why=f"PVE cannot snapshot {disks}" if disks else None,
        next_step=Advice(
            "Move the disks to a storage that can (ZFS, LVM-thin, Ceph, qcow2 files), or make a backup",
            tools.backup_create(guest=guest.vmid),
        ),
    )


@operation(
    toolset="snapshots",
    risk=Risk.CHANGE,
    idempotent=True,
    search_words="rename describe note comment description snapshot",
    example="guest=docker01 snapshot=before-upgrade description='before docker 29'",
)
async def snapshot_update(pve: Cluster, guest: GuestRef, snapshot: str, description: str) -> Plan:
    """Change the description of a snapshot."""
    target = await pve.guest(guest)
    row = existing_snapshot(target, await snapshots_of(target), snapshot)
    summary = f"Describe snapshot {snapshot} of {target}"
    if str(row.get("description") or "").strip() == description.strip():
        return Plan(summary, unchanged=("It already has this description",))

    call = guest_call(target, "PUT", f"snapshot/{snapshot}/config", summary, description=description)
    return Plan(summary, (call,))


@operation(
    toolset="snapshots",
    risk=Risk.DESTROY,
    search_words="go back revert undo before update upgrade broke earlier state restore snapshot",
    example="guest=docker01 snapshot=before-upgrade",
)
async def snapshot_rollback(
    pve: Cluster,
    guest: GuestRef,
    snapshot: str,
    start: Annotated[bool, Meta(description="Start it afterwards")] = False,
) -> Plan:
    """Roll a guest back to a snapshot. All later changes are lost; a running guest is stopped."""
    target = await pve.guest(guest)
    status, snapshots = await asyncio.gather(target.get("status/current"), snapshots_of(target))
    row = existing_snapshot(target, snapshots, snapshot)
    refuse_locked(target, status)
    if row.get("snapstate"):
        raise Conflict(
            f"Snapshot {snapshot} of {target} is incomplete ({row['snapstate']})",
            next_step=Advice(
                "An interrupted task left it behind; delete it",
                tools.snapshot_delete(guest=target.vmid, snapshot=snapshot),
            ),
        )
    await _refuse_newer(pve, target, snapshots, row)
    summary = f"Roll {target} back to snapshot {snapshot}"
    calls = [guest_call(target, "POST", f"snapshot/{snapshot}/rollback", summary)]
    resumes = bool(row.get("vmstate"))
    if start and not resumes:
        starting = power_call(target, "start", "stopped", {})
        assert starting is not None
        calls.append(starting)
    age = duration(max(0, pve.clock.time() + pve.client.clock_skew - row.get("snaptime", 0)))
    return Plan(
        summary,
        tuple(calls),
        facts={"taken": moment(row.get("snaptime", 0)), "age": age},
        warnings=tuple(_losses(target, await state_of(target), age, resumes=resumes, start=start)),
    )


@dataclass(frozen=True, slots=True, init=False)
class Loss(Advice):
    """A warning about what is lost unless a snapshot of now is taken first."""

    what: str

    def __init__(self, what: str) -> None:
        Advice.__init__(self, f"{what} is lost; take a snapshot first if it may be needed")
        object.__setattr__(self, "what", what)

    def transform(self, change: Callable[[Any], Any]) -> Loss:
        return Loss(change(self.what))

    def kept_in(self, snapshot: str) -> str:
        return f"{self.what} is kept only in snapshot {snapshot}"


def _losses(guest: Guest, state: str, age: str, *, resumes: bool, start: bool) -> list[str | Wording]:
    warnings: list[str | Wording] = [Loss(f"What was written in the last {age}")]
    if resumes:
        warnings.append("The snapshot holds the memory: the VM continues from that moment")
    elif state != "stopped" and not start:
        warnings.append(Sentence(f"{guest} is {state}; it will be stopped and stay so, unless {{start}}", start=True))
    return warnings


async def _refuse_newer(pve: Cluster, guest: Guest, snapshots: list[dict[str, Any]], row: dict[str, Any]) -> None:
    """ZFS can only go back to the newest snapshot of a disk."""
    newer = [other for other in snapshots if other.get("snaptime", 0) > row.get("snaptime", 0)]
    if not newer:
        return
    known = await storages_on(pve, guest.row.node)
    zfs = {name for name, storage in known.items() if storage.plugintype in NEWEST_ONLY}
    config, *later = await asyncio.gather(
        *(guest.get(f"snapshot/{other['name']}/config") for other in (row, *newer)),
    )
    disks = {volume.volid for volume in data_volumes(config) if volume.storage in zfs}
    blocking = [
        other["name"]
        for other, kept in zip(newer, later, strict=True)
        if disks & {volume.volid for volume in data_volumes(kept)}
    ]
    if blocking:
        raise Conflict(
            f"{guest} cannot be rolled back to {row['name']}: ZFS can only roll back to the newest snapshot",
            why=f"Newer snapshots: {', '.join(blocking)}",
            next_step=Advice(
                "Delete those first, or clone the guest",
                tools.snapshot_delete(guest=guest.vmid, snapshot=blocking[-1]),
                tools.guest_clone(guest=guest.vmid),
            ),
        )


@operation(
    toolset="snapshots",
    risk=Risk.DESTROY,
    search_words="snapshots remove cleanup old older than several all pattern age",
    example="guest=docker01 snapshot=before-upgrade",
)
async def snapshot_delete(
    pve: Cluster,
    guest: Annotated[
        int | str | list[int | str], Meta(description="vmid or name, a list, or web*", extra={NAMES: ("guest",)})
    ],
    snapshot: Annotated[str, Meta(description="Name, or auto-*")],
    older_than: Annotated[str, Meta(description="Such as 7d")] | None = None,
) -> Plan:
    """Delete a snapshot, or all that match. The guest stays as it is; later snapshots are kept."""
    targets = await _resolve_guests(pve, guest)
    newest = pve.clock.time() + pve.client.clock_skew - (parse_span(older_than) if older_than else 0)
    only_one = older_than is None and not _is_pattern(snapshot) and len(targets) == 1
    choices = await gather_bounded(
        READS_AT_ONCE, [partial(_try_to_choose, target, snapshot, newest, exact=only_one) for target in targets]
    )
    chosen = [choice for choice in choices if not isinstance(choice, Problem) and choice.rows]
    problems = [
        (target, choice) for target, choice in zip(targets, choices, strict=True) if isinstance(choice, Problem)
    ]
    if not chosen:
        raise problems[0][1] if problems else _no_match(targets, snapshot, older_than)
    count = sum(len(choice.rows) for choice in chosen)
    if count > MOST_AT_ONCE:
        raise BadArgument(
            f"{count_of(count, 'snapshot')} match, and one call deletes at most {MOST_AT_ONCE}",
            next_step=Advice("Name fewer guests, or give a longer {older_than}", older_than=NAMED),
        )
    calls = [choice.delete(row["name"]) for choice in chosen for row in choice.rows]
    guests = str(chosen[0].guest) if len(chosen) == 1 else count_of(len(chosen), "guest")
    first = chosen[0].rows[0]
    alone: dict[str, Any] = {"taken": moment(first.get("snaptime", 0)), "children": chosen[0].children}
    return Plan(
        calls[0].summary if count == 1 else f"Delete {count_of(count, 'snapshot')} of {guests}",
        tuple(calls),
        failures=tuple(Failure.about(str(target), str(problem)) for target, problem in problems),
        independent=len(chosen) > 1,
        sequences=tuple(len(choice.rows) for choice in chosen) if len(chosen) > 1 else (),
        facts=alone if count == 1 else {},
        warnings=tuple(warning for choice in chosen for warning in choice.warnings()),
    )


def _is_pattern(text: object) -> bool:
    return isinstance(text, str) and any(mark in text for mark in "*?[")


async def _resolve_guests(pve: Cluster, refs: int | str | list[int | str]) -> list[Guest]:
    """The guests of a reference, a list or patterns, each once."""
    listed = refs if isinstance(refs, list) else [refs]
    by_pattern = [
        row for ref in listed if _is_pattern(ref) for row in await Filter(name=str(ref)).apply(pve, to_act=True)
    ]
    guests = await pve.guests([ref for ref in listed if not _is_pattern(ref)])
    by_vmid = {guest.vmid: guest for guest in [*guests, *(Guest(pve, row) for row in by_pattern if not row.template)]}
    if not by_vmid:
        raise NotFound("No guest matches", next_step=see("See the names", tools.guest_list))
    return [by_vmid[vmid] for vmid in sorted(by_vmid)]


@dataclass(frozen=True, slots=True)
class _Choice:
    """The snapshots of a guest that will be deleted, oldest first."""

    guest: Guest
    rows: list[dict[str, Any]]
    everything: list[dict[str, Any]]

    @property
    def names(self) -> list[str]:
        return [row["name"] for row in self.rows]

    @property
    def children(self) -> list[str]:
        """Kept snapshots that were taken on top of one that goes."""
        return [
            row["name"] for row in self.everything if row.get("parent") in self.names and row["name"] not in self.names
        ]

    def delete(self, name: str) -> Call:
        return guest_call(self.guest, "DELETE", f"snapshot/{name}", f"Delete snapshot {name} of {self.guest}")

    def warnings(self) -> list[str]:
        if not self.children:
            return []
        few = len(self.children) == 1
        if len(self.rows) > 1:
            return [f"{self.guest}: {', '.join(self.children)} {'is' if few else 'are'} kept"]
        row = self.rows[0]
        below = f"below {row['parent']}" if row.get("parent") else "at the root of the tree"
        kept = f"{', '.join(self.children)} {'is' if few else 'are'} kept, {below}"
        return [f"Its {'child' if few else 'children'} {kept}"]


async def _try_to_choose(guest: Guest, snapshot: str, newest: float, *, exact: bool) -> _Choice | Problem:
    return await catch_problem(_choose(guest, snapshot, newest, exact=exact))


async def _choose(guest: Guest, snapshot: str, newest: float, *, exact: bool) -> _Choice:
    status, snapshots = await asyncio.gather(guest.get("status/current"), snapshots_of(guest))
    rows = [row for row in snapshots if fnmatch.fnmatchcase(row["name"], snapshot) and row.get("snaptime", 0) <= newest]
    if exact:
        rows = [existing_snapshot(guest, snapshots, snapshot)]
    if rows:
        refuse_locked(guest, status)
    return _Choice(guest, rows, snapshots)


def _no_match(guests: list[Guest], snapshot: str, older_than: str | None) -> NotFound:
    age = f" older than {older_than}" if older_than else ""
    return NotFound(
        f"No snapshot {snapshot!r}{age} of {str(guests[0]) if len(guests) == 1 else count_of(len(guests), 'guest')}",
        next_step=see("See those that exist", tools.snapshot_list(guest=guests[0].vmid)),
    )
