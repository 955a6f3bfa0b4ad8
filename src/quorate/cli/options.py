"""Options that several commands share, and the settings they lead to."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from quorate.config import ConfigError, Settings, load

OK, FAILED, USAGE, STILL_RUNNING, WAITS_FOR_APPROVAL = 0, 1, 2, 3, 4


def command(commands: Any, name: str, run: Any, summary: str, **how: Any) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary[:1].upper() + summary[1:] + ".", **how
    )
    made.set_defaults(run=run)
    return made


def gate_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--access", choices=("read", "operate", "admin"), help="how much may be done (default: read)")
    command.add_argument("--approval", choices=("ask", "token", "none"), help="how a person agrees (default: ask)")
    command.add_argument("--toolsets", metavar="A,B", help="which groups of tools, or all")


def surface_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--surface", metavar="A,B", help="which tools are shown: native, lean, or those of other servers"
    )


def cluster_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", metavar="FILE", type=Path, help="TOML configuration")
    command.add_argument("--demo", action="store_true", help="use a simulated cluster instead of a real one")


def settings_from(options: argparse.Namespace, http: Mapping[str, str | None] | None = None) -> Settings:
    settings = load(
        file=options.config,
        access=options.access,
        toolsets=options.toolsets,
        approval=options.approval,
        surface=getattr(options, "surface", None),
        http=http,
        tolerate=options.demo,
    )
    if settings.problem and not options.demo:
        raise ConfigError(settings.problem)
    for warning in settings.warnings if not options.demo else ():
        print(f"quorate: warning: {warning}", file=sys.stderr)
    return settings


@contextlib.asynccontextmanager
async def on_cluster(settings: Settings, demo: bool) -> AsyncIterator[Settings]:
    if not demo:
        yield settings
        return
    from quorate.app import demo_settings

    async with demo_settings(settings) as ready:
        yield ready
