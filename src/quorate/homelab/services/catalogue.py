"""A service of the catalog, as its YAML file describes it, and whether a host has what it needs.

docs/homelab/services.md explains the fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from quorate.documents import Unreadable, inspect_yaml, read_yaml
from quorate.hints import see, tools
from quorate.homelab.machines import Machine
from quorate.inside.facts.model import Facts, Filesystem, Memory
from quorate.problems import BadArgument, NotFound
from quorate.suggestions import suggest
from quorate.units import count_of

Method = Literal["compose", "ansible", "terraform"]
METHODS: tuple[Method, ...] = get_args(Method)
VERSION = "version"
"""The parameter of every service that has a version."""
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_PARAMETER = re.compile(r"[a-z][a-z0-9_]{0,39}")
_FILE = re.compile(r"[a-z0-9][a-z0-9._-]{0,60}")
_SIZE = re.compile(r"[0-9]+(\.[0-9]+)?[MGT]")
_PORT = re.compile(r"(?P<port>[0-9]{1,5}|[a-z][a-z0-9_]*)(?:/(?P<protocol>tcp|udp))?")
_TAKEN = ("home", "lang", "logname", "mail", "path", "pwd", "shell", "term", "user")
"""Variables that always exist and would override the settings."""
_OURS = ("compose.yaml", "compose.yml", "plans", "terraform.tfstate", "variables.json")
"""Files that Quorate or the programs write next to those of the template."""
_TASKS = ("tasks", "pre_tasks", "post_tasks", "roles")
LONGEST_HEALTH = 1800
_FACTORS = {"M": 1024**2, "G": 1024**3, "T": 1024**4}


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Unknown keys are errors."""


class Parameter(Strict, frozen=True):
    about: str
    type: Literal["text", "number", "port", "flag", "choice", "secret"] = "text"
    default: str | int | bool | None = None
    choices: tuple[str, ...] = ()
    generate: int = 0
    """The length of a generated secret, used if none is given."""

    @property
    def required(self) -> bool:
        return self.default is None and not self.generate


class Needs(Strict, frozen=True):
    memory: str = ""
    disk: str = ""
    architectures: tuple[Literal["amd64", "arm64", "arm"], ...] = ()
    """Empty means all."""
    ports: tuple[int | str, ...] = ()
    """8080, 53/udp, or the name of a parameter."""


class Health(Strict, frozen=True):
    """One of http, tcp and command, checked on the host itself."""

    http: str = ""
    """A path on `port`."""
    tcp: bool = False
    port: int | str = 0
    """A number, or the name of a parameter."""
    tls: bool = False
    command: tuple[str, ...] = ()
    """Healthy if it ends with 0."""
    seconds: int = 180
    """How long it may take to become healthy."""


class Ansible(Strict, frozen=True):
    playbook: str
    uninstall: str = ""


class Template(Strict, frozen=True):
    title: str
    about: str
    needs: Needs = Needs()
    version: str = ""
    parameters: dict[str, Parameter] = {}
    compose: str = ""
    files: dict[str, str] = {}
    """Next to the Compose file: name -> content."""
    folders: dict[str, int] = {}
    """Created next to the Compose file before it starts, for images that do not run as root: name -> owner."""
    ansible: Ansible | None = None
    terraform: dict[str, str] = {}
    """Name of the file -> content."""
    health: Health | None = None
    backup: tuple[str, ...] = ()
    """What to back up; without a leading / it is relative to the Compose file."""
    homepage: str = ""
    notes: str = ""
    also: tuple[str, ...] = ()
    """Other names for it."""
    id: str = ""
    """The name of its file, without .yaml."""
    origin: str = ""
    """package, or the operator's file."""

    @property
    def methods(self) -> tuple[Method, ...]:
        return tuple(method for method in METHODS if getattr(self, method))

    def method(self, requested: Method | None = None) -> Method:
        if requested is None:
            return self.methods[0]
        if requested not in self.methods:
            raise BadArgument(
                f"{self.title} cannot be installed with {requested}", next_step=f"Use {', '.join(self.methods)}"
            )
        return requested

    def ports(self, values: Mapping[str, Any]) -> list[tuple[int, str]]:
        """The ports it will listen on, with these settings."""
        ports = []
        for port in self.needs.ports:
            match = _PORT.fullmatch(str(port))
            assert match is not None  # checked when it was read
            ports.append((self.port(match["port"], values), match["protocol"] or "tcp"))
        return ports

    def port(self, named: int | str, values: Mapping[str, Any]) -> int:
        if str(named).isdecimal():
            return int(named)
        value = str(values.get(str(named), self.parameters[str(named)].default))
        if not value.isascii() or not value.isdecimal():
            raise BadArgument(f"{value!r} is not a port", next_step=f"Set {named} in settings, from 1 to 65535")
        return int(value)


