"""Load the settings from all sources."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.config.clusters import read_clusters
from quorate.config.credentials import read_secret
from quorate.config.folders import usual_audit_file, usual_config_file, usual_state
from quorate.config.homelab import read_homelab
from quorate.config.local_connection import read_local_connection
from quorate.config.names import GENERAL, HTTP, IMAGES
from quorate.config.policy import read_policy, refuse_ambiguous_rules
from quorate.config.raw import Rank, RawSettings, Source, merge
from quorate.config.settings import HOMELAB, WAIT_SECONDS, Access, Approval, ClusterSettings, ConfigError, Settings
from quorate.config.sources import (
    environment,
    opt_ins_in,
    settings_in_arguments,
    settings_in_table,
    settings_in_variables,
    toml_file,
)
from quorate.config.ssh import read_command_rules, with_ssh
from quorate.config.values import (
    as_access,
    as_approval,
    as_choice,
    as_folders,
    as_path,
    as_state,
    as_surfaces,
    as_toolsets,
    as_waiting_time,
    read,
)

if TYPE_CHECKING:
    from quorate.config.http import HttpSettings
    from quorate.config.watch import WatchSettings

NOTHING_CONFIGURED = (
    "No Proxmox VE cluster is configured: run `quorate init` (or set PROXMOX_URL, PROXMOX_TOKEN_ID and "
    "PROXMOX_TOKEN_SECRET). `quorate call guest_list --demo` and `quorate serve --demo` work without one, and so do "
    "plain hosts: --toolsets hosts."
)


def load(
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    dotenv: Path | None = None,
    access: str | None = None,
    toolsets: str | None = None,
    approval: str | None = None,
    surface: str | None = None,
    http: Mapping[str, str | None] | None = None,
    tolerate: bool = False,
) -> Settings:
    """Read the settings, or raise a `ConfigError`. HTTP settings are read if `http` is given, even if empty.

    With `tolerate`, an error in a cluster's description becomes `Settings.problem`, so that the tools can still be
    listed. Access level and toolsets must always be valid: they decide what is listed.
    """
    process = environment(os.environ if environ is None else environ)
    by_variables = settings_in_variables(process)
    table, toml = toml_file(file or _config_file(by_variables, process.variables), process.variables)
    tables = ("clusters", "policy", "rules", "http", "ssh", "inside", "images", "homelab", "watch")
    by_table = settings_in_table(table, GENERAL, toml, also=tables)
    flags = settings_in_arguments(access=access, toolsets=toolsets, approval=approval, surface=surface)
    general = merge(flags, by_variables, by_table)
    local = read_local_connection(
        dotenv,
        by_variables,
        toml.file if table.get("clusters") else None,
        surfaces=read(general, "surface", as_surfaces, ()),
        instance=process.variables.get("MCP_SERVER_NAME"),
    )

    policy = read_policy(table, toml)
    warnings: list[str] = []
    clusters: tuple[ClusterSettings, ...] = ()
    problem = None

    def live() -> Mapping[str, str]:
        return os.environ if environ is None else environ

    try:
        clusters = read_clusters(merge(by_variables, local.found), table.get("clusters", {}), toml, warnings)
        clusters = with_ssh(clusters, by_variables, table, toml, live, warnings, follow_reported=not local.found)
    except ConfigError as error:
        if local.ignored:
            error = ConfigError(f"{error} {local.ignored}")
        if not tolerate:
            raise error from None
        problem = str(error)
    else:
        own = [rule for cluster in clusters for rule in cluster.policy.rules]
        refuse_ambiguous_rules([*policy.rules, *own], [*(cluster.name for cluster in clusters), HOMELAB])
    return Settings(
        clusters=_cap_access(clusters, general),
        policy=policy,
        access=read(general, "access", as_access, Access.READ),
        toolsets=read(general, "toolsets", as_toolsets, None),
        surfaces=read(general, "surface", as_surfaces, ("native",)),
        opt_ins=opt_ins_in(process.variables),
        gate_chosen=bool({"access", "approval"} & set(general)),
        look_inside=read(general, "look_inside", as_choice, False),
        command_rules=read_command_rules(table.get("inside", {}), toml),
        upload_dirs=_upload_dirs(by_variables, table.get("images", {}), toml),
        homelab=read_homelab(by_variables, table.get("homelab", {}), toml, live, warnings),
        approval=read(general, "approval", as_approval, Approval.ASK),
        approve_changes=read(general, "approve_changes", as_choice, False),
        state=read(general, "state", as_state, None) or usual_state(process.variables),
        audit_file=read(general, "audit_file", as_path, None) or usual_audit_file(process.variables),
        wait_seconds=read(general, "wait_seconds", as_waiting_time, WAIT_SECONDS),
        container_password=read_secret(general["container_password"], warnings)
        if "container_password" in general
        else None,
        http=None if http is None else _http(http, by_variables, table.get("http", {}), toml),
        watch=_watch(by_variables, table.get("watch", {}), toml, warnings),
        warnings=tuple(warnings),
        notes=local.notes,
        config_file=toml.file,
        problem=problem or (None if clusters else NOTHING_CONFIGURED),
    )


def _cap_access(clusters: tuple[ClusterSettings, ...], general: RawSettings) -> tuple[ClusterSettings, ...]:
    """An access level from a source above the TOML file limits every cluster in the file."""
    given = general["access"][0] if "access" in general else None
    if given is None or given.rank is Rank.TOML:
        return clusters
    most = as_access(given)
    return tuple(
        replace(one, access=most) if one.access is not None and not most.allows(one.access) else one for one in clusters
    )


def _upload_dirs(by_variables: RawSettings, table: object, toml: Source) -> tuple[Path, ...]:
    if not isinstance(table, dict):
        raise ConfigError(f"The setting images{toml.suffix} must be a table: write [images] above its settings.")
    images = merge(by_variables, settings_in_table(table, IMAGES, replace(toml, suffix=" in [images]")))
    return read(images, "upload_dirs", as_folders, ())


def _http(flags: Mapping[str, str | None], by_variables: RawSettings, table: object, toml: Source) -> HttpSettings:
    from quorate.config.http import read_http  # stdio does not need it

    if not isinstance(table, dict):
        raise ConfigError(f"The setting http{toml.suffix} must be a table: write [http] above its settings.")
    by_table = settings_in_table(table, HTTP, replace(toml, suffix=" in [http]"))
    return read_http(merge(settings_in_arguments(**flags), by_variables, by_table))


def _watch(by_variables: RawSettings, table: object, toml: Source, warnings: list[str]) -> WatchSettings | None:
    if not table and "watch" not in by_variables:
        return None
    from quorate.config.watch import read_watch  # most setups do not watch

    return read_watch(by_variables, table, toml, warnings)


def _config_file(by_variables: RawSettings, variables: Mapping[str, str]) -> Path | None:
    if named := read(by_variables, "config", as_path, None):
        return named
    default = usual_config_file(variables)
    return default if default.is_file() else None
