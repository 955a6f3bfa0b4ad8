"""Options that several commands share, and the settings they lead to."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from quorate.config import ConfigError, Settings, load

EVERYTHING = ("all", "homelab")
"""Every toolset."""
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
    command.add_argument("--toolsets", metavar="A,B", help="which groups of tools; all: those of clusters")


def surface_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--surface", metavar="A,B", help="which tools are shown: native, lean, or those of other servers"
    )


def cluster_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", metavar="FILE", type=Path, help="TOML configuration")
    command.add_argument("--cluster", metavar="NAME", help="only this one, where several are configured")
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
    if options.demo:
        return settings
    if settings.problem and not _is_about_homelab(options, settings):
        raise ConfigError(settings.problem)
    for warning in settings.warnings:
        print(f"quorate: warning: {warning}", file=sys.stderr)
    return only_cluster(settings, options.cluster)


def _is_about_homelab(options: argparse.Namespace, settings: Settings) -> bool:
    """Plain hosts need no cluster."""
    from quorate.operations.registry import HOMELAB, operation_named

    chosen = {*(settings.toolsets or ()), *settings.surfaces}
    tool = getattr(options, "tool", None)
    called = operation_named(tool) if tool else None
    return bool(chosen & {*HOMELAB, "homelab", "washyu"}) or (called is not None and called.about_homelab)


def only_cluster(settings: Settings, name: str | None) -> Settings:
    """With the one cluster that was chosen, as if the others were not configured."""
    if name is None:
        return settings
    chosen = tuple(one for one in settings.clusters if one.name == name)
    if not chosen:
        there = ", ".join(one.name for one in settings.clusters) or "none"
        raise ConfigError(f"There is no cluster {name!r} in the configuration: there are {there}.")
    return replace(settings, clusters=chosen)


@contextlib.asynccontextmanager
async def on_cluster(settings: Settings, demo: bool) -> AsyncIterator[Settings]:
    if not demo:
        yield settings
        return
    from quorate.app import demo_settings

    async with demo_settings(settings) as ready:
        yield ready