def read(text: str, name: str, origin: str) -> Template:
    """The template in that text. Raises ValueError if anything is wrong with it."""
    try:
        template = msgspec.convert(read_yaml(text), Template)
    except Unreadable as unreadable:
        raise ValueError(f"it {unreadable}") from None
    except msgspec.ValidationError as error:
        raise ValueError(" ".join(str(error).split())) from None
    if template.id or template.origin:
        raise ValueError("`id` and `origin` cannot be set: the name of the file is its id")
    complete = msgspec.structs.replace(template, id=name, origin=origin)
    if fault := next(iter(_faults(complete)), None):
        raise ValueError(fault)
    return complete


def _faults(template: Template) -> list[str]:
    """Checks beyond the types."""
    faults, health = [], template.health
    if not _ID.fullmatch(template.id):
        faults.append(f"{template.id!r} is not a valid service name: use lowercase letters, digits and -")
    if not template.methods:
        faults.append("it has none of compose, ansible and terraform")
    sizes = [size for size in (template.needs.memory, template.needs.disk) if size and not _SIZE.fullmatch(size)]
    faults += [f"{size!r} is not a size such as 512M or 2G" for size in sizes]
    if template.version and VERSION in template.parameters:
        faults.append("`version` is a parameter automatically")
    for name, parameter in template.parameters.items():
        faults += _parameter_faults(name, parameter)
    for name in (*template.files, *template.folders, *template.terraform):
        if not _FILE.fullmatch(name) or name in _OURS:
            faults.append(f"{name!r} is not a valid file name here")
    ports = [port for port in template.needs.ports if not _known_port(template, port)]
    if health and (health.http or health.tcp) and not _known_port(template, health.port):
        ports.append(health.port)
    faults += [f"{port!r} is neither a port nor a parameter of that type" for port in ports]
    if health and sum(map(bool, (health.http, health.tcp, health.command))) != 1:
        faults.append("`health` must have one of http, tcp and command")
    if health and not 0 <= health.seconds <= LONGEST_HEALTH:
        faults.append(f"`health.seconds` must be 0 to {LONGEST_HEALTH}")
    if template.ansible:
        faults += _playbook_faults("playbook", template.ansible.playbook)
        faults += _playbook_faults("uninstall", template.ansible.uninstall) if template.ansible.uninstall else []
    if health and health.http and not health.http.startswith("/"):
        faults.append("`health.http` must be a path that starts with /")
    if template.compose and not services_of(template.compose):
        faults.append("`compose` is not a Compose file with services")
    return faults


def _known_port(template: Template, port: int | str) -> bool:
    match = _PORT.fullmatch(str(port))
    if match is None:
        return False
    if match["port"].isdecimal():
        return 0 < int(match["port"]) < 65536
    return match["port"] in template.parameters and template.parameters[match["port"]].type == "port"


