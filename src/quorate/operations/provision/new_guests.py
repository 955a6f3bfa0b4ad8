"""What every new guest needs: a free number, a valid name, tags, a node that has all it asks for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from quorate.operations.config_change import checked_tags
from quorate.operations.placement import next_vmid, pick_node
from quorate.operations.plan import Call, Target
from quorate.operations.provision.guest_files import Ambiguous
from quorate.operations.units import parse_size
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.pve.errors import BadArgument, Conflict, NotFound, ParameterRejected
from quorate.pve.schema import Endpoint

MEBIBYTE = 1024**2
LEAST_MEMORY = 16
LOWEST_VMID, HIGHEST_VMID = 100, 999_999_999

Amount = int | str
Parts = list[str | dict[str, Any]]

_LABEL = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?")
_NUMBER = re.compile(r"\d+$")

# Parameters of PVE's create call that say what the call does, not what the guest is. Some would make it a restore.
_NOT_OPTIONS = frozenset(
    [
        "node",
        "vmid",
        "archive",
        "restore",
        "force",
        "unique",
        "live-restore",
        "start",
        "pool",
        "lock",
        "ostemplate",
        "storage",
        "template",
    ]
)

Built = TypeVar("Built")


# -- what the caller says ----------------------------------------------------------------------------------------------


def check_name(name: str | None, word: str = "name") -> None:
    """PVE takes DNS names only: they become host names."""
    if name is None or (len(name) <= 255 and all(_LABEL.fullmatch(label) for label in name.split("."))):
        return
    better = re.sub(r"[^a-zA-Z0-9.-]+", "-", name).strip("-.")[:63].rstrip("-.")
    raise BadArgument(
        f"{name!r} cannot be a guest's {word}",
        why="It has to be a DNS name: letters, digits and hyphens, no hyphen at either end, at most 63 between dots",
        next_step=f"{better!r} would do" if better else None,
    )


def tag_list(tags: list[str] | None) -> str | None:
    """The `tags` option, after PVE's rules for a tag."""
    return ";".join(dict.fromkeys(checked_tags(tags))) or None


def mebibytes(word: str, amount: Amount, *, least: int = LEAST_MEMORY) -> int:
    """Memory as PVE counts it; a bare number means MiB."""
    count = parse_size(amount, unit="M") // MEBIBYTE
    if count < least:
        raise BadArgument(
            f"{word}={amount} is less than {least} MiB", next_step=f"A bare number means MiB; write {amount}G for GiB"
        )
    return count


