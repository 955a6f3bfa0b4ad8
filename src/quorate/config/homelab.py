"""The hosts around the clusters: `[homelab]` and its variables."""

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
from quorate.config.given import Found, Given, Rank, Source, merged
from quorate.config.settings import ConfigError
from quorate.config.sources import found_in_table
from quorate.config.spellings import HOMELAB
from quorate.config.ssh import as_bytes, as_networks, read_known_hosts, read_login
from quorate.config.values import as_path, as_text, read
from quorate.homelab.settings import PRIVATE, SCRIPTS_URL, SERVICES_FOLDER, HomelabSettings
from quorate.secret import Secret
from quorate.ssh.settings import MOST_OUTPUT, SshSettings

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def read_homelab(
    by_variables: Found, table: object, toml: Source, live: Callable[[], Mapping[str, str]], warnings: list[str]
) -> HomelabSettings:
    if not isinstance(table, dict):
        raise ConfigError(f"The setting homelab{toml.suffix} must be a table: write [homelab] above its settings.")
    found = merged(by_variables, found_in_table(table, HOMELAB, replace(toml, suffix=" in [homelab]")))
    variables = live()
    return HomelabSettings(
        ssh=SshSettings(
            read_login(found, "home", warnings),
            known_hosts=read_known_hosts(found, "home_known_hosts", variables),
            pins=usual_pins(variables),
            max_output=read(found, "home_max_output", as_bytes, MOST_OUTPUT),
            variables=live,
        ),
        networks=read(found, "home_networks", as_networks, PRIVATE),
        secrets_folder=read(found, "home_secrets_folder", as_path, None) or usual_secrets_folder(variables),
        secrets_file=read(found, "home_secrets_file", as_path, None) or usual_vault(variables),
        passphrase=_passphrase(found.get("home_passphrase", []), warnings),
        catalogue=read(found, "home_catalogue", as_path, None) or usual_catalogue(variables),
        services_folder=read(found, "home_services_folder", _on_hosts, SERVICES_FOLDER),
        work=read(found, "home_work", as_path, None) or usual_work(variables),
        scripts_url=read(found, "home_scripts_url", _as_source, SCRIPTS_URL),
        scripts_index=usual_scripts_index(variables),
    )


def _as_source(given: Given) -> str:
    """What comes from there is run as root on nodes: nobody on the way may change it."""
    from urllib.parse import urlsplit

    address = as_text(given)
    parts = urlsplit(address)
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)):
        raise ConfigError(f"{given.label} must be an https:// address.")
    return address


def _on_hosts(given: Given) -> str:
    """A folder of the hosts, not of this machine: it is not looked for here."""
    text = as_text(given)
    if not text.startswith("/") or ".." in text.split("/") or text.strip("/") == "":
        raise ConfigError(f"{given.label} must be a whole path on the hosts, such as {SERVICES_FOLDER}.")
    return text.rstrip("/")


def _passphrase(givens: list[Given], warnings: list[str]) -> Secret | None:
    if not givens:
        return None
    if givens[0].rank is Rank.TOML and not isinstance(givens[0].value, dict):
        raise ConfigError(
            f'{givens[0].label} must be a reference to the passphrase, {{ file = "PATH" }} or {{ env = "NAME" }}.'
        )
    return read_secret(givens, warnings)
