"""Where the disks of a migration go: `targetstorage` as PVE reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

from quorate.sim.refusals import bad_parameters


@dataclass(frozen=True, slots=True)
class StorageMap:
    """Storage of the source -> storage of the target; without a word, each maps to itself."""

    entries: dict[str, str] = field(default_factory=dict)
    default: str | None = None
    given: bool = False
    identity: bool = False

    def target_of(self, storage_id: str) -> str:
        return self.entries.get(storage_id) or self.default or storage_id

    def targets(self) -> list[str]:
        """Every storage that is named as a target."""
        return [*self.entries.values(), *([self.default] if self.default else [])]


def parse_storage_map(name: str, text: str | None) -> StorageMap:
    """`a:b,c:d` maps one by one, `x` all of them, `1` each to itself."""
    if text is None:
        return StorageMap()
    entries: dict[str, str] = {}
    default, identity = None, False
    for part in text.replace(";", ",").replace(" ", ",").split(","):
        source, colon, target = part.partition(":")
        if part == "1":
            identity = True
        elif colon:
            if source in entries:
                raise bad_parameters({name: f"failed to parse storage map: duplicate mapping for source '{source}'\n"})
            entries[source] = target
        elif part:
            default = part
    return StorageMap(entries, default, given=True, identity=identity)
