"""Whose a volume is and what uses it, for many volumes at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from quorate.hints import Advice, tools
from quorate.pve.cluster import Cluster
from quorate.pve.lookup import Resource
from quorate.tools.storages import StoredVolume
from quorate.tools.volume_references import NamedVolume, Reference, find_references, may_be_referenced
from quorate.units import shortlist

Only = Annotated[
    Literal["orphans", "unused", "unprotected", "deleted_guests"],
    Meta(description="orphans: disks nothing refers to; unused: also detached ones and ISOs; unprotected: backups"),
]
DISKS = ("images", "rootdir")
GUESTS_AT_MOST = 200
"""Up to this many guests, every list of volumes shows what uses them; it reads all their configurations."""
NAMED_AT_MOST = 3
NOTHING = "nothing"
_DETACHED = re.compile(r"unused\d+")


@dataclass(frozen=True, slots=True)
class Usage:
    """Owners of volumes, and what refers to them."""

    guests: Mapping[int, Resource]
    """The guests that the caller may see."""
    existing: frozenset[int]
    """The vmids of all guests."""
    all_guests_known: bool
    """Whether a guest that is not among the existing ones is certainly gone."""
    references: Mapping[tuple[str, str], Sequence[Reference]] | None
    """By volume and node; None if the configurations were not read."""
    notes: Mapping[str, Any] = field(default_factory=dict)

    def owner_is_gone(self, volume: StoredVolume) -> bool:
        return volume.vmid is not None and volume.vmid not in self.existing and self.all_guests_known

    def owner_of(self, volume: StoredVolume) -> str:
        if volume.vmid is None:
            return ""
        row = self.guests.get(volume.vmid)
        if row is not None:
            return f"{row.kind} {row.name}".rstrip()
        return "deleted" if self.owner_is_gone(volume) else "not visible"

    def of(self, volume: StoredVolume) -> Sequence[Reference]:
        return (self.references or {}).get((volume.volid, volume.node), ())

    def used_by(self, volume: StoredVolume) -> str:
        """The guests, slots, snapshots and linked clones that use it; "nothing" if it is certain that none does."""
        if self.references is None or not may_be_referenced(volume.volid):
            return ""
        uses: dict[str, list[str]] = {}
        for reference in self.of(volume):
            if reference.vmid is None:
                uses.setdefault(reference.by, [])
            elif reference.vmid not in self.guests:
                uses.setdefault("a guest you may not see", [])
            else:  # the owner is in a column of its own
                by = "" if reference.vmid == volume.vmid else reference.by
                uses.setdefault(by, []).append(reference.where.replace(", ", " "))
        lines = [": ".join(filter(None, (by, ", ".join(where)))) for by, where in uses.items()]
        unsure = "nothing that could be read" if "usage_not_read" in self.notes else NOTHING
        return shortlist(lines, NAMED_AT_MOST) if lines else unsure

    def is_orphan(self, volume: StoredVolume) -> bool:
        return volume.content in DISKS and not self.of(volume)

    def is_unused(self, volume: StoredVolume) -> bool:
        """Nothing refers to it, or only as a detached disk."""
        return may_be_referenced(volume.volid) and all(is_detached(reference) for reference in self.of(volume))

    def fits(self, volume: StoredVolume, only: str | None) -> bool:
        match only:
            case "orphans":
                return self.is_orphan(volume)
            case "unused":
                return self.is_unused(volume)
            case "unprotected":
                return volume.content == "backup" and not volume.protected
            case "deleted_guests":
                return self.owner_is_gone(volume)
            case _:
                return True


def is_detached(reference: Reference) -> bool:
    return _DETACHED.fullmatch(reference.where) is not None


async def read_usage(pve: Cluster, volumes: Sequence[StoredVolume], only: str | None) -> Usage:
    """Owners and uses of these volumes. Uses are left out of a plain list where many guests would have to be read."""
    everything = pve.original
    view = await everything.inventory.view()
    if any(volume.vmid is not None and volume.vmid not in view.by_vmid for volume in volumes):
        everything.inventory.forget()  # the guest may be newer than the view
        view = await everything.inventory.view()
    existing = frozenset(view.by_vmid)
    guests = (await pve.inventory.view()).by_vmid
    known = await everything.sees_everything_in("/vms", "VM.Audit")
    named = [volume for volume in volumes if may_be_referenced(volume.volid)]
    if not named or only == "unprotected":
        return Usage(guests, existing, known, None if only == "unprotected" else {})
    if only is None and len(existing) > GUESTS_AT_MOST:
        note = Advice(
            f"Not read for all {len(existing)} guests. To see the unused volumes", tools.volume_list(only="unused")
        )
        return Usage(guests, existing, known, None, {"used_by": note})
    survey = await find_references(pve, [NamedVolume(volume.volid, volume.node) for volume in named])
    references: dict[tuple[str, str], list[Reference]] = {}
    for reference in survey.references:
        references.setdefault((reference.volume.volid, reference.volume.node), []).append(reference)
    unread = await pve.blanker() if survey.unread else str
    notes = {"usage_not_read": [unread(line) for line in survey.unread]} if survey.unread else {}
    return Usage(guests, existing, known, references, notes)
