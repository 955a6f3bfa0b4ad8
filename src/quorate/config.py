"""Where the settings come from: arguments, environment, `.env` and a TOML file, strongest first.

Every source is turned into the same shape, found settings by meaning (`address`, `token`, ...), so that the
many spellings of a setting are compared, and the clusters are built, in one place.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar
from urllib.parse import urlsplit

from quorate.pve.connection import Connection, Limits, Password, Secret, Token, Trust

T = TypeVar("T")

PVE_PORT = 8006
NOTHING_CONFIGURED = (
    "No Proxmox VE cluster is configured: set PROXMOX_URL, PROXMOX_TOKEN_ID and PROXMOX_TOKEN_SECRET "
    "(or write a config file), or try `quorate serve --demo`, which needs nothing."
)


class ConfigError(Exception):
    """A setting is wrong. The text is one sentence for the operator and never holds a secret."""


class Access(enum.StrEnum):
    """How much the operator lets callers do. Each level includes the ones before it."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def allows(self, needed: Access) -> bool:
        levels = list(Access)
        return levels.index(self) >= levels.index(needed)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    name: str
    connection: Connection
    default_node: str | None = None
    default_storage: str | None = None
    default_bridge: str | None = None


def _default_audit_file() -> Path:
    return _standard_folder(os.environ, "XDG_STATE_HOME", ".local/state") / "audit.jsonl"


@dataclass(frozen=True, slots=True)
class Settings:
    clusters: tuple[ClusterSettings, ...] = ()
    """Empty when nothing is configured: the tools can still be listed."""
    access: Access = Access.READ
    toolsets: tuple[str, ...] | None = None
    """None is the default set, `("all",)` is every toolset."""
    audit_file: Path = field(default_factory=_default_audit_file)
    wait_seconds: float = 45.0
    """How long a change is followed before its task is handed back."""
    warnings: tuple[str, ...] = ()
    problem: str | None = None
    """Why there is no cluster."""


def load(
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    dotenv: Path | None = None,
    access: str | None = None,
    toolsets: str | None = None,
    tolerate: bool = False,
) -> Settings:
    """Read the settings, or raise a `ConfigError`.

    With `tolerate`, a mistake in the description of a cluster becomes `Settings.problem`, so that the tools
    can be listed all the same. Access level and toolsets must always be right: they decide what is listed.
    """
    process = _Source(rank=2, variables=os.environ if environ is None else environ)
    env_file = _dotenv_source(dotenv)
    variables = {**env_file.variables, **process.variables}

    from_process = _found_in_variables(process)
    from_env_file = _found_in_variables(env_file)
    by_variables = _merge(from_process, from_env_file)
    table, toml = _toml_source(_config_file(file, by_variables, variables), variables)
    arguments = _found_in_arguments(access, toolsets)
    general = _merge(arguments, by_variables, _found_in_table(table, _GENERAL, toml, also=("clusters",)))

    warnings: list[str] = []
    clusters: tuple[ClusterSettings, ...] = ()
    problem = None
    try:
        clusters = _clusters(by_variables, table.get("clusters", {}), toml, warnings)
    except ConfigError as error:
        if not tolerate:
            raise
        problem = str(error)
    return Settings(
        clusters=clusters,
        access=_read(general, "access", _access) or Access.READ,
        toolsets=_read(general, "toolsets", _toolsets),
        audit_file=_read(general, "audit_file", _path)
        or _standard_folder(variables, "XDG_STATE_HOME", ".local/state") / "audit.jsonl",
        wait_seconds=_or_default(_read(general, "wait_seconds", _seconds), 45.0),
        warnings=tuple(warnings),
        problem=problem or (None if clusters else NOTHING_CONFIGURED),
    )


# ----------------------------------------------------------------------------------------------------
# Spellings: what each setting is called in the environment and in TOML. Where a setting has several names,
# the first one belongs to the PROXMOX_URL family and the last one to the PROXMOX_HOST family.


class _Names(NamedTuple):
    variables: tuple[str, ...]
    keys: tuple[str, ...]


