"""The document that says what is wanted: hosts, guests, workloads and services. docs/homelab/infra.md explains it."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from quorate.homelab.host import Host, checked
from quorate.homelab.workloads import asking
from quorate.homelab.workloads.model import EngineName, Port, Pull, Restart
from quorate.problems import BadArgument, Problem
from quorate.ssh.target import SSH_PORT
from quorate.state.canonical import canonical

LONGEST = 256 * 1024
MOST_ITEMS = 500
MOST_COPIES = 50
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_SECRET = re.compile(r"passw|passphrase|_pass\b|secret|token|api_?key|private_?key|credential", re.I)


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A word that nobody knows is a mistake of whoever wrote it."""

    needs: tuple[str, ...] = ()
    """Names of what has to be there first."""


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
        return checked(Host(name, **{field: getattr(self, field) for field in COMPARED_OF_HOSTS}))


COMPARED_OF_HOSTS = tuple(name for name in WantedHost.__struct_fields__ if name != "needs")


class WantedGuest(Strict, frozen=True):
    type: Literal["ct", "vm"] = "ct"
    cluster: str = ""
    """May be left out where there is one."""
    template: str = ""
    """Of a container."""
    clone: str = ""
    """The guest or template that it is a copy of, instead of being made new."""
    cores: int | None = None
    memory: str | int | None = None
    running: bool = True
    replicas: int = 1
    settings: dict[str, Any] = {}
    """Whatever else container_create, vm_create or guest_clone takes."""


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
    """Of the catalogue; the name itself unless given."""
    settings: dict[str, Any] = {}


Wanted = WantedHost | WantedGuest | WantedWorkload | WantedService
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
    wanted: Any

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def path(self) -> str:
        return f"{self.kind}s.{self.name}"

    @property
    def place(self) -> str:
        """The machine that it is put on, if it is."""
        return self.wanted.host if isinstance(self.wanted, WantedWorkload | WantedService) else ""

    def copies(self) -> list[str]:
        """The first copy has the name itself, so that scaling never renames what is there."""
        count = getattr(self.wanted, "replicas", 1)
        return [copy_name(self.name, number) for number in range(1, count + 1)]


