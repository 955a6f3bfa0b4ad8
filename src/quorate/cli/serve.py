"""quorate serve: run the MCP server."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from quorate import log
from quorate.cli.options import (
    OK,
    add_command,
    cluster_options,
    gate_options,
    load_settings,
    log_options,
    remarks_on,
    require_usable,
    surface_option,
    with_demo_cluster,
)
from quorate.cli.reload import FileChanges, Reloader
from quorate.config import Access, Approval, ConfigError, Settings
from quorate.problems import Problem

if TYPE_CHECKING:
    from quorate.app import App
    from quorate.config.http import HttpSettings


_LOG = logging.getLogger(__name__)


def add(commands: Any) -> None:
    serve = add_command(commands, "serve", _serve)
    serve.add_argument(
        "--http",
        nargs="?",
        const="",
        metavar="HOST:PORT",
        help="streamable HTTP at /mcp instead of stdio (default: 127.0.0.1:8806)",
    )
    serve.add_argument("--tls-cert", metavar="FILE", help="certificate for HTTPS")
    serve.add_argument("--tls-key", metavar="FILE", help="its key")
    serve.add_argument("--allowed-hosts", metavar="A,B", help="names of this server beyond those in the certificate")
    serve.add_argument("--trusted-proxies", metavar="A,B", help="addresses of the proxy that terminates HTTPS")
    log_options(serve)
    gate_options(serve)
    surface_option(serve)
    cluster_options(serve)


def _serve(options: argparse.Namespace) -> int:
    http = None if options.http is None else _http_flags(options)
    settings = load_settings(options, http)
    log.set_up(settings.log_format, settings.log_level)
    for remark, is_warning in remarks_on(settings):
        _LOG.log(logging.WARNING if is_warning else logging.INFO, "%s", remark)
    settings = require_usable(settings, options)
    changes = FileChanges(settings.config_file)
    if hasattr(signal, "SIGHUP"):  # until the server can reload; what has changed by then it notices at its first call
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _warn_without_approval(settings)

    def read() -> Settings:
        return require_usable(load_settings(options, http), options)

    asyncio.run(_Start(settings, options.demo, read, changes).run())
    return OK


def _http_flags(options: argparse.Namespace) -> dict[str, str | None]:
    return {
        name: getattr(options, name) for name in ("http", "tls_cert", "tls_key", "allowed_hosts", "trusted_proxies")
    }


def _warn_without_approval(settings: Settings) -> None:
    if settings.approval is Approval.NONE and settings.access is Access.ADMIN:
        _LOG.warning("approvals are off (--approval none): destructive calls run without approval")
    for name in settings.surfaces if settings.applicable_opt_ins else ():
        _warn_of_opt_in(settings, name)


def _warn_of_opt_in(settings: Settings, surface: str) -> None:
    from quorate.surfaces.compat import SYSTEMS, system

    opt_in = system(surface).opt_in if surface in SYSTEMS else None
    if opt_in in settings.applicable_opt_ins:
        _LOG.warning(
            "%s lets the tools of %s do everything without approval; --access and --approval override it",
            opt_in,
            surface,
        )


@dataclass(frozen=True, slots=True)
class _Start:
    settings: Settings
    demo: bool
    read: Callable[[], Settings]
    changes: FileChanges

    async def run(self) -> None:
        if self.settings.http:
            async with self._app() as app:
                await _over_http(app, self.settings.http)
        else:
            await self._over_stdio()

    async def _over_stdio(self) -> None:
        """Answer a known client's first requests from the cache, while the server is imported."""
        from quorate.surfaces.handshake import HandshakeCache, open_conversation, standard_streams

        async with standard_streams() as (lines, writer):
            cache = HandshakeCache.of(self.settings, demo=self.demo)
            opening = await open_conversation(lines, writer, cache, partial(_load_server, self.settings))
            if opening.ended:
                return
            async with self._app() as app:
                used = app.settings
                await app.server().converse(opening, may_record=lambda: app.settings is used)

    @contextlib.asynccontextmanager
    async def _app(self) -> AsyncIterator[App]:
        from quorate.app import build

        async with with_demo_cluster(self.settings, self.demo) as ready:
            app = build(ready)
            log.sanitize_lines(app.pipeline.sanitize)
            _warn_above_tool_budget(app)
            try:
                reloading = Reloader(app, self.settings, self.changes, self.read).watch()
                async with reloading, app.resolving(), app.runs.working(), app.watching():
                    yield app
            finally:
                await app.close()


def _load_server(settings: Settings) -> None:
    """Import what a server with these settings needs for its first call."""
    import quorate.app
    import quorate.pve.client
    import quorate.surfaces.server
    import quorate.surfaces.stdio  # noqa: F401
    from quorate.operations.registry import chosen_operations
    from quorate.pipeline.sites import chosen_toolsets

    chosen_operations(chosen_toolsets(settings))


def _warn_above_tool_budget(app: App) -> None:
    if "native" not in app.settings.surfaces or not app.settings.toolsets:
        return  # the default toolsets are well below it
    from quorate.pipeline.caller import Caller
    from quorate.surfaces.native import NativeSurface, budget_warning

    if warning := budget_warning(NativeSurface(app.pipeline).tools(Caller())):
        _LOG.warning("%s", warning)


async def _over_http(app: App, http: HttpSettings) -> None:
    from quorate.surfaces.web.server import serve

    try:
        await serve(app.core(http))
    except Problem as problem:
        raise ConfigError(str(problem)) from None
