"""The document that describes hosts, guests, workloads and services. docs/homelab/infra.md explains it."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from quorate.documents import Unreadable, read_yaml
from quorate.hints import see, tools
from quorate.homelab.host import Host, validate_host
from quorate.homelab.workloads.workload import (
    EngineName,
    Port,
    Pull,
    Restart,
    environment,
    parse_image,
    parse_labels,
    parse_mounts,
    parse_name,
    parse_ports,
)
from quorate.problems import BadArgument, Problem
from quorate.ssh.target import SSH_PORT
from quorate.state.chain import canonical
from quorate.units import count_of

MAX_ITEMS = 500
MAX_COPIES = 50
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_SECRET = re.compile(r"passw|passphrase|_pass\b|secret|token|api_?key|private_?key|credential", re.I)


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Unknown keys are errors."""

    needs: tuple[str, ...] = ()
    """Names of items that must exist first."""


class WantedHost(Strict, frozen=True):
    address: str
    port: int = SSH_PORT
    user: str | None = None
    key: str | None = None
    password: str | None = None
    sudo_password: str | None = None
    jump: str | None = None
    labels: tuple[str, ...] = ()
    display_name: str = ""

    def host(self, name: str) -> Host:
        return validate_host(Host(name, **{field: getattr(self, field) for field in COMPARED_OF_HOSTS}))


COMPARED_OF_HOSTS = tuple(name for name in WantedHost.__struct_fields__ if name != "needs")


class WantedGuest(Strict, frozen=True):
    type: Literal["ct", "vm"] = "ct"
    cluster: str = ""
    """Optional if there is only one."""
    template: str = ""
    """The template of a new container."""
    clone: str = ""
    """The guest or template to clone, instead of creating a new guest."""
    cores: int | None = None
    memory: str | int | None = None
    running: bool = True
    replicas: int = 1
    settings: dict[str, Any] = {}
    """Further arguments of the tool that creates the guest."""


class WantedWorkload(Strict, frozen=True):
    host: str
    image: str
    engine: EngineName | None = None
    ports: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    """Variable -> reference to its value, such as vault:NAME."""
    command: tuple[str, ...] = ()
    memory: str | None = None
    cpus: float | None = None
    restart: Restart = "unless-stopped"
    network: str | None = None
    labels: dict[str, str] = {}
    pull: Pull = "missing"
    replicas: int = 1


class WantedService(Strict, frozen=True):
    host: str
    service: str = ""
    """Its name in the catalog, if different."""
    unit: str = ""
    """Instead of the catalog: the whole text of a systemd unit file."""
    settings: dict[str, Any] = {}


KINDS: Mapping[str, type[Any]] = {
    "hosts": WantedHost,
    "guests": WantedGuest,
    "workloads": WantedWorkload,
    "services": WantedService,
}


@dataclass(frozen=True, slots=True)
class Item:
    kind: str
    """host, guest, workload or service"""
    name: str
    desired: Any

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def path(self) -> str:
        return f"{self.kind}s.{self.name}"

    @property
    def place(self) -> str:
        """The machine it runs on, if any."""
        return self.desired.host if isinstance(self.desired, WantedWorkload | WantedService) else ""

    def copies(self) -> list[str]:
        """The first copy has the plain name, so that scaling never renames anything."""
        count = getattr(self.desired, "replicas", 1)
        return [copy_name(self.name, number) for number in range(1, count + 1)]


