"""Backups of devices: where they are, and what is known of each."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from quorate.homelab.devices.identity import fingerprint
from quorate.homelab.home import Homelab
from quorate.homelab.infra.archive import DeviceBackup, Manifest, Reader, Writer
from quorate.homelab.infra.taking import data_of, look
from quorate.homelab.machines import Machine
from quorate.problems import Conflict, NotFound, Problem, TaskFailed
from quorate.state.records import Records

FOLDER = "backups"
LISTED = 10


@dataclass
class Backup:
    """One that is being made. Nothing is known of it before all of it is written."""

    home: Homelab
    id: str
    sections: tuple[str, ...]
    writer: Writer
    manifest: Manifest
    missing: dict[str, str]
    data: bool = False

    @property
    def encrypted(self) -> bool:
        return self.writer.encrypted

    async def take(self, ref: str, machine: Machine) -> DeviceBackup:
        """Of one device. One that does not answer is told, and does not cost the others their backup."""
        found = DeviceBackup(ref)
        try:
            found.machine_id, _ = await fingerprint(machine)
            now = await look(self.home, machine, self.sections)
        except Problem as problem:
            self.missing[ref] = str(problem)
            raise
        found.cannot = now.cannot
        for one in now.taken:
            found.pieces.append(msgspec.structs.replace(one.piece, member=self.writer.add(one.content)))
        if self.data:
            async for one in data_of(self.home, machine, found.cannot):
                found.pieces.append(msgspec.structs.replace(one.piece, member=self.writer.add(one.content)))
        self.manifest.devices.append(found)
        return found

    async def finish(self) -> dict[str, Any]:
        if not self.manifest.devices:
            self.writer.discard()
            raise TaskFailed("Nothing could be backed up", why="; ".join(self.missing.values()) or None)
        self.manifest.devices.sort(key=lambda one: one.device)  # they came in as they answered
        sha256 = await asyncio.to_thread(self.writer.finish, self.manifest)
        entry = {
            "file": str(self.writer.file),
            "sha256": sha256,
            "created": self.manifest.created,
            "devices": [one.device for one in self.manifest.devices],
            "sections": list(self.sections),
            "data": self.data,
            "encrypted": self.encrypted,
            **({"not_backed_up": self.missing} if self.missing else {}),
        }
        await Records(self.home.store, "infra backup", dict[str, Any]).keep(self.id, entry)
        return {"backup": self.id, **entry, "pieces": sum(len(one.pieces) for one in self.manifest.devices)}


async def begin(home: Homelab, sections: Collection[str], name: str | None, *, data: bool = False) -> Backup:
    now = home.clock.time()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    number = f"{name or 'backup'}-{stamp}-{secrets.token_hex(3)}"
    folder = home.settings.work / FOLDER
    writer = await asyncio.to_thread(Writer, folder, number, home.settings.passphrase)
    return Backup(home, number, tuple(sections), writer, Manifest(number, now, list(sections)), {}, data)


async def ensure_same(then: DeviceBackup, machine: Machine) -> None:
    """Another machine may have got the name meanwhile: nothing of this one belongs there."""
    now, _ = await fingerprint(machine)
    if then.machine_id and now and now != then.machine_id:
        raise Conflict(
            f"{machine} is not the machine that the backup was made of",
            why="Its machine id is another one",
            next_step="Nothing was done; was it set up anew, or is it another host under the same name?",
        )


async def everything(home: Homelab) -> dict[str, dict[str, Any]]:
    """By id, the newest first."""
    return await Records(home.store, "infra backup", dict[str, Any]).all()


async def opened(home: Homelab, backup: str) -> Reader:
    records = Records(home.store, "infra backup", dict[str, Any])
    entry = await records.find(backup)
    if entry is None:
        known = list(await records.all())[:LISTED]
        raise NotFound(
            f"There is no backup {backup!r}",
            next_step=f"The newest are {', '.join(known)}; infra_backup_list shows them all"
            if known
            else "infra_backup makes one",
        )
    return await asyncio.to_thread(Reader, Path(entry["file"]), entry["sha256"], home.settings.passphrase)
