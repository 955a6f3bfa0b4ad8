"""Which guests are backed up and which are not, as a table and as findings of the health report."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import quote

from msgspec import Meta

from quorate.hints import tools
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import Problem, catch_problem
from quorate.pve.backups import excluded_paths, excluded_volumes, volumes_left_out
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource
from quorate.pve.tasks import gather_bounded
from quorate.runs.store import RunStore
from quorate.tools.backup_jobs import JOBS, guests_of, is_enabled, read_jobs
from quorate.tools.backup_storages import storage_findings
from quorate.tools.backups import describe_hidden_backups, hidden_guests, storage_visibility
from quorate.tools.health_findings import (
    Finding,
    explained_finding,
    guest_label,
    names,
    pve_time,
    read_in_time,
)
from quorate.tools.node_health import DAY
from quorate.tools.storages import StoredVolume, list_out_of_reach, read_places, storage_places
from quorate.units import count_of, duration

KIND: Final = "restore_drill"
ITEMS: Final = "items"
PASSED: Final = "passed"
PASSED_IN_PART: Final = "passed, without all data"
"""The verdict on a backup that works, but leaves out data of its guest."""


@dataclass(frozen=True, slots=True)
class DrillCopy:
    """A guest that a restore drill restores and removes again."""

    name: str
    vmid: int
    begun: float
    ended: float
    """Infinite while the run has not ended."""


@dataclass(frozen=True, slots=True)
class Drills:
    """What restore drills have proved, and the guests that they restored for it."""

    proved: dict[int, tuple[float, str]]
    """vmid -> when a restore last proved a backup of the guest, and which backup."""
    copies: list[DrillCopy]


async def read_drills(pve: Cluster) -> Drills:
    store = pve.attachment(RunStore)
    drills = Drills({}, [])
    for run in await store.list(kind=KIND, limit=500, shows=lambda run: run.is_of(pve.name, pve.endpoints)):
        for number, item in enumerate(run.scope[ITEMS]):
            state = run.memory.get(ITEMS, {}).get(str(number), {})
            if state.get("verdict") in (PASSED, PASSED_IN_PART) and item["of"] is not None:
                drills.proved.setdefault(int(item["of"]), (run.changed, str(item["backup"])))
            vmid, ended = int(item["vmid"]), math.inf if run.ended is None else run.ended
            drills.copies.append(DrillCopy(drill_name(run.id, vmid), vmid, run.created, ended))
    return drills


def drill_name(run: str, vmid: int) -> str:
    """Distinguishes what the run restored from any other guest."""
    return f"drill-{run}-{vmid}"


COLUMNS = (
    "vmid", "name", "type", "node", "jobs", "backups", "newest", "where", "verified", "newest_good", "proved",
    "not_included", "trouble",
)  # fmt: skip
READS_AT_ONCE = 8
GUESTS_READ = 500
"""How many guests are asked for their configuration, at a request each: those that PVE's lists of what jobs include do
not settle."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """A guest with the enabled jobs that cover it and its backups, newest first."""

    guest: Resource
    jobs: tuple[str, ...]
    excluded_by: tuple[str, ...]
    """Enabled jobs that cover all guests but this one."""
    backups: tuple[StoredVolume, ...]
    looked_everywhere: bool
    """Every storage could be read and hides no backups of the guest: a backup that was not seen does not exist."""
    not_included: tuple[str, ...]
    """What its backups leave out."""

    def trouble(self, now: float, days: float) -> str:
        excluded = f" (excluded by {', '.join(self.excluded_by)})" if self.excluded_by else ""
        troubles = [] if self.jobs else [f"no job{excluded}"]
        if not self.backups:
            troubles.append("no backup" if self.looked_everywhere else "no backup seen")
        elif now - self.backups[0].ctime > days * DAY:
            troubles.append("old backup")
        if self.not_included:
            troubles.append("not all data")
        return ", ".join(troubles)


@dataclass(frozen=True, slots=True)
class CoverageSurvey:
    """The coverage of all guests, for the table and for the health report: both count the same."""

    rows: list[Coverage]
    """All guests but templates, by vmid."""
    templates: int
    unread: list[tuple[Resource, Problem]]
    """Storages that could not be read."""
    offline: list[str]
    """Storages of nodes that are offline."""
    hidden: list[str]
    unchecked: list[Resource]
    """Guests on nodes that are online of which nothing says what their backups leave out."""

    @property
    def without_job(self) -> list[Coverage]:
        return [row for row in self.rows if not row.jobs]

    @property
    def without_backup(self) -> list[Coverage]:
        return [row for row in self.rows if not row.backups and row.looked_everywhere]

    @property
    def no_backup_seen(self) -> list[Coverage]:
        return [row for row in self.rows if not row.backups and not row.looked_everywhere]

    @property
    def incomplete(self) -> list[Coverage]:
        return [row for row in self.rows if row.not_included]

    @property
    def not_read(self) -> list[str]:
        return [f"{place.storage} on {place.node}: {problem.what}" for place, problem in self.unread] + self.offline


def covering_jobs(jobs: list[dict[str, Any]], guests: list[Resource]) -> dict[int, list[dict[str, Any]]]:
    """vmid -> the enabled jobs that cover the guest."""
    covered: dict[int, list[dict[str, Any]]] = {}
    for job in jobs:
        for row in guests_of(job, guests) if is_enabled(job) else ():
            covered.setdefault(row.vmid, []).append(job)
    return covered


async def survey_coverage(pve: Cluster) -> CoverageSurvey:
    everything = sorted(await pve.inventory.guests(), key=lambda row: row.vmid)
    guests = [row for row in everything if not row.template]
    jobs = await read_jobs(pve)
    covered, excluding = covering_jobs(jobs, guests), excluding_jobs(jobs, guests)
    places = await storage_places(pve, content=["backup"])
    unread: list[tuple[Resource, Problem]] = []
    backups_by_guest: dict[int, list[StoredVolume]] = {}
    for place, volumes in await read_places(pve, places, content="backup"):
        if isinstance(volumes, Problem):
            unread.append((place, volumes))
            continue
        for volume in volumes:
            backups_by_guest.setdefault(volume.vmid or 0, []).append(volume)
    offline = await list_out_of_reach(pve, places, content=["backup"])
    visibility = await storage_visibility(pve, (place.storage for place in places))
    unseen = (row.vmid for row in guests if row.vmid not in backups_by_guest)
    hidden = await hidden_guests(pve, unseen) if visibility.by_guest else []
    lists = await _read_exclusions(pve, jobs, covered)
    doubtful = [
        row for row in guests if lists.leave_open(row) and (row.vmid in covered or row.vmid in backups_by_guest)
    ]
    online = (await pve.inventory.view()).online
    configs = await _read_configs(pve, [row for row in doubtful if row.node in online][:GUESTS_READ])
    missing = lists.by_guest | {
        row.vmid: excluded_volumes(configs[row.vmid], is_vm=row.kind == "vm") for row in doubtful if row.vmid in configs
    }
    rows = [
        Coverage(
            row,
            tuple(str(job["id"]) for job in covered.get(row.vmid, ())),
            tuple(excluding.get(row.vmid, ())),
            tuple(
                backup
                for backup in sorted(backups_by_guest.get(row.vmid, ()), key=lambda volume: -volume.ctime)
                if backup.is_container == (row.kind == "ct")
            ),
            looked_everywhere=not unread and not offline and not visibility.hidden and row.vmid not in hidden,
            not_included=(*missing.get(row.vmid, ()), *paths_left_out(row.kind, covered.get(row.vmid, ()))),
        )
        for row in guests
    ]
    return CoverageSurvey(
        rows,
        len(everything) - len(guests),
        unread,
        offline,
        describe_hidden_backups(visibility.hidden, hidden),
        [row for row in doubtful if row.node in online and row.vmid not in missing],
    )


def _excluded_vmids(job: Mapping[str, Any]) -> list[str]:
    return [] if job.get("vmid") or job.get("pool") else str(job.get("exclude") or "").split(",")


def paths_left_out(kind: str, jobs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The paths in a container that these jobs exclude."""
    return [path for job in jobs if kind == "ct" for path in excluded_paths(job, f"job {job['id']}")]


