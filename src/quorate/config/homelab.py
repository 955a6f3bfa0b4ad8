"""Hosts around the clusters: `[homelab]` and its variables."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from quorate.config.files import config_folder, state_folder
from quorate.config.sources import (
    ConfigError,
    Option,
    Rank,
    RawSetting,
    Source,
    Table,
    in_named_table,
    in_variables,
    merge,
    option,
    options_of,
    table,
)
from quorate.config.ssh import PASSWORD, as_files, as_key, as_networks, as_output_bytes, as_user, read_ssh
from quorate.config.values import as_https_url, as_path, as_secret, as_text, read_options
from quorate.secret import Secret
from quorate.ssh.settings import MAX_OUTPUT, Network, SshSettings

PRIVATE_NETWORKS = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
SCRIPTS_URL = "https://raw.githubusercontent.com/community-scripts/ProxmoxVE/main"
SERVICES_FOLDER = "/opt/quorate"


def _as_remote_folder(raw: RawSetting) -> str:
    """A folder on the hosts, not on this machine."""
    text = as_text(raw)
    if not text.startswith("/") or ".." in text.split("/") or text.strip("/") == "":
        raise ConfigError(f"{raw.label} must be an absolute path on the hosts, such as {SERVICES_FOLDER}.")
    return text.rstrip("/")


def _as_passphrase(raw: RawSetting) -> Secret:
    if raw.rank is Rank.TOML and not isinstance(raw.value, dict):
        raise ConfigError(
            f'{raw.label} must be a reference to the passphrase, {{ file = "PATH" }} or {{ env = "NAME" }}.'
        )
    return as_secret(raw)


@dataclass(frozen=True, slots=True)
class HomelabSettings:
    ssh: SshSettings = field(default_factory=SshSettings)
    """`ssh.nodes` is the login for hosts without one of their own."""
    networks: tuple[Network, ...] = option(
        "networks that may be scanned",
        as_networks,
        "QUORATE_HOMELAB_NETWORKS",
        default=PRIVATE_NETWORKS,
        usual="the private ranges",
    )
    secrets_folder: Path = option(
        "the folder behind `file:NAME`; callers over HTTP may name private keys in it",
        as_path,
        "QUORATE_HOMELAB_SECRETS_FOLDER",
        default=Path("secrets.d"),
        usual="`$XDG_CONFIG_HOME/quorate/secrets`",
    )
    secrets_file: Path = option(
        "the encrypted file behind `vault:NAME`",
        as_path,
        "QUORATE_HOMELAB_SECRETS_FILE",
        default=Path("secrets"),
        usual="`$XDG_STATE_HOME/quorate/secrets.json`",
    )
    passphrase: Secret | None = option(
        'decrypts that file; in TOML only `{ file = "…" }` or `{ env = "…" }`',
        _as_passphrase,
        "QUORATE_SECRETS_PASSPHRASE",
        keys=("secrets_passphrase",),
        secret=True,
    )
    catalogue: Path = option(
        "the folder of your own service templates",
        as_path,
        "QUORATE_HOMELAB_CATALOGUE",
        default=Path("services"),
        usual="`$XDG_CONFIG_HOME/quorate/services`",
    )
    services_folder: str = option(
        "where services are installed on hosts, one folder each",
        _as_remote_folder,
        "QUORATE_HOMELAB_SERVICES_FOLDER",
        default=SERVICES_FOLDER,
    )
    work: Path = option(
        "work folders of Terraform and Ansible",
        as_path,
        "QUORATE_HOMELAB_WORK_FOLDER",
        keys=("work_folder",),
        default=Path("work"),
        usual="`$XDG_STATE_HOME/quorate/work`",
    )
    scripts_url: str = option(
        "where [community scripts](homelab/scripts.md) come from; https only",
        as_https_url,
        "QUORATE_HOMELAB_SCRIPTS_URL",
        default=SCRIPTS_URL,
        usual="the community-scripts project on GitHub",
    )
    scripts_index: Path = Path("scripts.json")
    """The index that `quorate scripts refresh` stores."""


LOGIN = table(
    user=Option(
        "the login for hosts registered without a user", as_user, variables=("QUORATE_HOMELAB_USER",), default="root"
    ),
    key=Option(
        "the path of a private key, for hosts without their own",
        as_key,
        variables=("QUORATE_HOMELAB_KEY",),
        usual="the SSH agent's keys, otherwise the standard files in `~/.ssh`",
    ),
    password=PASSWORD,
    jump=Option("jump hosts where none is registered, as for `[ssh]`", variables=("QUORATE_HOMELAB_JUMP",)),
    known_hosts=Option(
        "files with host keys, in addition to the standard ones and `quorate trust`",
        as_files,
        variables=("QUORATE_HOMELAB_KNOWN_HOSTS",),
    ),
    max_output=Option(
        "how many bytes of each output of a command are kept",
        as_output_bytes,
        variables=("QUORATE_HOMELAB_MAX_OUTPUT_BYTES",),
        keys=("max_output_bytes",),
        default=MAX_OUTPUT,
    ),
)
HOMELAB_OPTIONS: Table = {**LOGIN, **options_of(HomelabSettings)}


def read_homelab(
    process: Source, document: Mapping[str, object], toml: Source, live: Callable[[], Mapping[str, str]]
) -> HomelabSettings:
    raw = merge(in_variables(HOMELAB_OPTIONS, process), in_named_table("homelab", document, HOMELAB_OPTIONS, toml))
    variables = live()
    usual = {
        "secrets_folder": config_folder(variables) / "secrets",
        "secrets_file": state_folder(variables) / "secrets.json",
        "catalogue": config_folder(variables) / "services",
        "work": state_folder(variables) / "work",
        "scripts_index": state_folder(variables) / "scripts.json",
    }
    ssh = replace(read_ssh(raw, LOGIN, variables), variables=live)
    return HomelabSettings(ssh=ssh, **{**usual, **read_options(options_of(HomelabSettings), raw)})
