"""What a plan would destroy, read from the cluster at this moment, for dry runs and approvals.

The lines are made from the calls, so named tools and raw API calls read the same.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from quorate.operations.backend import Backend
from quorate.operations.plan import Call, Plan
from quorate.operations.preconditions import data_volumes, snapshots_of
from quorate.operations.units import moment, size
from quorate.pipeline.sanitization import one_line, shorten
from quorate.problems import NotFound, Problem
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.wire import Request, read

LONGEST_NAME = 120
"""The longest text of one volume, key or snapshot. Each is cut separately, so a long one cannot hide the next."""

Reader = Callable[[Cluster, Request], Awaitable[list[str]]]

_GUEST: Final = r"/nodes/{node}/(?:qemu|lxc)/{vmid}"


async def losses(backend: Backend, plan: Plan) -> list[str]:
    """One line for each thing that would be lost; empty if the plan destroys nothing that can be listed."""
    lines: list[str] = []
    for where, part in plan.parts():
        for call in part.api_calls:
            lines += await _lost_by((where or backend).api, call)
    return list(dict.fromkeys(lines))


async def _lost_by(cluster: Cluster, call: Call) -> list[str]:
    request = read(await cluster.facts(), call.method, call.path, call.params)
    if request is None:
        return []
    for method, where, list_losses in _READERS:
        if method == request.method and re.fullmatch(where, request.template):
            try:
                return await list_losses(cluster, request)
            except Problem as problem:
                return [f"What {call.path} holds could not be read: {problem.what}"]
    return []


async def _guest(cluster: Cluster, request: Request) -> list[str]:
    return await _contents(await _guest_of(cluster, request))


async def _guest_of(cluster: Cluster, request: Request) -> Guest:
    return await cluster.guest(int(request.text("vmid")))


async def _replaced_guest(cluster: Cluster, request: Request) -> list[str]:
    """A restore with `force` destroys the guest that has the id."""
    if not request.is_on("force"):
        return []
    try:
        return await _guest(cluster, request)
    except (NotFound, ValueError):
        return []


async def _contents(guest: Guest) -> list[str]:
    config = await guest.get("config")
    disks = [f"{one.key} {one.volid}" + (f" {size(one.size)}" if one.size else "") for one in data_volumes(config)]
    disks += [f"{key} {config[key]}" for key in sorted(config) if key.startswith("unused")]
    snapshots = [str(row["name"]) for row in await snapshots_of(guest)]
    return [
        f"{guest}: {what}: {', '.join(map(_short, names))}"
        for what, names in (("disks", disks), ("snapshots", snapshots))
        if names
    ]


async def _config(cluster: Cluster, request: Request) -> list[str]:
    """Drives and volumes that a configuration change removes or replaces."""
    guest = await _guest_of(cluster, request)
    now = await guest.get("config")
    replaced = [
        name
        for name in _drives(request.params)
        if values.volume_of(request.text(name)) != values.volume_of(str(now.get(name, "")))
    ]
    return _option_lines(guest, now, [*_drives(request.elements("delete")), *replaced])


async def _unlinked_disks(cluster: Cluster, request: Request) -> list[str]:
    guest = await _guest_of(cluster, request)
    return _option_lines(guest, await guest.get("config"), request.elements("idlist"))


def _drives(names: Iterable[str]) -> list[str]:
    return [name for name in names if values.bus_of(name) in (*values.DISKS, "unused")]


def _option_lines(guest: Guest, config: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    return [f"{guest}: {key}: {_short(str(config[key]))}" for key in dict.fromkeys(keys) if key in config]


async def _snapshot(cluster: Cluster, request: Request) -> list[str]:
    guest, name = await _guest_of(cluster, request), request.text("snapname")
    row = next((one for one in await snapshots_of(guest) if one["name"] == name), {})
    return [f"{guest}: snapshot {_short(name)}, taken {moment(row['snaptime'])}"] if row.get("snaptime") else []


async def _rollback(cluster: Cluster, request: Request) -> list[str]:
    return [f"{line}: everything since then" for line in await _snapshot(cluster, request)]


async def _volume(cluster: Cluster, request: Request) -> list[str]:
    node, storage, volume = (request.text(name) for name in ("node", "storage", "volume"))
    volume = volume if ":" in volume else f"{storage}:{volume}"
    listed = await cluster.get(f"/nodes/{node}/storage/{storage}/content")
    row = next((one for one in listed if one["volid"] == volume), None)
    if row is None:
        return []
    about = [row.get("content", ""), size(row["size"]) if row.get("size") else "", row.get("notes", "")]
    return [f"{_short(volume)}: {_short(', '.join(str(one) for one in about if one))}"]


async def _pruned_volumes(cluster: Cluster, request: Request) -> list[str]:
    """The same endpoint previews what it would delete."""
    path = f"/nodes/{request.text('node')}/storage/{request.text('storage')}/prunebackups"
    preview = await cluster.get(path, **request.params)
    return [_short(str(row["volid"])) for row in preview if row.get("mark") == "remove"]


def _short(text: str) -> str:
    return shorten(one_line(text), LONGEST_NAME)


_READERS: Final[tuple[tuple[str, str, Reader], ...]] = (
    ("DELETE", _GUEST, _guest),
    ("POST", r"/nodes/{node}/(?:qemu|lxc)", _replaced_guest),
    ("PUT", rf"{_GUEST}/config", _config),
    ("POST", rf"{_GUEST}/config", _config),
    ("PUT", rf"{_GUEST}/unlink", _unlinked_disks),
    ("DELETE", rf"{_GUEST}/snapshot/{{snapname}}", _snapshot),
    ("POST", rf"{_GUEST}/snapshot/{{snapname}}/rollback", _rollback),
    ("DELETE", r"/nodes/{node}/storage/{storage}/content/{volume}", _volume),
    ("DELETE", r"/nodes/{node}/storage/{storage}/prunebackups", _pruned_volumes),
)
