"""Backups of machines: their configuration is read, stored in an archive, compared and restored."""

from __future__ import annotations

import asyncio
import hashlib
import io
import secrets
import shlex
import tarfile
import time
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import msgspec

from quorate.hints import Advice, see, tools
from quorate.homelab.devices.device import read_fingerprint
from quorate.homelab.homelab import Homelab
from quorate.homelab.infra.archive import DeviceBackup, Manifest, Piece, Reader, Writer
from quorate.homelab.infra.devices import MAX_DATA, UNIT_FOLDER
from quorate.homelab.machines import Machine
from quorate.homelab.workloads.engines import detect_engines, find_workload
from quorate.homelab.workloads.workload import Spec
from quorate.inside.posix_files import failure, shell_script
from quorate.problems import Conflict, GuestRefused, NotFound, Problem, TaskFailed
from quorate.pve.tasks import Report
from quorate.state.chain import canonical
from quorate.state.store import Records
from quorate.units import moment

Section = Literal["workloads", "services", "network", "schedules", "ssh", "packages"]
SECTIONS: tuple[Section, ...] = get_args(Section)
MAX_FILES = 8 * 1024 * 1024
"""The most bytes for all files of a machine; configuration is small."""
SECONDS = 120.0

_PATHS = {
    "network": (
        "/etc/hostname /etc/hosts /etc/network/interfaces /etc/network/interfaces.d/* /etc/netplan/* "
        "/etc/systemd/network/* /etc/NetworkManager/system-connections/*"
    ),
    "schedules": (
        "/etc/crontab /etc/cron.d/* /var/spool/cron/* /var/spool/cron/crontabs/* "
        "/etc/systemd/system/quorate*.service /etc/systemd/system/quorate*.timer"
    ),
    "ssh": "/etc/ssh/sshd_config /etc/ssh/sshd_config.d/*",
}
# $1 is the folder of services. Links are not followed: their targets belong to others.
_TAKE = """
folder=$1; set --
for one in {paths}; do [ ! -f "$one" ] || [ -L "$one" ] || set -- "$@" "${{one#/}}"; done
[ $# -gt 0 ] || exit 0
cd / && exec tar -cf - -- "$@"
"""
_UNITS = f"{UNIT_FOLDER}/*.service"
_OF_SERVICES = f'"$folder"/*/* "$folder"/*/.env {_UNITS}'
_OURS = f"{UNIT_FOLDER}/quorate"  # those belong to the schedules
# The arguments are units.
_STATES = """
[ -d /run/systemd/system ] || exit 0
for one; do
  systemctl show --property=ActiveState --property=UnitFileState -- "$one" |
  while IFS= read -r line; do printf '%s %s\\n' "$one" "$line"; done
done
"""
# $1 is the unit, $2 enable or disable, $3 restart or stop.
_PUT_UNIT = 'systemctl daemon-reload && systemctl --quiet "$2" -- "$1" && systemctl --quiet "$3" -- "$1"'
_PACKAGES = """
if command -v dpkg-query > /dev/null 2>&1; then dpkg-query -W -f '${binary:Package} ${Version}\\n'
elif command -v rpm > /dev/null 2>&1; then rpm -qa --qf '%{NAME} %{VERSION}-%{RELEASE}\\n'
elif command -v apk > /dev/null 2>&1; then apk list --installed
else exit 44; fi | sort
"""
# $1 path, $2 mode, $3 owner. Atomic, and never more readable than the old file.
_PUT = """
folder=$(dirname -- "$1") && mkdir -p -- "$folder" && new=$(mktemp -- "$folder/.quorate-XXXXXX") || exit
cat > "$new" && chown -- "$3" "$new" && chmod -- "$2" "$new" && mv -f -- "$new" "$1" || { rm -f -- "$new"; exit 1; }
"""
_DROP = 'rm -f -- "$1"'


@dataclass(frozen=True, slots=True)
class PieceContent:
    """A piece with its current content."""

    piece: Piece
    content: bytes


@dataclass(frozen=True, slots=True)
class DeviceState:
    pieces: tuple[PieceContent, ...]
    cannot: dict[str, str]

    @property
    def by_key(self) -> dict[tuple[str, str, str], PieceContent]:
        return {item.piece.key: item for item in self.pieces}


