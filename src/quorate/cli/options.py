"""Options that several commands share, and what they open: settings, a demo cluster, the state."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.cli import COMMANDS
from quorate.config import ConfigError, Settings, load
from quorate.log import LogFormat, LogLevel
from quorate.operations.registry import DEFAULT, HOMELAB, find_operation
from quorate.problems import Problem, ProblemCode
from quorate.pve.connection import SystemClock
from quorate.state.store import open_store
from quorate.surfaces.rendering import problem_text

if TYPE_CHECKING:
    from quorate.app import App
    from quorate.hints import Naming
    from quorate.state.store import Store
    from quorate.state.trail import AuditTrail


OK, FAILED, USAGE, STILL_RUNNING, WAITS_FOR_APPROVAL = 0, 1, 2, 3, 4


def add_command(commands: Any, name: str, run: Any, **how: Any) -> argparse.ArgumentParser:
    """Adds a command of the table COMMANDS, with its summary."""
    return _add_parser(commands, name, run, COMMANDS[name].summary, **how)


def _add_parser(commands: Any, name: str, run: Any, summary: str, **how: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary[:1].upper() + summary[1:] + ".", **how
    )
    parser.set_defaults(run=run)
    return parser


def actions_of(
    parent: argparse.ArgumentParser, *options: Callable[[argparse.ArgumentParser], None]
) -> Callable[..., argparse.ArgumentParser]:
    """Adds actions to a command: name, what runs, summary. The options may come before and after the action."""
    # Without defaults there, so that options before the action keep their values.
    shared = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    for add in options:
        add(parent)
        add(shared)
    return partial(_add_parser, parent.add_subparsers(title="actions", metavar="ACTION"), parents=[shared])


def gate_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--access", choices=("read", "operate", "admin"), help="access level (default: read)")
    command.add_argument(
        "--approval", choices=("ask", "token", "none"), help="how destructive calls are approved (default: ask)"
    )
    toolsets_option(command)


def toolsets_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--toolsets", metavar="A,B", help="toolsets, +NAME to add to the default tools, all, homelab")


def log_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--log-format", choices=tuple(LogFormat), help="form of the log (default: text)")
    command.add_argument("--log-level", choices=tuple(LogLevel), help="least severe lines (default: info)")


def config_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", metavar="FILE", type=Path, help="TOML configuration")


def surface_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--surface", metavar="A,B", help="tools to show: native, lean, or those of other servers")


def cluster_options(command: argparse.ArgumentParser) -> None:
    config_option(command)
    choice_options(command)


def choice_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--cluster", metavar="NAME", help="use only this cluster")
    command.add_argument("--demo", action="store_true", help="use a simulated cluster instead of a real one")


def settings_from(options: argparse.Namespace) -> Settings:
    """The settings of a command, with remarks about them on standard error."""
    settings = load_settings(options)
    for remark, is_warning in remarks_on(settings):
        print(f"quorate: {'warning: ' if is_warning else ''}{remark}", file=sys.stderr)
    return require_usable(settings, options)


def load_settings(options: argparse.Namespace, http: Mapping[str, str | None] | None = None) -> Settings:
    settings = load(
        file=options.config,
        access=options.access,
        toolsets=options.toolsets,
        approval=options.approval,
        surface=getattr(options, "surface", None),
        log_format=getattr(options, "log_format", None),
        log_level=getattr(options, "log_level", None),
        http=http,
        tolerate=options.demo,
    )
    # In a demo, neither the real connection nor remarks about it are of interest.
    return replace(settings, notes=(), warnings=()) if options.demo else settings


def remarks_on(settings: Settings) -> list[tuple[str, bool]]:
    """What the operator should know about the settings, and whether it is a warning."""
    return [*((note, False) for note in settings.notes), *((warning, True) for warning in settings.warnings)]


def require_usable(settings: Settings, options: argparse.Namespace) -> Settings:
    """The settings for the chosen cluster. Raises ConfigError if a cluster is needed and there is none."""
    if options.demo:
        return settings
    if settings.problem and not settings.backup_servers and not _is_about_homelab(options, settings):
        raise ConfigError(settings.problem)
    return only_cluster(settings, options.cluster)


def _is_about_homelab(options: argparse.Namespace, settings: Settings) -> bool:
    """Plain hosts need no cluster."""

    chosen = {*(settings.toolsets or ()), *settings.surfaces}
    tool = getattr(options, "tool", None)
    called = find_operation(tool) if tool else None
    return bool(chosen & {*HOMELAB, "homelab", "washyu"}) or (called is not None and called.about_homelab)


def reach_all_tools(settings: Settings) -> Settings:
    """The default tools save a model's tokens; a person at a shell reaches all, unless the operator chose some."""

    chosen = settings.toolsets or (DEFAULT,)
    return replace(settings, toolsets=("all", "homelab")) if DEFAULT in chosen else settings


