"""Commands that work on what lasts: approvals, tokens."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from quorate.cli.options import FAILED
from quorate.config import load

if TYPE_CHECKING:
    from quorate.state.store import Store


def with_store(options: argparse.Namespace, run: Callable[[Store], Awaitable[int]]) -> int:
    """Run it with the state that the settings name; a problem is told in a sentence."""
    from quorate.pve.clock import SystemClock
    from quorate.pve.errors import Problem
    from quorate.state.store import open_store
    from quorate.surfaces.rendering import problem_text

    async def main() -> int:
        settings = load(file=options.config, tolerate=True)
        async with open_store(settings.state, clock=SystemClock()) as store:
            return await run(store)

    try:
        return asyncio.run(main())
    except Problem as problem:
        print(f"quorate: {problem_text(problem)}", file=sys.stderr)
        return FAILED
