"""The parts of a device that its history tracks, and how they changed."""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from quorate.hints import see, tools
from quorate.homelab.devices.device import (
    Device,
    Sighting,
    State,
    View,
    bare,
    first_looks,
    identities,
    lasting,
    match_device,
    merge,
    steady,
)
from quorate.inside.facts.model import Facts, Filesystem, Network, Port
from quorate.problems import NotFound
from quorate.state.store import StateUnavailable, Store
from quorate.units import count_of

STEP_PERCENT = 10
"""Smaller changes of a file system's usage are ignored until they add up to this."""
FULL_PERCENT = 90
SAME_SIZE = 0.05
"""Sizes of memory and file systems vary by this share between boots."""
EPHEMERAL = range(32768, 65536)
_RPC = re.compile(r"rpc[.\w]*|lockd|nlockmgr|statd|mountd")


def view(device: Device) -> View:
    """Only what is known: a missing section means nothing."""
    sections: View = {"state": {"": device.state}}
    for section in ("node", "machine_id", "serial"):
        if value := getattr(device, section):
            sections[section] = {"": value}
    facts = device.facts or Facts()
    sections |= {name: part for name, part in _sections(facts).items() if part is not None}
    if facts.network is None:
        sections["addresses"] = {"": " ".join(sorted(device.addresses))} if device.addresses else {}
        sections["macs"] = {"": " ".join(device.macs)} if device.macs else {}
    if facts.ports is None and (device.open_ports or device.closed_ports):
        sections["open_ports"] = {str(port): "open" for port in device.open_ports}
    return {section: part for section, part in sections.items() if part or section not in ("macs", "addresses")}


def differences(old: View, new: View, *, learned: Iterable[str] = ()) -> tuple[list[dict[str, Any]], View]:
    """The changes, and the new state of the history.

    Learning something is not a change of the device: only sections that both have are compared, and `learned` paths
    were never observed before.
    """
    changes: list[dict[str, Any]] = []
    merged: View = {}
    fresh = set(learned)
    for section, part in new.items():
        before = old.get(section)
        if before is None:
            merged[section] = part
            continue
        merged[section] = {}
        for key in {**before, **part}:
            was, is_now = before.get(key), part.get(key)
            path = f"{section}.{key}" if key else section
            if was is not None and is_now is not None and _about_the_same(section, key, was, is_now):
                merged[section][key] = was
                continue
            if is_now is not None:
                merged[section][key] = is_now
            if path not in fresh:
                changes.append({"path": path, "old": was, "new": is_now})
    return changes, merged


def _about_the_same(section: str, key: str, was: Any, is_now: Any) -> bool:
    if was == is_now:
        return True
    if not (isinstance(was, int) and isinstance(is_now, int)):
        return False
    if section == "filesystems" and key.endswith(".used%"):
        filled = (was < FULL_PERCENT) != (is_now < FULL_PERCENT) and abs(was - is_now) > 1
        return abs(was - is_now) < STEP_PERCENT and not filled
    if (section, key.rpartition(".")[2]) in (("memory", "total"), ("filesystems", "size")):
        return abs(was - is_now) <= SAME_SIZE * max(was, is_now)
    return False


# -- section by section ------------------------------------------------------------------------------------------------


def _sections(facts: Facts) -> dict[str, dict[str, Any] | None]:
    usb = None if facts.usb is None else Counter(device.name or device.id for device in facts.usb)
    gpus = None if facts.gpus is None else Counter(facts.gpus)
    return {
        "hardware": _fields(facts.hardware, "vendor", "model", "virtualisation"),
        "system": _fields(facts.system, "hostname", "id", "version", "kernel", "architecture"),
        "cpu": _fields(facts.cpu, "model", "sockets", "cores", "threads"),
        "memory": _fields(facts.memory, "total", "swap_total"),
        "disks": _index_rows(
            facts.disks, lambda disk: {disk.name: " ".join(filter(None, (disk.model, _size(disk.size))))}
        ),
        "filesystems": _index_rows(facts.filesystems, _filesystem),
        "network": None if facts.network is None else _network(facts.network),
        "usb": None if usb is None else dict(usb),
        "pci": _index_rows(facts.pci, lambda card: {card.slot: card.name or card.kind or ""}),
        "gpus": None if gpus is None else dict(gpus),
        "containers": _index_rows(
            facts.containers,
            lambda container: {
                f"{container.engine}/{container.name}": f"{_running(container.state)} {container.image or ''}".strip()
            },
        ),
        "vms": _index_rows(facts.vms, lambda vm: {f"{vm.manager}/{vm.name}": _running(vm.state)}),
        "ports": None if facts.ports is None else _ports(facts.ports),
        "services": None if facts.services is None else dict.fromkeys(facts.services.failed, "failed"),
        "time": _fields(facts.time, "zone"),
    }