@dataclass(frozen=True, slots=True)
class _Exclusions:
    """What PVE's lists of what jobs include say: a request for each job instead of one for each guest."""

    by_guest: dict[int, list[str]]
    """vmid -> the volumes that are left out."""
    directories: bool
    """VMs may share directories of their node: these are never in a backup, nor in PVE's lists."""

    def leave_open(self, row: Resource) -> bool:
        """Whether only its configuration says what is left out, and how large it is."""
        return bool(self.by_guest.get(row.vmid, True)) or (self.directories and row.kind == "vm")


async def _read_exclusions(
    pve: Cluster, jobs: list[dict[str, Any]], covered: Mapping[int, list[dict[str, Any]]]
) -> _Exclusions:
    used = {str(job["id"]) for own in covered.values() for job in own}
    reads = [
        partial(_read, pve.get, f"{JOBS}/{quote(str(job['id']), safe='')}/included_volumes")
        for job in jobs
        if str(job["id"]) in used
    ]
    lists = [tree for tree in await gather_bounded(READS_AT_ONCE, reads) if not isinstance(tree, Problem)]
    by_guest: dict[int, list[str]] = {}
    for tree in lists:
        by_guest |= volumes_left_out(tree)
    return _Exclusions(by_guest, directories=bool(by_guest) and await _may_share_directories(pve))