async def read_device_state(homelab: Homelab, machine: Machine, sections: Collection[str]) -> DeviceState:
    """Everything in those sections; what cannot be read is listed with the reason."""
    cannot: dict[str, str] = {}
    items = await _with_states(machine, await _files(homelab, machine, sections))
    if "packages" in sections:
        items += await _packages(machine, cannot)
    if "workloads" in sections:
        items += await _workloads(homelab, machine, cannot)
    return DeviceState(tuple(items), cannot)


async def _files(homelab: Homelab, machine: Machine, sections: Collection[str]) -> list[PieceContent]:
    items = []
    for section in sections:
        paths = _OF_SERVICES if section == "services" else _PATHS.get(section)
        if paths is None:
            continue
        command = shell_script(_TAKE.format(paths=paths), homelab.settings.services_folder)
        output = await machine.transport.run(machine.as_root(command), seconds=SECONDS, keep=MAX_FILES)
        if output.exit_code != 0:
            raise failure(output, f"Reading the {section} files on {machine}")
        if output.stdout_cut:
            raise GuestRefused(f"The {section} files on {machine} are larger than {MAX_FILES} bytes")
        try:
            items += [*extract_files(output.stdout, section, _asked_for(homelab, section))]
        except (tarfile.TarError, ValueError, RecursionError) as error:
            raise GuestRefused(f"{machine} did not send a tar archive of the {section} files", why=str(error)) from None
    return items


def _asked_for(homelab: Homelab, section: str) -> list[str]:
    if section != "services":
        return _PATHS[section].split()
    return [f"{homelab.settings.services_folder}/*/*", f"{homelab.settings.services_folder}/*/.env", _UNITS]


def extract_files(data: bytes, section: str, patterns: Collection[str]) -> Iterator[PieceContent]:
    """The files of a plain archive. A machine may send anything: files that were not requested are skipped."""
    if not data:
        return
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        for info in tar:
            path = f"/{info.name.lstrip('/')}"
            requested = any(PurePosixPath(path).match(pattern) for pattern in patterns) and ".." not in path.split("/")
            if not info.isreg() or not requested or (section == "services" and path.startswith(_OURS)):
                continue
            if info.issparse() or info.size > len(data):
                raise ValueError(f"{path} claims to be larger than the archive")
            opened = tar.extractfile(info)
            content = opened.read() if opened else b""
            piece = Piece(section, "file", path, _sha256(content), "", info.mode & 0o7777, info.uid, info.gid)
            yield PieceContent(piece, content)


def is_unit(piece: Piece) -> bool:
    return piece.section == "services" and PurePosixPath(piece.name).match(_UNITS)


async def _with_states(machine: Machine, items: list[PieceContent]) -> list[PieceContent]:
    """Units also with whether they run and are enabled."""
    names = {item.piece.name: PurePosixPath(item.piece.name).name for item in items if is_unit(item.piece)}
    if not names:
        return items
    output = await machine.transport.run(machine.as_root(shell_script(_STATES, *names.values())), seconds=SECONDS)
    if output.exit_code != 0:
        raise failure(output, f"Reading the state of units on {machine}")
    lines = set(output.text.splitlines())
    updated = []
    for item in items:
        if unit := names.get(item.piece.name):
            running, enabled = f"{unit} ActiveState=active" in lines, f"{unit} UnitFileState=enabled" in lines
            item = PieceContent(msgspec.structs.replace(item.piece, running=running, enabled=enabled), item.content)
        updated.append(item)
    return updated


async def _packages(machine: Machine, cannot: dict[str, str]) -> list[PieceContent]:
    output = await machine.transport.run(shell_script(_PACKAGES), seconds=SECONDS, keep=MAX_FILES)
    if output.exit_code != 0 or not output.stdout:
        cannot["packages"] = "The machine has neither dpkg, rpm nor apk"
        return []
    return [PieceContent(Piece("packages", "packages", "packages", _sha256(output.stdout), ""), output.stdout)]


