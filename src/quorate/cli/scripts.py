"""quorate scripts: the index of community scripts."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from quorate.cli.options import FAILED, OK, command
from quorate.config import load


def add(commands: Any) -> None:
    scripts = command(commands, "scripts", _show, "the index of community scripts: what it is, fetch a new one")
    scripts.add_argument("--config", metavar="FILE", type=Path, help="TOML configuration")
    actions = scripts.add_subparsers(title="actions", metavar="ACTION")
    command(actions, "show", _show, "tell which index is used")
    command(actions, "refresh", _refresh, "fetch today's index from the project's repository")
    command(actions, "forget", _forget, "go back to the index of the package")


def _show(options: argparse.Namespace) -> int:
    import time

    from quorate.homelab.scripts.index import current
    from quorate.operations.units import duration
    from quorate.problems import Problem

    settings = load(file=options.config, tolerate=True).homelab
    try:
        index = current(settings.scripts_index)
    except Problem as problem:
        print(f"quorate: {problem}", file=sys.stderr)
        return FAILED
    if index.taken is None:
        print(f"{len(index.scripts)} scripts, in the index of the package")
    else:
        age = duration(max(0.0, time.time() - index.taken))
        print(f"{len(index.scripts)} scripts, fetched {age} ago from {index.source}")
    return OK


def _refresh(options: argparse.Namespace) -> int:
    from quorate.homelab.scripts.refreshing import refresh
    from quorate.problems import Problem

    settings = load(file=options.config, tolerate=True).homelab
    try:
        index = asyncio.run(refresh(settings.scripts_url, settings.scripts_index))
    except Problem as problem:
        print(f"quorate: {problem}", file=sys.stderr)
        return FAILED
    at = f" at {index.commit[:12]}" if index.commit else ""
    print(f"{len(index.scripts)} scripts{at}, kept in {settings.scripts_index}")
    return OK


def _forget(options: argparse.Namespace) -> int:
    settings = load(file=options.config, tolerate=True).homelab
    settings.scripts_index.unlink(missing_ok=True)
    print("The index of the package is used.")
    return OK
