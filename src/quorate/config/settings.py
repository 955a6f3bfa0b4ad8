"""All settings, as the rest of the program sees them, loaded from all sources."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.command_rules import CommandRules
from quorate.config.clusters import (
    CLUSTER,
    HOMELAB,
    Access,
    ClusterSettings,
    GuestDefaults,
    read_clusters,
    read_guest_defaults,
)
from quorate.config.connection import connection_in_variables
from quorate.config.dotenv import read_local_connection
from quorate.config.files import usual_audit_file, usual_config_file, usual_state
from quorate.config.homelab import HomelabSettings, read_homelab
from quorate.config.images import CloudImage, read_images
from quorate.config.pbs import BackupServerSettings, read_backup_servers
from quorate.config.policy import NO_POLICY, Policy, read_policy, refuse_ambiguous_rules
from quorate.config.sources import (
    ConfigError as ConfigError,
)
from quorate.config.sources import (
    Option,
    Rank,
    RawSetting,
    RawSettings,
    Source,
    Table,
    environment,
    in_arguments,
    in_table,
    in_variables,
    merge,
    option,
    options_of,
    table,
    toml_file,
)
from quorate.config.ssh import read_command_rules, with_ssh
from quorate.config.values import (
    Choice,
    as_lower_texts,
    as_path,
    as_secret,
    as_switch,
    as_text,
    as_toolsets,
    as_waiting_time,
    read,
    read_options,
)
from quorate.log import LogFormat, LogLevel
from quorate.secret import Secret

if TYPE_CHECKING:
    from quorate.config.http import HttpSettings
    from quorate.config.watch import WatchSettings

OPT_INS = ("PROXMOX_ALLOW_ELEVATED", "PROXMOX_ENABLE_DESTRUCTIVE")
"""Variables with which operators of other servers allow dangerous calls."""
NOTHING_CONFIGURED = (
    "No Proxmox VE cluster is configured: run `quorate init` (or set PROXMOX_URL, PROXMOX_TOKEN_ID and "
    "PROXMOX_TOKEN_SECRET). `quorate call guest_list --demo` and `quorate serve --demo` work without one, and so do "
    "plain hosts: --toolsets hosts."
)


class Approval(enum.StrEnum):
    """How destructive calls are approved."""

    ASK = "ask"
    """The person at the client approves, otherwise an operator at a terminal."""
    TOKEN = "token"  # noqa: S105
    """The plan token of a dry run is required, where nobody can be asked."""
    NONE = "none"


def _as_state(raw: RawSetting) -> str:
    """A path, or a database URL."""
    text = as_text(raw)
    return text if "://" in text else str(as_path(raw))


@dataclass(frozen=True, slots=True)
class Settings:
    clusters: tuple[ClusterSettings, ...] = ()
    """Empty when nothing is configured: the tools can still be listed."""
    backup_servers: tuple[BackupServerSettings, ...] = ()
    access: Access = option(
        "what callers may do: `read`, `operate` or `admin`",
        Choice(Access),
        "QUORATE_ACCESS",
        flag="--access",
        default=Access.READ,
    )
    toolsets: tuple[str, ...] | None = option(
        "which toolsets are served (`quorate call` reaches all unless you select some): comma-separated names (a list "
        "in TOML). `+NAME` adds to the default tools, `all` is every toolset for clusters and the watch, `homelab` "
        "every toolset for the homelab, `default` the default tools",
        as_toolsets,
        "QUORATE_TOOLSETS",
        flag="--toolsets",
        usual="the default set",
    )
    surfaces: tuple[str, ...] = option(
        "which tools are listed: `native`, `lean` (four small tools that reach everything, see "
        "[surfaces](surfaces.md)), or those of another server (`brynnjocelyn`, `bsahane`, `gilby125`, `solomonneas`, "
        "`washyu`); separate several with commas (a list in TOML)",
        as_lower_texts,
        "QUORATE_SURFACE",
        keys=("surface",),
        flag="--surface",
        default=("native",),
    )
    look_inside: bool = option(
        "`true` allows tools that look inside guests (files, services, screens) at access `read`; otherwise they need "
        "`operate`",
        as_switch,
        "QUORATE_LOOK_INSIDE",
        default=False,
    )
    approval: Approval = option(
        "how destructive calls are approved: `ask` (by the person at the client, otherwise by an operator with "
        "`quorate approvals`), `token` (the call must include the plan token of a dry run) or `none`",
        Choice(Approval),
        "QUORATE_APPROVAL",
        flag="--approval",
        default=Approval.ASK,
    )
    approve_changes: bool = option(
        "`true` requires approval for every change, not only for destructive ones",
        as_switch,
        "QUORATE_APPROVE_CHANGES",
        default=False,
    )
    state: str = option(
        "where state is stored (approvals, tokens, hosts, runs, findings): a file, or "
        "`postgresql://user:password@host/name` for several replicas; PostgreSQL then also holds the audit trail",
        _as_state,
        "QUORATE_STATE",
        default_factory=usual_state,
        repr=False,
        usual="`$XDG_STATE_HOME/quorate/state.sqlite`",
    )
    audit_file: Path = option(
        "where every change is recorded",
        as_path,
        "QUORATE_AUDIT_FILE",
        default_factory=usual_audit_file,
        usual="`$XDG_STATE_HOME/quorate/audit.jsonl`, normally `~/.local/state/quorate/audit.jsonl`",
    )
    wait_seconds: float = option(
        "how long to follow a change before returning its task id; many clients give up after 60 seconds",
        as_waiting_time,
        "QUORATE_WAIT_SECONDS",
        default=45.0,
    )
    log_format: LogFormat = option(
        "how `quorate serve` and `quorate watch` write their [log](logging.md): `text`, or `json` with one object per "
        "line",
        Choice(LogFormat),
        "QUORATE_LOG_FORMAT",
        flag="--log-format",
        default=LogFormat.TEXT,
    )
    log_level: LogLevel = option(
        "the least severe lines that are logged: `debug`, `info` (also one line for each call), `warning` or `error`",
        Choice(LogLevel),
        "QUORATE_LOG_LEVEL",
        flag="--log-level",
        default=LogLevel.INFO,
    )
    container_password: Secret | None = option(
        "root's password in containers that [bsahane's tools](migrating.md#bsahane) create",
        as_secret,
        "PROXMOX_DEFAULT_LXC_PASSWORD",
        keys=(),
        secret=True,
    )
    opt_ins: frozenset[str] = frozenset()
    """Opt-in variables of other servers that are set."""
    gate_chosen: bool = False
    """Whether access or approval is set explicitly."""
    command_rules: CommandRules = field(default_factory=CommandRules)
    """Commands that may run inside guests and on hosts."""
    upload_dirs: tuple[Path, ...] = ()
    """Folders of this machine with images that callers over HTTP may upload."""
    image_catalog: Mapping[str, CloudImage] = field(default_factory=dict)
    """The operator's own cloud images; they take precedence over Quorate's of the same name."""
    guest_defaults: GuestDefaults = field(default_factory=GuestDefaults)
    """What new guests get where the call says nothing."""
    homelab: HomelabSettings = field(default_factory=HomelabSettings)
    policy: Policy = NO_POLICY
    http: HttpSettings | None = None
    """Only for `serve --http`."""
    watch: WatchSettings | None = None
    """None unless clusters and hosts are watched."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What was taken from a `.env` and what was ignored; printed at every start."""
    config_file: Path | None = None
    """The TOML file, if there is one."""
    problem: str | None = None
    """Why there is no cluster."""

    @property
    def applicable_opt_ins(self) -> frozenset[str]:
        """Opt-ins of other servers never loosen what was chosen here."""
        return frozenset() if self.gate_chosen else self.opt_ins


