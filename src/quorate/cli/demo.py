"""quorate demo: a guided tour."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from quorate.cli.options import command


def add(commands: Any) -> None:
    command(commands, "demo", _demo, "a guided tour on a simulated cluster; needs nothing, ends by itself")


def _demo(_: argparse.Namespace) -> int:
    from quorate.demo import tour

    return asyncio.run(tour())
