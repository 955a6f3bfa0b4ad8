"""One Proxmox Backup Server as operations see it: its datastores, namespaces, backups and tasks."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from quorate.hints import NAMED, Advice, see, tools
from quorate.pbs.client import BackupTask, PbsClient, grant_advice
from quorate.problems import (
    AuthenticationFailed,
    BadArgument,
    NotConfigured,
    NotFound,
    PermissionMissing,
    Problem,
    TimedOut,
    Unreachable,
)
from quorate.pve.connection import Clock, Connection, SystemClock
from quorate.pve.tasks import Report, TaskState, follow, gather_bounded, read_state

Result = TypeVar("Result")

READS_AT_ONCE: Final = 8
STORE_SECONDS: Final = 20.0
"""How long one datastore may delay the others of its server."""
TYPES: Final = ("vm", "ct", "host")
_UNKNOWN_END: Final = "unknown"
_REFERENCE: Final = re.compile(
    r"(?P<type>vm|ct|host)/(?P<id>[A-Za-z0-9_][A-Za-z0-9._-]*)(?:/(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|\d{9,10}))?"
)


@dataclass(frozen=True, slots=True)
class Group:
    """The backups of one guest or host in a namespace; with a time, one of them."""

    type: str
    id: str
    time: int | None = None

    @classmethod
    def parse(cls, text: str) -> Group:
        match = _REFERENCE.fullmatch(text.strip().strip("/"))
        if match is None:
            raise BadArgument(
                f"{text!r} is not a backup",
                why="Backups are called TYPE/ID/TIME, such as vm/100/2025-01-01T00:00:00Z; all those of a guest or "
                "host TYPE/ID, such as ct/101 or host/nas",
                next_step=see("List the backups", tools.pbs_backup_list),
            )
        time = match["time"]
        return cls(match["type"], match["id"], None if time is None else parse_time(time))

    @property
    def params(self) -> dict[str, Any]:
        named = {"backup-type": self.type, "backup-id": self.id}
        return named if self.time is None else {**named, "backup-time": self.time}

    @property
    def name(self) -> str:
        return f"{self.type}/{self.id}"

    @property
    def vmid(self) -> int | None:
        """The guest of a PVE cluster that it is a backup of."""
        return int(self.id) if self.type in ("vm", "ct") and self.id.isascii() and self.id.isdigit() else None

    def __str__(self) -> str:
        return self.name if self.time is None else f"{self.name}/{iso(self.time)}"


@dataclass(frozen=True, slots=True)
class BackupNamespace:
    """A namespace of a datastore of a backup server."""

    server: str
    store: str
    namespace: str = ""

    @property
    def path(self) -> str:
        return f"/admin/datastore/{self.store}"

    @property
    def params(self) -> dict[str, Any]:
        return {"ns": self.namespace} if self.namespace else {}

    def __str__(self) -> str:
        return f"{self.server}/{self.store}" + (f"/{self.namespace}" if self.namespace else "")


Shows = Callable[[BackupNamespace], bool]
"""Whether a caller may see a datastore or namespace."""


def shows_all(_: BackupNamespace) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Backup:
    """One snapshot of a group, as PBS lists it."""

    place: BackupNamespace
    group: Group
    """With its time."""
    owner: str
    size: int | None
    """The logical size: what deduplication saves is known for the whole datastore only. None while it is made."""
    protected: bool
    verified: str
    """ok, failed, or empty if it was never verified."""
    verified_by: str
    """The task that verified it."""
    crypt_mode: str
    """encrypt, sign-only or none."""
    key: str
    """The fingerprint of the key that encrypted or signed it."""
    notes: str
    """The first line."""
    files: tuple[tuple[str, int], ...]

    @property
    def time(self) -> int:
        assert self.group.time is not None
        return self.group.time

    @property
    def running(self) -> bool:
        return not self.files

    @property
    def verified_at(self) -> int | None:
        return BackupTask.parse(self.verified_by).started if BackupTask.looks_like(self.verified_by) else None

    @classmethod
    def of(cls, place: BackupNamespace, row: Mapping[str, Any]) -> Backup:
        files = row.get("files") or ()
        modes = {str(file.get("crypt-mode", "none")) for file in files if not _is_manifest(file)}
        verification = row.get("verification") or {}
        return cls(
            place,
            Group(str(row["backup-type"]), str(row["backup-id"]), int(row["backup-time"])),
            str(row.get("owner", "")),
            row.get("size"),
            bool(row.get("protected")),
            str(verification.get("state", "")),
            str(verification.get("upid", "")),
            "encrypt" if "encrypt" in modes else "sign-only" if "sign-only" in modes else "none",
            str(row.get("fingerprint", "")),
            str(row.get("comment", "")).rstrip(),
            tuple((str(file["filename"]), int(file.get("size") or 0)) for file in files),
        )

    def __str__(self) -> str:
        return f"{self.group} in {self.place}"


@dataclass(slots=True)
class FoundBackups:
    """What could be read of the datastores and namespaces of a server."""

    backups: list[Backup] = field(default_factory=list)
    """The newest first."""
    places: list[BackupNamespace] = field(default_factory=list)
    not_read: dict[str, Problem] = field(default_factory=dict)
    """Why a datastore or namespace could not be read, by its place."""


def _newest_first(parts: Sequence[Sequence[Backup]]) -> list[Backup]:
    return sorted((backup for part in parts for backup in part), key=lambda backup: -backup.time)


async def _read_or_explain(read: Awaitable[list[Result]]) -> list[Result] | Problem:
    """What one datastore answers, or why it does not; an error of the connection is one of the whole server."""
    try:
        async with asyncio.timeout(STORE_SECONDS):
            return await read
    except (Unreachable, AuthenticationFailed):
        raise
    except Problem as problem:
        return problem
    except TimeoutError:
        return TimedOut(f"It did not answer within {STORE_SECONDS:g} s")


def _is_manifest(file: Mapping[str, Any]) -> bool:
    """The manifest is signed even where everything else is encrypted or plain."""
    return str(file.get("filename")) == "index.json.blob"


class BackupServer:
    """A configured backup server."""

    def __init__(self, name: str, connection: Connection, *, clock: Clock | None = None) -> None:
        self.name = name
        self.clock: Clock = clock or SystemClock()
        self.client = PbsClient(connection, clock=self.clock)
        self.host = (urlsplit(connection.endpoints[0]).hostname or "").lower()
        self.fingerprint = (connection.trust.fingerprint or "").replace(":", "").lower()

    def secrets(self) -> list[str]:
        return self.client.secrets()

    async def close(self) -> None:
        await self.client.close()

    async def get(self, path: str, /, **params: Any) -> Any:
        return await self.client.get(path, **params)

    async def write(self, method: str, path: str, params: Mapping[str, Any] | None = None) -> Any:
        return (await self.client.request(method, path, params or {})).data

    async def version(self) -> str:
        answer = await self.get("/version")
        return f"{answer.get('version', '')}.{answer.get('release', '')}".strip(".")

    # -- datastores and namespaces ---------------------------------------------------------------------------------

    async def datastores(self) -> list[str]:
        """The names of the datastores. Raises PermissionMissing if the token sees none."""
        names = sorted(str(row["store"]) for row in await self.get("/admin/datastore") or ())
        if not names:
            await self.refuse_blindness()
        return names

    async def refuse_blindness(self) -> None:
        """Without rights, PBS answers lists with nothing; so ask what the token may see."""
        held: Mapping[str, Mapping[str, Any]] = await self.get("/access/permissions") or {}
        sees = any(
            (path == "/" or path.startswith("/datastore")) and {"Datastore.Audit", "Datastore.Backup"} & {*privileges}
            for path, privileges in held.items()
        )
        if not sees:
            identity = self.client.identity
            raise PermissionMissing(
                f"{identity} sees no datastore of {self.name}",
                why="PBS shows an empty list to a token without rights. A token has none of its own until it gets a "
                "role",
                next_step=grant_advice(identity, "/datastore", "DatastoreAudit"),
                facts={"path": "/datastore", "role": "DatastoreAudit"},
            )

    async def require_datastore(self, name: str, shows: Shows = shows_all) -> str:
        names = [each for each in await self.datastores() if shows(BackupNamespace(self.name, each))]
        if name not in names:
            raise NotFound(
                f"{self.name} has no datastore {name!r} that {self.client.identity} may see",
                next_step=f"It sees {', '.join(names) or 'none'}",
            )
        return name

    async def choose_datastore(self, name: str | None, shows: Shows = shows_all) -> str:
        """The named one, or the only one of those that the caller may see."""
        if name is not None:
            return await self.require_datastore(name, shows)
        names = [each for each in await self.datastores() if shows(BackupNamespace(self.name, each))]
        if len(names) == 1:
            return names[0]
        raise BadArgument(
            f"{self.name} has {len(names)} datastores" if names else f"{self.name} has no datastore",
            next_step=Advice(f"Give {{datastore}}: {', '.join(names)}", datastore=NAMED) if names else None,
        )

    async def namespaces(self, store: str, parent: str = "") -> list[str]:
        """The namespaces of a datastore, the root as an empty name, parents first."""
        params = {"parent": parent} if parent else {}
        rows = await self.get(f"/admin/datastore/{store}/namespace", **params)
        return sorted(str(row.get("ns", "")) for row in rows or ())

    # -- backups ---------------------------------------------------------------------------------------------------

    async def backups_in(self, place: BackupNamespace, group: Group | None = None) -> list[Backup]:
        """The backups of one namespace, newest first."""
        named = {} if group is None else {"backup-type": group.type, "backup-id": group.id}
        rows = await self.get(f"{place.path}/snapshots", **place.params, **named)
        backups = [Backup.of(place, row) for row in rows or ()]
        return sorted(backups, key=lambda backup: (-backup.time, str(backup.group)))

    async def backups(self, store: str) -> list[Backup]:
        """The backups in all namespaces of a datastore, newest first. Raises if one cannot be read."""
        places = [BackupNamespace(self.name, store, name) for name in await self.namespaces(store)]
        return _newest_first(await gather_bounded(READS_AT_ONCE, [partial(self.backups_in, each) for each in places]))

    async def find_backups(
        self,
        store: str | None = None,
        namespace: str | None = None,
        group: Group | None = None,
        *,
        shows: Shows = shows_all,
    ) -> FoundBackups:
        """The backups of all datastores that are not offline, or of the named one; with a namespace, where it exists.

        One that cannot be read does not hide the others.
        """
        listing = FoundBackups()
        if store is not None:
            stores = [await self.require_datastore(store, shows)]
        else:
            stores = [each for each in await self.open_datastores() if shows(BackupNamespace(self.name, each))]
        roots = [BackupNamespace(self.name, name) for name in stores]
        listed = await asyncio.gather(*(_read_or_explain(self.namespaces(root.store)) for root in roots))
        for root, names in zip(roots, listed, strict=True):
            if isinstance(names, Problem):
                listing.not_read[str(root)] = names
            else:
                listing.places += [place for name in names if shows(place := replace(root, namespace=name))]
        if namespace is not None:
            names = sorted({place.namespace for place in listing.places} - {""})
            listing.places = [place for place in listing.places if place.namespace == namespace]
            if not listing.places and not listing.not_read:
                raise NotFound(
                    f"There is no namespace {namespace!r} in {', '.join(stores)} of {self.name}",
                    next_step=f"The namespaces are {', '.join(names)}" if names else "There is only the root",
                )
        reads = [partial(_read_or_explain, self.backups_in(place, group)) for place in listing.places]
        parts = await gather_bounded(READS_AT_ONCE, reads)
        for place, part in zip(listing.places, parts, strict=True):
            if isinstance(part, Problem):
                listing.not_read[str(place)] = part
        listing.backups = _newest_first([part for part in parts if not isinstance(part, Problem)])
        return listing

    async def open_datastores(self) -> list[str]:
        """Those that are not offline for maintenance."""
        rows = await self.get("/admin/datastore") or ()
        if not rows:
            await self.refuse_blindness()
        return sorted(str(row["store"]) for row in rows if not str(row.get("maintenance", "")).startswith("offline"))

    async def find_backup(self, store: str, namespace: str, reference: Group) -> Backup:
        """One backup; without a time, the newest of its group."""
        place = BackupNamespace(self.name, store, namespace)
        backups = await self.backups_in(place, replace(reference, time=None))
        matching = [backup for backup in backups if reference.time in (None, backup.time)]
        if not matching:
            raise NotFound(
                f"There is no backup {reference} in {place} that {self.client.identity} may see",
                next_step=see("List the backups", tools.pbs_backup_list(server=self.name, datastore=store)),
            )
        return matching[0]

    async def find_named(self, store: str, namespace: str, name: str) -> Backup:
        """The same by its name, such as vm/100/2025-01-01T00:00:00Z."""
        return await self.find_backup(store, namespace, Group.parse(name))

    # -- tasks -----------------------------------------------------------------------------------------------------

    async def tasks(self, **filters: Any) -> list[dict[str, Any]]:
        """Tasks, newest first."""
        rows = await self.get("/nodes/localhost/tasks", **filters)
        return sorted(rows or (), key=lambda row: -int(row["starttime"]))

    async def follow(
        self, task: BackupTask, *, wait: float, report: Report | None = None, new: bool = False
    ) -> TaskState:
        """Follow a task to its end, or for `wait` seconds."""
        state = await follow(self.client, task, clock=self.clock, wait=wait, report=report, new=new)
        return await self.with_known_end(state)

    async def state_of(self, task: BackupTask) -> TaskState:
        return await self.with_known_end(await read_state(self.client, task))

    async def with_known_end(self, state: TaskState) -> TaskState:
        """How it ended: the list of tasks knows that also where the end of the log is missing."""
        state.log = [without_time(line) for line in state.log]
        if not state.running and state.exit == _UNKNOWN_END:
            rows = await self.tasks(since=state.upid.started - 1, until=state.upid.started + 1, limit=0)
            listed = next((row for row in rows if row["upid"] == state.upid.text), None)
            if listed is not None and listed.get("status"):
                state.exit = str(listed["status"])
        return state


def without_time(line: str) -> str:
    """A line of a log without the time that PBS puts in front of it."""
    return re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:Z|[+-]\d\d:\d\d): ", "", line)


def iso(time: float) -> str:
    """A time as backups are called: 2025-01-01T00:00:00Z."""
    return datetime.fromtimestamp(int(time), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> int:
    """Epoch seconds, or a time as backups are called."""
    if text.isdigit():
        return int(text)
    try:
        return int(datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise BadArgument(f"{text!r} is not a time", next_step="Write it as 2025-01-01T00:00:00Z") from None


def find_server(servers: Sequence[BackupServer], name: str | None) -> BackupServer:
    """The named server, or the only one."""
    if not servers:
        raise explain_no_server()
    known = {server.name: server for server in servers}
    if name is None and len(servers) == 1:
        return servers[0]
    if name is None:
        raise BadArgument(
            "There are several backup servers",
            next_step=Advice(f"Give {{server}}: {', '.join(known)}", server=NAMED),
        )
    if name not in known:
        raise NotFound(f"There is no backup server {name!r}", next_step=f"The configured ones are {', '.join(known)}")
    return known[name]


def explain_no_server() -> NotConfigured:
    return NotConfigured(
        "No Proxmox Backup Server is configured",
        next_step="The operator can add one with `quorate init --pbs ADDRESS`, or as a table [pbs.NAME] in the "
        "configuration",
    )
