"""Subjects of metrics: guests, nodes, storages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from quorate.hints import NAMED, Advice, either
from quorate.problems import BadArgument, NotFound
from quorate.pve.cluster import Cluster
from quorate.pve.lookup import Resource, View


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose load it is: a guest, a node, or a storage as a node sees it."""

    kind: Literal["guest", "node", "storage"]
    label: str
    path: str


async def find_subjects(
    pve: Cluster,
    guests: int | str | list[int | str] | None,
    nodes: str | list[str] | None,
    storages: str | list[str] | None,
) -> list[Subject]:
    """Each once. Together with storages, nodes select whose storages to show."""
    found = [await _guest(pve, ref) for ref in as_list(guests)]
    if storages is None:
        found += [await _node(pve, name) for name in as_list(nodes)]
    else:
        found += [await _storage(pve, name, node) for name in as_list(storages) for node in as_list(nodes) or [None]]
    if not found:
        raise BadArgument(
            "No guest, node or storage was specified",
            next_step=either(
                Advice("Give {guest}", guest=NAMED),
                Advice("{node}", node=NAMED),
                Advice("{storage}", storage=NAMED),
                conjunction=" or ",
            ),
        )
    return list({(subject.kind, subject.label): subject for subject in found}.values())


def as_list(given: Any) -> list[Any]:
    """One, several or none, as a list."""
    return given if isinstance(given, list) else [] if given is None else [given]


async def _guest(pve: Cluster, ref: int | str) -> Subject:
    guest = await pve.guest(ref)
    return Subject("guest", f"{guest.row.name or guest.row.kind} ({guest.vmid})", guest.path())


async def _node(pve: Cluster, name: str) -> Subject:
    row = await pve.inventory.node(name)
    return Subject("node", row.node, f"/nodes/{row.node}")


async def _storage(pve: Cluster, name: str, node: str | None) -> Subject:
    """A storage by its name, or by `node/name` where every node has its own of that name."""
    if "/" in name:
        node, _, name = name.partition("/")
    return await pve.inventory.decide_on_fresh_view(lambda view: _storage_in(view, name, node))


def _storage_in(view: View, name: str, node: str | None) -> Subject:
    rows = [row for row in view.of_type("storage") if row.storage == name]
    if not rows:
        names = sorted({row.storage for row in view.of_type("storage")})
        raise NotFound(f"There is no storage {name!r}", next_step=f"Available: {', '.join(names) or 'none'}")
    places = [row for row in rows if node in (None, row.node)]
    if not places:
        raise NotFound(f"Node {node} has no storage {name!r}", next_step=f"It is on {_nodes(rows)}")
    if len(places) > 1 and not places[0].shared:
        raise BadArgument(
            f"{len(places)} nodes have a storage {name!r} of their own",
            next_step=f"Say which, such as {places[0].node}/{name}; it is on {_nodes(places)}",
        )
    chosen = next((row for row in places if row.status == "available"), places[0])
    label = name if chosen.shared else f"{chosen.node}/{name}"
    return Subject("storage", label, f"/nodes/{chosen.node}/storage/{name}")


def _nodes(rows: Iterable[Resource]) -> str:
    return ", ".join(sorted(row.node for row in rows))
