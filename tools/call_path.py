"""Count the files that a call passes through: `python -m tools.call_path guest_list '{"limit": 3}'`.

Without arguments, it prints the three calls that docs/architecture.md gives as examples. Each runs on a simulated
cluster with two hosts, after the same call with `dry_run` or, for a read, the same call once: what only the
first call of a server does is not counted. A file counts if one of its functions ran.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from tests.rigs.homelab import House, house

import quorate
from quorate.config import Access, Approval
from quorate.operations.registry import operations

PRODUCT = Path(quorate.__file__).parent
HOSTS: dict[str, dict[str, Any]] = {"nas": {}, "pi": {}}
EXAMPLES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("guest_list", {}),
    ("guest_delete", {"guest": "dev-sandbox"}),
    ("host_exec", {"host": ["nas", "pi"], "command": "uptime"}),
)


class Footprints:
    """The product's files whose functions run while it is active, in every thread, with the number of their calls."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()

    def __enter__(self) -> Footprints:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_code.co_name == "<module>":
            return
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PRODUCT):
            self.files[str(path.relative_to(PRODUCT))] += 1


async def count_files(built: House, tool: str, arguments: dict[str, Any]) -> Counter[str]:
    """The files that one call passes through, with the number of function calls in each."""
    rehearsal = {**arguments, "dry_run": True} if operations()[tool].changes else arguments
    await built.quorate.facts(tool, **rehearsal)
    with Footprints() as seen:
        await built.quorate.facts(tool, **arguments)
    return seen.files


async def _print_counts(calls: tuple[tuple[str, dict[str, Any]], ...], *, with_files: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        toolsets = tuple({operation.toolset for operation in operations().values()})
        async with house(Path(folder), HOSTS, access=Access.ADMIN, approval=Approval.NONE, toolsets=toolsets) as built:
            for tool, arguments in calls:
                files = await count_files(built, tool, arguments)
                sys.stdout.write(f"{tool}: {len(files)} files, {sum(files.values())} function calls\n")
                for name in sorted(files) if with_files else ():
                    sys.stdout.write(f"  {name} {files[name]}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the files that a call passes through.")
    parser.add_argument("tool", nargs="?", help="a tool; three examples if it is left out")
    parser.add_argument("arguments", nargs="?", default="{}", help="its arguments, as JSON")
    options = parser.parse_args()
    calls = ((options.tool, json.loads(options.arguments)),) if options.tool else EXAMPLES
    asyncio.run(_print_counts(calls, with_files=options.tool is not None))


if __name__ == "__main__":
    main()