def copy_name(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


@dataclass(frozen=True, slots=True)
class Fault:
    path: str
    says: str

    def __str__(self) -> str:
        return f"{self.path}: {self.says}"


@dataclass(frozen=True, slots=True)
class Document:
    name: str
    items: Mapping[str, Item]
    """By name, in the order of the document."""

    def to_builtins(self) -> dict[str, Any]:
        told: dict[str, Any] = {"name": self.name}
        for item in self.items.values():
            told.setdefault(f"{item.kind}s", {})[item.name] = msgspec.to_builtins(item.wanted)
        return told

    @property
    def id(self) -> str:
        """The same for the same content."""
        return f"{self.name}-{hashlib.sha256(canonical(self.to_builtins())).hexdigest()[:12]}"

    def needs(self, item: Item) -> list[str]:
        """What it says itself, and what follows from where it is."""
        implied = [item.place, getattr(item.wanted, "jump", None), getattr(item.wanted, "clone", None)]
        return list(dict.fromkeys([*item.wanted.needs, *(one for one in implied if one in self.items)]))

    def order(self) -> list[Item]:
        """What is needed comes first; otherwise as it is written. Raises BadArgument if they go round in a circle."""
        placed: dict[str, Item] = {}

        def place(item: Item, above: tuple[str, ...]) -> None:
            if item.name in above:
                circle = " -> ".join((*above[above.index(item.name) :], item.name))
                raise BadArgument("The needs go round in a circle", why=circle)
            for name in self.needs(item):
                if name not in placed and name in self.items:
                    place(self.items[name], (*above, item.name))
            placed.setdefault(item.name, item)

        for item in self.items.values():
            if item.name not in placed:
                place(item, ())
        return list(placed.values())


def read(given: str | Mapping[str, Any]) -> Document:
    """The document, if there is nothing wrong with it."""
    document, faults = examined(given)
    if faults:
        raise BadArgument(
            "The document cannot be used",
            why="; ".join(map(str, faults[:10])),
            next_step="infra_validate tells all that is wrong",
            facts={"faults": [str(one) for one in faults[:50]]},
        )
    return document


def examined(given: str | Mapping[str, Any]) -> tuple[Document, list[Fault]]:
    """As much of it as can be read, and all that is wrong with it."""
    told = loaded(given)
    faults = [
        Fault(str(key), f"is not known here; there are name, {', '.join(KINDS)}")
        for key in told
        if key not in KINDS and key != "name"
    ]
    name = told.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        faults.append(Fault("name", "every document has a name, of letters, digits and . _ - between them"))
    items: dict[str, Item] = {}
    for kind, type_ in KINDS.items():
        part = told.get(kind) or {}
        if not isinstance(part, Mapping):
            faults.append(Fault(kind, "must be a mapping of names"))
            continue
        for key, value in part.items():
            item = _item(kind, str(key), value, type_, faults)
            if item and item.name in items:
                faults.append(Fault(item.path, f"{items[item.name]} has the same name"))
            elif item:
                items[item.name] = item
    if len(items) > MOST_ITEMS:
        faults.append(Fault("", f"It has {len(items)} items; {MOST_ITEMS} are the most"))
    document = Document(str(name), items)
    faults += _between(document)
    return document, faults


def loaded(given: str | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    import yaml

    if len(given) > LONGEST:
        raise BadArgument(f"The document is longer than {LONGEST} characters")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(given, yaml.SafeLoader)):
            raise BadArgument("The document has YAML aliases", next_step="Write it out, without & and *")
        told = yaml.safe_load(given)
    except yaml.YAMLError as error:
        raise BadArgument("The document is no YAML", why=" ".join(str(error).split())[:300]) from None
    except RecursionError:
        raise BadArgument("The document is nested too deeply") from None
    if not isinstance(told, Mapping):
        raise BadArgument("The document must be a mapping", next_step="name: lab, then hosts:, guests:, workloads: …")
    return told


# -- faults ------------------------------------------------------------------------------------------------------------


def _item(kind: str, name: str, value: Any, type_: type[Any], faults: list[Fault]) -> Item | None:
    path = f"{kind}.{name}"
    if not _NAME.fullmatch(name):
        faults.append(Fault(path, "is no name: use letters, digits, and . _ - between them"))
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
    wanted = item.wanted
    if not 0 <= getattr(wanted, "replicas", 1) <= MOST_COPIES:
        yield f"replicas are 0 to {MOST_COPIES}"
    try:
        if isinstance(wanted, WantedHost):
            wanted.host(item.name)
        elif isinstance(wanted, WantedWorkload):
            asking.name(item.name)
            asking.image(wanted.image)
            asking.ports(wanted.ports)
            asking.mounts(wanted.volumes)
            asking.environment({**wanted.env, **wanted.secrets})
            asking.labels(wanted.labels)
    except Problem as problem:
        yield str(problem)
    if isinstance(wanted, WantedWorkload):
        for one in wanted.env:
            if _SECRET.search(one):
                yield f"env.{one} looks like a secret: documents are kept, so give it as a reference, under secrets"
    if isinstance(wanted, WantedGuest):
        yield from _of_guest(wanted)


def _of_guest(wanted: WantedGuest) -> Iterator[str]:
    if wanted.type == "ct" and not (wanted.template or wanted.clone):
        yield "a container needs a template, or clone"
    if wanted.template and (wanted.clone or wanted.type == "vm"):
        yield "template is for a new container only"
    if taken := {"name", "hostname", "start", "guest", "vmid"} & wanted.settings.keys():
        yield f"settings.{min(taken)} is decided by the document itself"
    if found := [one for one in wanted.settings if _SECRET.search(one)]:
        yield f"settings.{found[0]} is a secret, and documents are kept: use ssh_keys, or set it afterwards"


def _between(document: Document) -> Iterator[Fault]:
    for item in document.items.values():
        for name in item.wanted.needs:
            if name not in document.items:
                yield Fault(f"{item.path}.needs", f"there is nothing called {name!r} in the document")
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
                yield Fault(item.path, f"a copy of {other} is called {copy}, too")


def _same_ports(document: Document) -> Iterator[Fault]:
    seen: dict[tuple[str, int, str], list[tuple[str, Item]]] = {}
    for item in document.items.values():
        for number, _ in enumerate(item.copies() if item.kind == "workload" else ()):
            for port in _spread(item.wanted, number):
                if port.outside is None:
                    continue
                if port.outside > 65535:
                    yield Fault(item.path, f"the copies need the port {port.outside}, and 65535 is the last")
                there = seen.setdefault((item.place, port.outside, port.protocol), [])
                for address, other in there:
                    if other is not item and (address == port.address or not address or not port.address):
                        yield Fault(item.path, f"port {port.outside}/{port.protocol} is that of {other}, too")
                there.append((port.address, item))


def _spread(wanted: WantedWorkload, number: int) -> Iterator[Port]:
    try:
        yield from spread_ports(wanted, number)
    except Problem:
        return  # told by itself


def spread_ports(wanted: WantedWorkload, number: int) -> tuple[Port, ...]:
    """Of the copy of that number, from 0: each has the host's ports after those of the copy before it."""
    ports = asking.ports(wanted.ports)
    outside = sorted({port.outside for port in ports if port.outside})
    close = any(after - before < MOST_COPIES for before, after in itertools.pairwise(outside))
    step = outside[-1] - outside[0] + 1 if close else 1  # else the copies would meet
    return tuple(replace(port, outside=port.outside + number * step) if port.outside else port for port in ports)
