"""The difference between what is requested and what exists, read again each time."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from quorate.homelab.homelab import Homelab
from quorate.homelab.infra.devices import read_unit, require_unit_text
from quorate.homelab.infra.document import (
    COMPARED_OF_HOSTS,
    Document,
    Item,
    WantedGuest,
    WantedWorkload,
    spread_ports,
)
from quorate.homelab.infra.plans import ManagedObject
from quorate.homelab.machines import Machine, find_machine
from quorate.homelab.services.catalogue import load_catalogue
from quorate.homelab.services.compose import Project, find_compose
from quorate.homelab.services.installations import Installation, Installations, machine_ref
from quorate.homelab.workloads.engines import select_engine
from quorate.homelab.workloads.workload import (
    Deployment,
    Spec,
    Workload,
    environment,
    parse_image,
    parse_labels,
    parse_mounts,
    parse_name,
)
from quorate.inside import services
from quorate.problems import REFUSED_LOGIN, BadArgument, NotFound, Problem
from quorate.pve.cluster import Cluster, Guest
from quorate.pve.inventory import Resource
from quorate.pve.tasks import gather_bounded
from quorate.state.chain import canonical
from quorate.state.store import shared_key

Act = Literal["create", "update", "none", "remove", "going on", "unknown"]
OWNER, SEAL = "quorate.plan", "quorate.spec"
"""Labels of what a document created: its name, and a keyed hash of the request, including values of variables."""
AT_ONCE = 8
SECONDS = 40.0
MEBIBYTE = 1024**2
DEFAULT_MEMORY = 512
"""PVE's default for a guest, in MiB."""
_NAMELESS = re.compile(r"[0-9a-f]{64}")
_FACTORS = {"K": 1024, "M": MEBIBYTE, "G": 1024**3, "T": 1024**4}


@dataclass(frozen=True, slots=True)
class Difference:
    item: Item
    name: str
    """The name of the copy."""
    act: Act
    place: str = ""
    changes: tuple[tuple[str, Any, Any], ...] = ()
    """Field, current value, requested value."""
    why: str = ""
    number: int = 0
    """The number of the copy, from 0."""
    engine: str = ""
    refused_login: str = ""
    """The user whom the host did not let in, if that is why it cannot be inspected."""

    @property
    def summary(self) -> str:
        where = f" on {self.place}" if self.place and self.item.kind != "host" else ""
        return f"{self.act.capitalize()} {self.item.kind} {self.name}{where}"

    def as_dict(self) -> dict[str, Any]:
        diff = [{"field": field, "now": now, "wanted": requested} for field, now, requested in self.changes]
        row = {"what": f"{self.item.kind} {self.name}", "on": self.place, "action": self.act, "changes": diff}
        return {key: value for key, value in {**row, "why": self.why}.items() if value not in ("", [])}

    @property
    def record(self) -> ManagedObject:
        return ManagedObject(self.item.kind, self.name, self.item.name, self.place, self.engine)


async def compare(homelab: Homelab, document: Document, only: str | None = None) -> list[Difference]:
    """Every copy of every item, in the order of execution."""
    copies = [
        (item, name, number)
        for item in document.order()
        if only in (None, item.name)
        for number, name in enumerate(item.copies())
    ]
    work = [lambda copy=copy: _difference_in_time(homelab, document, *copy) for copy in copies]
    return list(await gather_bounded(AT_ONCE, work))


async def _difference_in_time(homelab: Homelab, document: Document, item: Item, name: str, number: int) -> Difference:
    try:
        async with asyncio.timeout(SECONDS):
            return await difference(homelab, document, item, name, number)
    except TimeoutError:
        return Difference(item, name, "unknown", item.place, why=f"It did not answer within {SECONDS:g} s")
    except Problem as problem:
        return _explain_unknown(Difference(item, name, "unknown", item.place), problem)


def _explain_unknown(unread: Difference, problem: Problem) -> Difference:
    return replace(unread, act="unknown", why=str(problem), refused_login=str(problem.facts.get(REFUSED_LOGIN, "")))


