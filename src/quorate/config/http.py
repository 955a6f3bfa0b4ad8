"""Settings of the HTTP server; read only for `serve --http`."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from quorate.config.raw import RawSetting, RawSettings
from quorate.config.settings import ConfigError
from quorate.config.values import (
    as_choice,
    as_count,
    as_path,
    as_text,
    as_texts,
    as_time_limit,
    as_waiting_time,
    read,
    whole_number,
)

USUAL_PORT = 8806
MCP_PATH = "/mcp"
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\]", re.ASCII)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    host: str = "127.0.0.1"
    port: int = USUAL_PORT
    tls_cert: Path | None = None
    tls_key: Path | None = None
    public_url: str | None = None
    """The URL that callers use, such as https://quorate.example.com; without a path."""
    allowed_hosts: tuple[str, ...] = ()
    """Additional accepted names in the Host header."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the server."""
    trusted_proxies: tuple[str, ...] = ()
    """Proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted."""
    issuer: str | None = None
    audience: tuple[str, ...] = ()
    jwks_url: str | None = None
    client_id: str | None = None
    """The console's client id at the issuer, so that people can log in there."""
    rate_limit: int = 600
    """Requests per minute and caller; 0 means no limit."""
    failure_limit: int = 10
    """Failed logins per minute and address; 0 means no limit."""
    body_limit: int = 4 * 1024 * 1024
    body_seconds: float = 30.0
    """Time limit for receiving a request body."""
    caller_limit: int = 100
    """Concurrent requests per caller, including listening streams; 0 means no limit."""
    address_limit: int = 500
    """Concurrent connections per address; 0 means no limit."""
    connection_limit: int = 2000
    """Concurrent connections."""
    sessions: bool | None = None
    """Whether older clients get sessions; None means yes, unless replicas share the state."""
    open_metrics: bool = False
    drain_seconds: float = 0.0
    """How long calls are still accepted after the signal to stop, while readiness already reports 503."""
    grace_seconds: float = 50.0
    """How long running calls may take to finish after that."""

    @property
    def loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        """Where people and clients reach the server; one that listens everywhere is reached by this machine's name."""
        if self.public_url:
            return self.public_url
        host = socket.gethostname() if self.host in ("0.0.0.0", "::", "") else self.host  # noqa: S104
        return f"http{'s' if self.tls else ''}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def tls(self) -> bool:
        return self.tls_cert is not None


def read_http(found: RawSettings) -> HttpSettings:
    default = HttpSettings()
    host, port = read(found, "http", _as_address, (default.host, default.port))
    public_url = read(found, "public_url", _as_origin, None)
    settings = HttpSettings(
        host=host,
        port=port,
        tls_cert=read(found, "tls_cert", _as_file, None),
        tls_key=read(found, "tls_key", _as_file, None),
        public_url=public_url,
        allowed_hosts=read(found, "allowed_hosts", _as_hosts, ()),
        allowed_origins=read(found, "allowed_origins", _as_origins, ()),
        trusted_proxies=read(found, "trusted_proxies", _as_networks, ()),
        issuer=read(found, "oauth_issuer", _as_secure_url, None),
        audience=read(found, "oauth_audience", _as_audience, (f"{public_url}{MCP_PATH}",) if public_url else ()),
        jwks_url=read(found, "oauth_jwks_url", _as_secure_url, None),
        client_id=read(found, "oauth_client_id", as_text, None),
        rate_limit=read(found, "rate_limit", as_count, default.rate_limit),
        failure_limit=read(found, "failure_limit", as_count, default.failure_limit),
        body_limit=read(found, "body_limit", _as_bytes, default.body_limit),
        body_seconds=read(found, "body_seconds", as_time_limit, default.body_seconds),
        caller_limit=read(found, "caller_limit", as_count, default.caller_limit),
        address_limit=read(found, "address_limit", as_count, default.address_limit),
        connection_limit=read(found, "connection_limit", _as_connections, default.connection_limit),
        sessions=read(found, "sessions", as_choice, None),
        open_metrics=read(found, "open_metrics", as_choice, False),
        drain_seconds=read(found, "drain_seconds", as_waiting_time, default.drain_seconds),
        grace_seconds=read(found, "grace_seconds", as_waiting_time, default.grace_seconds),
    )
    _refuse_incomplete(settings, found)
    return settings


