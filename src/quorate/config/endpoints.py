"""Addresses of a cluster, in every common spelling."""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from urllib.parse import urlsplit

from quorate.config.raw import RawSetting, RawSettings
from quorate.config.settings import ConfigError
from quorate.config.values import as_port, as_texts, contradiction, require_agreement

PVE_PORT = 8006


def read_endpoints(found: RawSettings) -> tuple[str, ...]:
    if "address" not in found:
        some = next(iter(found.values()))[0]
        raise ConfigError(f"{some.sibling('address')} is missing: set it to the address of a Proxmox VE node.")
    port = found["port"][0] if "port" in found else None
    return require_agreement(found["address"], lambda given: _endpoints(given, port))


def _endpoints(given: RawSetting, port: RawSetting | None) -> tuple[str, ...]:
    addresses = (_split_address(text, given.label) for text in as_texts(given))
    return tuple(dict.fromkeys(f"https://{host}:{_resolve_port(given, own, port)}" for host, own in addresses))


def _resolve_port(address: RawSetting, own_port: int | None, port: RawSetting | None) -> int:
    if port is None:
        return own_port or PVE_PORT
    number = as_port(port)
    if own_port is None or port.rank > address.rank:
        return number
    if own_port != number and port.rank == address.rank:
        contradiction(address, port)
    return own_port


def _split_address(text: str, label: str) -> tuple[str, int | None]:
    """Host and port of `host`, `host:port`, an IPv6 address or a URL."""
    # No message repeats the text, because it may contain a login.
    scheme, has_scheme, rest = text.partition("://")
    if has_scheme and scheme.lower() == "http":
        raise ConfigError(f"{label} starts with http://, but Proxmox VE speaks https only: write https:// instead.")
    if has_scheme and scheme.lower() != "https":
        raise ConfigError(f"{label} must be a host name, an IP address or an https:// URL.")
    address = rest if has_scheme else text
    if _is_ipv6(address):
        return f"[{address.lower()}]", None
    try:
        parts = urlsplit(f"https://{address}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ConfigError(f"{label} has a host or port that is not valid: write it as https://host:8006.") from None
    if "@" in parts.netloc:
        raise ConfigError(f"{label} must not contain a login: set user and password or token separately.")
    if parts.path.strip("/") not in ("", "api2", "api2/json"):
        raise ConfigError(f"{label} has a path that is not Proxmox VE's: write only https://host:port.")
    if port == 0 or not (_is_ipv6(host) or re.fullmatch(r"[\w.-]+", host)):
        raise ConfigError(f"{label} has a host or port that is not valid: write it as https://host:8006.")
    return (f"[{host}]" if _is_ipv6(host) else host), port


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True
