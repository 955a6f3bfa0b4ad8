"""Configuration of devices: backed up into an archive, and rolled back to it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import NAMED, Advice, append_advice, either, tools
from quorate.homelab.homelab import Homelab
from quorate.homelab.infra import backups
from quorate.homelab.infra.archive import DeviceBackup, Piece, Reader
from quorate.homelab.infra.backups import SECTIONS, Section
from quorate.homelab.infra.devices import bare, find_device
from quorate.homelab.machines import Machine, find_machine, require_visible
from quorate.operations.plan import Action, ActionResult, Plan, StepContext
from quorate.operations.registry import Risk, Table, operation, page
from quorate.problems import BadArgument, NotFound, Problem, TaskFailed
from quorate.pve.tasks import Report
from quorate.tools.machines import machine_action, machine_read
from quorate.units import count_of, moment

MOST_DEVICES = 100
SHOWN = 50
AT_ONCE = 8
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,39})")
DeviceRef = Annotated[int | str, Meta(description="Id of network_map, or as host_exec names it")]
Devices = Annotated[list[DeviceRef], Meta(max_length=MOST_DEVICES, description="Default: all registered hosts")]
Scope = Annotated[
    list[Section], Meta(description="Default: all. services are the files of installed ones, packages only a list")
]


@operation(
    toolset="infra",
    risk=Risk.CHANGE,
    idempotent=False,
    search_words="backup configuration of hosts devices archive compose network cron sshd packages before change",
)
async def infra_backup(
    homelab: Homelab,
    devices: Devices | None = None,
    scope: Scope | None = None,
    data: Annotated[bool, Meta(description="Also the contents of container volumes, up to 128M each")] = False,
    name: Annotated[str, Meta(description="Prefix of the backup's id")] | None = None,
) -> Plan:
    """Back up the configuration of devices into one private archive: container definitions, service files, network,
    schedules, sshd, and the list of packages. Encrypted if the passphrase for secrets is configured."""
    if name is not None and not _NAME.fullmatch(name):
        raise BadArgument(f"{name!r} is not a name for a backup", next_step="Use letters, digits, _ and -")
    refs: list[int | str] = devices or [host.name for host in await homelab.hosts.all() if host.active]
    if not refs:
        raise BadArgument(
            "There is nothing to back up",
            next_step=either(Advice("Register hosts", tools.host_register), Advice("give {devices}", devices=NAMED)),
        )
    if len(refs) > MOST_DEVICES:
        raise BadArgument(f"{len(refs)} devices are too many at once", next_step=f"At most {MOST_DEVICES}")
    places = [(await find_device(homelab, ref))[:2] for ref in dict.fromkeys(refs)]
    steps, facts = backup_steps(homelab, places, scope or list(SECTIONS), name, data=data)
    encrypted = homelab.settings.passphrase is not None
    warnings = [] if encrypted else ["It is not encrypted: no passphrase for secrets is configured"]
    warnings += ["Volumes are copied while their containers run: stop those that write much"] if data else []
    return Plan(f"Back up {count_of(len(places), 'device')}", steps, facts=facts, warnings=tuple(warnings))


@operation(
    toolset="infra",
    risk=Risk.READ,
    search_words="which backups of host configuration are there rollback points list archives devices",
)
async def infra_backup_list(
    homelab: Homelab,
    device: Annotated[str, Meta(description="Only backups of this device")] | None = None,
    limit: Annotated[int, Meta(ge=1, le=500)] = 50,
    offset: Annotated[int, Meta(ge=0)] = 0,
) -> Table:
    """Backups of the configuration of devices, newest first: which infra_rollback can restore."""
    stored = await backups.list_backups(homelab)
    visible = {
        name
        for name in {device for entry in stored.values() for device in entry["devices"]}
        if await _is_visible(homelab, name)
    }
    rows = []
    for name, entry in stored.items():
        devices = [device for device in entry["devices"] if device in visible]
        if devices and (device is None or device in devices):
            cells = [name, moment(entry["created"]), ", ".join(devices), ", ".join(entry["sections"])]
            rows.append([*cells, "with data" if entry["data"] else "", "encrypted" if entry["encrypted"] else ""])
    columns = ("backup", "made", "devices", "sections", "volumes", "sealed")
    return page(columns, rows, limit=limit, offset=offset)


async def _is_visible(homelab: Homelab, name: str) -> bool:
    try:
        await require_visible(homelab, name)
    except Problem:
        return False
    return True


def backup_steps(
    homelab: Homelab, places: list[tuple[str, Machine]], scope: Collection[str], name: str | None, *, data: bool = False
) -> tuple[tuple[Action, ...], dict[str, Any]]:
    """A step for each device, judged by its own rules, and one that writes the archive."""
    reading = _Reading(homelab, places, scope, name, data)

    def backup_step(ref: str, machine: Machine) -> Action:
        async def perform(_: StepContext) -> ActionResult:
            try:
                backed_up = await reading.of(ref)
            except Problem as problem:
                return ActionResult({"not_backed_up": str(problem)})
            cannot = {"cannot": backed_up.cannot} if backed_up.cannot else {}
            return ActionResult({"pieces": len(backed_up.pieces), **cannot})

        summary = f"Read the configuration of {machine}"
        line = f"read {' '.join(scope)}{' and data' if data else ''} of {ref}"
        return machine_read(machine, summary, line, perform)

    async def write(_: StepContext) -> ActionResult:
        done = await (await reading.begin()).finish()
        return ActionResult(done, next_step=Advice("Go back to it", tools.infra_rollback(backup=done["backup"])))

    archive = homelab.settings.work / backups.FOLDER
    last = Action("Write the archive", f"write {archive}/{name or 'backup'}-….tar", write)
    return (*(backup_step(ref, place) for ref, place in places), last), {"sections": list(scope)}


class _Reading:
    """Backs up all devices in parallel, starting with the first step; each step waits for its own device."""

    def __init__(
        self, homelab: Homelab, places: list[tuple[str, Machine]], scope: Collection[str], name: str | None, data: bool
    ) -> None:
        self._places = places
        self._begin = partial(backups.begin_backup, homelab, scope, name, data=data)
        self._backup: backups.Backup | None = None
        self._tasks: dict[str, asyncio.Task[DeviceBackup]] = {}

    async def begin(self) -> backups.Backup:
        if self._backup is None:
            self._backup = await self._begin()
        return self._backup

    async def of(self, ref: str) -> DeviceBackup:
        backup = await self.begin()
        if not self._tasks:
            gate = asyncio.Semaphore(AT_ONCE)
            self._tasks = {
                device: asyncio.ensure_future(self._take_backup(gate, backup, device, place))
                for device, place in self._places
            }
        try:
            return await self._tasks[ref]
        except Problem:
            raise
        except BaseException:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            backup.writer.discard()
            raise

    @staticmethod
    async def _take_backup(gate: asyncio.Semaphore, backup: backups.Backup, ref: str, machine: Machine) -> DeviceBackup:
        async with gate:
            return await backup.take(ref, machine)


@operation(
    toolset="infra",
    risk=Risk.DESTROY,
    idempotent=True,
    search_words="roll back restore undo infrastructure changes configuration backup revert bring back old broken",
)
async def infra_rollback(
    homelab: Homelab,
    backup: Annotated[str, Meta(description="Id or name; of several with that name, the newest")],
    devices: Annotated[list[str], Meta(description="Default: all in the backup")] | None = None,
    scope: Scope | None = None,
    data: Annotated[bool, Meta(description="Also the volumes in the backup")] = False,
) -> Plan:
    """Restore devices to the state of a backup: files and containers are restored, what was added later is removed.
    Then everything is read again and compared, hash by hash. Packages stay as they are."""
    reader = await backups.open_backup(homelab, backup)
    sections = _sections(reader, scope)
    chosen = _devices(reader, devices)
    steps: list[Action] = []
    warnings: list[str] = []
    places: list[tuple[DeviceBackup, Machine]] = []
    for then in chosen:
        machine = await find_machine(homelab, then.device)
        await backups.require_same_machine(then, machine)
        now = await backups.read_device_state(homelab, machine, sections)
        places.append((then, machine))
        steps += [_step(homelab, reader, machine, verb, piece) for verb, piece in _in_order(then, now, sections)]
        if data:
            steps += [
                _step(homelab, reader, machine, "restore", piece) for piece in then.pieces if piece.kind == "data"
            ]
        warnings += _remarks(reader, then, now, sections)
    unchanged = () if steps else (f"Everything already matches {backup}",)

    return Plan(
        f"Roll back to {backup}",
        tuple(steps),
        unchanged=unchanged,
        facts={"devices": [entry.device for entry in chosen], "sections": sections},
        warnings=tuple(warnings[:SHOWN]),
        after=partial(_verify_rollback, homelab, places, sections),
    )


def _sections(reader: Reader, scope: Collection[str] | None) -> list[str]:
    present = reader.manifest.sections
    if absent := [section for section in scope or () if section not in present]:
        raise BadArgument(f"The backup has no {absent[0]}", next_step=f"It has {', '.join(present)}")
    return list(scope or present)


def _devices(reader: Reader, devices: list[str] | None) -> list[DeviceBackup]:
    present = {bare(device.device): device for device in reader.manifest.devices}
    requested = [bare(device) for device in devices or present]
    if absent := [device for device in requested if device not in present]:
        raise NotFound(f"{absent[0]} is not in the backup", next_step=f"It has {', '.join(present)}")
    return [present[device] for device in requested]


def _in_order(then: DeviceBackup, now: backups.DeviceState, sections: list[str]) -> list[tuple[str, Piece]]:
    """First remove what was added later, which may hold a port or a name; then restore files, then what reads them."""
    todo = backups.diff_pieces(then, now, sections)
    return sorted(todo, key=lambda change: (change[0] != "drop", change[1].kind != "file"))


def _step(homelab: Homelab, reader: Reader, machine: Machine, verb: str, piece: Piece) -> Action:
    async def perform(context: StepContext) -> ActionResult:
        try:
            more = await _restore_piece(homelab, reader, machine, verb, piece, context.report)
        except Problem as problem:
            again = "The steps before it are done; call again to continue from here"
            problem.advice = append_advice(problem.advice, again, tools.infra_rollback)
            raise
        return ActionResult({"more_than_then": more[:SHOWN]} if more else {})

    line = backups.describe_change(verb, piece)
    return machine_action(machine, f"{verb.capitalize()} {piece.name} on {machine}", line, perform, writes=True)


async def _restore_piece(
    homelab: Homelab, reader: Reader, machine: Machine, verb: str, piece: Piece, report: Report | None
) -> list[str]:
    """Restore or remove one piece. Returns files of a volume that were added later; they are kept."""
    if piece.kind == "data":
        return await backups.restore_volume(homelab, machine, piece, reader.content(piece.member))
    if piece.kind == "file":
        if verb == "drop":
            await backups.remove_file(machine, piece.name)
        elif backups.is_unit(piece):
            await backups.restore_unit(machine, piece, reader.content(piece.member))
        else:
            await backups.restore_file(machine, piece, reader.content(piece.member))
    elif verb == "drop":
        await backups.remove_workload(homelab, machine, piece)
    else:
        content = reader.content(piece.member)
        await backups.restore_workload(homelab, machine, piece, content, replaces=verb == "replace", report=report)
    return []


def _remarks(reader: Reader, then: DeviceBackup, now: backups.DeviceState, sections: list[str]) -> list[str]:
    """Warnings about what a rollback does not restore."""
    remarks = [f"{then.device}: {what} was not in the backup: {why}" for what, why in then.cannot.items()]
    remarks += [f"{then.device}: {what} cannot be read: {why}" for what, why in now.cannot.items()]
    written = {piece.section for _, piece in backups.diff_pieces(then, now, sections) if piece.kind == "file"}
    if waiting := sorted(written & {"network", "schedules", "ssh"}):
        remarks.append(
            f"{then.device}: files of {', '.join(waiting)} take effect after the programs that read them are restarted"
        )
    pieces = [piece for piece in then.pieces if piece.kind == "packages" and piece.section in sections]
    present = [entry for entry in now.pieces if entry.piece.kind == "packages"]
    if pieces and present and pieces[0].sha256 != present[0].piece.sha256:
        others = backups.diff_packages(reader.content(pieces[0].member), present[0].content)
        remarks.append(f"{then.device}: {len(others)} packages differ and stay: {', '.join(others[:10])}")
    return remarks


async def _verify_rollback(
    homelab: Homelab, places: list[tuple[DeviceBackup, Machine]], sections: list[str]
) -> dict[str, Any]:
    """Read everything again. Any difference makes the rollback a failure, whatever the steps reported."""
    wrong, compared = [], 0
    for then, machine in places:
        now = await backups.read_device_state(homelab, machine, sections)
        wrong += [
            f"{then.device}: {backups.describe_change(*change)}" for change in backups.diff_pieces(then, now, sections)
        ]
        compared += sum(piece.section in sections and piece.kind in ("file", "workload") for piece in then.pieces)
    if wrong:
        raise TaskFailed(
            "The devices do not match the backup",
            why="; ".join(wrong[:10]),
            next_step=Advice("Remove what blocks it, then call again", tools.infra_rollback),
            facts={"differs": wrong[:SHOWN]},
        )
    return {"proved": f"{compared} pieces were read again and match the backup"}
