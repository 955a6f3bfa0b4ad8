"""`make bench`: prints what was measured, what is promised, and whether it holds. Exit code 1 with --strict if not."""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from quorate.app import App, build
from quorate.config import Access, ClusterSettings, Settings
from quorate.operations.registry import DEFAULT_TOOLSETS, TOOLSETS, operations
from quorate.pve.connection import Connection, Secret, Token, Trust
from quorate.surfaces.native import as_json, describe

LATENCY = 0.3
_over = 0


def show(what: str, value: float, limit: float, unit: str = "") -> None:
    global _over
    holds = value <= limit
    _over += not holds
    sys.stdout.write(f"{what:<62} {value:>9.2f}{unit:<6} at most {limit:g}{unit}  {'ok' if holds else 'OVER'}\n")
    sys.stdout.flush()


# -- cold start ----------------------------------------------------------------------------------------------------


async def first_list(arguments: list[str], environment: dict[str, str]) -> float:
    begun = time.perf_counter()
    async with Client(
        stdio_client(StdioServerParameters(command=sys.executable, args=arguments, env=environment))
    ) as client:
        await client.list_tools()
        return time.perf_counter() - begun


async def cold_start() -> None:
    nowhere = {
        "PROXMOX_URL": "https://127.0.0.1:9",
        "PROXMOX_TOKEN_ID": "root@pam!bench",
        "PROXMOX_TOKEN_SECRET": "00000000-0000-0000-0000-000000000000",
    }
    bare = str(Path(__file__).with_name("bare_server.py"))
    ratios = []
    for _ in range(7):  # in turns, so that a busy moment of the machine hits both
        baseline = await first_list([bare], {})
        ratios.append(await first_list(["-m", "quorate", "serve"], nowhere) / baseline)
    show("cold start to tools/list, times a bare one-tool server", statistics.median(ratios), 1.25, "x")


# -- a large cluster -----------------------------------------------------------------------------------------------


@contextmanager
def simulated(*options: str) -> Iterator[dict[str, str]]:
    """A simulated cluster in a process of its own, so that its work is not counted as ours."""
    process = subprocess.Popen([sys.executable, "-m", "quorate", "sim", *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.communicate()


def application(ready: dict[str, str], folder: str) -> App:
    token = Token(ready["token_id"], Secret(ready["token_secret"]))
    connection = Connection((ready["url"],), token, Trust(ca_file=ready["ca_file"]))
    settings = Settings(
        clusters=(ClusterSettings("bench", connection),),
        access=Access.ADMIN,
        audit_file=Path(folder) / "audit.jsonl",
        state=str(Path(folder) / "state.sqlite"),
        toolsets=("all",),
    )
    return build(settings)


async def seconds(work: Callable[[], Awaitable[Any]]) -> float:
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


async def large_list() -> None:
    with simulated("--nodes", "32", "--guests", "5000") as ready, tempfile.TemporaryDirectory() as folder:
        app = application(ready, folder)
        async with Client(app.server()) as client, _session(ready) as session:

            async def direct() -> None:
                async with session.get(ready["url"] + "/api2/json/cluster/resources") as response:
                    msgspec.json.decode(await response.read())

            async def through_quorate() -> None:
                app.cluster.inventory.forget()  # type: ignore[union-attr]
                await client.call_tool("guest_list", {})

            await direct()
            await through_quorate()
            ratios = [await seconds(through_quorate) / await seconds(direct) for _ in range(15)]
            show("guest_list of 5,000 guests, times a direct fetch and decode", statistics.median(ratios), 3, "x")
            for tool, arguments, limit in (
                ("guest_list", {"limit": 50}, 4500),
                ("guest_list", {"limit": 20}, 2000),
                ("node_list", {"limit": 24}, 2500),
                ("storage_list", {"limit": 50}, 5000),
            ):
                answer = await client.call_tool(tool, arguments)
                text = "".join(block.text for block in answer.content if block.type == "text")
                show(f"{tool} {arguments['limit']} rows, text", len(text.encode()), limit, "B")
                structured = msgspec.json.encode(answer.structured_content)
                show(f"{tool} {arguments['limit']} rows, structured", len(structured), limit, "B")
        await app.close()


def _session(ready: dict[str, str]) -> aiohttp.ClientSession:
    import ssl

    return aiohttp.ClientSession(
        headers={"Authorization": f"PVEAPIToken={ready['token_id']}={ready['token_secret']}"},
        connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=ready["ca_file"])),
    )


