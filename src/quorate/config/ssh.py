"""SSH to nodes and guests: `[ssh]` and its variables for all, `[clusters.NAME.ssh]` for one cluster and its guests."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from quorate.command_rules import CommandRules
from quorate.config.credentials import read_secret
from quorate.config.folders import home, usual_pins
from quorate.config.names import INSIDE, SSH, SSH_GUEST, SSH_GUESTS
from quorate.config.raw import RawSetting, RawSettings, Source, merge
from quorate.config.settings import ClusterSettings, ConfigError
from quorate.config.sources import settings_in_table
from quorate.config.values import as_path, as_port, as_text, as_texts, read, whole_number
from quorate.problems import NotConfigured
from quorate.secret import Secret
from quorate.ssh.settings import MAX_OUTPUT, Login, Network, SshSettings
from quorate.ssh.target import SSH_PORT, SshTarget, split_port

_SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
_USER = re.compile(r"[A-Za-z0-9_][\w.@\\-]*\$?", re.ASCII)


def with_ssh(
    clusters: tuple[ClusterSettings, ...],
    by_variables: RawSettings,
    table: Mapping[str, object],
    toml: Source,
    live: Callable[[], Mapping[str, str]],
    warnings: list[str],
    *,
    follow_reported: bool,
) -> tuple[ClusterSettings, ...]:
    """Add SSH settings to the clusters; those of one cluster override those of all."""
    tables = table.get("clusters", {})
    whole = _Tables(table.get("ssh", {}), replace(toml, suffix=" in [ssh]"))
    found = []
    for cluster in clusters:
        own_table = tables.get(cluster.name, {}).get("ssh", {}) if isinstance(tables, dict) else {}
        own = _Tables(own_table, replace(toml, suffix=f" in [clusters.{cluster.name}.ssh]"))
        settings = replace(_settings(by_variables, whole, own, live(), warnings), follow_reported=follow_reported)
        # A variable with a vmid does not name a cluster: with several, it could mean another guest.
        found.append(replace(cluster, ssh=replace(settings, variables=live) if len(clusters) == 1 else settings))
    return tuple(found)


def read_command_rules(table: object, toml: Source) -> CommandRules:
    if not isinstance(table, dict):
        raise ConfigError(f"The setting inside{toml.suffix} must be a table: write [inside] above its settings.")
    found = settings_in_table(table, INSIDE, replace(toml, suffix=" in [inside]"))
    return CommandRules(read(found, "inside_allow", _as_patterns, ()), read(found, "inside_deny", _as_patterns, ()))


class _Tables:
    """One `ssh` table: settings for nodes, for all guests, and for single ones."""

    def __init__(self, table: object, source: Source) -> None:
        what = source.suffix.removeprefix(" in ")
        if not isinstance(table, dict) or not isinstance(table.get("guests", {}), dict):
            raise ConfigError(f"{what} must be a table, and so must the guests in it.")
        self.nodes = settings_in_table(table, SSH, source, also=("guests",))
        guests = table.get("guests", {})
        inner = what.removesuffix("]")
        all_of_them = {key: value for key, value in guests.items() if not key.isdecimal()}
        self.guests = settings_in_table(all_of_them, SSH_GUESTS, replace(source, suffix=f" in {inner}.guests]"))
        self.single = {
            int(key): _single(value, replace(source, suffix=f" in {inner}.guests.{key}]"))
            for key, value in guests.items()
            if key.isdecimal()
        }


def _single(table: object, source: Source) -> RawSettings:
    if not isinstance(table, dict):
        raise ConfigError(f"{source.suffix.removeprefix(' in ')} must be a table with host, user or key.")
    return settings_in_table(table, SSH_GUEST, source)


def _settings(
    by_variables: RawSettings, whole: _Tables, own: _Tables, variables: Mapping[str, str], warnings: list[str]
) -> SshSettings:
    nodes = merge(own.nodes, {name: by_variables[name] for name in SSH if name in by_variables}, whole.nodes)
    guests = merge(own.guests, {name: by_variables[name] for name in SSH_GUESTS if name in by_variables}, whole.guests)
    return SshSettings(
        nodes=read_login(nodes, "ssh", warnings),
        node_hosts=read(nodes, "ssh_nodes", _as_hosts, {}),
        guests=read_login(guests, "guest_ssh", warnings),
        single_guests={
            vmid: read_login(found, "guest_ssh", warnings) for vmid, found in {**whole.single, **own.single}.items()
        },
        known_hosts=read_known_hosts(nodes, "ssh_known_hosts", variables),
        pins=usual_pins(variables),
        networks=read(nodes, "ssh_networks", as_networks, ()),
        max_output=read(nodes, "ssh_max_output", as_bytes, MAX_OUTPUT),
    )


def read_known_hosts(found: RawSettings, setting: str, variables: Mapping[str, str]) -> tuple[Path, ...]:
    """The operator's additional files, then those that `ssh` itself uses."""
    return (*read(found, setting, _as_files, ()), home(variables) / ".ssh" / "known_hosts", _SYSTEM_KNOWN_HOSTS)