async def difference(homelab: Homelab, document: Document, item: Item, name: str, number: int) -> Difference:
    """The difference of one copy. Raises a Problem if it cannot be read."""
    match item.kind:
        case "host":
            return await _of_host(homelab, item)
        case "guest":
            return await _of_guest(homelab, item, name, number)
        case "workload":
            return await _of_workload(homelab, document, item, name, number)
        case _:
            return await _of_service(homelab, document, item)


async def find_superfluous(
    homelab: Homelab, owner: str, created: Iterable[ManagedObject], requested: Sequence[Difference]
) -> list[Difference]:
    """Removals of objects that the document created and no longer requests; newest first."""
    keys = {difference.record.key for difference in requested}
    left = [
        managed for managed in created if managed.key not in keys and not _is_requested_elsewhere(managed, requested)
    ]
    removals = [await _still_there(homelab, owner, managed) for managed in reversed(left)]
    return [removal for removal in removals if removal is not None]


def _is_requested_elsewhere(managed: ManagedObject, requested: Sequence[Difference]) -> bool:
    """Hosts and guests are identified by name alone, wherever they are."""
    return managed.kind in ("host", "guest") and any(
        (d.item.kind, d.name) == (managed.kind, managed.name) for d in requested
    )


async def _still_there(homelab: Homelab, owner: str, managed: ManagedObject) -> Difference | None:
    """A removal, if it is the object that the document created."""
    gone = Difference(
        Item(managed.kind, managed.item, None), managed.name, "remove", managed.place, engine=managed.engine
    )
    try:
        match managed.kind:
            case "host":
                return gone if await homelab.hosts.find(managed.name) else None
            case "guest":
                row = await find_guest(find_cluster(homelab, managed.place), managed.name)
                return gone if row is not None and row.vmid == managed.vmid else None
            case "workload":
                machine = await find_machine(homelab, managed.place)
                engine = await select_engine(machine, homelab.clock, managed.engine or None)  # type: ignore[arg-type]
                there = await engine.find(managed.name)
                return gone if there is not None and there.labels.get(OWNER) == owner else None
            case _:
                machine = await find_machine(homelab, managed.place)
                installation = await Installations(homelab.store).find(machine_ref(machine), managed.name)
                return gone if installation is not None and installation.state != "removed" else None
    except NotFound:
        return None  # gone with its host or cluster
    except Problem as problem:
        return _explain_unknown(gone, problem)


# -- hosts and guests --------------------------------------------------------------------------------------------------


async def _of_host(homelab: Homelab, item: Item) -> Difference:
    new = item.desired.host(item.name)
    old = await homelab.hosts.find(item.name)
    if old is None:
        return Difference(item, item.name, "create", changes=(("address", None, new.at),))
    changes = tuple(
        (field, getattr(old, field), getattr(new, field))
        for field in COMPARED_OF_HOSTS
        if getattr(old, field) != getattr(new, field)
    )
    return Difference(item, item.name, "update" if changes else "none", changes=changes)


def find_cluster(homelab: Homelab, name: str) -> Cluster:
    """The cluster of that name; without a name, the only one."""
    matches = [cluster for cluster in homelab.clusters if name in ("", cluster.name)]
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(cluster.name for cluster in homelab.clusters) or "none"
    if matches:
        raise BadArgument("There are several clusters", why=f"They are {names}", next_step="Choose one with cluster")
    raise NotFound(f"There is no cluster {name!r}", next_step=f"Available: {names}")


async def find_guest(cluster: Cluster, name: str) -> Resource | None:
    matches = [row for row in await cluster.inventory.candidates(name) if row.name == name]
    if len(matches) > 1:
        raise BadArgument(f"Several guests are named {name!r}", why=", ".join(str(row) for row in matches))
    return matches[0] if matches else None