async def _may_share_directories(pve: Cluster) -> bool:
    if not await pve.may("/mapping/dir", "Mapping.Audit"):
        return True
    mapped = await _read(pve.get, "/cluster/mapping/dir")
    return isinstance(mapped, Problem) or bool(mapped)


async def _read_configs(pve: Cluster, guests: list[Resource]) -> dict[int, Mapping[str, Any]]:
    """vmid -> configuration, of the guests whose node answers."""
    reads = [partial(_read, Guest(pve, row).get, "config") for row in guests]
    answers = await gather_bounded(READS_AT_ONCE, reads)
    return {row.vmid: config for row, config in zip(guests, answers, strict=True) if not isinstance(config, Problem)}


async def _read(get: Callable[[str], Awaitable[Any]], path: str) -> Any:
    return await catch_problem(read_in_time(get(path)))


@operation(
    toolset="backups",
    risk=Risk.READ,
    search_words=(
        "guest recent check verify not backed up unprotected missing without forgotten stale last data safe copies"
        " everything covered machines"
    ),
)
async def backup_coverage(
    pve: Cluster,
    max_days: Annotated[float, Meta(gt=0)] = 7,
    all: Annotated[bool, Meta(description="Also those that are fine")] = False,
    limit: Annotated[int, Meta(ge=1, le=200)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Guests that no enabled backup job covers, or without a recent backup; and when a restore last proved one."""
    survey = await survey_coverage(pve)
    now = pve.clock.time()
    shown = [row for row in survey.rows if all or row.trouble(now, max_days)]
    proofs = (await read_drills(pve)).proved
    table = page(COLUMNS, (_row(row, now, max_days, proofs) for row in shown), limit=limit, offset=offset)
    table.facts = {
        "guests": len(survey.rows),
        **({"templates": survey.templates} if survey.templates else {}),
        "without_job": len(survey.without_job),
        "without_backup": len(survey.without_backup),
        **({"no_backup_seen": len(survey.no_backup_seen)} if survey.no_backup_seen else {}),
        **({"not_all_data": len(survey.incomplete)} if survey.incomplete else {}),
        "never_proven": sum(row.guest.vmid not in proofs for row in survey.rows),
        "in_trouble": sum(bool(row.trouble(now, max_days)) for row in survey.rows),
        **({"not_read": survey.not_read} if survey.not_read else {}),
        **({"hidden": survey.hidden} if survey.hidden else {}),
        **({"settings_not_read": f"{len(survey.unchecked)} guests"} if survey.unchecked else {}),
    }
    if survey.not_read:
        table.note = "a backup may be on a storage that could not be read: see not_read"
    return table


def _row(row: Coverage, now: float, days: float, proofs: Mapping[int, tuple[float, str]]) -> list[Any]:
    newest = row.backups[0] if row.backups else None
    good = next((backup for backup in row.backups if backup.verified == "ok"), None)
    proof = proofs.get(row.guest.vmid)
    return [
        row.guest.vmid,
        row.guest.name,
        row.guest.kind,
        row.guest.node,
        ",".join(row.jobs),
        len(row.backups) or "",
        duration(max(0.0, now - newest.ctime)) if newest else "",
        newest.storage if newest else "",
        newest.verified if newest else "",
        duration(max(0.0, now - good.ctime)) if good else "",
        f"{duration(max(0.0, now - proof[0]))} ago" if proof else "",
        "; ".join(row.not_included),
        row.trouble(now, days),
    ]


# -- for the health report ---------------------------------------------------------------------------------------------


async def backup_findings(pve: Cluster, days: int) -> list[Finding]:
    survey = await survey_coverage(pve)
    findings = without_job(
        [row.guest for row in survey.without_job], {row.guest.vmid: row.excluded_by for row in survey.rows}
    )
    for place, problem in survey.unread:
        where = f" at storage {place.storage} on {place.node}"
        findings.append(await explained_finding(pve, "backups", problem, tools.node_get(node=place.node), where))
    findings += [Finding("unchecked", "backups", what, tools.permission_audit) for what in survey.hidden]
    if unsure := [row.guest for row in survey.no_backup_seen] if not survey.hidden else []:
        whose = f"{count_of(len(unsure), 'guest', 'guests')}: {names(map(guest_label, unsure))}"
        what = f"No backup was seen of {whose}; not every storage could be read"
        findings.append(Finding("unchecked", "backups", what, tools.backup_coverage))
    newest = {row.guest.vmid: float(row.backups[0].ctime) for row in survey.rows if row.backups}
    judged = [row.guest for row in survey.rows if row.backups or row.looked_everywhere]
    findings += missing_or_old(judged, newest, pve_time(pve), days)
    if survey.unchecked:
        nodes = names(sorted({row.node for row in survey.unchecked}))
        whose = f"{count_of(len(survey.unchecked), 'guest', 'guests')} on {nodes}"
        what = f"What backups of {whose} leave out was not checked"
        findings.append(Finding("unchecked", "backups", what, tools.backup_coverage))
    findings += await storage_findings(pve, [backup for row in survey.rows for backup in row.backups])
    return findings + incomplete([(row.guest, row.not_included) for row in survey.incomplete])


def incomplete(guests: list[tuple[Resource, Sequence[str]]]) -> list[Finding]:
    """A finding about guests whose backups leave data out."""
    if not guests:
        return []
    listed = names(f"{guest_label(row)} without {', '.join(parts)}" for row, parts in guests)
    what = f"Backups of {count_of(len(guests), 'guest', 'guests')} do not hold all data: {listed}"
    subjects = _subjects([row for row, _ in guests])
    return [Finding("warning", "backups", what, tools.backup_coverage, "backup-incomplete", "", subjects)]


def missing_or_old(
    guests: list[Resource], newest: Mapping[int, float], now: float, days: int, as_far: str = ""
) -> list[Finding]:
    """Findings from `newest`: vmid -> time of the newest backup of the guest."""
    findings = []
    if without := [row for row in guests if row.vmid not in newest]:
        listed = names(map(guest_label, without))
        what = f"{count_of(len(without), 'guest has', 'guests have')} no backup{as_far}: {listed}"
        next_call = tools.backup_create(guest=without[0].vmid)
        findings.append(Finding("warning", "backups", what, next_call, "backup-missing", subjects=_subjects(without)))
    ages = {row.vmid: now - newest[row.vmid] for row in guests if row.vmid in newest}
    if old := [row for row in guests if ages.get(row.vmid, 0) > days * DAY]:
        listed = names(f"{guest_label(row)} ({duration(ages[row.vmid])})" for row in old)
        what = (
            f"The newest backup of {count_of(len(old), 'guest', 'guests')} is older than {days} days{as_far}: {listed}"
        )
        next_call = tools.backup_list(guest=old[0].vmid)
        findings.append(Finding("warning", "backups", what, next_call, "backup-old", subjects=_subjects(old)))
    return findings


def _subjects(rows: list[Resource]) -> tuple[str, ...]:
    return tuple(f"guest {row.vmid}" for row in rows)


def without_job(guests: list[Resource], excluded: Mapping[int, Sequence[str]]) -> list[Finding]:
    """A finding about guests that no enabled job covers; `excluded` names the jobs that exclude a guest."""
    if not guests:
        return []
    listed = names(
        guest_label(row) + (f" (excluded by {', '.join(excluded[row.vmid])})" if excluded.get(row.vmid) else "")
        for row in guests
    )
    what = f"No backup job covers {count_of(len(guests), 'guest', 'guests')}: {listed}"
    return [Finding("warning", "backups", what, tools.backup_coverage, "backup-uncovered", subjects=_subjects(guests))]


def excluding_jobs(jobs: list[dict[str, Any]], guests: list[Resource]) -> dict[int, list[str]]:
    """vmid -> the enabled jobs that exclude the guest."""
    return {
        row.vmid: [str(job["id"]) for job in jobs if is_enabled(job) and str(row.vmid) in _excluded_vmids(job)]
        for row in guests
    }