async def _workloads(homelab: Homelab, machine: Machine, cannot: dict[str, str]) -> list[PieceContent]:
    try:
        engines, silent = await detect_engines(machine, homelab.clock)
    except NotFound:
        return []  # a machine without an engine has none
    except Problem as problem:
        cannot["workloads"] = str(problem)
        return []
    cannot |= {f"workloads of {name}": why for name, why in silent.items()}
    items = []
    for engine in engines:
        for workload in await engine.list():
            try:
                spec = await engine.spec_of(workload.name)
            except Problem as problem:
                cannot[f"{engine.name} {workload.name}"] = str(problem)
                continue
            digest = _sha256(canonical(_without_empty(spec.exact)))
            piece = Piece(
                "workloads", "workload", workload.name, digest, "", engine=engine.name, running=workload.running
            )
            items.append(PieceContent(piece, canonical(spec.exact)))
    return items


# -- data --------------------------------------------------------------------------------------------------------------


async def read_volumes(homelab: Homelab, machine: Machine, cannot: dict[str, str]) -> AsyncIterator[PieceContent]:
    """The content of its containers' volumes, one at a time to save memory."""
    try:
        engines, _ = await detect_engines(machine, homelab.clock)
    except NotFound:
        return
    for engine in engines:
        for workload in await engine.list():
            for mount in (await engine.get(workload.name)).mounts:
                try:
                    tar = await engine.read_folder(workload.name, mount.path, MAX_DATA)
                except Problem as problem:
                    cannot[f"data of {workload.name}:{mount.path}"] = str(problem)
                    continue
                name = f"{workload.name}:{mount.path}"
                yield PieceContent(Piece("data", "data", name, _sha256(tar), "", engine=engine.name), tar)


async def restore_volume(homelab: Homelab, machine: Machine, piece: Piece, tar: bytes) -> list[str]:
    """Unpack it while the container is stopped, then compare every file; returns additional files."""
    name, _, path = piece.name.partition(":")
    engine, there = await find_workload(machine, homelab.clock, name, piece.engine)  # type: ignore[arg-type]
    if there.running:
        await engine.power(name, "stop")
    try:
        await engine.write_folder(name, path, tar)
        now = _entries(await engine.read_folder(name, path, MAX_DATA))
    finally:
        if there.running:
            await engine.power(name, "start")
    then = _entries(tar)
    if wrong := [entry for entry, digest in then.items() if now.get(entry) != digest]:
        raise Conflict(f"{len(wrong)} files of {piece.name} differ from the backup", why=", ".join(wrong[:5]))
    return sorted(set(now) - set(then))


def _entries(tar: bytes) -> dict[str, tuple[bytes, int, str]]:
    """Path -> kind, mode and hash; times and owners are ignored."""
    entries = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as opened:
            for info in opened:
                if info.issparse() or info.size > len(tar):
                    raise ValueError(f"{info.name} claims to be larger than the archive")
                content = opened.extractfile(info) if info.isreg() else None
                digest = _sha256(content.read()) if content else info.linkname
                entries[info.name] = (info.type, info.mode & 0o7777, digest)
    except (tarfile.TarError, ValueError, RecursionError) as error:
        raise GuestRefused("The engine did not send a tar archive", why=str(error)) from None
    return entries


# -- putting back ------------------------------------------------------------------------------------------------------


async def restore_file(machine: Machine, piece: Piece, content: bytes) -> None:
    command = shell_script(_PUT, piece.name, f"{piece.mode:04o}", f"{piece.uid}:{piece.gid}", stdin=content)
    output = await machine.transport.run(machine.as_root(command), seconds=SECONDS)
    if output.exit_code != 0:
        raise failure(output, f"Writing {piece.name}")


async def restore_unit(machine: Machine, piece: Piece, content: bytes) -> None:
    await restore_file(machine, piece, content)
    actions = ("enable" if piece.enabled else "disable", "restart" if piece.running else "stop")
    command = shell_script(_PUT_UNIT, PurePosixPath(piece.name).name, *actions)
    output = await machine.transport.run(machine.as_root(command), seconds=SECONDS)
    if output.exit_code != 0:
        raise failure(output, f"Putting {piece.name} into effect")


async def remove_file(machine: Machine, path: str) -> None:
    output = await machine.transport.run(machine.as_root(shell_script(_DROP, path)))
    if output.exit_code != 0:
        raise failure(output, f"Removing {path}")


