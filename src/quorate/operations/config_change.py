"""One write to a guest's configuration, and its result: what is live and what waits for a restart."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quorate.hints import GUEST_CONFIGURE, GUEST_GET, GUEST_POWER, Advice
from quorate.operations.plan import Call, guest_call
from quorate.operations.preconditions import refuse_locked
from quorate.problems import BadArgument, Conflict
from quorate.pve import values
from quorate.pve.cluster import Guest

Config = dict[str, Any]

_TAG = re.compile(r"[a-z0-9_][a-z0-9_\-+.]*", re.I)


async def read_config(guest: Guest, digest: str | None = None) -> Config:
    """The configuration with its pending changes, if the guest can be changed now.

    `digest` is the caller's: what it has decided on must still be what is there.
    """
    config: Config = await guest.get("config")
    refuse_locked(guest, config)
    if digest is not None and digest != config.get("digest"):
        raise Conflict(
            f"The configuration of {guest} has changed since you read it",
            why=f"Its digest is {config.get('digest')} now",
            next_step=Advice("Read it again, then decide", GUEST_GET(guest=guest.vmid, detail=True)),
        )
    return config


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """Options of a guest to set, to delete, and pending changes to drop."""

    set: Mapping[str, Any] = field(default_factory=dict)
    delete: Sequence[str] = ()
    revert: Sequence[str] = ()
    force: bool = False
    """Destroys the volumes of deleted disks."""


def write_config(
    guest: Guest,
    config: Config,
    summary: str,
    edit: ConfigEdit,
    *,
    slow: bool = False,
    settled: Callable[[], Awaitable[bool]] | None = None,
) -> Call:
    """The call that changes options, bound to the configuration that was read.

    `slow` is for edits that create disks or plug devices: a VM does them in a task. Containers have no such request.
    """
    params = {
        **edit.set,
        "delete": ",".join(edit.delete) or None,
        "revert": ",".join(edit.revert) or None,
        "digest": config.get("digest"),
        "force": 1 if edit.force else None,
    }
    method = "POST" if guest.is_vm and slow else "PUT"
    return guest_call(guest, method, "config", summary, settled=settled, **params)


def is_set(name: str, value: Any, config: Mapping[str, Any]) -> bool:
    """Whether the configuration already has this value, in whatever notation."""
    if name not in config:
        return False
    if name == "tags":
        return sorted(split_tags(str(value))) == sorted(split_tags(str(config[name])))
    return values.same(value, config[name])


def split_tags(text: str) -> list[str]:
    return [tag for tag in re.split(r"[,;\s]+", text) if tag]


def check_tags(given: list[str] | None) -> list[str]:
    """Check tags by PVE's rules; one with a blank in it would silently become two."""
    for tag in given or ():
        if not _TAG.fullmatch(tag):
            parts = [part for part in split_tags(tag) if _TAG.fullmatch(part)]
            raise BadArgument(
                f"{tag!r} cannot be a tag",
                why="A tag is made of letters, digits and _ - + . and begins with a letter, a digit or _",
                next_step=f"Give several tags one by one: {json.dumps(parts)}" if len(parts) > 1 else None,
            )
    return list(given or ())


def live_and_waiting(guest: Guest, names: Iterable[str]) -> Callable[[], Awaitable[Mapping[str, Any]]]:
    """For Plan.after: which of the changed options are live, and which wait for a restart.

    Nothing is live in a guest that is stopped: it starts with what is set.
    """
    changed = list(names)

    async def look() -> Mapping[str, Any]:
        if (status := await guest.status()) != "running":
            return {"changed": changed, "status": status}
        waiting = values.pending_changes(await guest.get("pending"))
        late = {name: waiting[name] for name in changed if name in waiting}
        facts: dict[str, Any] = {"live": [name for name in changed if name not in waiting]}
        if late:
            facts["waits_for_restart"] = late
            restart = GUEST_POWER(guest=guest.vmid, action="reboot")
            facts["next"] = Advice("To apply it, restart the guest; a reboot from inside is not enough", restart)
        return facts

    return look


def refuse_protected(guest: Guest, config: Config, what: str) -> None:
    if values.is_on(config.get("protection", 0)):
        raise Conflict(
            f"{guest} is protected, so {what} cannot be removed",
            next_step=Advice(
                "Its owner can switch protection off", GUEST_CONFIGURE(guest=guest.vmid, protection=False)
            ),
        )


def number_of(device: int | str, bus: str) -> int:
    """The 1 of "net1" or "1"."""
    text = str(device).strip().removeprefix(bus)
    if not (text.isascii() and text.isdigit()):
        raise BadArgument(f"{device!r} is not a {bus} device", next_step=f"Write {bus}0, {bus}1 …")
    return int(text)


def first_free(config: Mapping[str, Any], bus: str, slots: int) -> str | None:
    return next((f"{bus}{number}" for number in range(slots) if f"{bus}{number}" not in config), None)
