"""Calls that the disk tools share, and what they read back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import GUEST_POWER, NAMED, Advice, Sentence
from quorate.operations.config_change import Config
from quorate.operations.configure.disk_checks import exact_size
from quorate.operations.plan import Call, guest_call
from quorate.operations.units import size as shown
from quorate.problems import BadArgument
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest

MAKING_INTERVAL, MAKING_LOOKS = 3.0, 20

Format = Literal["raw", "qcow2", "vmdk"]
Settings = Annotated[dict[str, Any], Meta(description="ssd, discard, iothread, cache, backup, ro …")]


def mount(guest: Guest, slot: str, path: str | None) -> dict[str, str]:
    if guest.is_vm:
        if path is not None:
            raise BadArgument(
                Sentence("{path} applies to containers only", path=NAMED),
                next_step="Leave it out and mount it inside the VM",
            )
        return {}
    if path is None or not path.startswith("/"):
        raise BadArgument(
            f"{guest} needs a path to mount {slot} at", next_step=Advice("Give {path}, such as /data", path=NAMED)
        )
    return {"mp": path}


def texts(options: Mapping[str, Any] | None) -> dict[str, str]:
    return {key: str(int(value)) if isinstance(value, bool) else str(value) for key, value in (options or {}).items()}


def resize_call(guest: Guest, key: str, size: int, *, more: bool = False, digest: str | None = None) -> Call:
    text = ("+" if more else "") + exact_size(size)
    summary = f"Grow {key} of {guest} " + (f"by {shown(size)}" if more else f"to {shown(size)}")
    return guest_call(guest, "PUT", "resize", summary, disk=key, size=text, digest=digest)


def wait_for_config(pve: Cluster, guest: Guest, is_there: Callable[[Config], bool]) -> Callable[[], Awaitable[bool]]:
    """A container's mount point is created within the call itself, which may continue after its answer was lost."""

    async def look() -> bool:
        for _ in range(0 if guest.is_vm else MAKING_LOOKS):
            if is_there(await guest.get("config")):
                return True
            await pve.clock.sleep(MAKING_INTERVAL)
        return is_there(await guest.get("config"))

    return look


def state_of(guest: Guest, key: str) -> Callable[[], Awaitable[Mapping[str, Any]]]:
    async def look() -> Mapping[str, Any]:
        entries = await guest.get("pending")
        waiting = values.pending_changes(entries)
        now = next((str(entry["value"]) for entry in entries if entry["key"] == key and "value" in entry), "")
        if key in waiting:
            return {
                "waits_for_restart": {key: waiting[key]},
                "next": Advice("A restart applies it", GUEST_POWER(guest=guest.vmid, action="reboot")),
            }
        return {key: now}

    return look