async def _of_guest(homelab: Homelab, item: Item, name: str, number: int) -> Difference:
    requested: WantedGuest = item.desired
    cluster = find_cluster(homelab, requested.cluster)
    cluster.inventory.forget()
    row = await find_guest(cluster, name)
    if row is None:
        return Difference(item, name, "create", cluster.name, number=number)
    if row.kind != requested.type:
        raise BadArgument(f"{name} is a {row.kind}, not a {requested.type}", next_step="Choose another name")
    guest = Guest(cluster, row)
    config = await guest.get("config")  # pending changes count
    fields = (
        ("cores", config.get("cores"), requested.cores),
        ("memory", _memory_in(config), mebibytes(requested.memory) if requested.memory is not None else None),
        ("running", await guest.status() == "running", requested.running),
    )
    changes = tuple(change for change in fields if change[2] is not None and change[1] != change[2])
    return Difference(item, name, "update" if changes else "none", cluster.name, changes, number=number)


def _memory_in(config: Mapping[str, Any]) -> int:
    """The memory in MiB; newer versions of PVE write a property string."""
    return int(str(config.get("memory", DEFAULT_MEMORY)).removeprefix("current="))


def mebibytes(size: str | int) -> int:
    """Memory of a guest as people write it: 2G, 512M, or MiB."""
    text = str(size).strip().upper().removesuffix("IB").removesuffix("B")
    number, factor = (text[:-1], _FACTORS[text[-1]]) if text[-1:] in _FACTORS else (text, MEBIBYTE)
    try:
        return int(float(number) * factor) // MEBIBYTE
    except ValueError:
        raise BadArgument(f"{size!r} is not a size", next_step="Write it like 512M or 2G") from None


# -- workloads ---------------------------------------------------------------------------------------------------------


async def _of_workload(homelab: Homelab, document: Document, item: Item, name: str, number: int) -> Difference:
    machine = await find_target_machine(homelab, document, item)
    if machine is None:
        return Difference(item, name, "create", item.place, why=f"{item.place} is created first", number=number)
    spec = await build_spec(homelab, document, item, name, number)
    engine = await select_engine(machine, homelab.clock, item.desired.engine)
    if (await Deployment(homelab.store, machine_ref(machine), name).state()).get("state") == "going on":
        return Difference(item, name, "going on", item.place, number=number, engine=engine.name)
    old = await engine.find(name)
    if old is None:
        return Difference(item, name, "create", item.place, (("image", None, spec.image),), "", number, engine.name)
    changes = tuple(workload_changes(old, spec))
    return Difference(item, name, "update" if changes else "none", item.place, changes, "", number, engine.name)


async def find_target_machine(homelab: Homelab, document: Document, item: Item) -> Machine | None:
    """The machine it goes to; None if the document creates that first."""
    maker = document.items.get(item.place)
    if maker is not None and maker.kind == "host" and not await homelab.hosts.find(item.place):
        return None
    if maker is not None and maker.kind == "guest":
        cluster = find_cluster(homelab, maker.desired.cluster)
        row = await find_guest(cluster, item.place)
        return (
            None
            if row is None or row.status != "running"
            else await find_machine(homelab, f"{cluster.name}/{row.vmid}")
        )
    return await find_machine(homelab, item.place)


async def build_spec(homelab: Homelab, document: Document, item: Item, name: str, number: int) -> Spec:
    requested: WantedWorkload = item.desired
    secrets = {variable: (await homelab.secret_store.fetch(at)).reveal() for variable, at in requested.secrets.items()}
    spec = Spec(
        parse_name(name),
        parse_image(requested.image),
        spread_ports(requested, number),
        parse_mounts(requested.volumes),
        environment({**requested.env, **secrets}),
        requested.command,
        mebibytes(requested.memory) * MEBIBYTE if requested.memory else None,
        requested.cpus,
        requested.restart,
        requested.network,
        parse_labels(requested.labels),
        requested.pull,
    )
    labels = {**spec.labels, OWNER: document.name, SEAL: await _seal(homelab, spec)}
    return replace(spec, labels=labels)


async def _seal(homelab: Homelab, spec: Spec) -> str:
    """Detects changed values of variables without revealing them."""
    key = await shared_key(homelab.store, "infra")
    return hmac.new(key, canonical([sorted(spec.env.items()), spec.command]), "sha256").hexdigest()[:32]


