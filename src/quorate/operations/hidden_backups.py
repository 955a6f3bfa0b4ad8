"""Backups that PVE leaves out of its lists, without an error, because the credentials may not see them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from quorate.operations.units import shortlist
from quorate.pve.cluster import Cluster

REFUSALS_ASKED = 20
STORAGES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class StorageVisibility:
    """What the credentials see of the backups on some storages."""

    hidden: tuple[str, ...] = ()
    """Storages that show no backups at all."""
    by_guest: bool = False
    """Whether some storage shows only the backups of guests that these credentials may back up."""


async def storage_visibility(pve: Cluster, storages: Iterable[str]) -> StorageVisibility:
    hidden, by_guest = [], False
    for storage in sorted(set(storages)):
        path = f"/storage/{storage}"
        if await pve.may(path, "Datastore.Allocate"):
            continue
        if await pve.may(path, "Datastore.AllocateSpace"):
            by_guest = True
        else:
            hidden.append(storage)
    return StorageVisibility(tuple(hidden), by_guest)


async def hidden_guests(pve: Cluster, vmids: Iterable[int]) -> list[int]:
    """Guests whose backups are hidden; every refusal costs a request, so not all are asked."""
    hidden: list[int] = []
    for vmid in vmids:
        if len(hidden) >= REFUSALS_ASKED or not await pve.may(f"/vms/{vmid}", "VM.Backup"):
            hidden.append(vmid)
    return hidden


def describe_hidden_backups(storages: Iterable[str] = (), guests: Iterable[int] = ()) -> list[str]:
    """Which backups are hidden, and the privileges that show them."""
    said = []
    if names := list(storages):
        paths = shortlist([f"/storage/{name}" for name in names], STORAGES_SHOWN)
        said.append(
            f"Backups on {shortlist(names, STORAGES_SHOWN)} are hidden: "
            f"that needs Datastore.AllocateSpace on {paths}, and VM.Backup on /vms"
        )
    if count := len(list(guests)):
        said.append(f"Backups of {count} guest{'s' * (count > 1)} are hidden: that needs VM.Backup on /vms")
    return said
