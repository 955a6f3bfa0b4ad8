"""Hold Quorate against the MCP project's conformance tool and Inspector: both eras, over HTTP and stdio.

python -m tests.conformance
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.conformance.bridge import bridged
from tests.conformance.not_applicable import HANDSHAKE, STATELESS, as_baseline
from tests.conformance.tools import Tools, fetched

SERVE = (sys.executable, "-m", "quorate", "serve", "--demo")
INSPECTOR_ERAS = {HANDSHAKE: "legacy", STATELESS: "modern"}
SECONDS = 300


async def main() -> int:
    tools = await asyncio.to_thread(fetched)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ |= {"HOME": folder, "XDG_STATE_HOME": folder, "XDG_CONFIG_HOME": folder}
        failed = [
            *await scenarios(tools, home),
            *await inspected_over_http(tools),
            *await inspected(tools, "stdio", *SERVE),
        ]
    print(f"conformance: {'failed: ' + ', '.join(failed) if failed else 'all as it should be'}")
    return 1 if failed else 0


async def scenarios(tools: Tools, home: Path) -> list[str]:
    """The conformance tool, whose exit code says whether what failed is just what is listed as not applicable."""
    failed = []
    served = listening(sys.executable, "-m", "tests.conformance.server", "http")
    async with served as http_url, bridged() as stdio_url:
        for transport, url in {"http": http_url, "stdio": stdio_url}.items():
            for era in (HANDSHAKE, STATELESS):
                baseline = home / "not-applicable.yaml"
                baseline.write_text(as_baseline(era, transport))
                told, code = await run(
                    *tools.command("conformance"),
                    *("server", "--url", url, "--suite", "all", "--spec-version", era),
                    *("--expected-failures", str(baseline)),
                )
                total = re.search(r"^Total: (.*)$", told, re.M)
                which = "" if code else ", just those listed as not applicable"
                print(f"conformance {era} over {transport}: checks {total[1] if total else 'without result'}{which}")
                if code:
                    failed.append(f"scenarios of {era} over {transport}")
                    print(told[told.find("=== SUMMARY") :])
    return failed


async def inspected_over_http(tools: Tools) -> list[str]:
    """With a token, as the Inspector would be used with a server that is worth protecting."""
    token, _ = await run(sys.executable, "-m", "quorate", "tokens", "create", "inspector")
    async with listening(*SERVE, "--http", "127.0.0.1:0") as url:
        header = f"Authorization: Bearer {token.strip().splitlines()[-1]}"
        return await inspected(tools, "http", url, "--transport", "http", "--header", header)


async def inspected(tools: Tools, transport: str, *target: str) -> list[str]:
    failed = []
    for era, name in INSPECTOR_ERAS.items():
        calls = {
            "tools/list": ("--strict",),
            "tools/call": ("--tool-name", "guest_list", "--tool-args-json", '{"limit": 3}'),
        }
        for method, options in calls.items():
            told, code = await run(
                *(*tools.command("mcp-inspector"), "--cli", *target, "--protocol-era", name, "--format", "json"),
                *("--quiet", "--method", method, *options),
            )
            right = not code and _as_expected(method, told)
            print(f"inspector {era} over {transport}: {method} {'works' if right else 'fails'}")
            if not right:
                failed.append(f"{method} of {era} over {transport}")
                print(told[:4000])
    return failed


def _as_expected(method: str, told: str) -> bool:
    answer = json.loads(told[told.find("{") :])
    answer = answer.get("result", answer)
    if method == "tools/list":
        return "guest_list" in {tool["name"] for tool in answer["tools"]}
    return not answer.get("isError") and len(answer["structuredContent"]["rows"]) == 3


async def run(*command: str) -> tuple[str, int]:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    told, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    return told.decode(errors="replace"), process.returncode or 0


async def _listening_address(log: asyncio.StreamReader) -> str:
    said = []
    while line := (await log.readline()).decode():
        said.append(line)
        if " listening on " in line:
            return line.split()[-1]
    raise AssertionError("".join(said))


@asynccontextmanager
async def listening(*command: str) -> AsyncIterator[str]:
    """A server process that says where it listens."""
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    address = await asyncio.wait_for(_listening_address(process.stderr), SECONDS)
    reading = asyncio.create_task(process.stderr.read())
    try:
        yield address
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), SECONDS)
        await reading


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
