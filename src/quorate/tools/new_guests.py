"""New guests: a free vmid, a valid name, tags, a suitable node, and the plan that creates them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

from msgspec import Meta

from pve_schema.schema import Endpoint
from quorate.hints import NAMED, Advice, Wording, either, see, tools
from quorate.operations.placement import choose_vmid, pick_node
from quorate.operations.plan import Action, Call, Plan, Target
from quorate.operations.preconditions import refuse_root_only
from quorate.operations.registry import Risk
from quorate.problems import BadArgument, Conflict, NotFound
from quorate.pve import values
from quorate.pve.cluster import Cluster
from quorate.suggestions import suggest
from quorate.tools.guest_options import check_tags
from quorate.tools.guest_readiness import Goal, wait_until_ready
from quorate.tools.oci_images import environment
from quorate.tools.templates import Ambiguous
from quorate.units import parse_size
from quorate.units import size as readable

MEBIBYTE = 1024**2
LEAST_MEMORY = 16

Amount = int | str
Parts = list[str | dict[str, Any]]
Pool = Annotated[str, Meta(description="Needs access admin")]

_LABEL = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?")
_NUMBER = re.compile(r"\d+$")

# Parts of property strings that PVE takes as a list, and those that are numbers, for which true would mean 1.
_LIST_PARTS = frozenset({"flags", "mount", "mountoptions", "trunks"})
_NUMBER_PARTS = frozenset({"mtu", "queues", "rate", "size", "tag", "vlan"})

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


def risk_of_creation(arguments: Mapping[str, Any]) -> Risk:
    """A change, unless it grants privileges: roles on a pool apply to every member, and root in a privileged container
    is root on the node."""
    return Risk.DESTROY if arguments.get("pool") or not arguments.get("unprivileged", True) else Risk.CHANGE


# -- arguments ---------------------------------------------------------------------------------------------------------


def check_name(name: str | None, word: str = "name") -> None:
    """PVE takes DNS names only: they become host names."""
    if name is None or (len(name) <= 255 and all(_LABEL.fullmatch(label) for label in name.split("."))):
        return
    better = re.sub(r"[^a-zA-Z0-9.-]+", "-", name).strip("-.")[:63].rstrip("-.")
    raise BadArgument(
        f"{name!r} cannot be a guest's {word}",
        why="It has to be a DNS name: letters, digits and hyphens, no hyphen at either end, at most 63 between dots",
        next_step=f"{better!r} would work" if better else None,
    )


def tag_list(tags: list[str] | None) -> str | None:
    """The `tags` option, after PVE's rules for a tag."""
    unique: dict[str, str] = {}
    for tag in check_tags(tags):  # PVE stores the tags of a new guest as given, although case makes no difference
        unique.setdefault(tag.lower(), tag)
    return ";".join(unique.values()) or None


def mebibytes(word: str, amount: Amount, *, least: int = LEAST_MEMORY) -> int:
    """Memory as PVE counts it; a bare number means MiB."""
    count = parse_size(amount, unit="M") // MEBIBYTE
    if count < least:
        raise BadArgument(
            f"{word}={amount} is less than {least} MiB", next_step="A bare number means MiB: 4096 is 4 GiB"
        )
    return count


def as_list(texts: str | list[str] | None) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts or ())


