"""A service of the catalogue as its YAML file describes it. docs/homelab/services.md explains the fields to people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from quorate.problems import BadArgument

Method = Literal["compose", "ansible", "terraform"]
METHODS: tuple[Method, ...] = get_args(Method)
VERSION = "version"
"""The parameter that every service has if it has a version."""
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_PARAMETER = re.compile(r"[a-z][a-z0-9_]{0,39}")
_FILE = re.compile(r"[a-z0-9][a-z0-9._-]{0,60}")
_SIZE = re.compile(r"[0-9]+(\.[0-9]+)?[MGT]")
_PORT = re.compile(r"(?P<port>[0-9]{1,5}|[a-z][a-z0-9_]*)(?:/(?P<protocol>tcp|udp))?")
_TAKEN = ("home", "lang", "logname", "mail", "path", "pwd", "shell", "term", "user")
"""As variables they are set already, and would win over the settings."""
_OURS = ("compose.yaml", "compose.yml", "plans", "terraform.tfstate", "variables.json")
"""Files that we or the programs write beside those of the template."""
_TASKS = ("tasks", "pre_tasks", "post_tasks", "roles")
LONGEST_HEALTH = 1800
_FACTORS = {"M": 1024**2, "G": 1024**3, "T": 1024**4}


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A word that nobody knows is a mistake of whoever wrote it."""


class Parameter(Strict, frozen=True):
    about: str
    type: Literal["text", "number", "port", "flag", "choice", "secret"] = "text"
    default: str | int | bool | None = None
    choices: tuple[str, ...] = ()
    generate: int = 0
    """A secret that nobody gives is made up, of so many characters."""

    @property
    def required(self) -> bool:
        return self.default is None and not self.generate


class Needs(Strict, frozen=True):
    memory: str = ""
    disk: str = ""
    architectures: tuple[Literal["amd64", "arm64", "arm"], ...] = ()
    """None named: all of them."""
    ports: tuple[int | str, ...] = ()
    """8080, 53/udp, or the name of a parameter."""


class Health(Strict, frozen=True):
    """One of http, tcp and command, asked on the host itself."""

    http: str = ""
    """A path, at `port`."""
    tcp: bool = False
    port: int | str = 0
    """A number, or the name of a parameter."""
    tls: bool = False
    command: tuple[str, ...] = ()
    """Healthy if it ends with 0."""
    seconds: int = 180
    """How long it may take to get healthy."""


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
    """Beside the Compose file: name -> content."""
    folders: dict[str, int] = {}
    """Made beside the Compose file before it starts, for images that do not run as root: name -> owner."""
    ansible: Ansible | None = None
    terraform: dict[str, str] = {}
    """Name of the file -> content."""
    health: Health | None = None
    backup: tuple[str, ...] = ()
    """What to keep a copy of; without a leading / it is beside the Compose file."""
    homepage: str = ""
    notes: str = ""
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
                f"{self.title} cannot be installed by {wanted}", next_step=f"It goes by {', '.join(self.methods)}"
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
            raise BadArgument(f"{value!r} is no port", next_step=f"Give {named} in settings, from 1 to 65535")
        return int(value)


def read(text: str, name: str, origin: str) -> Template:
    """The template in that text. A ValueError says what is wrong with it."""
    import yaml  # not needed by anybody who only looks at hosts

    try:
        given = yaml.safe_load(text)
        template = msgspec.convert(given, Template)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ValueError(" ".join(str(error).split())) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if template.id or template.origin:
        raise ValueError("`id` and `origin` are not written: the name of the file is its id")
    found = msgspec.structs.replace(template, id=name, origin=origin)
    if fault := next(iter(_faults(found)), None):
        raise ValueError(fault)
    return found


def _faults(one: Template) -> list[str]:
    """Everything that the types do not say."""
    faults = []
    if not _ID.fullmatch(one.id):
        faults.append(f"{one.id!r} is no name for a service: small letters, digits and -")
    if not one.methods:
        faults.append("it has none of compose, ansible and terraform")
    sizes = [size for size in (one.needs.memory, one.needs.disk) if size and not _SIZE.fullmatch(size)]
    faults += [f"{size!r} is no size such as 512M or 2G" for size in sizes]
    if one.version and VERSION in one.parameters:
        faults.append("`version` is a parameter by itself")
    for name, parameter in one.parameters.items():
        faults += _parameter_faults(name, parameter)
    for name in (*one.files, *one.folders, *one.terraform):
        if not _FILE.fullmatch(name) or name in _OURS:
            faults.append(f"{name!r} is no name for a file here")
    ports = [port for port in one.needs.ports if not _known_port(one, port)]
    ports += [one.health.port] if one.health and (one.health.http or one.health.tcp) and not _known_port(
        one, one.health.port) else []  # fmt: skip
    faults += [f"{port!r} is neither a port nor a parameter that is one" for port in ports]
    if one.health and sum(map(bool, (one.health.http, one.health.tcp, one.health.command))) != 1:
        faults.append("`health` is one of http, tcp and command")
    if one.health and not 0 <= one.health.seconds <= LONGEST_HEALTH:
        faults.append(f"`health.seconds` is at most {LONGEST_HEALTH}")
    if one.ansible:
        faults += _playbook_faults("playbook", one.ansible.playbook)
        faults += _playbook_faults("uninstall", one.ansible.uninstall) if one.ansible.uninstall else []
    if one.health and one.health.http and not one.health.http.startswith("/"):
        faults.append("`health.http` is a path that begins with /")
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
        faults.append(f"{name!r} is no name for a parameter: small letters, digits and _")
    if name in _TAKEN:
        faults.append(f"{name!r} is the name of a variable that every login has")
    if (parameter.type == "choice") != bool(parameter.choices):
        faults.append(f"{name}: `choices` and the type `choice` go together")
    if parameter.type == "secret" and parameter.default is not None:
        faults.append(f"{name}: a secret has no default; `generate` makes one up")
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
    """How many tasks and roles a playbook has at its top. A ValueError says that it is none.

    It is not read further than that: tags such as !vault are Ansible's own.
    """
    import yaml

    try:
        plays = yaml.compose(playbook, yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    if not isinstance(plays, yaml.SequenceNode) or not all(isinstance(one, yaml.MappingNode) for one in plays.value):
        raise ValueError("a playbook is a list of plays")
    parts = [part for play in plays.value for key, part in play.value if key.value in _TASKS]
    return sum(len(part.value) for part in parts if isinstance(part, yaml.SequenceNode))


def _compose_faults(text: str) -> list[str]:
    return [] if services_of(text) else ["`compose` is no Compose file with services"]


def services_of(compose: str) -> tuple[str, ...]:
    """The names of the services in a Compose file."""
    import yaml

    try:
        services = (yaml.safe_load(compose) or {}).get("services")
    except (yaml.YAMLError, AttributeError):
        return ()
    return tuple(map(str, services)) if isinstance(services, dict) else ()


def bytes_of(size: str) -> int:
    return int(float(size[:-1]) * _FACTORS[size[-1]]) if size else 0