def copy_name(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


@dataclass(frozen=True, slots=True)
class Fault:
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(frozen=True, slots=True)
class Document:
    name: str
    items: Mapping[str, Item]
    """Name -> item, in the order of the document."""

    def to_builtins(self) -> dict[str, Any]:
        content: dict[str, Any] = {"name": self.name}
        for item in self.items.values():
            content.setdefault(f"{item.kind}s", {})[item.name] = msgspec.to_builtins(item.desired)
        return content

    @property
    def id(self) -> str:
        """Identical for identical content."""
        return f"{self.name}-{hashlib.sha256(canonical(self.to_builtins())).hexdigest()[:12]}"

    def needs(self, item: Item) -> list[str]:
        """Its declared needs, and those implied by its place."""
        implied = [item.place, getattr(item.desired, "jump", None), getattr(item.desired, "clone", None)]
        return list(dict.fromkeys([*item.desired.needs, *(name for name in implied if name in self.items)]))

    def order(self) -> list[Item]:
        """Needs come first; otherwise as written. Raises BadArgument for a cycle."""
        placed: dict[str, Item] = {}
        for first in self.items.values():
            above = {first.name: iter(self.needs(first))} if first.name not in placed else {}
            while above:  # items that wait for their needs; not recursive, because a chain may be long
                waiting, needs = next(reversed(above.items()))
                name = next((need for need in needs if need not in placed and need in self.items), None)
                if name is None:
                    del above[waiting]
                    placed[waiting] = self.items[waiting]
                elif name in above:
                    chain = list(above)
                    circle = " -> ".join((*chain[chain.index(name) :], name))
                    raise BadArgument("The needs form a cycle", why=circle)
                else:
                    above[name] = iter(self.needs(self.items[name]))
        return list(placed.values())


def read_document(source: str | Mapping[str, Any]) -> Document:
    """The document. Raises BadArgument if anything is wrong with it."""
    document, faults = examine_document(source)
    if faults:
        raise BadArgument(
            "The document cannot be used",
            why="; ".join(map(str, faults[:10])),
            next_step=see("See everything that is wrong", tools.infra_validate),
            facts={"faults": [str(fault) for fault in faults[:50]]},
        )
    return document


def examine_document(source: str | Mapping[str, Any]) -> tuple[Document, list[Fault]]:
    """What can be read of it, and everything that is wrong with it."""
    content = load_document(source)
    faults = [
        Fault(str(key), f"is unknown; use name, {', '.join(KINDS)}")
        for key in content
        if key not in KINDS and key != "name"
    ]
    name = content.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        faults.append(Fault("name", "must consist of letters and digits, with . _ - between them"))
    items: dict[str, Item] = {}
    for kind, type_ in KINDS.items():
        part = content.get(kind) or {}
        if not isinstance(part, Mapping):
            faults.append(Fault(kind, "must be a mapping of names"))
            continue
        for key, value in part.items():
            item = _item(kind, str(key), value, type_, faults)
            if item and item.name in items:
                faults.append(Fault(item.path, f"{items[item.name]} has the same name"))
            elif item:
                items[item.name] = item
    if len(items) > MAX_ITEMS:
        faults.append(Fault("", f"It has {count_of(len(items), 'item')}; the limit is {MAX_ITEMS}"))
    document = Document("" if name is None else str(name), items)
    faults += _between(document)
    return document, faults


def load_document(source: str | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    try:
        content = read_yaml(source, aliases=False)
    except Unreadable as fault:
        raise BadArgument(f"The document {fault}") from None
    if not isinstance(content, Mapping):
        raise BadArgument(
            "The document must be a mapping", next_step="Write name: lab, then hosts:, guests:, workloads: …"
        )
    return content


# -- faults ------------------------------------------------------------------------------------------------------------


def _item(kind: str, name: str, value: Any, type_: type[Any], faults: list[Fault]) -> Item | None:
    path = f"{kind}.{name}"
    if not _NAME.fullmatch(name):
        faults.append(Fault(path, "is not a valid name: use letters and digits, with . _ - between them"))
        return None
    try:
        item = Item(kind.removesuffix("s"), name, msgspec.convert(value, type_, strict=False))
    except msgspec.ValidationError as error:
        says, _, where = str(error).partition(" - at `$")
        faults.append(Fault(path + where.rstrip("`").replace("[...]", ""), says))
        return None
    faults += [Fault(path, says) for says in _of_itself(item)]
    return item


def _of_itself(item: Item) -> Iterator[str]:
    requested = item.desired
    if not 0 <= getattr(requested, "replicas", 1) <= MAX_COPIES:
        yield f"replicas must be 0 to {MAX_COPIES}"
    try:
        if isinstance(requested, WantedHost):
            requested.host(item.name)
        elif isinstance(requested, WantedWorkload):
            parse_name(item.name)
            parse_image(requested.image)
            parse_ports(requested.ports)
            parse_mounts(requested.volumes)
            environment({**requested.env, **requested.secrets})
            parse_labels(requested.labels)
    except Problem as problem:
        yield str(problem)
    if isinstance(requested, WantedWorkload):
        for variable in requested.env:
            if _SECRET.search(variable):
                yield f"env.{variable} looks like a secret: documents are stored, so use a reference under secrets"
    if isinstance(requested, WantedGuest):
        yield from _of_guest(requested)
    if isinstance(requested, WantedService) and requested.unit:
        if requested.service or requested.settings:
            yield "a service has either a unit or a place in the catalog"
        if "[Service]" not in requested.unit:
            yield "unit must be the text of a unit file, with [Unit] and [Service]"


def _of_guest(guest: WantedGuest) -> Iterator[str]:
    if guest.type == "ct" and not (guest.template or guest.clone):
        yield "a container needs a template, or clone"
    if guest.template and (guest.clone or guest.type == "vm"):
        yield "template is for a new container only"
    own = {"name", "hostname", "start", "guest", "vmid"}
    own |= {name for name in ("template", "cores", "memory") if getattr(guest, name)}
    if clashing := own & guest.settings.keys():
        yield f"settings.{min(clashing)} comes from the document itself"
    if secrets := [name for name in guest.settings if _SECRET.search(name)]:
        yield f"settings.{secrets[0]} is a secret, and documents are stored: use ssh_keys, or set it afterwards"


def _between(document: Document) -> Iterator[Fault]:
    for item in document.items.values():
        for name in item.desired.needs:
            if name not in document.items:
                yield Fault(f"{item.path}.needs", f"the document has no item {name!r}")
    yield from _same_copies(document)
    yield from _same_ports(document)
    try:
        document.order()
    except BadArgument as circle:
        yield Fault("needs", str(circle))


def _same_copies(document: Document) -> Iterator[Fault]:
    seen: dict[tuple[str, str, str], Item] = {}
    for item in document.items.values():
        for copy in item.copies() if item.kind in ("guest", "workload") else ():
            other = seen.setdefault((item.kind, item.place, copy), item)
            if other is not item:
                yield Fault(item.path, f"a copy of {other} is also named {copy}")


def _same_ports(document: Document) -> Iterator[Fault]:
    seen: dict[tuple[str, int, str], list[tuple[str, Item]]] = {}
    for item in document.items.values():
        for number, _ in enumerate(item.copies() if item.kind == "workload" else ()):
            for port in _spread(item.desired, number):
                if port.outside is None:
                    continue
                if port.outside > 65535:
                    yield Fault(item.path, f"the copies need port {port.outside}, but 65535 is the last one")
                there = seen.setdefault((item.place, port.outside, port.protocol), [])
                for address, other in there:
                    if other is not item and (address == port.address or not address or not port.address):
                        yield Fault(item.path, f"port {port.outside}/{port.protocol} also belongs to {other}")
                there.append((port.address, item))


def _spread(workload: WantedWorkload, number: int) -> Iterator[Port]:
    try:
        yield from spread_ports(workload, number)
    except Problem:
        return  # reported separately


def spread_ports(workload: WantedWorkload, number: int) -> tuple[Port, ...]:
    """The ports of a copy, counted from 0: each copy uses the host ports after those of the previous one."""
    ports = parse_ports(workload.ports)
    outside = sorted({port.outside for port in ports if port.outside})
    close = any(after - before < MAX_COPIES for before, after in itertools.pairwise(outside))
    step = outside[-1] - outside[0] + 1 if close else 1  # else copies would collide
    return tuple(replace(port, outside=port.outside + number * step) if port.outside else port for port in ports)
