"""Comparing a guest as it is now with a snapshot, a backup, another guest, or itself at an earlier time."""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import Advice, tools
from quorate.operations.preconditions import existing_snapshot, snapshots_of
from quorate.operations.registry import GuestRef, Risk, Table, operation, page
from quorate.operations.undo import fingerprint
from quorate.problems import BadArgument, Problem, catch_problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.stored_objects import hide_secrets
from quorate.state.journal import Journal, Outcome
from quorate.tools.backups import NEWEST, archived_config, archived_notes, find_backup
from quorate.tools.storages import survey
from quorate.units import When, count_of, moment, parse_moment

COLUMNS = ("part", "what", "old", "new")
Row = list[Any]
LINES_SHOWN = 20
_INTERNAL = frozenset(
    [
        *("digest", "meta", "vmgenid", "snaptime", "snapstate", "vmstate", "parent", "lock"),
        *("runningmachine", "runningcpu", "running-nets-host-mtu"),
    ]
)
_OWN_OF_EACH = frozenset({"name", "hostname", "smbios1"})
"""What always differs between two guests."""
_DONE = (Outcome.DONE, Outcome.WARNINGS)
_GUEST_CONFIG = re.compile(r"/nodes/[^/]+/(?:qemu|lxc)/(?P<vmid>\d+)/config")


@dataclass(slots=True)
class Counterpart:
    """What the guest is compared with."""

    label: str
    config: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    """Differences of other things than the configuration."""
    facts: dict[str, Any] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    vmid: int | None = None
    """Another guest's, whose volumes and MAC addresses differ anyway."""


@operation(
    toolset="guests",
    risk=Risk.READ,
    search_words=(
        "compare difference what changed yesterday since snapshot backup other guest config settings before after drift"
    ),
    example="guest=docker01 since=1d",
)
async def guest_diff(
    pve: Cluster,
    guest: GuestRef,
    snapshot: str | None = None,
    backup: Annotated[str, Meta(description="As in backup_list, or newest")] | None = None,
    other: GuestRef | None = None,
    since: Annotated[When, Meta(description="As it was then, by the journal: 1d, 2026-01-31 08:00")] | None = None,
) -> Table:
    """What differs between a guest now and one of: a snapshot, a backup, another guest (also firewall, rights), itself
    at an earlier time. Settings with old and new value, disks, networks, notes."""
    chosen = {"snapshot": snapshot, "backup": backup, "other": other, "since": since}
    if sum(value is not None for value in chosen.values()) != 1:
        raise BadArgument(
            "One thing to compare with is needed",
            next_step=Advice("Give {snapshot}, {backup}, {other} or {since}", **dict.fromkeys(chosen, "")),
        )
    target = await pve.guest(guest)
    entries = await target.get("pending")
    config = {str(entry["key"]): entry["value"] for entry in entries if "value" in entry}
    if snapshot is not None:
        old = await _of_snapshot(target, snapshot)
    elif backup is not None:
        old = await _of_backup(pve, target, backup)
    elif other is not None:
        old = await _of_guest(pve, target, await pve.guest(other))
    else:
        old = await _of_earlier(pve, target, config, str(since))
    rows = [*_compare_configs(target, old, config), *old.rows]
    table = page(COLUMNS, rows, limit=len(rows) or 1, offset=0)
    table.facts = {
        "old": old.label,
        "new": f"{target} now",
        **({} if rows else {"result": "no difference"}),
        **old.facts,
    }
    if waiting := values.pending_changes(entries):
        table.facts["pending"] = waiting
    return table


# -- what it is compared with ------------------------------------------------------------------------------------------


async def _of_snapshot(guest: Guest, name: str) -> Counterpart:
    row = existing_snapshot(guest, await snapshots_of(guest), name)
    config = dict(await guest.get(f"snapshot/{name}/config"))
    own_notes = str(config.pop("description", "") or "").strip()
    facts = {"snapshot_notes": own_notes} if own_notes else {}
    facts["not_compared"] = "notes, firewall and rights, which are not part of snapshots"
    made = f", made {moment(row['snaptime'])}" if row.get("snaptime") else ""
    return Counterpart(f"snapshot {name}{made}", config, facts=facts, ignored=frozenset({"description"}))


async def _of_backup(pve: Cluster, guest: Guest, name: str) -> Counterpart:
    archive = await find_backup(pve, f"{NEWEST}:{guest.vmid}" if name == NEWEST else name)
    config, notes = await asyncio.gather(archived_config(pve, archive), archived_notes(pve, archive))
    facts: dict[str, Any] = {"not_compared": "firewall and rights, which PVE does not show of backups"}
    if archive.notes:
        facts["backup_notes"] = archive.notes
    if archive.vmid != guest.vmid:
        facts["note"] = f"It is a backup of guest {archive.vmid}"
    label = f"backup {archive.volid}, made {moment(archive.ctime)}"
    return Counterpart(label, {**config, **({"description": notes} if notes else {})}, facts=facts)