def _refuse_incomplete(settings: HttpSettings, found: RawSettings) -> None:
    """Some settings only make sense together."""
    for one, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if one in found and other not in found:
            raise ConfigError(f"{found[one][0].label} needs {other}: set both.")
    if settings.issuer and not settings.audience:
        raise ConfigError(
            f"{found['oauth_issuer'][0].label} needs public_url or oauth_audience: tokens issued for other services "
            "must not be accepted."
        )
    for lone in ("oauth_audience", "oauth_jwks_url", "oauth_client_id"):
        if lone in found and settings.issuer is None:
            raise ConfigError(f"{found[lone][0].label} needs oauth_issuer: without it no tokens are accepted.")


def _as_address(given: RawSetting) -> tuple[str, int]:
    """HOST:PORT, :PORT or a port; an IPv6 address in brackets."""
    host, _, port = as_text(given).rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not port.isascii() or not port.isdecimal() or int(port) > 65535 or (":" in host and bare == host):
        raise ConfigError(f"{given.label} must be HOST:PORT, such as 127.0.0.1:{USUAL_PORT}.")
    return bare or HttpSettings().host, int(port)


def _as_origin(given: RawSetting) -> str:
    return _origin(as_text(given), given.label)


def _as_origins(given: RawSetting) -> tuple[str, ...]:
    return tuple(_origin(text, given.label) for text in as_texts(given))


def _origin(text: str, label: str) -> str:
    parts = urlsplit(text.lower())
    try:
        usable = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not _HOST.fullmatch(_without_port(parts.netloc)) or parts.path.strip("/") or parts.query:
        raise ConfigError(f"{label} must be an address without a path, such as https://quorate.example.com.")
    return f"{parts.scheme}://{parts.netloc}"


def _as_hosts(given: RawSetting) -> tuple[str, ...]:
    hosts = tuple(text.lower() for text in as_texts(given))
    for host in hosts:
        if not _HOST.fullmatch(_without_port(host)):
            raise ConfigError(f"{given.label} must be host names, with or without a port, not {host!r}.")
    return hosts


def _without_port(host: str) -> str:
    return re.sub(r":\d{1,5}$", "", host)


def _as_networks(given: RawSetting) -> tuple[str, ...]:
    networks = []
    for text in as_texts(given):
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise ConfigError(f"{given.label} must be IP addresses or networks, not {text!r}.") from None
        if network.prefixlen == 0:
            raise ConfigError(f"{given.label} must name the proxies: {text} would trust every address.")
        networks.append(str(network))
    return tuple(networks)


def _as_secure_url(given: RawSetting) -> str:
    """HTTPS, or this machine: anyone who can alter the response can forge tokens."""
    text = as_text(given)
    parts = urlsplit(text)
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.hostname is None or parts.query or parts.fragment or parts.scheme not in ("https", "http"):
        raise ConfigError(f"{given.label} must be a URL, such as https://login.example.com.")
    if parts.scheme == "http" and not local:
        raise ConfigError(f"{given.label} must start with https://.")
    return text


def _as_audience(given: RawSetting) -> tuple[str, ...]:
    return tuple(as_texts(given))


def _as_bytes(given: RawSetting) -> int:
    return whole_number(given, 4096, 100_000_000)


def _as_connections(given: RawSetting) -> int:
    return whole_number(given, 10, 100_000)


def _as_file(given: RawSetting) -> Path:
    path = as_path(given)
    if not path.is_file():
        raise ConfigError(f"{given.label} must be a file, and there is no {path}.")
    return path
