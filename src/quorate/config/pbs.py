"""Proxmox Backup Servers: the tables `[pbs.NAME]` of the TOML file."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from quorate.config.clusters import HOMELAB, LIMITS, SERVER
from quorate.config.connection import TRUST, read_endpoints, read_trust
from quorate.config.sources import ConfigError, Option, RawSetting, Source, Table, in_table, table
from quorate.config.values import as_secret, as_text, read_options
from quorate.pve.connection import PBS, Connection, Limits, Token

ADDRESS = table(
    address=Option(
        "a host name, `host:port`, an IPv4 or IPv6 address, or a URL; the port is 8007 unless it includes one",
        keys=("url", "host"),
        usual="required",
    ),
)
LOGIN = table(
    token=Option("the API token as `user@realm!name`", keys=("token_id",), usual="required"),
    token_secret=Option(
        'the token\'s secret: `{ file = "PATH" }`, `{ env = "NAME" }` or the secret itself',
        as_secret,
        keys=("token_secret",),
        usual="required",
    ),
)
_NOT_IN_VARIABLES = {name: replace(declared, variables=()) for name, declared in {**TRUST, **LIMITS}.items()}
BACKUP_SERVER: Table = {**ADDRESS, **LOGIN, **_NOT_IN_VARIABLES}


_TOKEN_ID = re.compile(r"[^\s:/@!]+@[A-Za-z0-9_][\w.-]*![A-Za-z0-9_][\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class BackupServerSettings:
    """One Proxmox Backup Server."""

    name: str
    connection: Connection


def read_backup_servers(
    tables: object, toml: Source, clusters: Collection[str] = ()
) -> tuple[BackupServerSettings, ...]:
    """The servers of the tables `[pbs.NAME]`; they share their names with no cluster."""
    if not isinstance(tables, dict) or not all(isinstance(content, dict) for content in tables.values()):
        raise ConfigError(f"Backup servers{toml.suffix} must be tables: write [pbs.NAME] above their settings.")
    return tuple(_read_server(name, content, toml, clusters) for name, content in tables.items())


def _read_server(
    name: str, content: dict[str, object], toml: Source, clusters: Collection[str]
) -> BackupServerSettings:
    if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name, re.ASCII):
        raise ConfigError(f'Backup server name "{name}"{toml.suffix} must be letters, digits, "-" and "_" only.')
    if name in (HOMELAB, SERVER, *clusters):
        taken = "a cluster has that name" if name in clusters else "that name has a meaning of its own"
        raise ConfigError(f'A backup server cannot be called "{name}"{toml.suffix}: {taken}.')
    raw = in_table(content, BACKUP_SERVER, replace(toml, suffix=f" in [pbs.{name}]"))
    if not raw:
        raise ConfigError(f"[pbs.{name}] is empty: add url, token_id and token_secret.")
    if missing := [key for key in ("token", "token_secret") if key not in raw]:
        keys = " and ".join((BACKUP_SERVER[key].keys or ())[0] for key in missing)
        raise ConfigError(f"[pbs.{name}] lacks {keys}: set it to an API token of the server (user@realm!name).")
    credentials = Token(_read_token_id(raw["token"][0]), as_secret(raw["token_secret"][0]))
    if not credentials.secret.reveal().isprintable():  # it goes into a header
        raise ConfigError(f"{raw['token_secret'][0].label} contains a line break: it must be the secret alone.")
    trust = read_trust(raw)
    if not trust.verify:
        toml.warnings.append(
            f'Certificate checks are off for backup server "{name}" ({raw["verify"][0].label}), so anyone on the '
            "network path can read its credentials: trust its certificate by fingerprint or CA file instead."
        )
    endpoints = read_endpoints(raw, PBS)
    if len(endpoints) > 1:
        raise ConfigError(f"{raw['address'][0].label} must be one address: a backup server is a single machine.")
    limits = Limits(**read_options(LIMITS, raw))
    return BackupServerSettings(name, Connection(endpoints, credentials, trust, limits, PBS))


def _read_token_id(raw: RawSetting) -> str:
    text = as_text(raw)
    if not _TOKEN_ID.fullmatch(text):
        raise ConfigError(f"{raw.label} must look like user@realm!name, as the backup server shows it.")
    return text