async def _of_guest(pve: Cluster, guest: Guest, other: Guest) -> Counterpart:
    if other.vmid == guest.vmid:
        raise BadArgument(f"{guest} would be compared with itself", next_step="Choose two guests")
    if other.is_vm != guest.is_vm:
        raise BadArgument(f"{guest} and {other} are a VM and a container", next_step="Choose two of the same kind")
    config = dict(await other.get("config"))
    rows = [
        ["place", what, old, new]
        for what, old, new in (
            ("node", other.row.node, guest.row.node),
            ("pool", other.row.pool, guest.row.pool),
            ("status", other.row.status, guest.row.status),
        )
        if old != new
    ]
    firewalls, roles = await asyncio.gather(
        catch_problem(asyncio.gather(_firewall(other), _firewall(guest))),
        catch_problem(asyncio.gather(_roles(pve, other), _roles(pve, guest))),
    )
    facts: dict[str, Any] = {}
    for part, answer in (("firewall", firewalls), ("rights", roles)):
        if isinstance(answer, Problem):
            facts.setdefault("not_read", []).append(f"{part}: {answer.what}")
        else:
            rows += _compare_mappings(part, *answer)
    return Counterpart(str(other), config, rows, facts, _OWN_OF_EACH, other.vmid)


async def _firewall(guest: Guest) -> dict[str, str]:
    options, rules, sets, aliases = await asyncio.gather(
        *(guest.get(f"firewall/{kind}") for kind in ("options", "rules", "ipset", "aliases"))
    )
    facts = {f"option {key}": str(value) for key, value in options.items() if key != "digest"}
    for rule in rules:
        parts = [f"{key}={rule[key]}" for key in sorted(rule) if key not in ("pos", "digest", "action", "type")]
        facts[f"rule {rule.get('type')} {rule.get('action')} {' '.join(parts)}".rstrip()] = f"at {rule.get('pos')}"
    facts |= {f"ipset {row['name']}": str(row.get("comment") or "exists") for row in sets}
    return facts | {f"alias {row['name']}": str(row.get("cidr", "")) for row in aliases}


async def _roles(pve: Cluster, guest: Guest) -> dict[str, str]:
    """Who has which role on the guest or on its pool."""
    places = {f"/vms/{guest.vmid}": "the guest", **({f"/pool/{guest.row.pool}": "its pool"} if guest.row.pool else {})}
    return {
        f"{row.get('type')} {row.get('ugid')} {row.get('roleid')}": f"on {places[row['path']]}"
        for row in await pve.get("/access/acl")
        if row.get("path") in places
    }


# -- an earlier time ---------------------------------------------------------------------------------------------------


async def _of_earlier(pve: Cluster, guest: Guest, config: Mapping[str, Any], since: str) -> Counterpart:
    """The configuration with everything taken back that the journal recorded since then."""
    begin = parse_moment(since, now=pve.clock.time())
    earlier, unknown, others, counted = dict(config), set[str](), list[str](), 0
    for entry in await pve.attachment(Journal).entries_since(begin):
        steps = [step for step in entry.get("wire") or () if isinstance(step, Mapping)]
        if entry.get("cluster") != pve.name or entry.get("outcome") not in _DONE:
            continue
        if not any(re.search(rf"/(?:qemu|lxc)/{guest.vmid}(?:/|$)", str(step.get("path"))) for step in steps):
            continue
        rows = [row for row in entry.get("replaced") or () if _is_about(steps, row, guest.vmid)]
        for row in reversed(rows):
            if fingerprint(row["values"]) != row["sha256"]:
                unknown |= {key for key, (before, after) in row["values"].items() if before != after}
            _take_back(earlier, row["values"])
        counted += bool(rows)
        if not rows:
            others.append(f"{entry.get('time')}: {entry.get('plan') or entry.get('tool')}")
    facts: dict[str, Any] = {
        **({"also_done": others} if others else {}),
        **({"not_recorded": sorted(unknown)} if unknown else {}),
        "changes": f"{count_of(counted, 'change')} of its settings by this server since then",
        "note": await _explain_gap(pve, guest, begin),
    }
    return Counterpart(f"{guest} at {moment(begin)}", earlier, facts=facts, ignored=frozenset(unknown))


def _is_about(steps: list[Mapping[str, Any]], row: Mapping[str, Any], vmid: int) -> bool:
    number = int(row.get("step") or 0)
    match = _GUEST_CONFIG.fullmatch(str(steps[number - 1].get("path"))) if 0 < number <= len(steps) else None
    return match is not None and int(match["vmid"]) == vmid


