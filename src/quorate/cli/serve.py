"""quorate serve: the MCP server."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
from typing import Any

from quorate.cli.options import OK, cluster_options, command, gate_options, on_cluster, settings_from
from quorate.config import ConfigError, Settings


def add(commands: Any) -> None:
    serve = command(commands, "serve", _serve, "run the MCP server (stdio unless --http is given)")
    serve.add_argument("--http", metavar="HOST:PORT", help="streamable HTTP at /mcp instead of stdio; loopback only")
    gate_options(serve)
    cluster_options(serve)


def _serve(options: argparse.Namespace) -> int:
    address = _loopback(options.http) if options.http else None
    settings = settings_from(options)
    asyncio.run(_run_server(settings, options.demo, address))
    return OK


async def _run_server(settings: Settings, demo: bool, address: tuple[str, int] | None) -> None:
    from quorate.app import build

    async with on_cluster(settings, demo) as ready:
        app = build(ready)
        try:
            if address is None:
                await app.server().run_stdio_async()
            else:
                from quorate.surfaces.http import serve

                try:
                    await serve(app.server("http"), *address)
                except OSError as error:
                    raise ConfigError(
                        f"Quorate cannot listen on {address[0]}:{address[1]}: {error.strerror}."
                    ) from None
        finally:
            await app.close()


def _loopback(text: str) -> tuple[str, int]:
    """Without authentication, only this machine may connect."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--http wants HOST:PORT, not {text!r}.")
    if host != "localhost":
        try:
            inside = ipaddress.ip_address(host).is_loopback
        except ValueError:
            inside = False
        if not inside:
            raise ConfigError(f"Quorate does not listen on {host!r}: without authentication it serves loopback only.")
    return host, int(port)
