"""Choosing guests by what they are: the filter that lists and bulk actions share."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from quorate.pve.cluster import Cluster
from quorate.pve.errors import NotFound
from quorate.pve.inventory import Resource


@dataclass(frozen=True, slots=True)
class Filter:
    """Every field that is given must fit."""

    node: str | None = None
    type: str | None = None
    status: str | None = None
    name: str | None = None
    tag: str | None = None
    pool: str | None = None
    template: bool | None = None

    async def apply(self, pve: Cluster) -> list[Resource]:
        """The guests that fit; an unknown node or pool is an error, not an empty answer."""
        if self.node is not None:
            await pve.inventory.node(self.node)
        pools = sorted(row.pool for row in await pve.inventory.of_type("pool"))
        if self.pool is not None and pools and self.pool not in pools:
            raise NotFound(f"There is no pool {self.pool!r}", next_step=f"The pools are {', '.join(pools)}")
        return [row for row in await pve.inventory.named_guests() if self.fits(row)]

    def fits(self, row: Resource) -> bool:
        return (
            (self.node is None or row.node == self.node)
            and (self.type is None or row.kind == self.type)
            and (self.status is None or row.status == self.status)
            and (self.name is None or _name_matches(row.name, self.name))
            and (self.tag is None or self.tag.lower() in (tag.lower() for tag in row.tag_list))
            and (self.pool is None or row.pool == self.pool)
            and (self.template is None or bool(row.template) == self.template)
        )


def _name_matches(name: str, pattern: str) -> bool:
    pattern = pattern.lower()
    return fnmatch.fnmatchcase(name.lower(), pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*")
