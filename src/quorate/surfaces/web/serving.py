"""Serving over HTTP, from the question whether it may be done to the last answer."""

from __future__ import annotations

from collections.abc import Callable

from quorate.config import ConfigError
from quorate.config.http import HttpSettings
from quorate.state.store import Store
from quorate.state.tokens import Tokens
from quorate.surfaces.web.application import Core, build_application
from quorate.surfaces.web.departure import Departure
from quorate.surfaces.web.guard import ANY_ADDRESS
from quorate.surfaces.web.listening import Listener

OPEN = "there is no token, so every program on this machine may use it; `quorate tokens create NAME` makes one"


async def serve(core: Core) -> None:
    """Until SIGTERM or SIGINT. Raises ConfigError where it would not be safe or cannot be."""
    listener = await prepare(core)
    try:
        await listener.listen()
    except OSError as error:
        where = f"{core.settings.host}:{core.settings.port}"
        raise ConfigError(f"Quorate cannot listen on {where}: {error.strerror}.") from None


async def prepare(core: Core) -> Listener:
    remark = await ensure_safe(core.settings, core.store)
    departure = Departure()

    def hand_over() -> None:
        for cluster in core.clusters:
            if cluster.is_open:
                cluster.client.leaving = True

    application = await build_application(core, departure)
    return Listener(application, core.settings, departure, hand_over, remark, _terminals_at(core))


def _terminals_at(core: Core) -> Callable[[str], None] | None:
    """Tells those who invite people to a terminal by which address we are reached, if by any."""
    shells, settings = core.shells, core.settings
    if shells is None:
        return None

    def listening(url: str) -> None:
        shells.url = settings.public_url or (None if settings.host in ANY_ADDRESS else url)

    return listening


async def ensure_safe(settings: HttpSettings, store: Store) -> str | None:
    """Beyond this machine nobody gets in without a token, and no token travels in the clear. Returns what to say."""
    known = settings.issuer is not None or bool(await Tokens(store).list())
    if settings.loopback:
        return None if known else OPEN
    where = f"Quorate does not listen on {settings.host!r}"
    if not known:
        raise ConfigError(
            f"{where} without authentication: make a token with `quorate tokens create NAME` or set oauth_issuer."
        )
    if not settings.tls and not settings.trusted_proxies:
        raise ConfigError(
            f"{where} without TLS: give tls_cert and tls_key, or name the proxy that does TLS in trusted_proxies."
        )
    return None
