"""A service of the catalog, as its YAML file describes it. docs/homelab/services.md explains the fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from quorate.documents import Unreadable, inspect_yaml, read_yaml
from quorate.problems import BadArgument

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

    def method(self, wanted: Method | None = None) -> Method:
        if wanted is None:
            return self.methods[0]
        if wanted not in self.methods:
            raise BadArgument(
                f"{self.title} cannot be installed with {wanted}", next_step=f"Use {', '.join(self.methods)}"
            )
        return wanted

    def ports(self, values: Mapping[str, Any]) -> list[tuple[int, str]]:
        """The ports it will listen on, with these settings."""
        found = []
        for one in self.needs.ports:
            match = _PORT.fullmatch(str(one))
            assert match is not None  # checked when it was read
            found.append((self.port(match["port"], values), match["protocol"] or "tcp"))
        return found

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
    found = msgspec.structs.replace(template, id=name, origin=origin)
    if fault := next(iter(_faults(found)), None):
        raise ValueError(fault)
    return found


def _faults(one: Template) -> list[str]:
    """Checks beyond the types."""
    faults = []
    if not _ID.fullmatch(one.id):
        faults.append(f"{one.id!r} is not a valid service name: use lowercase letters, digits and -")
    if not one.methods:
        faults.append("it has none of compose, ansible and terraform")
    sizes = [size for size in (one.needs.memory, one.needs.disk) if size and not _SIZE.fullmatch(size)]
    faults += [f"{size!r} is not a size such as 512M or 2G" for size in sizes]
    if one.version and VERSION in one.parameters:
        faults.append("`version` is a parameter automatically")
    for name, parameter in one.parameters.items():
        faults += _parameter_faults(name, parameter)
    for name in (*one.files, *one.folders, *one.terraform):
        if not _FILE.fullmatch(name) or name in _OURS:
            faults.append(f"{name!r} is not a valid file name here")
    ports = [port for port in one.needs.ports if not _known_port(one, port)]
    ports += [one.health.port] if one.health and (one.health.http or one.health.tcp) and not _known_port(
        one, one.health.port) else []  # fmt: skip
    faults += [f"{port!r} is neither a port nor a parameter of that type" for port in ports]
    if one.health and sum(map(bool, (one.health.http, one.health.tcp, one.health.command))) != 1:
        faults.append("`health` must have one of http, tcp and command")
    if one.health and not 0 <= one.health.seconds <= LONGEST_HEALTH:
        faults.append(f"`health.seconds` must be 0 to {LONGEST_HEALTH}")
    if one.ansible:
        faults += _playbook_faults("playbook", one.ansible.playbook)
        faults += _playbook_faults("uninstall", one.ansible.uninstall) if one.ansible.uninstall else []
    if one.health and one.health.http and not one.health.http.startswith("/"):
        faults.append("`health.http` must be a path that starts with /")
    return faults + ([] if not one.compose else _compose_faults(one.compose))


def _known_port(one: Template, port: int | str) -> bool:
    match = _PORT.fullmatch(str(port))
    if match is None:
        return False
    if match["port"].isdecimal():
        return 0 < int(match["port"]) < 65536
    return match["port"] in one.parameters and one.parameters[match["port"]].type == "port"


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
    if not isinstance(plays, yaml.SequenceNode) or not all(isinstance(one, yaml.MappingNode) for one in plays.value):
        raise ValueError("a playbook must be a list of plays")
    parts = [part for play in plays.value for key, part in play.value if key.value in _TASKS]
    return sum(len(part.value) for part in parts if isinstance(part, yaml.SequenceNode))


def _compose_faults(text: str) -> list[str]:
    return [] if services_of(text) else ["`compose` is not a Compose file with services"]


def services_of(compose: str) -> tuple[str, ...]:
    """The names of the services in a Compose file."""
    try:
        found = read_yaml(compose)
    except Unreadable:
        return ()
    services = found.get("services") if isinstance(found, dict) else None
    return tuple(map(str, services)) if isinstance(services, dict) else ()


def bytes_of(size: str) -> int:
    return int(float(size[:-1]) * _FACTORS[size[-1]]) if size else 0
