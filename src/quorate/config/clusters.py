"""Clusters: one described by variables, or the tables of the TOML file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from quorate.config.credentials import read_credentials
from quorate.config.endpoints import read_endpoints
from quorate.config.names import CLUSTER
from quorate.config.policy import read_policy
from quorate.config.raw import RawSetting, RawSettings, Source
from quorate.config.settings import HOMELAB, SERVER, ClusterSettings, ConfigError
from quorate.config.sources import settings_in_table
from quorate.config.trust import read_trust
from quorate.config.values import (
    as_access,
    as_answer_size,
    as_connections,
    as_text,
    as_time_limit,
    read,
    whole_number,
)
from quorate.pve.connection import Connection, Limits


def read_clusters(
    by_variables: RawSettings, tables: object, toml: Source, warnings: list[str]
) -> tuple[ClusterSettings, ...]:
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(f"Clusters{toml.suffix} must be tables: write [clusters.NAME] above their settings.")
    for name in tables:
        if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name, re.ASCII):
            raise ConfigError(f'Cluster name "{name}"{toml.suffix} must be letters, digits, "-" and "_" only.')
    for taken, means in ((HOMELAB, "everything outside the clusters"), (SERVER, "this server itself")):
        if taken in tables:
            raise ConfigError(f'A cluster cannot be called "{taken}"{toml.suffix}: that name means {means}.')
    own = _cluster_settings(by_variables, _referenced_variables(tables))
    if tables and own:
        variable = next(iter(own.values()))[0].label
        raise ConfigError(
            f"{variable} describes a cluster and so does {toml.file}: remove either the PROXMOX_ variables or the "
            "[clusters] tables."
        )
    if own:
        return (_cluster("default", own, warnings),)
    return tuple(_cluster_from_table(name, table, toml, warnings) for name, table in tables.items())


def _referenced_variables(tables: Mapping[str, Mapping[str, object]]) -> list[object]:
    """Variables that the TOML file reads secrets from: they do not describe a cluster."""
    values = [value for table in tables.values() for value in table.values()]
    return [value["env"] for value in values if isinstance(value, dict) and "env" in value]


def _cluster_settings(by_variables: RawSettings, referenced: list[object]) -> RawSettings:
    found: RawSettings = {}
    for setting, givens in by_variables.items():
        own = [given for given in givens if given.spelling not in referenced]
        if own and setting in CLUSTER:
            found[setting] = own
    return found


def _cluster_from_table(name: str, table: Mapping[str, object], toml: Source, warnings: list[str]) -> ClusterSettings:
    source = replace(toml, suffix=f" in [clusters.{name}]")
    found = settings_in_table(table, CLUSTER, source, also=("policy", "rules", "ssh"))
    if not found:
        raise ConfigError(f"[clusters.{name}] is empty: add url, token_id and token_secret.")
    return replace(_cluster(name, found, warnings), policy=read_policy(table, toml, name))


def _cluster(name: str, found: RawSettings, warnings: list[str]) -> ClusterSettings:
    credentials = read_credentials(found, warnings)
    trust = read_trust(found)
    if not trust.verify:
        warnings.append(
            f'Certificate checks are off for cluster "{name}" ({found["verify"][0].label}), so anyone on the '
            "network path can read its credentials: trust its certificate by fingerprint or CA file instead."
        )
    endpoints = read_endpoints(found)
    if trust.fingerprint and len(endpoints) > 1:
        warnings.append(
            f'Cluster "{name}" has several addresses but one fingerprint, and each node has its own '
            "certificate: use the cluster's CA file instead, or only one node will be trusted."
        )
    return ClusterSettings(
        name=name,
        connection=Connection(endpoints, credentials, trust, _limits(found)),
        default_node=read(found, "default_node", as_text, None),
        default_storage=read(found, "default_storage", as_text, None),
        default_bridge=read(found, "default_bridge", as_text, None),
        access=read(found, "own_access", as_access, None),
    )


def _limits(found: RawSettings) -> Limits:
    default = Limits()
    request = read(found, "request_seconds", _request_seconds, default.request_seconds)
    return Limits(
        request_seconds=request,
        total_seconds=read(found, "total_seconds", as_time_limit, max(default.total_seconds, request)),
        connections=read(found, "connections", as_connections, default.connections),
        answer_bytes=read(found, "answer_bytes", as_answer_size, default.answer_bytes),
    )


def _request_seconds(given: RawSetting) -> float:
    """brynnjocelyn's variable and file use milliseconds."""
    if given.spelling not in ("PROXMOX_TIMEOUT", "timeout"):
        return as_time_limit(given)
    return whole_number(given, 1000, 3_600_000) / 1000
