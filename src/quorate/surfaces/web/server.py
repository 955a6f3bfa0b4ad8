"""Serve over HTTP, from the safety checks to the last response."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from quorate.config import ConfigError
from quorate.config.http import MCP_PATH, HttpSettings
from quorate.state.store import Store
from quorate.state.tokens import Tokens
from quorate.surfaces.web.application import Core, build_application
from quorate.surfaces.web.health import GracefulShutdown
from quorate.surfaces.web.listener import Listener
from quorate.surfaces.web.requests import ANY_ADDRESS, LOOPBACK_NAMES, certified_hosts, without_port

_LOG = logging.getLogger(__name__)
OPEN = "there is no token, so every program on this machine may use it; create one with `quorate tokens create NAME`"


async def serve(core: Core, listening: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError if that would be unsafe or is impossible.

    `listening` is called with the URL once the server answers there.
    """
    listener = await prepare(core, listening)
    try:
        await listener.listen()
    except OSError as error:
        where = f"{core.settings.host}:{core.settings.port}"
        raise ConfigError(f"Quorate cannot listen on {where}: {error.strerror}.") from None


async def prepare(core: Core, listening: Callable[[str], None] | None = None) -> Listener:
    remark = None if core.local_login else await ensure_safe(core.settings, core.store)
    shutdown = GracefulShutdown()

    def hand_over() -> None:
        for cluster in core.clusters:
            if cluster.is_open:
                cluster.client.leaving = True

    application = await build_application(core, shutdown)
    how_to_connect = partial(_how_to_connect, core, remark)
    announce, terminals = partial(_announce, core, listening), core.shells is not None
    return Listener(application, core.settings, shutdown, hand_over, how_to_connect, announce, terminals=terminals)


def _how_to_connect(core: Core, remark: str | None, url: str) -> list[str]:
    """What the operator needs to know to connect a client."""
    if core.local_login is not None:
        return []  # it is for one person, who has a link
    settings = core.settings
    address = address_for_callers(settings, url)
    if address is None:
        return ["no name of this server is known: pass --allowed-hosts NAME, or put the name into the certificate"]
    lines = [f"console: {address}/console", f"client entry: {client_entry(address, token=remark is None)}"]
    if remark is None and settings.issuer is None:
        lines.append("`quorate tokens create NAME` prints a TOKEN for a client")
    if settings.tls_cert and (ca := settings.tls_cert.with_name("ca.pem")).is_file():
        lines.append(f"clients must trust {ca}; `quorate certificate --help` says more")
    return [*lines, *([remark] if remark else [])]


def _announce(core: Core, listening: Callable[[str], None] | None, url: str) -> None:
    """Report our address, and pass it on to links to terminals and to the command that started the server."""
    if core.local_login is None:
        _LOG.info("listening on %s%s", url, MCP_PATH)
    if core.shells is not None:
        core.shells.url = address_for_callers(core.settings, url)
    if listening is not None:
        listening(url)


def address_for_callers(settings: HttpSettings, url: str) -> str | None:
    """The address that works from elsewhere: as configured, else by a name in the certificate, else as bound."""
    if settings.public_url:
        return settings.public_url
    if settings.host not in ANY_ADDRESS:
        return url
    named = (*settings.allowed_hosts, *certified_hosts(settings))
    name = next((host for host in named if "*" not in host and host not in LOOPBACK_NAMES), None)
    if name is None:
        return None
    bound = urlsplit(url)
    return f"{bound.scheme}://{name}" + (f":{bound.port}" if without_port(name) == name else "")


def client_entry(url: str, *, token: bool) -> str:
    """The entry that most clients take."""
    entry: dict[str, Any] = {"type": "http", "url": f"{url}{MCP_PATH}"}
    if token:
        entry["headers"] = {"Authorization": "Bearer TOKEN"}
    return json.dumps({"mcpServers": {"quorate": entry}})


async def ensure_safe(settings: HttpSettings, store: Store) -> str | None:
    """Beyond this machine, require tokens and TLS. Returns a remark for the operator."""
    known = settings.issuer is not None or bool(await Tokens(store).list())
    if settings.loopback:
        return None if known else OPEN
    where = f"Quorate does not listen on {settings.host!r}"
    if not known:
        raise ConfigError(
            f"{where} without authentication: create a token with `quorate tokens create NAME` or set oauth_issuer."
        )
    if not settings.tls and not settings.trusted_proxies:
        raise ConfigError(
            f"{where} without TLS: give tls_cert and tls_key, or name the proxy that terminates TLS in trusted_proxies."
        )
    return None