_GENERAL: Mapping[str, _Names] = {
    "access": _Names(("QUORATE_ACCESS",), ("access",)),
    "toolsets": _Names(("QUORATE_TOOLSETS",), ("toolsets",)),
    "audit_file": _Names(("QUORATE_AUDIT_FILE",), ("audit_file",)),
    "wait_seconds": _Names(("QUORATE_WAIT_SECONDS",), ("wait_seconds",)),
}
_CONFIG_FILE: Mapping[str, _Names] = {"config": _Names(("QUORATE_CONFIG",), ())}
_CLUSTER: Mapping[str, _Names] = {
    "address": _Names(("PROXMOX_URL", "PROXMOX_API_URL", "PROXMOX_HOST"), ("url", "host")),
    "port": _Names(("PROXMOX_PORT",), ("port",)),
    "user": _Names(("PROXMOX_USER",), ("user",)),
    "token": _Names(("PROXMOX_TOKEN_ID", "PROXMOX_TOKEN_NAME"), ("token_id", "token_name")),
    "token_secret": _Names(("PROXMOX_TOKEN_SECRET", "PROXMOX_TOKEN_VALUE"), ("token_secret", "token_value")),
    "password": _Names(("PROXMOX_PASSWORD",), ("password",)),
    "verify": _Names(("PROXMOX_VERIFY", "PROXMOX_VERIFY_SSL", "PROXMOX_TLS_INSECURE"), ("verify",)),
    "ca_file": _Names(("PROXMOX_CA_FILE",), ("ca_file",)),
    "fingerprint": _Names(("PROXMOX_FINGERPRINT",), ("fingerprint",)),
    "default_node": _Names(("PROXMOX_DEFAULT_NODE",), ("default_node",)),
    "default_storage": _Names(("PROXMOX_DEFAULT_STORAGE",), ("default_storage",)),
    "default_bridge": _Names(("PROXMOX_DEFAULT_BRIDGE",), ("default_bridge",)),
    "request_seconds": _Names((), ("request_seconds",)),
    "total_seconds": _Names((), ("total_seconds",)),
    "connections": _Names((), ("connections",)),
}
_SECRETS = ("token_secret", "password")
_HOST_FAMILY = frozenset({"PROXMOX_HOST", "PROXMOX_PORT", "PROXMOX_TOKEN_NAME", "PROXMOX_TOKEN_VALUE"})
_HOST_FAMILY_KEYS = frozenset({"host", "port", "token_name", "token_value"})