def refuse_unknown(word: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            hint = suggest(name, known, f"It takes {', '.join(known)}")
            raise BadArgument(f"{word} has no {name!r}", next_step=hint)


def extra_options(endpoint: Endpoint, options: Mapping[str, Any] | None, used: Collection[str]) -> dict[str, Any]:
    """Options that have no argument of their own, as PVE's parameters; each must exist and be given once."""
    known = endpoint.parameters.keys() - _NOT_OPTIONS
    for name in options or {}:
        if name in used:
            raise BadArgument(
                f"{name!r} is specified twice", next_step=Advice("Leave it out of {options}", options=NAMED)
            )
        if name in ("archive", "restore", "force"):
            raise BadArgument(
                f"A new guest has no option {name!r}", next_step=Advice("To restore a backup", tools.backup_restore)
            )
        if name not in known and _NUMBER.sub("[n]", name) not in known:
            raise BadArgument(f"A new guest has no option {name!r}", next_step=suggest(name, known, None))
    return {name: _option(name, value) for name, value in (options or {}).items() if value is not None}


async def creation_settings(
    pve: Cluster, requested: Mapping[str, Any], options: Mapping[str, Any] | None, *, is_vm: bool
) -> dict[str, Any]:
    """The requested settings and other options of PVE's create call; those that only root@pam may set are refused."""
    settings = {key: value for key, value in requested.items() if value is not None}
    endpoint = (await pve.facts()).endpoint("POST", f"/nodes/{{node}}/{'qemu' if is_vm else 'lxc'}")
    settings |= extra_options(endpoint, options, settings)
    noun, command = ("VM", "qm") if is_vm else ("container", "pct")
    refuse_root_only(
        pve,
        settings,
        is_vm=is_vm,
        before={"unprivileged": settings.get("unprivileged", 0)},
        way_out=f"Leave it out; once the {noun} exists, run `{command} set VMID --{{option}} …` on its node",
    )
    return settings


def _option(name: str, value: Any) -> Any:
    """PVE has no objects: they are property strings, and yes and no are 1 and 0."""
    if name == "env":
        return environment(value)
    if isinstance(value, Mapping):
        return values.build(
            {str(key): part_text(f"{name}.{key}", part) for key, part in value.items() if part is not None}
        )
    plain = plain_value(name, value)
    return int(plain) if isinstance(plain, bool) else plain


def part_text(key: str, value: Any) -> str:
    """One part of a property string."""
    name = key.rpartition(".")[2]
    if isinstance(value, list) and name in _LIST_PARTS:
        text = ";".join(str(plain_value(key, item)) for item in value)
    elif isinstance(value, bool):
        if name in _NUMBER_PARTS:
            raise BadArgument(f"{key} takes a number, not {str(value).lower()}")
        text = str(int(value))
    else:
        text = str(plain_value(key, value))
    if "," in text:
        raise BadArgument(f"{text!r} cannot be the value of {key!r}", why="A comma would begin another part")
    return text.strip()


def plain_value(key: str, value: Any) -> str | float | bool:
    """Return a value that PVE can take as text; a list or an object in its place is refused."""
    if not isinstance(value, (str, int, float)):
        kind = "an object" if isinstance(value, Mapping) else "a list" if isinstance(value, list) else "null"
        raise BadArgument(f"{key} takes a single value, not {kind}")
    return value


# -- the operator's defaults -------------------------------------------------------------------------------------------

NOBODY_CAN_LOG_IN = Advice(
    "Nobody can log in: cloud-init sets neither an SSH key nor a password. Give {cloud_init} with one of them, or let "
    "the operator set SSH keys in [defaults]",
    cloud_init=NAMED,
)


@dataclass(frozen=True, slots=True)
class Completed:
    """Settings, completed from the operator's defaults."""

    settings: dict[str, Any]
    chosen: dict[str, Any]
    """What was taken from the defaults, as the answer shows it."""


def complete_login(pve: Cluster, settings: Mapping[str, Any], *, keeps: Collection[str] = ()) -> Completed:
    """Cloud-init settings with the default user, keys and DNS servers where the caller names none.

    `keeps`: settings that stay as the source of the guest has them.
    """
    usual = pve.defaults
    added: dict[str, Any] = {}
    chosen: dict[str, Any] = {}
    if usual.ssh_keys and "ssh_keys" not in keeps and not (settings.get("ssh_keys") or settings.get("password")):
        added["ssh_keys"] = list(usual.ssh_keys)
        chosen["ssh_keys"] = [_name_of_key(key) for key in usual.ssh_keys]
    if usual.user and "user" not in keeps and not settings.get("user"):
        added["user"] = chosen["user"] = usual.user
    if usual.dns and "dns" not in keeps and not settings.get("dns"):
        added["dns"] = chosen["dns"] = list(usual.dns)
    return Completed({**settings, **added}, chosen)


def _name_of_key(key: str) -> str:
    """The comment by which people know a key, or its type."""
    words = key.split()
    return words[-1] if not words[-1].startswith("AAAA") else words[0]


def complete_tags(pve: Cluster, tags: list[str] | None) -> tuple[list[str] | None, dict[str, Any]]:
    """The tags, by default the operator's; and what was taken from there."""
    if tags is not None or not pve.defaults.tags:
        return tags, {}
    return list(pve.defaults.tags), {"tags": list(pve.defaults.tags)}


# -- nodes -------------------------------------------------------------------------------------------------------------


async def _possible_nodes(pve: Cluster, requested: str | None, *, memory: int) -> list[str]:
    """Nodes to try, best first: only the requested one, or the default one and the others by free memory."""
    best = await pick_node(pve, requested, memory=memory)
    if requested:
        return [best]
    online = [row for row in await pve.inventory.of_type("node") if row.status == "online" and row.node != best]
    return [best, *(row.node for row in sorted(online, key=lambda row: (row.mem - row.maxmem, row.node)))]


async def _first_fitting(nodes: list[str], build: Callable[[str], Awaitable[NewGuest]]) -> NewGuest:
    """The guest on the first node that has everything requested; raises the best node's objection if none has."""
    objections: list[BadArgument | NotFound | Conflict] = []
    for node in nodes:
        try:
            return await build(node)
        except Ambiguous:
            raise
        except (BadArgument, NotFound, Conflict) as objection:
            objections.append(objection)
    if len(objections) > 1 and all(isinstance(objection, NotFound) for objection in objections):
        objections[0].why = objections[0].why or f"The other nodes do not have it either: {', '.join(nodes[1:])}."
    raise objections[0]


# -- checks ------------------------------------------------------------------------------------------------------------


async def check_pool(pve: Cluster, pool: str | None) -> None:
    if pool is None:
        return
    try:
        await pve.inventory.pool(pool)
    except NotFound:
        if await pve.may(f"/pool/{pool}", "Pool.Audit"):
            raise


async def check_privileges(pve: Cluster, asked: str, vmid: int, pool: str | None, storages: Iterable[str]) -> None:
    """PVE checks these inside its create call, and names neither path nor privilege when one is missing."""
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
    return [f"{twin} has the same name; refer to both by vmid"] if twin else []


# -- the plan ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewGuest:
    """A guest to create, complete but for its vmid. Every tool that makes a guest builds its plan with this."""

    kind: str
    name: str
    node: str
    create: Callable[[Target], Call]
    prepare: tuple[Call, ...] = ()
    finish: Callable[[Target], Iterable[Call | Action]] | None = None
    start: bool = False
    wait_for: Goal | None = None
    """What has to answer before the call ends; the guest is then started."""
    started: bool = False
    """The creating call itself starts it."""
    pool: str | None = None
    storages: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str | Wording, ...] = ()
    objections: tuple[str, ...] = ()
    """Why PVE will refuse to start it."""
    next_step: Callable[[Target], Advice] | None = None
    """By default, to start it or to see its state."""
    read_back: bool = True
    """Whether the result shows status, disks and networks of the new guest."""

    async def plan(self, pve: Cluster, vmid: int | None = None) -> Plan:
        """With this vmid, or with the next free one. If that is taken before PVE sees the call, another is tried."""
        start = self.start or self.wait_for is not None
        if start and self.objections:
            raise Conflict(
                self.objections[0], next_step=either("Change that", Advice("create the VM with {start}", start=False))
            )
        target = Target(self.kind, str(await choose_vmid(pve, vmid)), self.name, self.node)
        create = self.create(target)
        if self.started:  # in a task of its own, after that of the creation
            create = replace(create, arrived=partial(is_running, pve, target))
        asked = create.summary[:1].lower() + create.summary[1:]
        await check_privileges(pve, asked, int(target.id), self.pool, self.storages)
        finish = self.finish(target) if self.finish else ()
        runs = start or self.started
        return Plan(
            create.summary,
            (*self.prepare, create, *finish, *([start_call(pve, target)] if start else [])),
            next_step=self.next_step(target)
            if self.next_step
            else see("See its state and addresses", tools.guest_get(guest=target.id, detail=True))
            if runs
            else Advice("Start it", tools.guest_power(guest=target.id, action="start")),
            facts={"vmid": int(target.id), "node": self.node, **self.facts},
            warnings=(*self.warnings, *self.objections),
            after=partial(_report, pve, target, self.wait_for, pve.clock.monotonic()) if self.read_back else None,
            otherwise=partial(replace(self, prepare=()).plan, pve) if vmid is None else None,
            contested=len(self.prepare),
            about=(target,),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CreationRequest:
    """A requested guest, checked as far as it can be without a node."""

    settings: Mapping[str, Any]
    node: str | None
    vmid: int | None
    start: bool
    wait_for: Goal | None
    chosen: Mapping[str, Any]
    """Settings that the caller left out and that are chosen for it."""
    warnings: tuple[str | Wording, ...]

    @property
    def memory(self) -> int:
        return int(self.settings["memory"]) * MEBIBYTE

    async def plan(
        self,
        pve: Cluster,
        build: Callable[[str], Awaitable[NewGuest]],
        prefers: Callable[[str], Awaitable[bool]] | None = None,
    ) -> Plan:
        """On the best node where `build` succeeds; if there are nodes that `prefers` holds for, on one of those."""
        nodes = await _possible_nodes(pve, self.node, memory=self.memory)
        preferred = [node for node in nodes if await prefers(node)] if prefers else []
        new = await _first_fitting(preferred or nodes, build)
        return await replace(new, start=self.start, wait_for=self.wait_for).plan(pve, self.vmid)


def created_guest(kind: str, node: str, params: Mapping[str, Any], **more: Any) -> NewGuest:
    """A guest that PVE's create call makes from these parameters; `more` are fields of `NewGuest`."""
    is_vm = kind == "vm"

    def create(target: Target) -> Call:
        path = f"/nodes/{node}/{'qemu' if is_vm else 'lxc'}"
        return Call(f"Create {target} on {node}", "POST", path, {"vmid": int(target.id), **params}, target)

    name = str(params.get("name" if is_vm else "hostname", ""))
    return NewGuest(kind, name, node, create, pool=params.get("pool"), **more)


def guest_path(target: Target) -> str:
    return f"/nodes/{target.node}/{'qemu' if target.kind == 'vm' else 'lxc'}/{target.id}"


def start_call(pve: Cluster, target: Target) -> Call:
    path = f"{guest_path(target)}/status/start"
    return Call(f"Start {target}", "POST", path, {}, target, arrived=partial(is_running, pve, target))


async def is_running(pve: Cluster, target: Target) -> bool:
    return bool((await pve.get(f"{guest_path(target)}/status/current")).get("status") == "running")


def grow_call(target: Target, key: str, whole: int) -> Call:
    """Make a disk larger, to this size."""
    summary = f"Grow {key} of {target} to {readable(whole)}"
    params = {"disk": key, "size": f"{whole // MEBIBYTE}M"}
    return Call(summary, "PUT", f"{guest_path(target)}/resize", params, target)


async def _report(pve: Cluster, target: Target, goal: Goal | None, begun: float) -> Mapping[str, Any]:
    facts = await _read_back(pve, target)
    return facts if goal is None else {**facts, **await wait_until_ready(pve, int(target.id), goal, begun)}


async def _read_back(pve: Cluster, target: Target) -> Mapping[str, Any]:
    config = await pve.get(f"{guest_path(target)}/config")
    status = await pve.get(f"{guest_path(target)}/status/current")
    return {
        "status": status.get("status", ""),
        "disks": {key: value for key, value in sorted(config.items()) if values.is_disk(key, str(value))},
        "networks": {key: value for key, value in sorted(config.items()) if values.bus_of(key) == "net"},
    }