def workload_changes(old: Workload, spec: Spec) -> Iterable[tuple[str, Any, Any]]:
    """Visible differences, without what comes from the image."""
    if old.image != spec.image:
        yield "image", old.image, spec.image
    there = {(port.inside, port.outside, port.protocol, port.address) for port in old.ports if port.outside}
    here = {(port.inside, port.outside, port.protocol, port.address) for port in spec.ports if port.outside}
    anywhere = {(port.inside, port.protocol) for port in spec.ports if not port.outside}
    if {port for port in there if (port[0], port[2]) not in anywhere} != here:
        yield "ports", [str(port) for port in old.ports if port.outside], [str(port) for port in spec.ports]
    mounts = {mount for mount in old.mounts if mount in spec.mounts or not _NAMELESS.fullmatch(mount.source)}
    if mounts != set(spec.mounts):
        yield "volumes", [str(mount) for mount in old.mounts], [str(mount) for mount in spec.mounts]
    for field in ("memory", "cpus", "restart"):
        if getattr(old, field) != getattr(spec, field):
            yield field, getattr(old, field), getattr(spec, field)
    ours = {name: value for name, value in spec.labels.items() if name not in (OWNER, SEAL)}
    if {name: old.labels.get(name) for name in ours} != ours:
        yield "labels", {name: old.labels.get(name) for name in ours}, ours
    if missing := sorted(set(spec.env) - set(old.env)):
        yield "env", "without " + ", ".join(missing), "with them"
    elif SEAL in old.labels and old.labels[SEAL] != spec.labels[SEAL]:
        yield "env or command", "as created", "with other values"
    if spec.command and SEAL not in old.labels and old.command != spec.command:
        yield "command", list(old.command), list(spec.command)
    if not old.running and spec.restart in ("always", "unless-stopped"):
        yield "state", old.state, "running"


# -- services ----------------------------------------------------------------------------------------------------------


async def _of_unit(item: Item, machine: Machine) -> Difference:
    now = await read_unit(machine, item.name)
    if now is None:
        return Difference(item, item.name, "create", item.place)
    changes: list[tuple[str, Any, Any]] = []
    if now != require_unit_text(item.name, item.desired.unit):
        changes.append(("unit", "another text", "as given"))
    state = await services.status(machine.with_root().transport, item.name)
    if state.state != "active":
        changes.append(("state", state.summary, "active"))
    return Difference(item, item.name, "update" if changes else "none", item.place, tuple(changes))


async def _of_service(homelab: Homelab, document: Document, item: Item) -> Difference:
    name = item.desired.service or item.name
    machine = await find_target_machine(homelab, document, item)
    if machine is None:
        return Difference(item, name, "create", item.place, why=f"{item.place} is created first")
    if item.desired.unit:
        return await _of_unit(item, machine)
    with contextlib.suppress(NotFound):  # it may be known by another name
        name = load_catalogue(homelab.settings.catalogue).find(name).id
    installation = await Installations(homelab.store).find(machine_ref(machine), name)
    if installation is None or installation.state == "removed":
        return Difference(item, name, "create", item.place)
    if (await Deployment(homelab.store, machine_ref(machine), f"service {name}").state()).get("state") == "going on":
        return Difference(item, name, "going on", item.place)
    requested = {key: str(value).lower() if isinstance(value, bool) else str(value)
             for key, value in item.desired.settings.items()}  # fmt: skip
    changes = [
        (f"settings.{key}", installation.settings[key], value)
        for key, value in requested.items()
        if key in installation.settings and installation.settings[key] != value
    ]
    if installation.state != "installed":
        changes.insert(0, ("state", installation.state, "installed"))
    else:
        changes += [
            ("files or containers", drift, "as installed") for drift in await _drift(homelab, machine, installation)
        ]
    return Difference(item, name, "update" if changes else "none", item.place, tuple(changes))


async def _drift(homelab: Homelab, machine: Machine, installation: Installation) -> list[str]:
    """What has changed since its installation; only for Compose, other methods have their own tools."""
    template = load_catalogue(homelab.settings.catalogue).services.get(installation.service)
    command = await find_compose(machine) if installation.method == "compose" and template else None
    if template is None or command is None:
        return []
    return await Project(machine, command, homelab.settings.services_folder, template.id).drift(template)
