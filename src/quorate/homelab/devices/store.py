"""The devices in the state store, and the history of their changes.

Several servers may write at once. A device is replaced only if no other server did so in the meantime. Changes are
recorded first and withdrawn if another server was faster: one that dies in between may record a change twice, but loses
none.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from quorate.hints import NETWORK_MAP, see
from quorate.homelab.devices.device import Device, Sighting, State
from quorate.homelab.devices.identity import identities, match_device
from quorate.homelab.devices.merge import first_looks, merge
from quorate.homelab.devices.view import differences, view
from quorate.problems import NotFound
from quorate.state.store import StateUnavailable, Store

MOST_DEVICES = 5_000
MOST_CHANGES = 20_000
KEPT_SECONDS = 400 * 86400.0
MOST_PATHS = 100
"""Of one change: a replaced machine need not be listed line by line."""
LONGEST_VALUE = 300
"""Longer values are cut in the history."""
TRIES = 20

_ALL = "SELECT id, entry, first_seen, last_seen FROM quorate_devices"
_ADD = """INSERT INTO quorate_devices (id, identity, entry, first_seen, last_seen) VALUES (
        (SELECT COALESCE(MAX(id), 0) + 1 FROM
            (SELECT id FROM quorate_devices UNION ALL SELECT device FROM quorate_device_changes) AS known),
        $1, $2, $3, $3
    ) ON CONFLICT DO NOTHING"""
_REPLACE = "UPDATE quorate_devices SET entry = $2, last_seen = $3 WHERE id = $1 AND entry = $4"
_NOTE = "INSERT INTO quorate_device_changes (id, device, time, changes) VALUES ($1, $2, $3, $4)"
_FORGET_OLD_CHANGES = """DELETE FROM quorate_device_changes WHERE time < $1 OR time <
    (SELECT MIN(time) FROM (SELECT time FROM quorate_device_changes ORDER BY time DESC LIMIT $2) AS kept)"""
_FORGET_OLD_DEVICES = """DELETE FROM quorate_devices WHERE last_seen < $1 OR last_seen <
    (SELECT MIN(last_seen) FROM (SELECT last_seen FROM quorate_devices ORDER BY last_seen DESC LIMIT $2) AS kept)"""


_FIRST = {"path": "device", "old": None, "new": "seen for the first time"}

Known = dict[int, tuple[Device, str]]
"""Each with its stored text."""


class Change(NamedTuple):
    time: float
    device: int
    name: str
    changes: list[dict[str, Any]]
    """Path, old and new value of each; None if absent."""


class Devices:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.changed: set[int] = set()
        """Ids of devices that are new or changed."""

    async def all(self) -> list[Device]:
        return [device for device, _ in await self._read(f"{_ALL} ORDER BY id")]

    async def find(self, ref: int | str) -> Device:
        return find_device(await self.all(), ref)

    async def record_sightings(self, sightings: Iterable[Sighting], now: float) -> list[Device]:
        """Merge the sightings; returns their devices in the same order."""
        known = await self._load_all()
        found = [await self._take(seen, now, known) for seen in sightings]
        await self._store.execute(_FORGET_OLD_CHANGES, now - KEPT_SECONDS, MOST_CHANGES)
        await self._store.execute(_FORGET_OLD_DEVICES, now - KEPT_SECONDS, MOST_DEVICES)
        return found

    async def mark_absent(self, ids: Sequence[int], now: float, state: State = "away") -> None:
        """Mark devices that no longer answer."""
        for number in ids:
            for _ in range(TRIES):
                rows = await self._read(f"{_ALL} WHERE id = $1", number)
                if not rows or await self._replace(*rows[0], msgspec.structs.replace(rows[0][0], state=state), now):
                    break

    async def changes(
        self, devices: Iterable[int] | None = None, *, since: float = 0.0, limit: int = 50
    ) -> list[Change]:
        """Changes of these devices, or of all, newest first."""
        among = "" if devices is None else f"AND c.device IN ({', '.join(str(int(one)) for one in devices) or 'NULL'})"
        rows = await self._store.fetch(
            f"""SELECT c.device, c.time, c.changes, d.entry FROM quorate_device_changes c
                LEFT JOIN quorate_devices d ON d.id = c.device
                WHERE c.time >= $1 {among} ORDER BY c.time DESC, c.device, c.id LIMIT $2""",  # noqa: S608 - numbers only
            since,
            limit,
        )
        return [Change(row["time"], row["device"], _name_in(row["entry"]), json.loads(row["changes"])) for row in rows]

    # -- one device ----------------------------------------------------------------------------------------------------

    async def _take(self, seen: Sighting, now: float, known: Known) -> Device:
        for _ in range(TRIES):
            device = match_device((one for one, _ in known.values()), seen)
            if device is None:
                known |= await self._add(seen, now)
                continue
            entry = known[device.id][1]
            changed = await self._replace(device, entry, merge(device, seen, now), now, first_looks(device, seen))
            if changed is not None:
                known[device.id] = changed
                return changed[0]
            known.clear()
            known |= await self._load_all()
        raise StateUnavailable("The devices could not be stored", why="Other servers keep changing the same ones")

    async def _add(self, seen: Sighting, now: float) -> Known:
        """The new device, or the one that another server has just added."""
        new = merge(Device(changed=now), seen, now)
        new = msgspec.structs.replace(new, reported=view(new))
        for identity in identities(seen):
            ours = await self._store.execute(_ADD, identity, _encode(new), now)
            rows = await self._read(f"{_ALL} WHERE identity = $1", identity)
            if ours and rows:
                await self._note(rows[0][0].id, now, [_FIRST])
                self.changed.add(rows[0][0].id)
            if ours or match_device((one for one, _ in rows), seen):
                return {one.id: (one, entry) for one, entry in rows}
        return {}

    async def _replace(
        self, old: Device, entry: str, new: Device, now: float, learned: Iterable[str] = ()
    ) -> tuple[Device, str] | None:
        """Replace `old` by `new` and record the changes; None if another server was faster."""
        changes, reported = differences(old.reported, view(new), learned=learned)
        new = msgspec.structs.replace(new, reported=reported, changed=now if changes else old.changed)
        noted = await self._note(new.id, now, changes) if changes else None
        if await self._store.execute(_REPLACE, new.id, _encode(new), new.last_seen, entry):
            self.changed |= {new.id} if changes else set()
            return new, _encode(new)
        if noted:  # it is compared again, with what the other server wrote
            await self._store.execute("DELETE FROM quorate_device_changes WHERE id = $1", noted)
        return None

    async def _note(self, device: int, now: float, changes: list[dict[str, Any]]) -> str:
        """The id of the new entry."""
        shown = [{name: _cut(value) for name, value in one.items()} for one in changes[:MOST_PATHS]]
        if len(changes) > MOST_PATHS:
            shown.append({"path": "…", "old": None, "new": f"{len(changes) - MOST_PATHS} more"})
        number = secrets.token_hex(16)
        await self._store.execute(_NOTE, number, device, now, json.dumps(shown, separators=(",", ":")))
        return number

    async def _load_all(self) -> Known:
        return {device.id: (device, entry) for device, entry in await self._read(_ALL)}

    async def _read(self, statement: str, *values: Any) -> list[tuple[Device, str]]:
        rows = await self._store.fetch(statement, *values)
        return [(_decode(row), row["entry"]) for row in rows]


def find_device(devices: Sequence[Device], ref: int | str) -> Device:
    """By id, by name, or by address."""
    text = str(ref).strip()
    for knows in (_by_id, _by_name, _by_address):
        if fitting := [one for one in devices if knows(one, text)]:
            return max(fitting, key=lambda one: one.last_seen)
    raise NotFound(f"There is no device {text!r}", next_step=see("See the devices and their ids", NETWORK_MAP))


def _cut(value: Any) -> Any:
    return f"{value[:LONGEST_VALUE]}…" if isinstance(value, str) and len(value) > LONGEST_VALUE else value


def _encode(device: Device) -> str:
    plain = msgspec.structs.replace(device, id=0, first_seen=0.0, last_seen=0.0)
    return msgspec.json.encode(plain).decode()


def _decode(row: dict[str, Any]) -> Device:
    known = msgspec.json.decode(row["entry"], type=Device, strict=False)
    return msgspec.structs.replace(known, id=row["id"], first_seen=row["first_seen"], last_seen=row["last_seen"])


def _name_in(entry: str | None) -> str:
    return str(msgspec.json.decode(entry, type=Device, strict=False)) if entry else ""


def _by_id(device: Device, text: str) -> bool:
    return str(device.id) == text


def _by_name(device: Device, text: str) -> bool:
    return text in (device.name, *device.refs, device.place)


def _by_address(device: Device, text: str) -> bool:
    return text in (one.partition("/")[0] for one in device.addresses) or text.lower() in device.macs
