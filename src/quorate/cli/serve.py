"""quorate serve: run the MCP server."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.cli.options import (
    OK,
    cluster_options,
    command,
    gate_options,
    settings_from,
    surface_option,
    with_demo_cluster,
)
from quorate.config import Access, Approval, ConfigError, Settings

if TYPE_CHECKING:
    from quorate.app import App
    from quorate.config.http import HttpSettings

ALLOCATIONS_BEFORE_COLLECTION = 10_000
"""The garbage collection threshold while serving: lower than during the start, so that garbage does not pile up."""


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
    serve.add_argument("--allowed-hosts", metavar="A,B", help="names of this server beyond those in the certificate")
    serve.add_argument("--trusted-proxies", metavar="A,B", help="addresses of the proxy that terminates HTTPS")
    gate_options(serve)
    surface_option(serve)
    cluster_options(serve)


def _serve(options: argparse.Namespace) -> int:
    read = partial(settings_from, options, None if options.http is None else _http_flags(options))
    settings = read()
    changes = FileChanges(settings.config_file)
    if hasattr(signal, "SIGHUP"):  # until the server can reload; what has changed by then it notices at its first call
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _warn_without_approval(settings)
    asyncio.run(_Start(settings, options.demo, read, changes).run())
    return OK


def _http_flags(options: argparse.Namespace) -> dict[str, str | None]:
    return {
        name: getattr(options, name) for name in ("http", "tls_cert", "tls_key", "allowed_hosts", "trusted_proxies")
    }


def _warn_without_approval(settings: Settings) -> None:
    if settings.approval is Approval.NONE and settings.access is Access.ADMIN:
        print(
            "quorate: warning: approvals are off (--approval none): destructive calls run without approval.",
            file=sys.stderr,
        )
    for name in settings.surfaces if settings.applicable_opt_ins else ():
        _warn_of_opt_in(settings, name)


def _warn_of_opt_in(settings: Settings, surface: str) -> None:
    from quorate.surfaces.compat import SYSTEMS, system

    opt_in = system(surface).opt_in if surface in SYSTEMS else None
    if opt_in in settings.applicable_opt_ins:
        print(
            f"quorate: warning: {opt_in} lets the tools of {surface} do everything without approval; "
            "--access and --approval override it.",
            file=sys.stderr,
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
        from quorate.surfaces.early_handshake import open_conversation
        from quorate.surfaces.handshake_cache import HandshakeCache
        from quorate.surfaces.lines import standard_streams

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
            _warn_above_tool_budget(app)
            gc.collect()  # the rest of what was imported stays: looking for garbage among it would only take time
            gc.freeze()
            gc.set_threshold(ALLOCATIONS_BEFORE_COLLECTION)
            try:
                with Reloader(app, self.changes, self.read).watch():
                    async with app.resolving(), app.runs.working(), app.watching():
                        yield app
            finally:
                await app.close()


def _load_server(settings: Settings) -> None:
    """Import what a server with these settings needs for its first call."""
    import quorate.app
    import quorate.pve.client
    import quorate.surfaces.server
    import quorate.surfaces.stdio  # noqa: F401
    from quorate.operations.toolsets import chosen_operations
    from quorate.pipeline.sites import chosen_toolsets

    chosen_operations(chosen_toolsets(settings))


def _warn_above_tool_budget(app: App) -> None:
    if "native" not in app.settings.surfaces or not app.settings.toolsets:
        return  # the default toolsets are well below it
    from quorate.pipeline.caller import Caller
    from quorate.surfaces.native import NativeSurface, budget_warning

    if warning := budget_warning(NativeSurface(app.pipeline).tools(Caller())):
        print(f"quorate: warning: {warning}", file=sys.stderr)


async def _over_http(app: App, http: HttpSettings) -> None:
    from quorate.problems import Problem
    from quorate.surfaces.web.server import serve

    try:
        await serve(app.core(http))
    except Problem as problem:
        raise ConfigError(str(problem)) from None


class FileChanges:
    """Whether a file has changed since it was last looked at."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._known: tuple[int, int, int] | None = None
        self._known = self._state()

    def look(self) -> bool:
        before, self._known = self._known, self._state()
        return before != self._known

    def _state(self) -> tuple[int, int, int] | None:
        try:
            now = self._file.stat() if self._file else None
        except OSError:  # it is being written
            return self._known
        return (now.st_mtime_ns, now.st_size, now.st_ino) if now else None


class Reloader:
    """Reloads access, rules and limits on SIGHUP, or when their file has changed."""

    def __init__(self, app: App, changes: FileChanges, read: Callable[[], Settings]) -> None:
        self._app = app
        self._changes = changes
        self._read = read

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """While the server runs: SIGHUP, and a check of the file before every call."""
        self._app.pipeline.sites.refresh = self.if_changed
        loop, hangup = asyncio.get_running_loop(), getattr(signal, "SIGHUP", None)  # not on Windows
        if hangup is not None:
            loop.add_signal_handler(hangup, self.reload)
        try:
            yield
        finally:
            if hangup is not None:
                loop.remove_signal_handler(hangup)

    def if_changed(self) -> None:
        if self._changes.look():
            self._adopt()

    def reload(self) -> None:
        self._changes.look()
        self._adopt()

    def _adopt(self) -> None:
        """An error in the new settings keeps the old ones: a mistake never loosens anything."""
        try:
            self._app.adopt(self._read())
        except ConfigError as error:
            print(f"quorate: settings not reloaded, the old ones remain in effect: {error}", file=sys.stderr)
        else:
            print("quorate: reloaded access, rules and limits", file=sys.stderr)