GENERAL: Table = {
    **options_of(Settings),
    **table(
        config=Option(
            "the TOML file to read",
            as_path,
            variables=("QUORATE_CONFIG",),
            keys=(),
            flag="--config",
            usual="see above",
        )
    ),
}
TABLES = ("clusters", "pbs", "defaults", "policy", "rules", "http", "ssh", "inside", "images", "homelab", "watch")


def load(
    *,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    dotenv: Path | None = None,
    access: str | None = None,
    toolsets: str | None = None,
    approval: str | None = None,
    surface: str | None = None,
    log_format: str | None = None,
    log_level: str | None = None,
    http: Mapping[str, str | None] | None = None,
    tolerate: bool = False,
) -> Settings:
    """Read the settings, or raise a `ConfigError`. HTTP settings are read if `http` is given, even if empty.

    With `tolerate`, an error in a cluster's description becomes `Settings.problem`, so that the tools can still be
    listed. Access level and toolsets must always be valid: they decide what is listed.
    """

    def live() -> Mapping[str, str]:
        return os.environ if environ is None else environ

    warnings: list[str] = []
    process = environment(live(), warnings)
    by_variables = in_variables(GENERAL, process)
    document, toml = toml_file(file or _config_file(by_variables, process.variables), process)
    chosen = {"access": access, "toolsets": toolsets, "approval": approval, "surfaces": surface}
    flags = in_arguments(GENERAL, {**chosen, "log_format": log_format, "log_level": log_level})
    general = merge(flags, by_variables, in_table(document, GENERAL, toml, also=TABLES))
    connection = connection_in_variables(CLUSTER, process)
    local = read_local_connection(
        dotenv,
        connection,
        toml.file if document.get("clusters") else None,
        warnings,
        surfaces=read(general, "surfaces", as_lower_texts, ()),
        instance=process.variables.get("MCP_SERVER_NAME"),
    )

    policy = read_policy(document, toml)
    clusters: tuple[ClusterSettings, ...] = ()
    backup_servers: tuple[BackupServerSettings, ...] = ()
    problem = None
    try:
        clusters = read_clusters(merge(connection, local.raw), document.get("clusters", {}), toml)
        clusters = with_ssh(clusters, process, document, toml, live, follow_reported=not local.raw)
        backup_servers = read_backup_servers(document.get("pbs", {}), toml, [cluster.name for cluster in clusters])
    except ConfigError as error:
        if local.ignored:
            error = ConfigError(f"{error} {local.ignored}")
        if not tolerate:
            raise error from None
        problem = str(error)
    else:
        own = [rule for cluster in clusters for rule in cluster.policy.rules]
        refuse_ambiguous_rules([*policy.rules, *own], [*(cluster.name for cluster in clusters), HOMELAB])
    usual = {"state": usual_state(process.variables), "audit_file": usual_audit_file(process.variables)}
    return Settings(
        clusters=_cap_access(clusters, general),
        backup_servers=backup_servers,
        policy=policy,
        opt_ins=_opt_ins(process.variables),
        gate_chosen=bool({"access", "approval"} & set(general)),
        command_rules=read_command_rules(document, toml),
        guest_defaults=read_guest_defaults(process, document, toml),
        homelab=read_homelab(process, document, toml, live),
        http=None if http is None else _http(http, process, document, toml),
        watch=_watch(process, document, toml),
        **read_images(process, document, toml),
        **{**usual, **read_options(options_of(Settings), general)},
        warnings=tuple(dict.fromkeys(warnings)),
        notes=local.notes,
        config_file=toml.file,
        problem=problem or (None if clusters else NOTHING_CONFIGURED),
    )