@dataclass(frozen=True, slots=True)
class _Source:
    """One place that settings come from."""

    rank: int
    """The stronger source has the higher rank."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    suffix: str = ""
    """Says in messages where a setting stands, as in `PROXMOX_PORT in .env`."""
    file: Path | None = None
    is_toml: bool = False

    def path(self, text: str) -> Path:
        """A relative path is meant from the file it is written in, else from the current directory."""
        folder = self.file.parent if self.file else Path.cwd()
        if text == "~" or text.startswith("~/"):
            return _home(self.variables) / text[2:]
        return folder / text


@dataclass(frozen=True, slots=True)
class _Given:
    """One spelling of a setting with the value found. The value may be a secret: it is not in the repr."""

    spelling: str
    value: object = field(repr=False)
    source: _Source

    @property
    def label(self) -> str:
        return self.spelling + self.source.suffix

    @property
    def rank(self) -> int:
        return self.source.rank

    def neighbour(self, setting: str) -> str:
        """What another setting is called in the family of names this operator uses."""
        names = _CLUSTER[setting]
        if self.source.is_toml:
            spelling = names.keys[-1 if self.spelling in _HOST_FAMILY_KEYS else 0]
        else:
            spelling = names.variables[-1 if self.spelling.removesuffix("_FILE") in _HOST_FAMILY else 0]
        return spelling + self.source.suffix


_Found = dict[str, list[_Given]]


def _merge(*strongest_first: _Found) -> _Found:
    """A setting is taken from the strongest source that has it, in whichever spelling."""
    merged: _Found = {}
    for found in strongest_first:
        for setting, givens in found.items():
            merged.setdefault(setting, givens)
    return merged


def _found_in_arguments(access: str | None, toolsets: str | None) -> _Found:
    source = _Source(rank=3)
    flags = {"access": ("--access", access), "toolsets": ("--toolsets", toolsets)}
    return {setting: [_Given(flag, text, source)] for setting, (flag, text) in flags.items() if text}


def _found_in_variables(source: _Source) -> _Found:
    found: _Found = {}
    for setting, names in {**_GENERAL, **_CONFIG_FILE, **_CLUSTER}.items():
        # Clients often pass variables on as empty texts; those count as not set.
        givens = [_Given(name, source.variables[name], source) for name in _set_names(source, names.variables)]
        if setting in _SECRETS:
            files = _set_names(source, (f"{name}_FILE" for name in names.variables))
            givens += [_Given(name, {"file": source.variables[name]}, source) for name in files]
        if givens:
            found[setting] = givens
    return found


def _set_names(source: _Source, names: Iterable[str]) -> list[str]:
    return [name for name in names if source.variables.get(name, "").strip()]


def _found_in_table(
    table: Mapping[str, object], settings: Mapping[str, _Names], source: _Source, also: tuple[str, ...] = ()
) -> _Found:
    known = [key for names in settings.values() for key in names.keys]
    for key in table:
        if key not in known and key not in also:
            hint = _did_you_mean(key, [*known, *also]) or f" the known ones are {', '.join([*known, *also])}."
            raise ConfigError(f'Unknown setting "{key}"{source.suffix}:{hint}')
    found: _Found = {}
    for setting, names in settings.items():
        if givens := [_Given(key, table[key], source) for key in names.keys if key in table]:
            found[setting] = givens
    return found


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    import difflib  # only a mistake needs it

    close = difflib.get_close_matches(word.lower(), list(known), n=1)
    return f' did you mean "{close[0]}"?' if close else ""


# ----------------------------------------------------------------------------------------------------
# Files


def _home(variables: Mapping[str, str]) -> Path:
    return Path(variables["HOME"]) if variables.get("HOME") else Path.home()


def _standard_folder(variables: Mapping[str, str], variable: str, fallback: str) -> Path:
    """Our folder by the XDG rules, which tell us to ignore a path that is not absolute."""
    base = Path(variables.get(variable, ""))
    return (base if base.is_absolute() else _home(variables) / fallback) / "quorate"


def _config_file(file: Path | None, found: _Found, variables: Mapping[str, str]) -> Path | None:
    chosen = file or _read(found, "config", _path)
    if chosen:
        return chosen
    usual = _standard_folder(variables, "XDG_CONFIG_HOME", ".config") / "config.toml"
    return usual if usual.is_file() else None


def _toml_source(file: Path | None, variables: Mapping[str, str]) -> tuple[dict[str, object], _Source]:
    if file is None:
        return {}, _Source(rank=0, is_toml=True)
    import tomllib  # most set-ups have no file

    try:
        table = tomllib.loads(_text_of(file, "config file"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The config file {file} is not valid TOML: {error}.") from None
    return table, _Source(rank=0, variables=variables, suffix=f" in {file}", file=file, is_toml=True)


def _dotenv_source(file: Path | None) -> _Source:
    chosen = file or Path.cwd() / ".env"
    if file is None and not chosen.is_file():
        return _Source(rank=1)
    variables = _parse_dotenv(_text_of(chosen, "file"), chosen)
    return _Source(rank=1, variables=variables, suffix=f" in {chosen.name}", file=chosen)


def _text_of(file: Path, what: str) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"The {what} {file} cannot be read ({error.strerror}): correct the path or its permissions."
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"The {what} {file} is not UTF-8 text: save it as UTF-8.") from None


_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>.*)", re.ASCII)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def _parse_dotenv(text: str, file: Path) -> dict[str, str]:
    variables: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        assignment = _ASSIGNMENT.match(line)
        value = _dotenv_value(assignment["value"].strip()) if assignment else None
        if assignment and value is not None:
            variables[assignment["name"]] = value
        elif "PROXMOX_" in line or "QUORATE_" in line:
            # The file may belong to another program, so only lines that are meant for us have to be right.
            raise ConfigError(f"Line {number} of {file} is not understood: write NAME=value or NAME='value'.")
    return variables


def _dotenv_value(text: str) -> str | None:
    """The value without quotes and trailing comment, or None where a quote is not closed."""
    quote = text[:1]
    if quote not in ("'", '"'):
        return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
    body = r"[^']*" if quote == "'" else r'(?:[^"\\]|\\.)*'
    quoted = re.fullmatch(rf"{quote}({body}){quote}\s*(?:#.*)?", text)
    if quoted is None:
        return None
    if quote == "'":
        return quoted[1]
    return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), quoted[1])


# ----------------------------------------------------------------------------------------------------
# Clusters


def _clusters(by_variables: _Found, tables: object, toml: _Source, warnings: list[str]) -> tuple[ClusterSettings, ...]:
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(f"Clusters{toml.suffix} must be tables: write [clusters.NAME] above their settings.")
    for name in tables:
        if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name, re.ASCII):
            raise ConfigError(f'Cluster name "{name}"{toml.suffix} must be letters, digits, "-" and "_" only.')
    lent = {name for table in tables.values() for name in _lent_variables(table)}
    own = {setting: rest for setting, givens in _of_cluster(by_variables) if (rest := _without(givens, lent))}
    if tables and own:
        variable = next(iter(own.values()))[0].label
        raise ConfigError(
            f"{variable} describes a cluster and so does {toml.file}: choose one, by removing the PROXMOX_ "
            "variables or the [clusters] tables."
        )
    if own:
        return (_cluster("default", own, warnings),)
    return tuple(_cluster_from_table(name, table, toml, warnings) for name, table in tables.items())


def _of_cluster(found: _Found) -> list[tuple[str, list[_Given]]]:
    return [(setting, givens) for setting, givens in found.items() if setting in _CLUSTER]


def _without(givens: list[_Given], spellings: set[str]) -> list[_Given]:
    return [given for given in givens if given.spelling not in spellings]


def _lent_variables(table: Mapping[str, object]) -> list[str]:
    """Variables that the TOML file reads a secret from: they describe no cluster of their own."""
    references = [value for value in table.values() if isinstance(value, dict)]
    return [reference["env"] for reference in references if isinstance(reference.get("env"), str)]


def _cluster_from_table(name: str, table: Mapping[str, object], toml: _Source, warnings: list[str]) -> ClusterSettings:
    source = _Source(0, toml.variables, f" in [clusters.{name}]", toml.file, is_toml=True)
    found = _found_in_table(table, _CLUSTER, source)
    if not found:
        raise ConfigError(f"[clusters.{name}] is empty: give it url, token_id and token_secret.")
    return _cluster(name, found, warnings)


def _cluster(name: str, found: _Found, warnings: list[str]) -> ClusterSettings:
    credentials = _credentials(found, warnings)
    trust = _trust(found)
    if not trust.verify:
        warnings.append(
            f'Certificate checks are off for cluster "{name}" ({found["verify"][0].label}), so anyone on the '
            "network path can read its credentials: trust its certificate by fingerprint or CA file instead."
        )
    endpoints = _endpoints(found)
    if trust.fingerprint and len(endpoints) > 1:
        warnings.append(
            f'Cluster "{name}" has several addresses but one fingerprint, and each node has its own '
            "certificate: give the cluster's CA file instead, or only one node will be trusted."
        )
    return ClusterSettings(
        name=name,
        connection=Connection(endpoints, credentials, trust, _limits(found)),
        default_node=_read(found, "default_node", _text),
        default_storage=_read(found, "default_storage", _text),
        default_bridge=_read(found, "default_bridge", _text),
    )


def _limits(found: _Found) -> Limits:
    usual = Limits()
    return Limits(
        request_seconds=_or_default(_read(found, "request_seconds", _time_limit), usual.request_seconds),
        total_seconds=_or_default(_read(found, "total_seconds", _time_limit), usual.total_seconds),
        connections=_or_default(_read(found, "connections", _connections), usual.connections),
    )


# --- address


def _endpoints(found: _Found) -> tuple[str, ...]:
    if "address" not in found:
        some = next(iter(found.values()))[0]
        raise ConfigError(f"{some.neighbour('address')} is missing: set it to the address of a Proxmox VE node.")
    port = found["port"][0] if "port" in found else None
    return _agreed(found["address"], lambda given: _addresses(given, port))


def _addresses(given: _Given, port: _Given | None) -> tuple[str, ...]:
    endpoints: dict[str, None] = {}  # a set that keeps the order
    for text in _texts(given):
        host, own_port = _split_address(text, given.label)
        endpoints[f"https://{host}:{_settled_port(given, own_port, port)}"] = None
    return tuple(endpoints)


def _settled_port(address: _Given, own_port: int | None, port: _Given | None) -> int:
    if port is None:
        return own_port or PVE_PORT
    number = _port(port)
    if own_port is None or port.rank > address.rank:
        return number
    if own_port != number and port.rank == address.rank:
        _contradiction(address, port)
    return own_port


def _split_address(text: str, label: str) -> tuple[str, int | None]:
    """Host and port of `host`, `host:port`, an IPv6 address or a URL."""
    # No message repeats the text, because it may hold a login.
    scheme, has_scheme, rest = text.partition("://")
    if has_scheme and scheme.lower() == "http":
        raise ConfigError(f"{label} starts with http://, but Proxmox VE speaks https only: write https:// instead.")
    if has_scheme and scheme.lower() != "https":
        raise ConfigError(f"{label} must be a host name, an IP address or an https:// URL.")
    address = rest if has_scheme else text
    if _is_ipv6(address):
        return f"[{address.lower()}]", None
    try:
        parts = urlsplit(f"https://{address}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ConfigError(f"{label} has a host or port that is not valid: write it as https://host:8006.") from None
    if "@" in parts.netloc:
        raise ConfigError(f"{label} must not hold a login: set user and password or token apart from the address.")
    if parts.path.strip("/") not in ("", "api2", "api2/json"):
        raise ConfigError(f"{label} has a path that is not Proxmox VE's: write only https://host:port.")
    if port == 0 or not (_is_ipv6(host) or re.fullmatch(r"[\w.-]+", host)):
        raise ConfigError(f"{label} has a host or port that is not valid: write it as https://host:8006.")
    return (f"[{host}]" if _is_ipv6(host) else host), port


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


# --- credentials

_USER = re.compile(r"[^\s:/@!]+(?:@[^\s:/@!]+)*@[A-Za-z][\w.-]+", re.ASCII)
_TOKEN_NAME = re.compile(r"[A-Za-z][\w.-]+", re.ASCII)


def _credentials(found: _Found, warnings: list[str]) -> Token | Password:
    token = [given for setting in ("token", "token_secret") for given in found.get(setting, [])]
    password = found.get("password", [])
    if token and password:
        token_rank, password_rank = max(given.rank for given in token), password[0].rank
        if token_rank == password_rank:
            first = next(given for given in token if given.rank == token_rank)
            raise ConfigError(
                f"{first.label} and {password[0].label} contradict each other: use a token or a password."
            )
        # The stronger source chose the kind of login; what the weaker one says about the other kind is void.
        return _token(found, warnings) if token_rank > password_rank else _login(found, warnings)
    if token:
        return _token(found, warnings)
    if password:
        return _login(found, warnings)
    some = found.get("user", next(iter(found.values())))[0]
    needed = f"{some.neighbour('token')} and {some.neighbour('token_secret')}"
    if "user" in found:
        raise ConfigError(f"{some.neighbour('password')} is missing: set it, or set {needed}.")
    raise ConfigError(f"{needed} are missing: set them to an API token of the cluster (user@realm!name, secret).")


def _token(found: _Found, warnings: list[str]) -> Token:
    if "token" not in found:
        given = found["token_secret"][0]
        raise ConfigError(f"{given.neighbour('token')} is missing: {given.label} needs a token it belongs to.")
    if "token_secret" not in found:
        given = found["token"][0]
        raise ConfigError(f"{given.neighbour('token_secret')} is missing: {given.label} needs its secret.")
    user = found["user"][0] if "user" in found else None
    token_id = _agreed(found["token"], lambda given: _token_id(given, user))
    return Token(token_id, _secret(found["token_secret"], warnings))


def _token_id(given: _Given, user: _Given | None) -> str:
    owner, is_full, name = _text(given).rpartition("!")
    if not _TOKEN_NAME.fullmatch(name):
        raise ConfigError(f"{given.label} must look like user@realm!name, as Proxmox VE shows the token's id.")
    if not is_full:
        if user is None:
            raise ConfigError(
                f"{given.neighbour('user')} is missing: {given.label} gives only the token's name, so set "
                "the user (user@realm) or write the name as user@realm!name."
            )
        return f"{_user(user)}!{name}"
    full_owner = _with_realm(owner, given.label)
    if user is not None and user.rank == given.rank and _user(user) != full_owner:
        _contradiction(user, given)
    return f"{full_owner}!{name}"


def _login(found: _Found, warnings: list[str]) -> Password:
    if "user" not in found:
        given = found["password"][0]
        raise ConfigError(f"{given.neighbour('user')} is missing: {given.label} needs the user (user@realm).")
    return Password(_agreed(found["user"], _user), _secret(found["password"], warnings))


def _user(given: _Given) -> str:
    return _with_realm(_text(given), given.label)


def _with_realm(user: str, label: str) -> str:
    full = user if "@" in user else f"{user}@pam"
    if not _USER.fullmatch(full):
        raise ConfigError(f"{label} must name the user as user@realm, such as root@pam.")
    return full


def _secret(givens: list[_Given], warnings: list[str]) -> Secret:
    secret = _agreed(givens, lambda given: Secret(_secret_text(given)))
    holder = next((given.source.file for given in givens if isinstance(given.value, str)), None)
    if holder and _is_open_to_others(holder):
        warnings.append(f"{holder} holds a secret and other users can read it: run `chmod 600 {holder}`.")
    return secret


def _secret_text(given: _Given) -> str:
    match given.value:
        case str(text):
            pass
        case {"file": str(file), **rest} if not rest:
            path = given.source.path(file)
            text = _text_of(path, f"file of {given.label},").strip("\r\n")
        case {"env": str(name), **rest} if not rest:
            text = given.source.variables.get(name, "")
            if not text.strip():
                raise ConfigError(f"{given.label} refers to the variable {name}, which is not set: set it.")
        case _:
            raise ConfigError(f'{given.label} must be a text, {{ file = "PATH" }} or {{ env = "NAME" }}.')
    if not text.strip():
        raise ConfigError(f"{given.label} is empty: put the secret there.")
    return text


def _is_open_to_others(file: Path) -> bool:
    # Windows keeps its rights elsewhere and always reports these bits.
    return os.name == "posix" and bool(file.stat().st_mode & 0o044)


# --- trust


def _trust(found: _Found) -> Trust:
    verify = found.get("verify", [])
    ca_files = [*found.get("ca_file", []), *(given for given in verify if _is_path(given))]
    fingerprints = found.get("fingerprint", [])
    pins = _strongest([*ca_files, *fingerprints])
    if verify and not _agreed(verify, _verifies):
        if not pins or pins[0].rank < verify[0].rank:
            return Trust(verify=False)
        if pins[0].rank == verify[0].rank:
            raise ConfigError(
                f"{verify[0].label} switches certificate checks off but {pins[0].label} asks for one: "
                "keep only one of them."
            )
    return Trust(
        ca_file=_agreed_or_none([given for given in ca_files if given in pins], _existing_file),
        fingerprint=_agreed_or_none([given for given in fingerprints if given in pins], _fingerprint),
    )


def _strongest(givens: list[_Given]) -> list[_Given]:
    return [given for given in givens if given.rank == max(other.rank for other in givens)]


def _is_path(verify: _Given) -> bool:
    return verify.spelling != "PROXMOX_TLS_INSECURE" and _flag(verify) is None


def _verifies(given: _Given) -> bool:
    flag = _flag(given)
    if given.spelling != "PROXMOX_TLS_INSECURE":
        return flag is not False
    if flag is None:
        raise ConfigError(f"{given.label} must be true or false.")
    return not flag


def _existing_file(given: _Given) -> str:
    path = _path(given)
    if not path.is_file():
        names_a_file = given.spelling.lower().endswith("ca_file")
        what = "the path of a CA file" if names_a_file else "true, false or a CA file"
        raise ConfigError(f"{given.label} must be {what}, and there is no file {path}.")
    return str(path)


def _fingerprint(given: _Given) -> str:
    # The output of openssl may be pasted whole: "sha256 Fingerprint=AB:CD:..."
    digits = _text(given).rpartition("=")[2].replace(":", "").lower()
    if not re.fullmatch(r"[0-9a-f]{64}", digits):
        raise ConfigError(f"{given.label} must be a SHA-256 fingerprint, 64 hexadecimal digits with or without colons.")
    return digits


# ----------------------------------------------------------------------------------------------------
# Values


def _read(found: _Found, setting: str, reader: Callable[[_Given], T]) -> T | None:
    return _agreed_or_none(found.get(setting, []), reader)


def _agreed_or_none(givens: list[_Given], reader: Callable[[_Given], T]) -> T | None:
    return _agreed(givens, reader) if givens else None


def _agreed(givens: list[_Given], reader: Callable[[_Given], T]) -> T:
    """The value of a setting that may be given in several spellings, which then have to say the same."""
    first, *others = givens
    value = reader(first)
    for other in others:
        if reader(other) != value:
            _contradiction(first, other)
    return value


def _contradiction(one: _Given, other: _Given) -> NoReturn:
    raise ConfigError(f"{one.label} and {other.label} contradict each other: keep only one of them.")


def _or_default(value: T | None, default: T) -> T:
    return default if value is None else value


def _text(given: _Given) -> str:
    if not isinstance(given.value, str) or not given.value.strip():
        raise ConfigError(f"{given.label} must be a text that is not empty.")
    return given.value.strip()


def _texts(given: _Given) -> list[str]:
    """A list in TOML, or words with commas between them."""
    parts = given.value if isinstance(given.value, list) else _text(given).split(",")
    if not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"{given.label} must be a text or a list of texts.")
    texts = [part.strip() for part in parts if part.strip()]
    if not texts:
        raise ConfigError(f"{given.label} must name at least one.")
    return texts


def _path(given: _Given) -> Path:
    return given.source.path(_text(given))


def _flag(given: _Given) -> bool | None:
    if isinstance(given.value, bool):
        return given.value
    word = _text(given).lower()
    if word in ("true", "1", "yes", "on"):
        return True
    return False if word in ("false", "0", "no", "off") else None


def _number(given: _Given, lowest: float, highest: float) -> float:
    number = math.nan
    if isinstance(given.value, int | float | str) and not isinstance(given.value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            number = float(given.value)
    if not lowest <= number <= highest:
        raise ConfigError(f"{given.label} must be a number from {lowest:g} to {highest:g}.")
    return number


def _whole_number(given: _Given, lowest: int, highest: int) -> int:
    number = _number(given, lowest, highest)
    if number != int(number):
        raise ConfigError(f"{given.label} must be a whole number from {lowest} to {highest}.")
    return int(number)


def _port(given: _Given) -> int:
    return _whole_number(given, 1, 65535)


def _connections(given: _Given) -> int:
    return _whole_number(given, 1, 1000)


def _time_limit(given: _Given) -> float:
    return _number(given, 1, 3600)


def _seconds(given: _Given) -> float:
    return _number(given, 0, 3600)


def _access(given: _Given) -> Access:
    word = _text(given).lower()
    try:
        return Access(word)
    except ValueError:
        hint = _did_you_mean(word, list(Access))
        raise ConfigError(f"{given.label} must be read, operate or admin{';' + hint if hint else '.'}") from None


def _toolsets(given: _Given) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.lower() for name in _texts(given)))
    return ("all",) if "all" in names else names
