"""Clusters: one described by variables, or the tables of the TOML file; and what new guests get by default."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address

from quorate.config.connection import CONNECTION, read_credentials, read_endpoints, read_trust
from quorate.config.policy import NO_POLICY, Policy, read_policy
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
    option,
    options_of,
    table,
    text_of,
)
from quorate.config.values import Choice, Number, WholeNumber, as_text, as_texts, as_time_limit, read_options
from quorate.pve.connection import Connection, Limits
from quorate.ssh.settings import SshSettings

HOMELAB = "homelab"
"""The name that rules and the audit trail use for everything outside the clusters."""
SERVER = "quorate"
"""The name that findings about this server itself have in place of a cluster."""


class Access(enum.StrEnum):
    """What callers may do. Each level includes the ones before it."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def rank(self) -> int:
        return _LEVELS[self]

    def allows(self, needed: Access) -> bool:
        return self.rank() >= needed.rank()


_LEVELS = {level: number for number, level in enumerate(Access)}


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    name: str
    connection: Connection
    default_node: str | None = option("node for new guests if the call names none", as_text, "PROXMOX_DEFAULT_NODE")
    default_storage: str | None = option(
        "storage for new disks if the call names none", as_text, "PROXMOX_DEFAULT_STORAGE"
    )
    default_bridge: str | None = option(
        "bridge for new network cards if the call names none", as_text, "PROXMOX_DEFAULT_BRIDGE"
    )
    access: Access | None = option(
        "the access level for this cluster; `--access` and `QUORATE_ACCESS` remain the upper limit for every cluster",
        Choice(Access),
        usual="the server's",
    )
    ssh: SshSettings = field(default_factory=SshSettings)
    policy: Policy = NO_POLICY
    """Applies in addition to the server's."""


def _as_public_keys(raw: RawSetting) -> tuple[str, ...]:
    """Public keys, or files that contain some."""
    from quorate.pve.values import is_ssh_key  # most setups have no such keys

    keys: list[str] = []
    for text in as_texts(raw):
        own = [text] if is_ssh_key(text) else text_of(raw.source.path(text), "public key").splitlines()
        lines = [line.strip() for line in own if line.strip() and not line.startswith("#")]
        if not lines or not all(map(is_ssh_key, lines)):
            raise ConfigError(f"{raw.label} must be public keys, such as ssh-ed25519 AAAA... comment, or .pub files.")
        keys += lines
    return tuple(dict.fromkeys(keys))


def _as_addresses(raw: RawSetting) -> tuple[str, ...]:
    texts = as_texts(raw)
    for text in texts:
        try:
            ip_address(text)
        except ValueError:
            raise ConfigError(f'{raw.label} must be IP addresses, but "{text}" is not one.') from None
    return texts


@dataclass(frozen=True, slots=True)
class GuestDefaults:
    """What new guests get where the call says nothing, in every cluster."""

    user: str | None = option("the user that cloud-init creates", as_text, "QUORATE_DEFAULT_USER")
    ssh_keys: tuple[str, ...] = option(
        "public keys that may log in to new guests, or files with public keys; several separated by commas (a list in "
        "TOML)",
        _as_public_keys,
        "QUORATE_DEFAULT_SSH_KEYS",
        default=(),
    )
    dns: tuple[str, ...] = option(
        "DNS servers; several separated by commas (a list in TOML)", _as_addresses, "QUORATE_DEFAULT_DNS", default=()
    )
    tags: tuple[str, ...] = option(
        "tags; several separated by commas (a list in TOML)", as_texts, "QUORATE_DEFAULT_TAGS", default=()
    )
    storage: str | None = option(
        "storage for new disks; a cluster's `default_storage` takes precedence", as_text, "QUORATE_DEFAULT_STORAGE"
    )
    bridge: str | None = option(
        "bridge for new network cards; a cluster's `default_bridge` takes precedence",
        as_text,
        "QUORATE_DEFAULT_BRIDGE",
    )


def read_guest_defaults(process: Source, document: Mapping[str, object], toml: Source) -> GuestDefaults:
    table_of_defaults = options_of(GuestDefaults)
    raw = merge(in_variables(table_of_defaults, process), in_named_table("defaults", document, table_of_defaults, toml))
    return GuestDefaults(**read_options(table_of_defaults, raw))


