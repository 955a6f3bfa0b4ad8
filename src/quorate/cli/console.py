"""quorate console: the operator's console on this machine, in the browser."""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import webbrowser
from typing import TYPE_CHECKING, Any

from quorate.app import build
from quorate.cli.options import OK, add_command, cluster_options, gate_options, settings_from, with_demo_cluster
from quorate.config import ConfigError, Settings
from quorate.config.http import HttpSettings
from quorate.problems import Problem
from quorate.surfaces.web.credentials import LocalLogin
from quorate.surfaces.web.server import serve

if TYPE_CHECKING:
    from quorate.app import App


def add(commands: Any) -> None:
    console = add_command(commands, "console", _console)
    console.add_argument(
        "--port", metavar="PORT", type=int, default=0, help="port on 127.0.0.1 (default: any free one)"
    )
    console.add_argument("--no-browser", action="store_true", help="only print the link")
    gate_options(console)
    cluster_options(console)


def _console(options: argparse.Namespace) -> int:
    settings = settings_from(options)
    asyncio.run(_serve(settings, options))
    return OK


async def _serve(settings: Settings, options: argparse.Namespace) -> None:
    if not 0 <= options.port <= 65535:
        raise ConfigError("--port must be between 0 and 65535.")
    async with with_demo_cluster(settings, options.demo) as ready:
        app = build(ready)
        try:
            async with app.resolving(), app.runs.working(), app.watching():
                await _listen(app, options)
        finally:
            await app.close()


async def _listen(app: App, options: argparse.Namespace) -> None:
    login = LocalLogin()

    def listening(url: str) -> None:
        link = f"{url}/console/enter/{login.ticket}"
        print(f"quorate: the console is open until you press Ctrl-C; this link works once:\n{link}", file=sys.stderr)
        if not options.no_browser:
            _open_browser(link)

    try:
        await serve(app.core(HttpSettings(port=options.port), login), listening)
    except Problem as problem:
        raise ConfigError(str(problem)) from None


def _open_browser(link: str) -> None:
    """Open the browser in the background, because some keep the caller waiting."""
    threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()
