"""quorate scripts: the index of community scripts."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import Any

from quorate.cli.options import FAILED, OK, actions_of, add_command, config_option
from quorate.config import load
from quorate.homelab.scripts import current, refresh
from quorate.problems import Problem
from quorate.units import count_of, duration


def add(commands: Any) -> None:
    scripts = add_command(commands, "scripts", _show)
    add_action = actions_of(scripts, config_option)
    add_action("show", _show, "show which index is in use")
    add_action("refresh", _refresh, "fetch the current index from the project's repository")
    add_action("forget", _forget, "return to the index in the package")


def _show(options: argparse.Namespace) -> int:
    settings = load(file=options.config, tolerate=True).homelab
    try:
        index = current(settings.scripts_index)
    except Problem as problem:
        print(f"quorate: {problem}", file=sys.stderr)
        return FAILED
    if index.taken is None:
        print(f"{count_of(len(index.scripts), 'script')} in the packaged index")
    else:
        age = duration(max(0.0, time.time() - index.taken))
        print(f"{count_of(len(index.scripts), 'script')}, fetched {age} ago from {index.source}")
    return OK


def _refresh(options: argparse.Namespace) -> int:
    settings = load(file=options.config, tolerate=True).homelab
    try:
        index = asyncio.run(refresh(settings.scripts_url, settings.scripts_index))
    except Problem as problem:
        print(f"quorate: {problem}", file=sys.stderr)
        return FAILED
    at = f" at {index.commit[:12]}" if index.commit else ""
    print(f"{count_of(len(index.scripts), 'script')}{at}, stored in {settings.scripts_index}")
    return OK


def _forget(options: argparse.Namespace) -> int:
    settings = load(file=options.config, tolerate=True).homelab
    settings.scripts_index.unlink(missing_ok=True)
    print("The packaged index is in use.")
    return OK
