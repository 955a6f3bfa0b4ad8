"""From every source to the settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from quorate.config.clusters import read_clusters
from quorate.config.folders import usual_audit_file, usual_config_file
from quorate.config.given import Found, merged
from quorate.config.settings import WAIT_SECONDS, Access, ClusterSettings, ConfigError, Settings
from quorate.config.sources import (
    dotenv_file,
    environment,
    found_in_arguments,
    found_in_table,
    found_in_variables,
    toml_file,
)
from quorate.config.spellings import GENERAL
from quorate.config.values import as_access, as_choice, as_path, as_toolsets, as_waiting_time, read

NOTHING_CONFIGURED = (
    "No Proxmox VE cluster is configured: set PROXMOX_URL, PROXMOX_TOKEN_ID and PROXMOX_TOKEN_SECRET "
    "(or write a config file), or try `quorate serve --demo`, which needs nothing."
)


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
    process = environment(os.environ if environ is None else environ)
    env_file = dotenv_file(dotenv)
    variables = {**env_file.variables, **process.variables}
    by_variables = merged(found_in_variables(process), found_in_variables(env_file))
    table, toml = toml_file(file or _config_file(by_variables, variables), variables)
    by_table = found_in_table(table, GENERAL, toml, also=("clusters",))
    general = merged(found_in_arguments(access, toolsets), by_variables, by_table)

    warnings: list[str] = []
    clusters: tuple[ClusterSettings, ...] = ()
    problem = None
    try:
        clusters = read_clusters(by_variables, table.get("clusters", {}), toml, warnings)
    except ConfigError as error:
        if not tolerate:
            raise
        problem = str(error)
    return Settings(
        clusters=clusters,
        access=read(general, "access", as_access, Access.READ),
        toolsets=read(general, "toolsets", as_toolsets, None),
        look_inside=read(general, "look_inside", as_choice, False),
        audit_file=read(general, "audit_file", as_path, None) or usual_audit_file(variables),
        wait_seconds=read(general, "wait_seconds", as_waiting_time, WAIT_SECONDS),
        warnings=tuple(warnings),
        problem=problem or (None if clusters else NOTHING_CONFIGURED),
    )


def _config_file(by_variables: Found, variables: Mapping[str, str]) -> Path | None:
    if named := read(by_variables, "config", as_path, None):
        return named
    usual = usual_config_file(variables)
    return usual if usual.is_file() else None
