"""The clusters: one described by variables, or those in the tables of the TOML file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from quorate.config.credentials import read_credentials
from quorate.config.endpoints import read_endpoints
from quorate.config.given import Found, Source
from quorate.config.policy import read_policy
from quorate.config.settings import ClusterSettings, ConfigError
from quorate.config.sources import found_in_table
from quorate.config.spellings import CLUSTER
from quorate.config.trust import read_trust
from quorate.config.values import as_access, as_connections, as_text, as_time_limit, read
from quorate.homelab.settings import NAME
from quorate.pve.connection import Connection, Limits


def read_clusters(
    by_variables: Found, tables: object, toml: Source, warnings: list[str]
) -> tuple[ClusterSettings, ...]:
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(f"Clusters{toml.suffix} must be tables: write [clusters.NAME] above their settings.")
    for name in tables:
        if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name, re.ASCII):
            raise ConfigError(f'Cluster name "{name}"{toml.suffix} must be letters, digits, "-" and "_" only.')
    if NAME in tables:
        raise ConfigError(
            f'No cluster can be called "{NAME}"{toml.suffix}: that is what the hosts around it are called.'
        )
    own = _of_a_cluster(by_variables, _lent_variables(tables))
    if tables and own:
        variable = next(iter(own.values()))[0].label
        raise ConfigError(
            f"{variable} describes a cluster and so does {toml.file}: choose one, by removing the PROXMOX_ "
            "variables or the [clusters] tables."
        )
    if own:
        return (_cluster("default", own, warnings),)
    return tuple(_cluster_from_table(name, table, toml, warnings) for name, table in tables.items())


def _lent_variables(tables: Mapping[str, Mapping[str, object]]) -> list[object]:
    """Variables that the TOML file reads a secret from: they describe no cluster of their own."""
    values = [value for table in tables.values() for value in table.values()]
    return [value["env"] for value in values if isinstance(value, dict) and "env" in value]


def _of_a_cluster(by_variables: Found, lent: list[object]) -> Found:
    found: Found = {}
    for setting, givens in by_variables.items():
        own = [given for given in givens if given.spelling not in lent]
        if own and setting in CLUSTER:
            found[setting] = own
    return found


def _cluster_from_table(name: str, table: Mapping[str, object], toml: Source, warnings: list[str]) -> ClusterSettings:
    source = replace(toml, suffix=f" in [clusters.{name}]")
    found = found_in_table(table, CLUSTER, source, also=("policy", "rules", "ssh"))
    if not found:
        raise ConfigError(f"[clusters.{name}] is empty: give it url, token_id and token_secret.")
    return replace(_cluster(name, found, warnings), policy=read_policy(table, toml, name))


def _cluster(name: str, found: Found, warnings: list[str]) -> ClusterSettings:
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
            "certificate: give the cluster's CA file instead, or only one node will be trusted."
        )
    return ClusterSettings(
        name=name,
        connection=Connection(endpoints, credentials, trust, _limits(found)),
        default_node=read(found, "default_node", as_text, None),
        default_storage=read(found, "default_storage", as_text, None),
        default_bridge=read(found, "default_bridge", as_text, None),
        access=read(found, "own_access", as_access, None),
    )


def _limits(found: Found) -> Limits:
    usual = Limits()
    return Limits(
        request_seconds=read(found, "request_seconds", as_time_limit, usual.request_seconds),
        total_seconds=read(found, "total_seconds", as_time_limit, usual.total_seconds),
        connections=read(found, "connections", as_connections, usual.connections),
    )
