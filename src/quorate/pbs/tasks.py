"""What the tasks of a Proxmox Backup Server are about, by their types and ids."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from quorate.pbs.server import BackupNamespace, Group

REPEATABLE: Final = frozenset(
    {
        "verify",
        "verify_group",
        "verify_snapshot",
        "verificationjob",
        "prune",
        "prunejob",
        "garbage_collection",
        "sync",
        "syncjob",
    }
)
"""Tasks that can be started again without a loss."""
_FAMILIES: Final = {"verify": "verif", "verification": "verif", "gc": "garbage_collection", "restore": "reader"}
"""What part of the types a word stands for: PBS names the tasks of jobs otherwise than those that someone started."""
_GROUP: Final = re.compile(r"(?:^|[:/])(vm|ct|host)/([A-Za-z0-9_][A-Za-z0-9._-]*)(?:/[0-9A-F]{8,})?$")
_OF_JOBS: Final = frozenset({"verificationjob", "prunejob"})


def type_filter(word: str) -> str:
    """The part of the types by which PBS lists the tasks that a word is about."""
    return _FAMILIES.get(word.strip().lower(), word.strip())


@dataclass(frozen=True, slots=True)
class TaskSubject:
    """What a task works on. Some work on no datastore."""

    places: tuple[BackupNamespace, ...] = ()
    """The first is where it works; a sync has the datastore that it copies from as well."""
    group: Group | None = None

    @classmethod
    def of(cls, server: str, type: str, id: str) -> TaskSubject:
        """By `store1`, `store1:prod`, `store1:ct/101`, `store1:prod/vm/100/67B67080` or the five parts of a sync."""
        if not id:
            return cls()
        if type == "syncjob" and id.count(":") >= 4:
            remote, source, store, namespace, _ = id.split(":", 4)
            target = BackupNamespace(server, store, namespace)
            return cls((target, BackupNamespace(server, source)) if remote == "-" else (target,))
        store, _, rest = id.partition(":")
        match = _GROUP.search(rest)
        namespace = "" if type in _OF_JOBS else (rest[: match.start()] if match else rest).strip("/:")
        group = Group(match[1], match[2]) if match else None
        spellings = dict.fromkeys((_without_folders(namespace), namespace))
        return cls(tuple(BackupNamespace(server, store, each) for each in spellings), group)


def _without_folders(namespace: str) -> str:
    """`prod/web` for `ns/prod/ns/web`, which is how some ids name it."""
    parts = namespace.split("/")
    in_folders = len(parts) % 2 == 0 and {*parts[::2]} == {"ns"}
    return "/".join(parts[1::2]) if in_folders else namespace