def as_list(given: str | list[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else list(given or ())


def refuse_unknown(word: str, given: Iterable[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"Did you mean {near[0]!r}?" if near else f"It takes {', '.join(known)}"
            raise BadArgument(f"{word} has no {name!r}", next_step=hint)


def extra_options(endpoint: Endpoint, options: Mapping[str, Any] | None, taken: Collection[str]) -> dict[str, Any]:
    """Options that have no argument of their own, as PVE's parameters; each must exist and be given once."""
    known = endpoint.parameters.keys() - _NOT_OPTIONS
    for name in options or {}:
        if name in taken:
            raise BadArgument(f"{name!r} is given twice", next_step="Leave it out of options")
        if name in ("archive", "restore", "force"):
            raise BadArgument(f"A new guest has no option {name!r}", next_step="backup_restore restores a backup")
        if name not in known and _NUMBER.sub("[n]", name) not in known:
            near = difflib.get_close_matches(name, known, 1, 0.6)
            raise BadArgument(
                f"A new guest has no option {name!r}", next_step=f"Did you mean {near[0]!r}?" if near else None
            )
    return {name: _option(name, value) for name, value in (options or {}).items()}


def _option(name: str, value: Any) -> Any:
    """PVE has no objects: they are property strings, and yes and no are 1 and 0."""
    if isinstance(value, Mapping):
        return values.build({str(key): part_text(f"{name}.{key}", part) for key, part in value.items()})
    return int(value) if isinstance(value, bool) else value


def part_text(key: str, value: Any) -> str:
    """One part of a property string."""
    text = (
        ";".join(map(str, value)) if isinstance(value, list) else str(int(value) if isinstance(value, bool) else value)
    )
    if "," in text or isinstance(value, Mapping):
        raise BadArgument(f"{text!r} cannot be the value of {key!r}", why="A comma would begin another part")
    return text.strip()


# -- where it goes -----------------------------------------------------------------------------------------------------


async def possible_nodes(pve: Cluster, wanted: str | None, *, memory: int) -> list[str]:
    """Nodes to try, best first: only the wanted one, else the default one and the others by free memory."""
    best = await pick_node(pve, wanted, memory=memory)
    if wanted:
        return [best]
    online = [row for row in await pve.inventory.of_type("node") if row.status == "online" and row.node != best]
    return [best, *(row.node for row in sorted(online, key=lambda row: (row.mem - row.maxmem, row.node)))]


async def first_fitting(nodes: list[str], build: Callable[[str], Awaitable[Built]]) -> Built:
    """What can be built on the first node that has all that is asked for; the best node's objection if none has."""
    objections: list[BadArgument | NotFound | Conflict] = []
    for node in nodes:
        try:
            return await build(node)
        except Ambiguous:
            raise
        except (BadArgument, NotFound, Conflict) as objection:
            objections.append(objection)
    if len(objections) > 1 and all(isinstance(objection, NotFound) for objection in objections):
        objections[0].why = objections[0].why or f"Nor do the other nodes: {', '.join(nodes[1:])}."
    raise objections[0]


# -- whether it may ----------------------------------------------------------------------------------------------------


async def choose_vmid(pve: Cluster, wanted: int | None) -> int:
    """The wanted number if it is free, else the next free one."""
    if wanted is None:
        return await next_vmid(pve)
    if not LOWEST_VMID <= wanted <= HIGHEST_VMID:
        raise BadArgument(f"{wanted} cannot be a vmid", next_step=f"It is {LOWEST_VMID} to {HIGHEST_VMID}")
    try:
        await pve.get("/cluster/nextid", vmid=wanted)
    except ParameterRejected:
        holder = next((row for row in await pve.inventory.guests() if row.vmid == wanted), None)
        raise Conflict(
            f"The vmid {wanted} is taken",
            why=f"It is {holder}" if holder else "A guest has it that these credentials cannot see",
            next_step="Leave vmid out to get the next free one, or give another",
        ) from None
    return wanted


async def free_vmid(pve: Cluster, wanted: int | None) -> tuple[int, tuple[str, ...]]:
    """The wanted number, or the next free one with a warning that says who has the wanted one."""
    try:
        return await choose_vmid(pve, wanted), ()
    except Conflict as taken:
        vmid = await next_vmid(pve)
        return vmid, (f"{taken.what} {taken.why or ''} {vmid}, the next free one, is used instead.".replace("  ", " "),)


async def check_pool(pve: Cluster, pool: str | None) -> None:
    if pool is None:
        return
    known = {row.pool or row.id.rpartition("/")[2] for row in await pve.inventory.of_type("pool")}
    if pool not in known and await pve.may(f"/pool/{pool}", "Pool.Audit"):
        there = f"There is {', '.join(sorted(known))}" if known else "There is none yet"
        raise NotFound(f"There is no pool {pool!r}", next_step=there)


async def check_rights(pve: Cluster, asked: str, vmid: int, pool: str | None, storages: Iterable[str]) -> None:
    """PVE checks these inside its create call, and names neither path nor privilege when one lacks."""
    own = f"/vms/{vmid}"
    places = [own, *([f"/pool/{pool}"] if pool else [])]
    if not any([await pve.may(place, "VM.Allocate") for place in places]):
        raise await pve.refusal(asked, places[-1], ["VM.Allocate"])
    for storage in dict.fromkeys(storages):
        path = f"/storage/{storage}"
        if not await pve.may(path, "Datastore.AllocateSpace"):
            raise await pve.refusal(asked, path, ["Datastore.AllocateSpace"])


async def namesake_warning(pve: Cluster, name: str | None) -> list[str]:
    twin = next((row for row in await pve.inventory.guests() if name and row.name == name), None)
    return [f"{twin} has the same name; address the two by vmid"] if twin else []


# -- what happens then -------------------------------------------------------------------------------------------------


def start_call(pve: Cluster, target: Target) -> Call:
    path = f"/nodes/{target.node}/{'qemu' if target.kind == 'vm' else 'lxc'}/{target.id}/status"

    async def runs() -> bool:
        return bool((await pve.get(f"{path}/current")).get("status") == "running")

    return Call(f"Start {target}", "POST", f"{path}/start", {}, target, settled=runs)


def next_call(target: Target, *, started: bool) -> str:
    if started:
        return f"guest_get guest={target.id} shows its state and addresses"
    return f"guest_power guest={target.id} action=start starts it"


def facts_after(pve: Cluster, target: Target) -> Callable[[], Awaitable[Mapping[str, Any]]]:
    """What the new guest has become, read back from PVE."""
    path = f"/nodes/{target.node}/{'qemu' if target.kind == 'vm' else 'lxc'}/{target.id}"

    async def read() -> Mapping[str, Any]:
        config = await pve.get(f"{path}/config")
        status = await pve.get(f"{path}/status/current")
        return {
            "status": status.get("status", ""),
            "disks": {key: value for key, value in sorted(config.items()) if values.is_disk(key, str(value))},
            "networks": {key: value for key, value in sorted(config.items()) if values.bus_of(key) == "net"},
        }

    return read
