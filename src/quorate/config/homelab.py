"""Read `[homelab]` and its variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from quorate.config.credentials import read_secret
from quorate.config.folders import (
    usual_catalogue,
    usual_pins,
    usual_scripts_index,
    usual_secrets_folder,
    usual_vault,
    usual_work,
)
from quorate.config.names import HOMELAB
from quorate.config.raw import Rank, RawSetting, RawSettings, Source, merge
from quorate.config.settings import PRIVATE_NETWORKS, SCRIPTS_URL, SERVICES_FOLDER, ConfigError, HomelabSettings
from quorate.config.sources import settings_in_table
from quorate.config.ssh import as_bytes, as_networks, read_known_hosts, read_login
from quorate.config.values import as_path, as_text, read
from quorate.secret import Secret
from quorate.ssh.settings import MAX_OUTPUT, SshSettings

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def read_homelab(
    by_variables: RawSettings, table: object, toml: Source, live: Callable[[], Mapping[str, str]], warnings: list[str]
) -> HomelabSettings:
    if not isinstance(table, dict):
        raise ConfigError(f"The setting homelab{toml.suffix} must be a table: write [homelab] above its settings.")
    found = merge(by_variables, settings_in_table(table, HOMELAB, replace(toml, suffix=" in [homelab]")))
    variables = live()
    return HomelabSettings(
        ssh=SshSettings(
            read_login(found, "home", warnings),
            known_hosts=read_known_hosts(found, "home_known_hosts", variables),
            pins=usual_pins(variables),
            max_output=read(found, "home_max_output", as_bytes, MAX_OUTPUT),
            variables=live,
        ),
        networks=read(found, "home_networks", as_networks, PRIVATE_NETWORKS),
        secrets_folder=read(found, "home_secrets_folder", as_path, None) or usual_secrets_folder(variables),
        secrets_file=read(found, "home_secrets_file", as_path, None) or usual_vault(variables),
        passphrase=_passphrase(found.get("home_passphrase", []), warnings),
        catalogue=read(found, "home_catalogue", as_path, None) or usual_catalogue(variables),
        services_folder=read(found, "home_services_folder", _as_remote_folder, SERVICES_FOLDER),
        work=read(found, "home_work", as_path, None) or usual_work(variables),
        scripts_url=read(found, "home_scripts_url", _as_https_url, SCRIPTS_URL),
        scripts_index=usual_scripts_index(variables),
    )


def _as_https_url(given: RawSetting) -> str:
    """HTTPS only: scripts from there run as root on nodes."""
    from urllib.parse import urlsplit

    address = as_text(given)
    parts = urlsplit(address)
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)):
        raise ConfigError(f"{given.label} must be an https:// address.")
    return address


def _as_remote_folder(given: RawSetting) -> str:
    """A folder on the hosts, not on this machine."""
    text = as_text(given)
    if not text.startswith("/") or ".." in text.split("/") or text.strip("/") == "":
        raise ConfigError(f"{given.label} must be an absolute path on the hosts, such as {SERVICES_FOLDER}.")
    return text.rstrip("/")


def _passphrase(givens: list[RawSetting], warnings: list[str]) -> Secret | None:
    if not givens:
        return None
    if givens[0].rank is Rank.TOML and not isinstance(givens[0].value, dict):
        raise ConfigError(
            f'{givens[0].label} must be a reference to the passphrase, {{ file = "PATH" }} or {{ env = "NAME" }}.'
        )
    return read_secret(givens, warnings)