def _cap_access(clusters: tuple[ClusterSettings, ...], general: RawSettings) -> tuple[ClusterSettings, ...]:
    """An access level from a source above the TOML file limits every cluster in the file."""
    limit = general["access"][0] if "access" in general else None
    if limit is None or limit.rank is Rank.TOML:
        return clusters
    most = Choice(Access)(limit)
    return tuple(
        replace(cluster, access=most) if cluster.access is not None and not most.allows(cluster.access) else cluster
        for cluster in clusters
    )


def _opt_ins(variables: Mapping[str, str]) -> frozenset[str]:
    return frozenset(name for name in OPT_INS if variables.get(name, "").strip().lower() in ("1", "true", "yes", "on"))


def _http(
    flags: Mapping[str, str | None], process: Source, document: Mapping[str, object], toml: Source
) -> HttpSettings:
    from quorate.config.http import read_http  # stdio does not need it

    return read_http(flags, process, document, toml)


def _watch(process: Source, document: Mapping[str, object], toml: Source) -> WatchSettings | None:
    if not document.get("watch") and "QUORATE_WATCH" not in process.variables:
        return None
    from quorate.config.watch import read_watch  # most setups do not watch

    return read_watch(process, document, toml)


def _config_file(by_variables: RawSettings, variables: Mapping[str, str]) -> Path | None:
    if named := read(by_variables, "config", as_path, None):
        return named
    default = usual_config_file(variables)
    return default if default.is_file() else None
