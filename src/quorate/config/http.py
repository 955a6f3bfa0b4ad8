"""Settings of the HTTP server: `[http]`, read only for `serve --http`."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from quorate.config.sources import (
    ConfigError,
    Option,
    RawSetting,
    RawSettings,
    Source,
    Table,
    in_arguments,
    in_named_table,
    in_variables,
    merge,
    option,
    options_of,
    table,
)
from quorate.config.values import (
    WholeNumber,
    as_count,
    as_path,
    as_switch,
    as_text,
    as_texts,
    as_time_limit,
    as_waiting_time,
    read_options,
)

USUAL_HOST = "127.0.0.1"
USUAL_PORT = 8806
MCP_PATH = "/mcp"
_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\]", re.ASCII)


def _as_address(raw: RawSetting) -> tuple[str, int]:
    """HOST:PORT, :PORT or a port; an IPv6 address in brackets."""
    host, _, port = as_text(raw).rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not port.isascii() or not port.isdecimal() or int(port) > 65535 or (":" in host and bare == host):
        raise ConfigError(f"{raw.label} must be HOST:PORT, such as 127.0.0.1:{USUAL_PORT}.")
    return bare or USUAL_HOST, int(port)


def _as_origin(raw: RawSetting) -> str:
    return _origin(as_text(raw), raw.label)


def _as_origins(raw: RawSetting) -> tuple[str, ...]:
    return tuple(_origin(text, raw.label) for text in as_texts(raw))


def _origin(text: str, label: str) -> str:
    parts = urlsplit(text.lower())
    try:
        usable = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not _HOST.fullmatch(_without_port(parts.netloc)) or parts.path.strip("/") or parts.query:
        raise ConfigError(f"{label} must be an address without a path, such as https://quorate.example.com.")
    return f"{parts.scheme}://{parts.netloc}"


def _as_hosts(raw: RawSetting) -> tuple[str, ...]:
    hosts = tuple(text.lower() for text in as_texts(raw))
    for host in hosts:
        if not _HOST.fullmatch(_without_port(host)):
            raise ConfigError(f"{raw.label} must be host names, with or without a port, not {host!r}.")
    return hosts


def _without_port(host: str) -> str:
    return re.sub(r":\d{1,5}$", "", host)


def _as_networks(raw: RawSetting) -> tuple[str, ...]:
    networks = []
    for text in as_texts(raw):
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise ConfigError(f"{raw.label} must be IP addresses or networks, not {text!r}.") from None
        if network.prefixlen == 0:
            raise ConfigError(f"{raw.label} must name the proxies: {text} would trust every address.")
        networks.append(str(network))
    return tuple(networks)


def _as_secure_url(raw: RawSetting) -> str:
    """HTTPS, or this machine: anyone who can alter the response can forge tokens."""
    text = as_text(raw)
    parts = urlsplit(text)
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.hostname is None or parts.query or parts.fragment or parts.scheme not in ("https", "http"):
        raise ConfigError(f"{raw.label} must be a URL, such as https://login.example.com.")
    if parts.scheme == "http" and not local:
        raise ConfigError(f"{raw.label} must start with https://.")
    return text


def _as_file(raw: RawSetting) -> Path:
    path = as_path(raw)
    if not path.is_file():
        raise ConfigError(f"{raw.label} must be a file, and there is no {path}.")
    return path


@dataclass(frozen=True, slots=True)
class HttpSettings:
    host: str = USUAL_HOST
    port: int = USUAL_PORT
    tls_cert: Path | None = option(
        "the certificate for HTTPS with its chain, a PEM file; reloaded when it changes",
        _as_file,
        "QUORATE_HTTP_TLS_CERT",
        flag="--tls-cert",
    )
    tls_key: Path | None = option(
        "its key, a PEM file without a passphrase", _as_file, "QUORATE_HTTP_TLS_KEY", flag="--tls-key"
    )
    trusted_proxies: tuple[str, ...] = option(
        "addresses or networks of the reverse proxy, whose `X-Forwarded-For` and `X-Forwarded-Proto` are trusted",
        _as_networks,
        "QUORATE_HTTP_TRUSTED_PROXIES",
        flag="--trusted-proxies",
        default=(),
    )
    public_url: str | None = option(
        "the URL that callers use, without a path: `https://quorate.example.com`",
        _as_origin,
        "QUORATE_HTTP_PUBLIC_URL",
    )
    allowed_hosts: tuple[str, ...] = option(
        "names that callers may use in addition to those in the certificate, with or without a port",
        _as_hosts,
        "QUORATE_HTTP_ALLOWED_HOSTS",
        flag="--allowed-hosts",
        default=(),
    )
    allowed_origins: tuple[str, ...] = option(
        "web pages that may call it: `https://inspector.example.com`",
        _as_origins,
        "QUORATE_HTTP_ALLOWED_ORIGINS",
        default=(),
    )
    issuer: str | None = option(
        "the issuer whose access tokens are accepted, in addition to those of `quorate tokens`",
        _as_secure_url,
        "QUORATE_HTTP_OAUTH_ISSUER",
        keys=("oauth_issuer",),
    )
    audience: tuple[str, ...] = option(
        "the audience that tokens must have",
        as_texts,
        "QUORATE_HTTP_OAUTH_AUDIENCE",
        keys=("oauth_audience",),
        default=(),
        usual=f"`public_url` followed by `{MCP_PATH}`",
    )
    jwks_url: str | None = option(
        "URL of its keys",
        _as_secure_url,
        "QUORATE_HTTP_OAUTH_JWKS_URL",
        keys=("oauth_jwks_url",),
        usual="from the issuer's metadata",
    )
    client_id: str | None = option(
        "client id of the [console](console.md) at the issuer, so that people can log in there",
        as_text,
        "QUORATE_HTTP_OAUTH_CLIENT_ID",
        keys=("oauth_client_id",),
    )
    rate_limit: int = option(
        "requests per minute for each caller; 0 means no limit", as_count, "QUORATE_HTTP_RATE_LIMIT", default=600
    )
    failure_limit: int = option(
        "failed attempts per minute for each address, after which further failures are refused; 0 means no limit",
        as_count,
        "QUORATE_HTTP_FAILURE_LIMIT",
        default=10,
    )
    body_limit: int = option(
        "bytes per request", WholeNumber(4096, 100_000_000), "QUORATE_HTTP_BODY_LIMIT", default=4 * 1024 * 1024
    )
    body_seconds: float = option(
        "how long the body of a request may take to arrive", as_time_limit, "QUORATE_HTTP_BODY_SECONDS", default=30.0
    )
    caller_limit: int = option(
        "concurrent requests per caller, including listening streams; 0 means no limit",
        as_count,
        "QUORATE_HTTP_CALLER_LIMIT",
        default=100,
    )
    address_limit: int = option(
        "concurrent connections per address; 0 means no limit", as_count, "QUORATE_HTTP_ADDRESS_LIMIT", default=500
    )
    connection_limit: int = option(
        "concurrent connections", WholeNumber(10, 100_000), "QUORATE_HTTP_CONNECTION_LIMIT", default=2000
    )
    sessions: bool | None = option(
        "whether older clients get sessions",
        as_switch,
        "QUORATE_HTTP_SESSIONS",
        usual="`true`, with state in PostgreSQL `false`",
    )
    open_metrics: bool = option(
        "`true` shows `/metrics` to everyone", as_switch, "QUORATE_HTTP_OPEN_METRICS", default=False
    )
    drain_seconds: float = option(
        "how long to accept calls after SIGTERM, while `/readyz` already reports 503",
        as_waiting_time,
        "QUORATE_HTTP_DRAIN_SECONDS",
        default=0.0,
    )
    grace_seconds: float = option(
        "how long running calls may take to finish after that",
        as_waiting_time,
        "QUORATE_HTTP_GRACE_SECONDS",
        default=50.0,
    )

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


HTTP: Table = {
    **table(
        http=Option(
            "where to listen; the flag takes the same `HOST:PORT`",
            _as_address,
            variables=("QUORATE_HTTP_LISTEN",),
            keys=("listen",),
            flag="--http",
            usual=f"`{USUAL_HOST}:{USUAL_PORT}`",
        )
    ),
    **options_of(HttpSettings),
}


def read_http(
    flags: Mapping[str, str | None], process: Source, document: Mapping[str, object], toml: Source
) -> HttpSettings:
    raw = merge(in_arguments(HTTP, flags), in_variables(HTTP, process), in_named_table("http", document, HTTP, toml))
    values = read_options(HTTP, raw)
    if "http" in values:
        values["host"], values["port"] = values.pop("http")
    if "public_url" in values:
        values.setdefault("audience", (f"{values['public_url']}{MCP_PATH}",))
    settings = HttpSettings(**values)
    _refuse_incomplete(settings, raw)
    return settings


def _refuse_incomplete(settings: HttpSettings, raw: RawSettings) -> None:
    """Some settings only make sense together."""
    for name, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if name in raw and other not in raw:
            raise ConfigError(f"{raw[name][0].label} needs {other}: set both.")
    if settings.issuer and not settings.audience:
        raise ConfigError(
            f"{raw['issuer'][0].label} needs public_url or oauth_audience: tokens issued for other services "
            "must not be accepted."
        )
    for lone in ("audience", "jwks_url", "client_id"):
        if lone in raw and settings.issuer is None:
            raise ConfigError(f"{raw[lone][0].label} needs oauth_issuer: without it no tokens are accepted.")
