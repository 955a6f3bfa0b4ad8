"""Backups of devices: creating, listing and opening them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from quorate.hints import INFRA_BACKUP, INFRA_BACKUP_LIST, Advice, see
from quorate.homelab.devices.identity import read_fingerprint
from quorate.homelab.homelab import Homelab
from quorate.homelab.infra.archive import DeviceBackup, Manifest, Reader, Writer
from quorate.homelab.infra.device_backup import read_device_state, read_volumes
from quorate.homelab.machines import Machine
from quorate.problems import Conflict, NotFound, Problem, TaskFailed
from quorate.state.records import Records

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
        found = DeviceBackup(ref)
        try:
            found.machine_id, _ = await read_fingerprint(machine)
            now = await read_device_state(self.homelab, machine, self.sections)
        except Problem as problem:
            self.missing[ref] = str(problem)
            raise
        found.cannot = now.cannot
        for one in now.pieces:
            found.pieces.append(msgspec.structs.replace(one.piece, member=self.writer.add(one.content)))
        if self.data:
            async for one in read_volumes(self.homelab, machine, found.cannot):
                found.pieces.append(msgspec.structs.replace(one.piece, member=self.writer.add(one.content)))
        self.manifest.devices.append(found)
        return found

    async def finish(self) -> dict[str, Any]:
        if not self.manifest.devices:
            self.writer.discard()
            raise TaskFailed("Nothing could be backed up", why="; ".join(self.missing.values()) or None)
        self.manifest.devices.sort(key=lambda one: one.device)  # they arrive in any order
        sha256 = await asyncio.to_thread(self.writer.finish, self.manifest)
        entry = {
            "file": str(self.writer.file),
            "sha256": sha256,
            "created": self.manifest.created,
            **({"name": self.name} if self.name else {}),
            "devices": [one.device for one in self.manifest.devices],
            "sections": list(self.sections),
            "data": self.data,
            "encrypted": self.encrypted,
            **({"not_backed_up": self.missing} if self.missing else {}),
        }
        await Records(self.homelab.store, "infra backup", dict[str, Any]).keep(self.id, entry)
        return {"backup": self.id, **entry, "pieces": sum(len(one.pieces) for one in self.manifest.devices)}


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
    named = [one for one in (await records.all()).values() if one.get("name") == backup]
    entry = await records.find(backup) or max(named, key=lambda one: float(one["created"]), default=None)
    if entry is None:
        known = list(await records.all())[:LISTED]
        raise NotFound(
            f"There is no backup {backup!r}",
            why=f"The newest are {', '.join(known)}" if known else None,
            next_step=see("See all of them", INFRA_BACKUP_LIST) if known else Advice("Make one", INFRA_BACKUP),
        )
    return await asyncio.to_thread(Reader, Path(entry["file"]), entry["sha256"], homelab.settings.passphrase)