def _fields(part: Any, *names: str) -> dict[str, Any] | None:
    if part is None:
        return None
    return {name: value for name in names if (value := getattr(part, name)) is not None}


def _index_rows(parts: Iterable[Any] | None, keyed: Any) -> dict[str, Any] | None:
    return None if parts is None else {key: value for part in parts for key, value in keyed(part).items()}


def _size(count: int | None) -> str:
    return "" if count is None else count_of(count, "byte")


def _running(state: str | None) -> str:
    return "running" if (state or "").lower().startswith(("running", "up")) else "not running"


def used_percent(filesystem: Filesystem) -> int | None:
    return None if filesystem.share is None else round(100 * filesystem.share)


def _filesystem(filesystem: Filesystem) -> dict[str, Any]:
    fields = {
        "device": filesystem.device,
        "type": filesystem.type,
        "size": filesystem.size,
        "used%": used_percent(filesystem),
    }
    return {f"{filesystem.mount}.{name}": value for name, value in fields.items() if value is not None}


def _network(network: Network) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for interface in lasting(network):
        addresses = " ".join(sorted(address for address in interface.addresses if steady(address)))
        speed = None if interface.name.startswith("wl") else interface.speed
        values = {"mac": interface.mac, "state": interface.state, "addresses": addresses, "speed": speed}
        fields |= {f"{interface.name}.{name}": value for name, value in values.items() if value is not None}
    return fields | {"gateways": " ".join(sorted(network.gateways)), "dns": " ".join(sorted(network.dns))}


def _ports(ports: Iterable[Port]) -> dict[str, Any]:
    """Port -> the addresses it listens on, without ephemeral ports."""
    listening: dict[str, set[str]] = {}
    for port in ports:
        if not (port.port in EPHEMERAL and _by_chance(port)):
            listening.setdefault(f"{port.protocol}/{port.port}", set()).add(port.address)
    return {key: " ".join(sorted(where)) for key, where in listening.items()}


def _by_chance(port: Port) -> bool:
    """An ephemeral port counts only if others can reach it and a known program keeps it."""
    inward = port.address.startswith(("127.", "::1", "[::1"))
    return inward or port.protocol.startswith("udp") or not port.process or _RPC.fullmatch(port.process) is not None


MOST_DEVICES = 5_000
MOST_CHANGES = 20_000
KEPT_SECONDS = 400 * 86400.0
MOST_PATHS = 100
"""The most paths stored per change: a replaced machine need not be listed line by line."""
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
"""Id -> device and its stored text."""


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
        devices = [await self._take(seen, now, known) for seen in sightings]
        await self._store.execute(_FORGET_OLD_CHANGES, now - KEPT_SECONDS, MOST_CHANGES)
        await self._store.execute(_FORGET_OLD_DEVICES, now - KEPT_SECONDS, MOST_DEVICES)
        return devices

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
        among = (
            ""
            if devices is None
            else f"AND c.device IN ({', '.join(str(int(device)) for device in devices) or 'NULL'})"
        )
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
            device = match_device((candidate for candidate, _ in known.values()), seen)
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
            if ours or match_device((candidate for candidate, _ in rows), seen):
                return {device.id: (device, entry) for device, entry in rows}
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
        shown = [{name: _cut(value) for name, value in change.items()} for change in changes[:MOST_PATHS]]
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
    """Find a device by id, name or address."""
    text = str(ref).strip()
    matches = (
        [device for device in devices if str(device.id) == text]
        or [device for device in devices if text in (device.name, *device.refs, device.place)]
        or [device for device in devices if text in map(bare, device.addresses) or text.lower() in device.macs]
    )
    if not matches:
        raise NotFound(
            f"There is no device {text!r}", next_step=see("See the devices and their ids", tools.network_map)
        )
    return max(matches, key=lambda device: device.last_seen)


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