def _parameter_faults(name: str, parameter: Parameter) -> list[str]:
    faults = []
    if not _PARAMETER.fullmatch(name):
        faults.append(f"{name!r} is not a valid parameter name: use lowercase letters, digits and _")
    if name in _TAKEN:
        faults.append(f"{name!r} is a variable that every login has")
    if (parameter.type == "choice") != bool(parameter.choices):
        faults.append(f"{name}: `choices` and the type `choice` belong together")
    if parameter.type == "secret" and parameter.default is not None:
        faults.append(f"{name}: a secret has no default; use `generate`")
    if parameter.generate and (parameter.type != "secret" or not 12 <= parameter.generate <= 128):
        faults.append(f"{name}: `generate` is for secrets of 12 to 128 characters")
    return faults


def _playbook_faults(name: str, text: str) -> list[str]:
    try:
        tasks_in(text)
    except ValueError as error:
        return [f"`ansible.{name}`: {error}"]
    return []


def tasks_in(playbook: str) -> int:
    """The number of tasks and roles at the top of a playbook. Raises ValueError if it is not a playbook.

    It is not parsed further: tags such as !vault belong to Ansible.
    """
    import yaml  # not needed to list the tools

    try:
        inspect_yaml(playbook)
        plays = yaml.compose(playbook, yaml.SafeLoader)
    except Unreadable as fault:
        raise ValueError(f"it {fault}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    if not isinstance(plays, yaml.SequenceNode) or not all(isinstance(play, yaml.MappingNode) for play in plays.value):
        raise ValueError("a playbook must be a list of plays")
    parts = [part for play in plays.value for key, part in play.value if key.value in _TASKS]
    return sum(len(part.value) for part in parts if isinstance(part, yaml.SequenceNode))


def services_of(compose: str) -> tuple[str, ...]:
    """The names of the services in a Compose file."""
    try:
        document = read_yaml(compose)
    except Unreadable:
        return ()
    services = document.get("services") if isinstance(document, dict) else None
    return tuple(map(str, services)) if isinstance(services, dict) else ()


def bytes_of(size: str) -> int:
    return int(float(size[:-1]) * _FACTORS[size[-1]]) if size else 0


PACKAGE = "package"
LONGEST = 256 * 1024


@dataclass(frozen=True, slots=True)
class Catalogue:
    services: Mapping[str, Template]
    broken: Mapping[str, str]
    """File -> what is wrong with it. The others stay usable."""

    def find(self, name: str) -> Template:
        """Find a service by its id or another name: `home_assistant` and `homeassistant` mean the same."""
        key = name.strip().lower()
        if service := self.services.get(key):
            return service
        for service in self.services.values():
            if plain(key) in map(plain, (service.id, *service.also)):
                return service
        if fault := next((why for file, why in self.broken.items() if Path(file).stem == name), None):
            raise NotFound(
                f"The service {name!r} cannot be used", why=fault, next_step="The operator has to fix its file"
            )
        hint = suggest(name.lower(), self.services, see("See all services", tools.service_list), count=3)
        raise NotFound(f"There is no service {name!r} in the catalog", next_step=hint)


def plain(name: str) -> str:
    return name.replace("-", "").replace("_", "")


def load_catalogue(folder: Path) -> Catalogue:
    """Read each time, so that a fixed file counts at once. The operator's services override packaged ones."""
    own: dict[str, Template] = {}
    broken: dict[str, str] = {}
    for file in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        try:
            own[file.stem] = read(_text(file), file.stem, str(file))
        except (ValueError, OSError) as error:
            broken[str(file)] = str(error)
    return Catalogue(dict(sorted({**load_packaged(), **own}.items())), broken)


@cache
def load_packaged() -> Mapping[str, Template]:
    files = sorted((Path(__file__).parent / "catalogue").glob("*.yaml"))
    return {file.stem: read(file.read_text("utf-8"), file.stem, PACKAGE) for file in files}


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        content = opened.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST} bytes")
    return content.decode()