# -- many calls at once --------------------------------------------------------------------------------------------


async def overlap() -> None:
    options = ("--nodes", "8", "--guests", "200", "--fault", f"latency:{LATENCY}")
    with simulated(*options) as ready, tempfile.TemporaryDirectory() as folder:
        app = application(ready, folder)
        async with Client(app.server()) as client:
            listed = (await client.call_tool("guest_list", {"limit": 51})).structured_content or {}
            vmids = [row[0] for row in listed["rows"]]

            async def read(vmid: int) -> None:
                answer = await client.call_tool("guest_get", {"guest": vmid})
                assert not answer.is_error, answer.content

            one = await seconds(lambda: read(vmids[50]))
            fifty = await seconds(lambda: asyncio.gather(*(read(vmid) for vmid in vmids[:50])))
            show(f"50 guest_get at once ({LATENCY:g} s upstream latency), times one", fifty / one, 5, "x")
        await app.close()


# -- upstream requests ---------------------------------------------------------------------------------------------


async def upstream_requests() -> None:
    from quorate.app import simulated_cluster
    from quorate.sim.cluster import SimulatedCluster

    async with SimulatedCluster(nodes=32, guests=5000) as sim:
        with tempfile.TemporaryDirectory() as folder:
            settings = Settings(clusters=(simulated_cluster(sim),), audit_file=Path(folder) / "audit.jsonl")
            app = build(settings)
            async with Client(app.server()) as client:
                vmid = (await client.call_tool("guest_list", {})).structured_content["rows"][0][0]
                for tool, arguments, limit, shared in (
                    ("guest_list", {}, 1, False),
                    ("node_list", {}, 1, False),
                    ("storage_list", {}, 1, False),
                    ("cluster_status", {}, 2, False),
                    ("guest_get", {"guest": vmid}, 4, True),
                ):
                    if not shared:
                        app.cluster.inventory.forget()  # type: ignore[union-attr]
                    else:
                        await app.cluster.inventory.rows()  # type: ignore[union-attr]
                    before = len(sim.requests)
                    await client.call_tool(tool, arguments)
                    show(f"upstream requests of {tool} (32 nodes, 5,000 guests)", len(sim.requests) - before, limit)
            await app.close()


# -- a large upload ------------------------------------------------------------------------------------------------


async def large_upload() -> None:
    """The most memory that this process has ever held is compared, so it comes before what takes much of it."""
    with simulated() as ready, tempfile.TemporaryDirectory() as folder:
        app = application(ready, folder)
        sparse = Path(folder) / "large.iso"

        async def upload(size: int) -> None:
            with sparse.open("wb") as file:
                file.truncate(size)
            given = {"file": str(sparse), "filename": f"{size}.iso", "storage": "nas"}
            answer = await client.call_tool("image_upload", given)
            assert not answer.is_error, answer.content

        async with Client(app.server()) as client:
            await upload(1024**2)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            await upload(2 * 1024**3)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        show("additional memory for the upload of a 2 GiB file", grown / 1024, 64, "MiB")
        await app.close()


def tool_bytes() -> None:
    sizes = {
        one.name: len(json.dumps(as_json([describe(one)])[0], separators=(",", ":"))) + 1
        for one in operations(TOOLSETS).values()
    }
    show("tools of all toolsets of clusters", len(sizes), 100)
    default = [one.name for one in operations(TOOLSETS).values() if one.toolset in DEFAULT_TOOLSETS]
    show("tools of the default surface", len(default), 30)
    show("tools/list of the default surface", sum(sizes[name] for name in default), 24_000, "B")
    for toolset in TOOLSETS:
        names = [one.name for one in operations(TOOLSETS).values() if one.toolset == toolset]
        sys.stdout.write(f"  toolset {toolset:<12} {len(names):>3} tools {sum(sizes[name] for name in names):>6} B\n")


async def main() -> int:
    tool_bytes()
    await large_upload()
    await upstream_requests()
    await large_list()
    await overlap()
    await cold_start()
    return 1 if _over and "--strict" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
