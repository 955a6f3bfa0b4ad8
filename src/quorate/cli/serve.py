"""quorate serve: the MCP server."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from quorate.cli.options import OK, cluster_options, command, gate_options, on_cluster, settings_from, surface_option
from quorate.cli.reloading import Reloader
from quorate.config import Access, Approval, ConfigError, Settings

if TYPE_CHECKING:
    from quorate.app import App
    from quorate.config.http import HttpSettings


def add(commands: Any) -> None:
    serve = command(commands, "serve", _serve, "run the MCP server (stdio unless --http is given)")
    serve.add_argument(
        "--http",
        nargs="?",
        const="",
        metavar="HOST:PORT",
        help="streamable HTTP at /mcp instead of stdio (default: 127.0.0.1:8806)",
    )
    serve.add_argument("--tls-cert", metavar="FILE", help="certificate for HTTPS")
    serve.add_argument("--tls-key", metavar="FILE", help="its key")
    serve.add_argument("--trusted-proxies", metavar="A,B", help="addresses of the proxy that does HTTPS for us")
    gate_options(serve)
    surface_option(serve)
    cluster_options(serve)


def _serve(options: argparse.Namespace) -> int:
    read = partial(settings_from, options, None if options.http is None else _http_flags(options))
    settings = read()
    _say_if_nobody_is_asked(settings)
    asyncio.run(_run_server(settings, options.demo, read))
    return OK


def _http_flags(options: argparse.Namespace) -> dict[str, str | None]:
    return {name: getattr(options, name) for name in ("http", "tls_cert", "tls_key", "trusted_proxies")}


def _say_if_nobody_is_asked(settings: Settings) -> None:
    if settings.approval is Approval.NONE and settings.access is Access.ADMIN:
        print(
            "quorate: warning: approvals are off (--approval none): what destroys is done without asking anybody.",
            file=sys.stderr,
        )
    for name in settings.surfaces if settings.opt_ins else ():
        _say_if_opted_in(settings, name)


def _say_if_opted_in(settings: Settings, surface: str) -> None:
    from quorate.app import opt_in_of
    from quorate.surfaces.compat import SYSTEMS, system

    if surface in SYSTEMS and (opt_in := opt_in_of(settings, system(surface))):
        print(
            f"quorate: warning: {opt_in} lets the tools of {surface} do everything without asking anybody; "
            "--access and --approval take its place.",
            file=sys.stderr,
        )


async def _run_server(settings: Settings, demo: bool, read: Callable[[], Settings]) -> None:
    from quorate.app import build

    async with on_cluster(settings, demo) as ready:
        app = build(ready)
        try:
            with Reloader(app, settings.config_file, read).at_work():
                await (_over_http(app, settings.http) if settings.http else app.server().run_stdio_async())
        finally:
            await app.close()


async def _over_http(app: App, http: HttpSettings) -> None:
    from quorate.pve.errors import Problem
    from quorate.surfaces.web.application import Core
    from quorate.surfaces.web.serving import serve

    try:
        clusters = [site.cluster for site in app.pipeline.sites]
        await serve(Core(http, app.store, clusters, app.server, app.audit, app.shells))
    except Problem as problem:
        raise ConfigError(str(problem)) from None