def _take_back(config: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, (before, after) in changes.items():
        if before == after:
            continue
        if before is None:
            config.pop(key, None)
        else:
            config[key] = before


async def _explain_gap(pve: Cluster, guest: Guest, begin: float) -> Advice:
    """What was changed without this server is not in its journal; a backup or snapshot from before shows it."""
    text = "What was changed without this server is not in its journal"
    backups, _ = await survey(pve, content="backup", vmid=guest.vmid)
    before = [volume for volume in backups if volume.ctime <= begin]
    if not before:
        return Advice(text)
    newest = max(before, key=lambda volume: volume.ctime)
    return Advice(
        f"{text}. The last backup before then shows it", tools.guest_diff(guest=guest.vmid, backup=newest.volid)
    )


# -- differences -------------------------------------------------------------------------------------------------------


def _compare_configs(guest: Guest, old: Counterpart, config: Mapping[str, Any]) -> Iterator[Row]:
    before, now = (_comparable(settings, _INTERNAL | old.ignored) for settings in (old.config, config))
    for key in sorted(before.keys() | now.keys(), key=lambda key: (_part_of(key, now, before), key)):
        first, second = before.get(key), now.get(key)
        if key == "description":
            yield from _compare_notes(str(first or ""), str(second or ""))
        elif key == "sshkeys":
            keys = [values.decode_keys(str(text or "")) for text in (first, second)]
            yield from _compare_mappings("ssh key", *(dict.fromkeys(lines, "allowed") for lines in keys))
        elif key == "tags":
            tags = [sorted(filter(None, re.split(r"[,; ]+", str(text or "")))) for text in (first, second)]
            if tags[0] != tags[1]:
                yield ["setting", key, " ".join(tags[0]), " ".join(tags[1])]
        elif first is None or second is None:
            yield [_part_of(key, now, before), key, _text(first), _text(second)]
        elif not values.same(first, second):
            yield from _compare_values(guest, old, key, str(first), str(second))


def _comparable(config: Mapping[str, Any], left_out: Collection[str]) -> dict[str, Any]:
    """Raw options of a container are a list, whose variables are hidden."""
    compared = ((key, config[key]) for key in config if key not in left_out and not values.holds_secrets(key))
    return {
        key: hide_secrets("/nodes/{node}/lxc", value) if isinstance(value, list) else value for key, value in compared
    }


def _part_of(key: str, *configs: Mapping[str, Any]) -> str:
    bus = values.bus_of(key)
    if bus in ("net", "ipconfig"):
        return "network"
    if bus == "unused":
        return "detached disk"
    if bus is not None:
        return "disk" if any(values.is_disk(key, str(config[key])) for config in configs if key in config) else "drive"
    return "notes" if key == "description" else "setting"


def _compare_values(guest: Guest, old: Counterpart, key: str, first: str, second: str) -> Iterator[Row]:
    """The parts that differ of a device; other settings as a whole."""
    part = _part_of(key, {key: second}, {key: first})
    if values.bus_of(key) is None:
        yield [part, key, first, second]
        return
    parse = values.parse_nic if part == "network" and guest.is_vm else lambda text: values.parse(text, "volume")
    before, now = parse(first), parse(second)
    for name in (*before, *(name for name in now if name not in before)):
        texts = [before.get(name, ""), now.get(name, "")]
        if old.vmid is not None:
            if name in ("macaddr", "hwaddr"):
                continue
            if name in ("volume", "file") and _neutral(texts[0], old.vmid) == _neutral(texts[1], guest.vmid):
                continue
        if texts[0] != texts[1]:
            yield [part, f"{key} {name}", *texts]


def _neutral(volid: str, vmid: int) -> str:
    """A volume's name without its guest's id and, of a linked clone, its base; a template's disk is called base."""
    storage, _, name = volid.partition(":")
    own = re.sub(rf"(?<=[-:/]){vmid}(?=[-/])", "", name.rpartition("/")[2])
    return f"{storage}:{re.sub(r'^base(vol)?-', lambda match: 'subvol-' if match[1] else 'vm-', own)}"


def _compare_notes(first: str, second: str) -> Iterator[Row]:
    before, now = (text.strip().splitlines() for text in (first, second))
    changed = [line for line in difflib.ndiff(before, now) if line[:2] in ("- ", "+ ")]
    for line in changed[:LINES_SHOWN]:
        yield ["notes", "line", line[2:], ""] if line[0] == "-" else ["notes", "line", "", line[2:]]
    if len(changed) > LINES_SHOWN:
        yield ["notes", f"{len(changed) - LINES_SHOWN} more lines", "", ""]


def _compare_mappings(part: str, first: Mapping[str, str], second: Mapping[str, str]) -> list[Row]:
    keys = [key for key in (*first, *(key for key in second if key not in first)) if first.get(key) != second.get(key)]
    return [[part, key, first.get(key, ""), second.get(key, "")] for key in keys]


def _text(value: Any) -> str:
    return "" if value is None else str(value)