def only_cluster(settings: Settings, name: str | None) -> Settings:
    """Settings with only the named cluster."""
    if name is None:
        return settings
    chosen = tuple(cluster for cluster in settings.clusters if cluster.name == name)
    if not chosen:
        there = ", ".join(cluster.name for cluster in settings.clusters) or "none"
        raise ConfigError(f"There is no cluster {name!r} in the configuration. Configured: {there}.")
    return replace(settings, clusters=chosen)


def require_simulator() -> None:
    """Refuse what needs the simulated cluster if its package, an extra, is not installed."""
    if importlib.util.find_spec("pve_simulator") is None:
        raise ConfigError("The simulated cluster is not installed; install it with `pip install 'quorate[demo]'`.")


@contextlib.asynccontextmanager
async def with_demo_cluster(settings: Settings, demo: bool) -> AsyncIterator[Settings]:
    if not demo:
        yield settings
        return
    require_simulator()
    from quorate.app import demo_settings

    async with demo_settings(settings) as ready:
        yield ready


def with_app(
    options: argparse.Namespace,
    run: Callable[[App], Awaitable[int]],
    *,
    adapt: Callable[[Settings], Settings] = lambda settings: settings,
    name: Naming = str,
) -> int:
    """Run a command with the application; a problem becomes a message on standard error."""

    async def main() -> int:
        from quorate.app import build

        async with with_demo_cluster(settings_from(options), options.demo) as ready:
            app = build(adapt(ready))
            try:
                return await run(app)
            finally:
                await app.close()

    return _report(main, name)


def with_store(options: argparse.Namespace, run: Callable[[Store], Awaitable[int]]) -> int:
    """Run a command with the configured state; a problem becomes one line on standard error."""
    return _with_state(options, lambda _, store: run(store))


def with_trail(options: argparse.Namespace, run: Callable[[Store, AuditTrail], Awaitable[int]]) -> int:
    """Like `with_store`, with the audit trail."""

    async def run_with_trail(settings: Settings, store: Store) -> int:
        from quorate.state.trail import open_trail

        trail = open_trail(store, settings.audit_file)
        try:
            return await run(store, trail)
        finally:
            await trail.close()

    return _with_state(options, run_with_trail)


def _with_state(options: argparse.Namespace, run: Callable[[Settings, Store], Awaitable[int]]) -> int:
    async def main() -> int:
        settings = load(file=options.config, tolerate=True)
        async with open_store(settings.state, clock=SystemClock()) as store:
            return await run(settings, store)

    return _report(main)


def _report(main: Callable[[], Coroutine[Any, Any, int]], name: Naming = str) -> int:
    try:
        return asyncio.run(main())
    except Problem as problem:
        print(f"quorate: {problem_text(problem, name)}", file=sys.stderr)
        return exit_code_of(problem)


def exit_code_of(problem: Problem) -> int:
    """As docs/shell.md says."""
    codes = {ProblemCode.ARGUMENT: USAGE, ProblemCode.APPROVAL: WAITS_FOR_APPROVAL}
    return codes.get(problem.code, FAILED)
