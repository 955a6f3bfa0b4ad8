"""SSH to nodes and guests: `[ssh]` and its variables for all, `[clusters.NAME.ssh]` for one cluster and its guests."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from quorate.command_rules import CommandRules
from quorate.config.clusters import ClusterSettings
from quorate.config.files import home, usual_pins
from quorate.config.sources import (
    ConfigError,
    Option,
    RawSetting,
    RawSettings,
    Source,
    Table,
    in_named_table,
    in_table,
    in_variables,
    merge,
    table,
)
from quorate.config.values import WholeNumber, as_path, as_port, as_secret, as_text, as_texts, read, read_options
from quorate.problems import NotConfigured
from quorate.secret import Secret
from quorate.ssh.settings import MAX_OUTPUT, Login, Network, SshSettings
from quorate.ssh.target import SSH_PORT, SshTarget, split_port

_SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
_USER = re.compile(r"[A-Za-z0-9_][\w.@\\-]*\$?", re.ASCII)


def _as_host(raw: RawSetting) -> str:
    """Kept as written; the port is split off when used."""
    return _checked_host(as_text(raw), raw.label)


def _checked_host(text: str, label: str) -> str:
    try:
        host, _ = split_port(text)
    except NotConfigured:
        host = ""
    if not re.fullmatch(r"[\w.:%-]+", host) or host.startswith("-"):
        raise ConfigError(f"{label} must be a host name or an IP address, with or without :port.")
    return text


def _as_hosts(raw: RawSetting) -> dict[str, str]:
    if not isinstance(raw.value, dict) or not all(isinstance(host, str) for host in raw.value.values()):
        raise ConfigError(f'{raw.label} must map nodes to addresses: {{ pve1 = "10.0.0.5" }}.')
    return {str(node): _checked_host(host.strip(), raw.label) for node, host in raw.value.items()}


def as_user(raw: RawSetting) -> str:
    text = as_text(raw)
    if not _USER.fullmatch(text):
        raise ConfigError(f"{raw.label} must be the name of a user.")
    return text


def as_key(raw: RawSetting) -> Path:
    if "PRIVATE KEY" in as_text(raw):
        raise ConfigError(f"{raw.label} must be the path of a private key, not the key itself.")
    return as_path(raw)


def as_files(raw: RawSetting) -> tuple[Path, ...]:
    files = tuple(raw.source.path(text) for text in as_texts(raw))
    for file in files:
        if not file.is_file():
            raise ConfigError(f"{raw.label} must be files with host keys, but {file} does not exist.")
    return files


def as_networks(raw: RawSetting) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(text) for text in as_texts(raw))
    except ValueError as error:
        raise ConfigError(f"{raw.label} must be networks such as 10.0.0.0/24: {error}.") from None


def as_password(raw: RawSetting) -> Secret:
    if not isinstance(raw.value, dict):
        raise ConfigError(
            f'{raw.label} must be a reference to the secret, {{ file = "PATH" }} or {{ env = "NAME" }}; '
            "a key is better."
        )
    return as_secret(raw)


def _as_patterns(raw: RawSetting) -> tuple[str, ...]:
    """Patterns must be a list, because a pattern may contain commas."""
    if not isinstance(raw.value, list) or not all(isinstance(text, str) and text.strip() for text in raw.value):
        raise ConfigError(f'{raw.label} must be a list of patterns, such as ["systemctl status *"].')
    return tuple(raw.value)


as_output_bytes = WholeNumber(1024, 100_000_000)

# -- options -----------------------------------------------------------------------------------------------------------

PASSWORD = Option('only as a reference: `{ file = "…" }` or `{ env = "…" }`; a key is better', as_password)
NODES = table(
    host=Option(
        "one node, with or without `:port`; enough for a single-node cluster",
        _as_host,
        variables=("PROXMOX_SSH_HOST",),
    ),
    port=Option("the port for addresses without one", as_port, variables=("PROXMOX_SSH_PORT",), default=SSH_PORT),
    user=Option(
        "the login; any user but root needs passwordless `sudo` for `pct`",
        as_user,
        variables=("PROXMOX_SSH_USER",),
        default="root",
    ),
    key=Option(
        "the path of a private key",
        as_key,
        variables=("PROXMOX_SSH_KEY",),
        usual="the SSH agent's keys (`SSH_AUTH_SOCK`), otherwise the standard files in `~/.ssh`",
    ),
    password=PASSWORD,
    jump=Option(
        "jump hosts: `user@host:port`, several separated by commas, the nearest first; in TOML also a table with "
        "`host`, `user`, `port`, `key` and `password`",
        variables=("PROXMOX_SSH_JUMP",),
    ),
    known_hosts=Option(
        "files with host keys, in addition to `~/.ssh/known_hosts` and `/etc/ssh/ssh_known_hosts`",
        as_files,
        variables=("PROXMOX_SSH_KNOWN_HOSTS",),
    ),
    max_output=Option(
        "how many bytes of each output of a command over SSH are kept",
        as_output_bytes,
        variables=("PROXMOX_SSH_MAX_OUTPUT_BYTES",),
        keys=("max_output_bytes",),
        default=MAX_OUTPUT,
    ),
    node_hosts=Option(
        'the address of each node: `{ pve1 = "10.0.0.5", pve2 = "10.0.0.6:2222" }`',
        _as_hosts,
        keys=("nodes",),
        usual="reported by the cluster, otherwise the node's name",
    ),
    networks=Option(
        "networks in which SSH may use addresses that the cluster or a guest reports; addresses you configure are "
        "always used",
        as_networks,
        variables=("PROXMOX_SSH_NETWORKS",),
        usual="any",
    ),
)
GUESTS = table(
    port=Option("as for nodes", as_port),
    user=Option("who logs in", as_user, variables=("PROXMOX_VM_SSH_USER",), usual="as for nodes"),
    key=Option("the path of a private key", as_key, variables=("PROXMOX_VM_SSH_KEY",), usual="as for nodes"),
    password=Option("as for nodes", as_password),
    jump=Option("as for nodes"),
)
GUEST: Table = {
    **table(
        host=Option(
            "the address of one guest, which is then always reached by SSH",
            _as_host,
            usual="reported by the agent or the configuration",
        )
    ),
    **GUESTS,
}
"""Settings of one guest. Variables contain its id, as in PROXMOX_VM_101_SSH_HOST, and are read when used."""
INSIDE = table(
    allow=Option("if set, a command must match one of the patterns", _as_patterns, usual="everything"),
    deny=Option(
        "a command that matches one of the patterns is refused, even if allowed", _as_patterns, usual="nothing"
    ),
)

# -- reading -----------------------------------------------------------------------------------------------------------


def with_ssh(
    clusters: tuple[ClusterSettings, ...],
    process: Source,
    document: Mapping[str, object],
    toml: Source,
    live: Callable[[], Mapping[str, str]],
    *,
    follow_reported: bool,
) -> tuple[ClusterSettings, ...]:
    """Add SSH settings to the clusters; those of one cluster override those of all."""
    tables = document.get("clusters", {})
    whole = _Tables(document.get("ssh", {}), replace(toml, suffix=" in [ssh]"))
    complete = []
    for cluster in clusters:
        content = tables.get(cluster.name, {}).get("ssh", {}) if isinstance(tables, dict) else {}
        own = _Tables(content, replace(toml, suffix=f" in [clusters.{cluster.name}.ssh]"))
        settings = replace(_settings(process, whole, own, live()), follow_reported=follow_reported)
        # A variable with a vmid does not name a cluster: with several, it could mean another guest.
        complete.append(replace(cluster, ssh=replace(settings, variables=live) if len(clusters) == 1 else settings))
    return tuple(complete)


def read_command_rules(document: Mapping[str, object], toml: Source) -> CommandRules:
    return CommandRules(**read_options(INSIDE, in_named_table("inside", document, INSIDE, toml)))


class _Tables:
    """One `ssh` table: settings for nodes, for all guests, and for single ones."""

    def __init__(self, content: object, source: Source) -> None:
        what = source.suffix.removeprefix(" in ")
        if not isinstance(content, dict) or not isinstance(content.get("guests", {}), dict):
            raise ConfigError(f"{what} must be a table, and so must the guests in it.")
        self.nodes = in_table(content, NODES, source, also=("guests",))
        guests = content.get("guests", {})
        inner = what.removesuffix("]")
        all_of_them = {key: value for key, value in guests.items() if not key.isdecimal()}
        self.guests = in_table(all_of_them, GUESTS, replace(source, suffix=f" in {inner}.guests]"))
        self.single = {
            int(key): _single(value, replace(source, suffix=f" in {inner}.guests.{key}]"))
            for key, value in guests.items()
            if key.isdecimal()
        }


def _single(content: object, source: Source) -> RawSettings:
    if not isinstance(content, dict):
        raise ConfigError(f"{source.suffix.removeprefix(' in ')} must be a table with host, user or key.")
    return in_table(content, GUEST, source)


def _settings(process: Source, whole: _Tables, own: _Tables, variables: Mapping[str, str]) -> SshSettings:
    nodes = merge(own.nodes, in_variables(NODES, process), whole.nodes)
    guests = merge(own.guests, in_variables(GUESTS, process), whole.guests)
    return replace(
        read_ssh(nodes, NODES, variables),
        guests=read_login(guests),
        single_guests={vmid: read_login(raw) for vmid, raw in {**whole.single, **own.single}.items()},
    )


def read_ssh(raw: RawSettings, options: Table, variables: Mapping[str, str]) -> SshSettings:
    """The login and what else the options say; host keys come from the operator's files, then from those of `ssh`."""
    values = read_options({name: declared for name, declared in options.items() if name not in GUEST}, raw)
    usual = (home(variables) / ".ssh" / "known_hosts", _SYSTEM_KNOWN_HOSTS)
    values["known_hosts"] = (*values.get("known_hosts", ()), *usual)
    return SshSettings(read_login(raw), pins=usual_pins(variables), **values)


def read_login(raw: RawSettings) -> Login:
    login = Login(**read_options(GUEST, raw))
    return replace(login, jump=read(raw, "jump", lambda jump: _as_jump(jump, login.user, login.key), None))


def _as_jump(raw: RawSetting, user: str | None, key: Path | None) -> SshTarget:
    """`user@host:port`, several separated by commas (nearest first), or a table with its own login."""
    if isinstance(raw.value, dict):
        source = replace(raw.source, suffix=f" of {raw.label}")
        content = {name: value for name, value in raw.value.items() if name != "jump"}
        login = read_login(in_table(content, GUEST, source))
        if login.host is None:
            raise ConfigError(f"{raw.label} must name the jump host.")
        return replace(login, user=login.user or user, key=login.key or (key if login.password is None else None)).at(
            login.host
        )
    jump: SshTarget | None = None
    for text in as_texts(raw):
        who, at, where = text.rpartition("@")
        host, port = split_port(_checked_host(where, raw.label))
        if at and not _USER.fullmatch(who):
            raise ConfigError(f"{raw.label} must look like user@host or user@host:port.")
        jump = SshTarget(host, port or SSH_PORT, who or user or "root", key, jump=jump)
    assert jump is not None
    return jump