# -- what a service needs from its host --------------------------------------------------------------------------------


SECTIONS = ("system", "memory", "filesystems", "ports")
ARCHITECTURES = {
    "x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64", "armv7l": "arm", "armv6l": "arm",
}  # fmt: skip
_UNITS = ((1024**4, "T"), (1024**3, "G"), (1024**2, "M"))


class Verdict(StrEnum):
    OK = "ok"
    MISSING = "missing"
    NOT_KNOWN = "not known"


class RequirementKind(StrEnum):
    ARCHITECTURE = "architecture"
    PORT = "port"
    MEMORY = "memory"
    DISK = "disk"
    COMPOSE = "Compose"

    @property
    def is_hard(self) -> bool:
        """True if a service cannot work without it; too little memory or disk is only a warning."""
        return self in (RequirementKind.ARCHITECTURE, RequirementKind.PORT)


@dataclass(frozen=True, slots=True)
class Requirement:
    """A need of a service, compared with what the host has."""

    kind: RequirementKind
    needed: str
    available: str
    verdict: Verdict
    which: str = ""
    """The one of several: `8080/tcp`."""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.which}".rstrip()


async def collect_requirements(machine: Machine, seconds: float = 30) -> Facts:
    return await machine.collect_facts(sections=SECTIONS, seconds=seconds)


def check_requirements(
    template: Template, values: Mapping[str, Any], facts: Facts, folder: str, own: Mapping[str, Any]
) -> list[Requirement]:
    """Every requirement, checked against what is available.

    `own` are the settings of an existing installation: what it already uses is not missing.
    """
    rows: list[Requirement] = []
    own_ports = template.ports(own) if own else []
    if architectures := template.needs.architectures:
        actual = facts.system.architecture if facts.system else None
        known = ARCHITECTURES.get(actual or "", actual)
        verdict = _verdict(known and known in architectures)
        rows.append(Requirement(RequirementKind.ARCHITECTURE, ", ".join(architectures), known or "", verdict))
    if least := bytes_of(template.needs.memory):
        memory = _memory(facts.memory)
        enough = None if memory is None else bool(own) or memory >= least
        rows.append(Requirement(RequirementKind.MEMORY, template.needs.memory, _size(memory), _verdict(enough)))
    if least := bytes_of(template.needs.disk):
        free = _free(facts.filesystems or (), folder)
        enough = None if free is None else bool(own) or free >= least
        rows.append(Requirement(RequirementKind.DISK, template.needs.disk, _size(free), _verdict(enough)))
    for port, protocol in template.ports(values):
        listeners = [
            listener for listener in facts.ports or () if (listener.protocol, listener.port) == (protocol, port)
        ]
        free_port = None if facts.ports is None else (port, protocol) in own_ports or not listeners
        by = "" if not listeners else f"used{f' by {listeners[0].process}' if listeners[0].process else ''}"
        actual = by or ("free" if free_port else "")
        rows.append(Requirement(RequirementKind.PORT, "free", actual, _verdict(free_port), f"{port}/{protocol}"))
    return rows


def _verdict(enough: object) -> Verdict:
    return Verdict.NOT_KNOWN if enough is None else Verdict.OK if enough else Verdict.MISSING


def _free(filesystems: tuple[Filesystem, ...], folder: str) -> int | None:
    """The free space of the file system that contains the folder."""
    holding = [filesystem for filesystem in filesystems if f"{folder}/".startswith(f"{filesystem.mount.rstrip('/')}/")]
    best = max(holding, key=lambda filesystem: len(filesystem.mount), default=None)
    return None if best is None else best.available


def _memory(memory: Memory | None) -> int | None:
    if memory is None:
        return None
    return memory.total if memory.available is None else memory.available


def _size(count: int | None) -> str:
    if count is None:
        return ""
    return next((f"{count / unit:.1f}{name}" for unit, name in _UNITS if count >= unit), count_of(count, "byte"))
