"""From every source to the settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.config.clusters import read_clusters
from quorate.config.folders import usual_audit_file, usual_config_file, usual_state
from quorate.config.given import Found, Rank, Source, merged
from quorate.config.homelab import read_homelab
from quorate.config.policy import read_policy, refuse_confusion
from quorate.config.settings import WAIT_SECONDS, Access, Approval, ClusterSettings, ConfigError, Settings
from quorate.config.sources import (
    dotenv_file,
    environment,
    found_in_arguments,
    found_in_table,
    found_in_variables,
    found_opt_ins,
    toml_file,
)
from quorate.config.spellings import GENERAL, HTTP
from quorate.config.ssh import read_command_rules, with_ssh
from quorate.config.values import (
    as_access,
    as_approval,
    as_choice,
    as_path,
    as_state,
    as_surfaces,
    as_toolsets,
    as_waiting_time,
    read,
)
from quorate.homelab.settings import NAME

if TYPE_CHECKING:
    from quorate.config.http import HttpSettings

NOTHING_CONFIGURED = (
    "No Proxmox VE cluster is configured: `quorate init` sets one up (or set PROXMOX_URL, PROXMOX_TOKEN_ID and "
    "PROXMOX_TOKEN_SECRET); `quorate call guest_list --demo` and `quorate serve --demo` need nothing, "
    "and plain hosts need no cluster: --toolsets homelab."
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
    """Read the settings, or raise a `ConfigError`. Those for HTTP are read if its flags are given, even none of them.

    With `tolerate`, a mistake in the description of a cluster becomes `Settings.problem`, so that the tools
    can be listed all the same. Access level and toolsets must always be right: they decide what is listed.
    """
    process = environment(os.environ if environ is None else environ)
    env_file = dotenv_file(dotenv)
    variables = {**env_file.variables, **process.variables}
    by_variables = merged(found_in_variables(process), found_in_variables(env_file))
    table, toml = toml_file(file or _config_file(by_variables, variables), variables)
    by_table = found_in_table(
        table, GENERAL, toml, also=("clusters", "policy", "rules", "http", "ssh", "inside", "homelab")
    )
    flags = found_in_arguments(access=access, toolsets=toolsets, approval=approval, surface=surface)
    general = merged(flags, by_variables, by_table)

    policy = read_policy(table, toml)
    warnings: list[str] = []
    clusters: tuple[ClusterSettings, ...] = ()
    problem = None

    def live() -> Mapping[str, str]:
        return {**env_file.variables, **(os.environ if environ is None else environ)}

    try:
        clusters = read_clusters(by_variables, table.get("clusters", {}), toml, warnings)
        clusters = with_ssh(clusters, by_variables, table, toml, live, warnings)
    except ConfigError as error:
        if not tolerate:
            raise
        problem = str(error)
    else:
        own = [rule for cluster in clusters for rule in cluster.policy.rules]
        refuse_confusion([*policy.rules, *own], [*(cluster.name for cluster in clusters), NAME])
    return Settings(
        clusters=_held_down(clusters, general),
        policy=policy,
        access=read(general, "access", as_access, Access.READ),
        toolsets=read(general, "toolsets", as_toolsets, None),
        surfaces=read(general, "surface", as_surfaces, ("native",)),
        opt_ins=found_opt_ins(process, env_file),
        gate_chosen=bool({"access", "approval"} & set(general)),
        look_inside=read(general, "look_inside", as_choice, False),
        command_rules=read_command_rules(table.get("inside", {}), toml),
        homelab=read_homelab(by_variables, table.get("homelab", {}), toml, live, warnings),
        approval=read(general, "approval", as_approval, Approval.ASK),
        approve_changes=read(general, "approve_changes", as_choice, False),
        state=read(general, "state", as_state, None) or usual_state(variables),
        audit_file=read(general, "audit_file", as_path, None) or usual_audit_file(variables),
        wait_seconds=read(general, "wait_seconds", as_waiting_time, WAIT_SECONDS),
        http=None if http is None else _http(http, by_variables, table.get("http", {}), toml),
        warnings=tuple(warnings),
        config_file=toml.file,
        problem=problem or (None if clusters else NOTHING_CONFIGURED),
    )


def _held_down(clusters: tuple[ClusterSettings, ...], general: Found) -> tuple[ClusterSettings, ...]:
    """An access level from a stronger source than the TOML file is the most that any cluster there allows."""
    given = general["access"][0] if "access" in general else None
    if given is None or given.rank is Rank.TOML:
        return clusters
    most = as_access(given)
    return tuple(
        replace(one, access=most) if one.access is not None and not most.allows(one.access) else one for one in clusters
    )


def _http(flags: Mapping[str, str | None], by_variables: Found, table: object, toml: Source) -> HttpSettings:
    from quorate.config.http import read_http  # stdio does without

    if not isinstance(table, dict):
        raise ConfigError(f"The setting http{toml.suffix} must be a table: write [http] above its settings.")
    by_table = found_in_table(table, HTTP, replace(toml, suffix=" in [http]"))
    return read_http(merged(found_in_arguments(**flags), by_variables, by_table))


def _config_file(by_variables: Found, variables: Mapping[str, str]) -> Path | None:
    if named := read(by_variables, "config", as_path, None):
        return named
    usual = usual_config_file(variables)
    return usual if usual.is_file() else None