def _as_request_seconds(raw: RawSetting) -> float:
    """brynnjocelyn's variable and file use milliseconds."""
    if raw.spelling not in ("PROXMOX_TIMEOUT", "timeout"):
        return as_time_limit(raw)
    return WholeNumber(1000, 3_600_000)(raw) / 1000


LIMITS = table(
    request_seconds=Option(
        "time limit of one request to the cluster; the variable is in milliseconds",
        _as_request_seconds,
        variables=("PROXMOX_TIMEOUT",),
        default=Limits().request_seconds,
    ),
    total_seconds=Option(
        "time limit of one call, including retries on other nodes", Number(1, 3600), default=Limits().total_seconds
    ),
    connections=Option("concurrent connections to the cluster", WholeNumber(1, 1000), default=Limits().connections),
    answer_bytes=Option(
        "largest accepted response, uncompressed", WholeNumber(1_000_000, 1_000_000_000), default=Limits().answer_bytes
    ),
)
CLUSTER: Table = {**CONNECTION, **options_of(ClusterSettings), **LIMITS}


def read_clusters(raw: RawSettings, tables: object, toml: Source) -> tuple[ClusterSettings, ...]:
    """The cluster that `raw` describes, otherwise those of the tables `[clusters.NAME]`."""
    if not isinstance(tables, dict) or not all(isinstance(content, dict) for content in tables.values()):
        raise ConfigError(f"Clusters{toml.suffix} must be tables: write [clusters.NAME] above their settings.")
    for name in tables:
        if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name, re.ASCII):
            raise ConfigError(f'Cluster name "{name}"{toml.suffix} must be letters, digits, "-" and "_" only.')
    for taken, means in ((HOMELAB, "everything outside the clusters"), (SERVER, "this server itself")):
        if taken in tables:
            raise ConfigError(f'A cluster cannot be called "{taken}"{toml.suffix}: that name means {means}.')
    own = _without_referenced(raw, tables)
    if tables and own:
        variable = next(iter(own.values()))[0].label
        raise ConfigError(
            f"{variable} describes a cluster and so does {toml.file}: remove either the PROXMOX_ variables or the "
            "[clusters] tables."
        )
    if own:
        return (_cluster("default", own),)
    return tuple(_cluster_from_table(name, content, toml) for name, content in tables.items())


def _without_referenced(raw: RawSettings, tables: Mapping[str, Mapping[str, object]]) -> RawSettings:
    """Variables that the TOML file reads secrets from do not describe a cluster."""
    values = [value for content in tables.values() for value in content.values()]
    referenced = [value["env"] for value in values if isinstance(value, dict) and "env" in value]
    own = {
        name: [spelling for spelling in spellings if spelling.spelling not in referenced]
        for name, spellings in raw.items()
    }
    return {name: spellings for name, spellings in own.items() if spellings}


def _cluster_from_table(name: str, content: Mapping[str, object], toml: Source) -> ClusterSettings:
    source = replace(toml, suffix=f" in [clusters.{name}]")
    raw = in_table(content, CLUSTER, source, also=("policy", "rules", "ssh"))
    if not raw:
        raise ConfigError(f"[clusters.{name}] is empty: add url, token_id and token_secret.")
    return replace(_cluster(name, raw), policy=read_policy(content, toml, name))


def _cluster(name: str, raw: RawSettings) -> ClusterSettings:
    credentials = read_credentials(raw)
    trust = read_trust(raw)
    warnings = next(iter(raw.values()))[0].source.warnings
    if not trust.verify:
        warnings.append(
            f'Certificate checks are off for cluster "{name}" ({raw["verify"][0].label}), so anyone on the '
            "network path can read its credentials: trust its certificate by fingerprint or CA file instead."
        )
    endpoints = read_endpoints(raw)
    if trust.fingerprint and len(endpoints) > 1:
        warnings.append(
            f'Cluster "{name}" has several addresses but one fingerprint, and each node has its own '
            "certificate: use the cluster's CA file instead, or only one node will be trusted."
        )
    limits = read_options(LIMITS, raw)
    if "request_seconds" in limits:
        limits.setdefault("total_seconds", max(Limits().total_seconds, limits["request_seconds"]))
    connection = Connection(endpoints, credentials, trust, Limits(**limits))
    return ClusterSettings(name, connection, **read_options(options_of(ClusterSettings), raw))