async def restore_workload(
    homelab: Homelab, machine: Machine, piece: Piece, content: bytes, *, replaces: bool, report: Report | None = None
) -> None:
    """Restore it, running or stopped. If it does not start, the existing one stays."""
    engines, _ = await detect_engines(machine, homelab.clock)
    engine = next((candidate for candidate in engines if candidate.name == piece.engine), None)
    if engine is None:
        raise NotFound(f"{machine} has no {piece.engine}", next_step="Install it there, then roll back again")
    there = await engine.find(piece.name)
    exact: dict[str, Any] = msgspec.json.decode(content)
    if there is None or replaces:
        spec = Spec(piece.name, str(exact.get("Image", "")), restart="no", exact=exact)
        restart: Any = (exact.get("HostConfig", {}).get("RestartPolicy") or {}).get("Name") or "no"
        await engine.deploy(replace(spec, restart=restart), report, replace=replaces)
    if not piece.running:
        await engine.power(piece.name, "stop")
    elif there is not None and not replaces and not there.running:
        await engine.power(piece.name, "start")
    now = await engine.get(piece.name)
    if now.running != piece.running:
        expected = "running" if piece.running else "stopped"
        raise Conflict(f"{piece.name} is {now.state}, but was {expected} when the backup was made")


async def remove_workload(homelab: Homelab, machine: Machine, piece: Piece) -> None:
    engines, _ = await detect_engines(machine, homelab.clock)
    for engine in engines:
        if engine.name == piece.engine:
            await engine.remove(piece.name)


def diff_pieces(then: DeviceBackup, now: DeviceState, sections: Collection[str]) -> list[tuple[str, Piece]]:
    """What to do to return to the backup: restore, start, stop or drop. Packages are only compared."""
    there = now.by_key
    backed_up = {
        piece.key: piece for piece in then.pieces if piece.section in sections and piece.kind in ("file", "workload")
    }
    todo: list[tuple[str, Piece]] = []
    for key, piece in backed_up.items():
        current = there.get(key)
        if current is None or not _same(current.piece, piece):
            again = current is not None and current.piece.sha256 == piece.sha256 and piece.kind == "workload"
            verb = "restore" if current is None else ("start" if piece.running else "stop") if again else "replace"
            todo.append((verb, piece))
    for key, item in there.items():
        if key not in backed_up and item.piece.section in sections and _was_absent(then, item.piece):
            todo.append(("drop", item.piece))
    return todo


def _was_absent(then: DeviceBackup, piece: Piece) -> bool:
    """True if the backup proves that the piece did not exist then."""
    if piece.kind != "workload":
        return piece.kind == "file" and not is_unit(piece)  # a backup of earlier times has none of them
    unsure = {"workloads", f"workloads of {piece.engine}", f"{piece.engine} {piece.name}"}
    return not unsure & then.cannot.keys()


def diff_packages(then: bytes, now: bytes) -> list[str]:
    before, after = set(then.decode("utf-8", "replace").splitlines()), set(now.decode("utf-8", "replace").splitlines())
    return [*(f"- {line}" for line in sorted(before - after)), *(f"+ {line}" for line in sorted(after - before))]


def describe_change(verb: str, piece: Piece) -> str:
    what = shlex.quote(piece.name) if piece.kind == "file" else f"{piece.engine} {piece.name}"
    return f"{verb} {what}" + (f" sha256:{piece.sha256[:12]}" if verb in ("restore", "replace") else "")


def _same(now: Piece, then: Piece) -> bool:
    """Files compare with their owner and mode, workloads and units with whether they run."""
    return (now.sha256, now.mode, now.uid, now.gid, now.running, now.enabled) == (
        then.sha256, then.mode, then.uid, then.gid, then.running, then.enabled,
    )  # fmt: skip


def _without_empty(value: Any) -> Any:
    """Engines have many spellings for an empty value: null, zero, an empty list."""
    if isinstance(value, dict):
        cleared = {key: _without_empty(part) for key, part in value.items()}
        return {key: part for key, part in cleared.items() if part not in (None, "", [], {}, 0, False)}
    return [_without_empty(part) for part in value] if isinstance(value, list) else value


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# -- backups as a whole ------------------------------------------------------------------------------------------------