def read_login(found: RawSettings, prefix: str, warnings: list[str]) -> Login:
    user = read(found, f"{prefix}_user", _as_user, None)
    key = read(found, f"{prefix}_key", _as_key, None)
    return Login(
        host=read(found, f"{prefix}_host", _as_host, None),
        port=read(found, f"{prefix}_port", as_port, None),
        user=user,
        key=key,
        password=_password(found.get(f"{prefix}_password", []), warnings),
        jump=read(found, f"{prefix}_jump", lambda given: _as_jump(given, user, key, warnings), None),
    )


def _password(givens: list[RawSetting], warnings: list[str]) -> Secret | None:
    if not givens:
        return None
    if not isinstance(givens[0].value, dict):
        raise ConfigError(
            f'{givens[0].label} must be a reference to the secret, {{ file = "PATH" }} or {{ env = "NAME" }}; '
            "a key is better."
        )
    return read_secret(givens, warnings)


def _as_host(given: RawSetting) -> str:
    """Kept as written; the port is split off when used."""
    return _checked_host(as_text(given), given.label)


def _checked_host(text: str, label: str) -> str:
    try:
        host, _ = split_port(text)
    except NotConfigured:
        host = ""
    if not re.fullmatch(r"[\w.:%-]+", host) or host.startswith("-"):
        raise ConfigError(f"{label} must be a host name or an IP address, with or without :port.")
    return text


def _as_hosts(given: RawSetting) -> dict[str, str]:
    if not isinstance(given.value, dict) or not all(isinstance(host, str) for host in given.value.values()):
        raise ConfigError(f'{given.label} must map nodes to addresses: {{ pve1 = "10.0.0.5" }}.')
    return {str(node): _checked_host(host.strip(), given.label) for node, host in given.value.items()}


def _as_user(given: RawSetting) -> str:
    text = as_text(given)
    if not _USER.fullmatch(text):
        raise ConfigError(f"{given.label} must be the name of a user.")
    return text


def _as_key(given: RawSetting) -> Path:
    if "PRIVATE KEY" in as_text(given):
        raise ConfigError(f"{given.label} must be the path of a private key, not the key itself.")
    return as_path(given)


def _as_files(given: RawSetting) -> tuple[Path, ...]:
    files = tuple(given.source.path(text) for text in as_texts(given))
    for file in files:
        if not file.is_file():
            raise ConfigError(f"{given.label} must be files with host keys, but {file} does not exist.")
    return files


def as_networks(given: RawSetting) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(one) for one in as_texts(given))
    except ValueError as error:
        raise ConfigError(f"{given.label} must be networks such as 10.0.0.0/24: {error}.") from None


def as_bytes(given: RawSetting) -> int:
    return whole_number(given, 1024, 100_000_000)


def _as_patterns(given: RawSetting) -> tuple[str, ...]:
    """Patterns must be a list, because a pattern may contain commas."""
    if not isinstance(given.value, list) or not all(isinstance(one, str) and one.strip() for one in given.value):
        raise ConfigError(f'{given.label} must be a list of patterns, such as ["systemctl status *"].')
    return tuple(given.value)


def _as_jump(given: RawSetting, user: str | None, key: Path | None, warnings: list[str]) -> SshTarget:
    """`user@host:port`, several separated by commas (nearest first), or a table with its own login."""
    if isinstance(given.value, dict):
        source = replace(given.source, suffix=f" of {given.label}")
        table = {name: value for name, value in given.value.items() if name != "jump"}
        login = read_login(settings_in_table(table, SSH_GUEST, source), "guest_ssh", warnings)
        if login.host is None:
            raise ConfigError(f"{given.label} must name the jump host.")
        return replace(login, user=login.user or user, key=login.key or (key if login.password is None else None)).at(
            login.host
        )
    jump: SshTarget | None = None
    for text in as_texts(given):
        who, at, where = text.rpartition("@")
        host, port = split_port(_checked_host(where, given.label))
        if at and not _USER.fullmatch(who):
            raise ConfigError(f"{given.label} must look like user@host or user@host:port.")
        jump = SshTarget(host, port or SSH_PORT, who or user or "root", key, jump=jump)
    assert jump is not None
    return jump