FOLDER = "backups"
LISTED = 10


@dataclass
class Backup:
    """A backup in progress. It is recorded only after everything is written."""

    homelab: Homelab
    id: str
    sections: tuple[str, ...]
    writer: Writer
    manifest: Manifest
    missing: dict[str, str]
    data: bool = False
    name: str | None = None
    """The caller's name for it; several backups may share it."""

    @property
    def encrypted(self) -> bool:
        return self.writer.encrypted

    async def take(self, ref: str, machine: Machine) -> DeviceBackup:
        """Back up one device. One that does not answer is reported and does not stop the others."""
        backup = DeviceBackup(ref)
        try:
            backup.machine_id, _ = await read_fingerprint(machine)
            now = await read_device_state(self.homelab, machine, self.sections)
        except Problem as problem:
            self.missing[ref] = str(problem)
            raise
        backup.cannot = now.cannot
        for item in now.pieces:
            backup.pieces.append(msgspec.structs.replace(item.piece, member=self.writer.add(item.content)))
        if self.data:
            async for item in read_volumes(self.homelab, machine, backup.cannot):
                backup.pieces.append(msgspec.structs.replace(item.piece, member=self.writer.add(item.content)))
        self.manifest.devices.append(backup)
        return backup

    async def finish(self) -> dict[str, Any]:
        if not self.manifest.devices:
            self.writer.discard()
            raise TaskFailed("Nothing could be backed up", why="; ".join(self.missing.values()) or None)
        self.manifest.devices.sort(key=lambda device: device.device)  # they arrive in any order
        sha256 = await asyncio.to_thread(self.writer.finish, self.manifest)
        entry = {
            "file": str(self.writer.file),
            "sha256": sha256,
            "created": self.manifest.created,
            **({"name": self.name} if self.name else {}),
            "devices": [device.device for device in self.manifest.devices],
            "sections": list(self.sections),
            "data": self.data,
            "encrypted": self.encrypted,
            **({"not_backed_up": self.missing} if self.missing else {}),
        }
        await Records(self.homelab.store, "infra backup", dict[str, Any]).keep(self.id, entry)
        shown = {**entry, "created": moment(self.manifest.created)}
        return {"backup": self.id, **shown, "pieces": sum(len(device.pieces) for device in self.manifest.devices)}


async def begin_backup(homelab: Homelab, sections: Collection[str], name: str | None, *, data: bool = False) -> Backup:
    now = homelab.clock.time()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    number = f"{name or 'backup'}-{stamp}-{secrets.token_hex(3)}"
    folder = homelab.settings.work / FOLDER
    writer = await asyncio.to_thread(Writer, folder, number, homelab.settings.passphrase)
    return Backup(homelab, number, tuple(sections), writer, Manifest(number, now, list(sections)), {}, data, name)


async def require_same_machine(then: DeviceBackup, machine: Machine) -> None:
    """Another machine may have the name by now: nothing of this one belongs there."""
    now, _ = await read_fingerprint(machine)
    if then.machine_id and now and now != then.machine_id:
        raise Conflict(
            f"{machine} is not the machine that was backed up",
            why="Its machine id differs",
            next_step="Nothing was changed. Check whether it was reinstalled, or is another host with the same name",
        )


async def list_backups(homelab: Homelab) -> dict[str, dict[str, Any]]:
    """By id, newest first."""
    return await Records(homelab.store, "infra backup", dict[str, Any]).all()


async def open_backup(homelab: Homelab, backup: str) -> Reader:
    records = Records(homelab.store, "infra backup", dict[str, Any])
    named = [record for record in (await records.all()).values() if record.get("name") == backup]
    entry = await records.find(backup) or max(named, key=lambda record: float(record["created"]), default=None)
    if entry is None:
        known = list(await records.all())[:LISTED]
        raise NotFound(
            f"There is no backup {backup!r}",
            why=f"The newest are {', '.join(known)}" if known else None,
            next_step=see("See all of them", tools.infra_backup_list)
            if known
            else Advice("Make one", tools.infra_backup),
        )
    return await asyncio.to_thread(Reader, Path(entry["file"]), entry["sha256"], homelab.settings.passphrase)
