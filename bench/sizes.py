"""Figures that do not depend on time: bytes, requests to a simulated cluster, and memory for a large upload."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from mcp import Client

from bench.table import Table
from pve_simulator.simulator import SimulatedCluster
from quorate.app import App, build, simulated_cluster
from quorate.config import Access, Settings
from quorate.operations.registry import DEFAULT, TOOLSETS, chosen_operations, operations
from quorate.surfaces.native import as_json, describe

GUESTS = 2000
LARGE = 2 * 1024**3
LISTS = (("guest_list", 50, 4500, 8000), ("node_list", 24, 2500, 4000), ("storage_list", 50, 5000, 6000))
"""A list, its number of rows, and its maximum bytes as text and as raw values."""


def tool_list(table: Table) -> None:
    table.section("tools/list")
    default = chosen_operations(frozenset({DEFAULT}))
    listed = json.dumps(as_json([describe(operation) for operation in default]), separators=(",", ":"))
    table.add("tools of all toolsets of clusters", len(operations(TOOLSETS)), "", 120)
    table.add("tools of the default surface", len(default), "", 50)
    table.add("tools/list of the default surface", len(listed), "B", 34_000)


def _app(sim: SimulatedCluster, folder: str) -> App:
    return build(
        Settings(
            clusters=(simulated_cluster(sim),),
            access=Access.ADMIN,
            audit_file=Path(folder) / "audit.jsonl",
            state=str(Path(folder) / "state.sqlite"),
            toolsets=("all",),
        )
    )


async def answers(table: Table) -> None:
    """Upstream requests and the size of answers."""
    table.section(f"32 nodes and {GUESTS:,} guests in the simulator")
    with tempfile.TemporaryDirectory() as folder:
        async with SimulatedCluster(nodes=32, guests=GUESTS) as sim:
            app = _app(sim, folder)
            async with Client(app.server()) as client:
                vmid = ((await client.call_tool("guest_list", {"status": "running"})).structured_content or {})["rows"][
                    0
                ][0]
                arguments: dict[str, Any]
                for tool, arguments, most in (
                    ("guest_list", {}, 1),
                    ("node_list", {}, 1),
                    ("storage_list", {}, 1),
                    ("cluster_status", {}, 2),
                    ("guest_get", {"guest": vmid}, 4),
                ):
                    assert app.cluster is not None
                    app.cluster.inventory.forget()
                    before = len(sim.requests)
                    await client.call_tool(tool, arguments)
                    table.add(f"requests of {tool}, with an empty cache", len(sim.requests) - before, "", most)
                for tool, limit, most, most_raw in LISTS:
                    answer = await client.call_tool(tool, {"limit": limit})
                    text = "".join(block.text for block in answer.content if block.type == "text")
                    table.add(f"{tool} {limit} rows, text", len(text.encode()), "B", most)
                    structured = len(msgspec.json.encode(answer.structured_content))
                    table.add(f"{tool} {limit} rows, structured", structured, "B", most_raw)
            await app.close()


async def large_upload(table: Table) -> None:
    """Compares the peak memory of this process, so it runs before anything that needs much memory."""
    table.section("image_upload")
    with tempfile.TemporaryDirectory() as folder:
        async with SimulatedCluster() as sim:
            app = _app(sim, folder)
            sparse = Path(folder) / "large.iso"

            async def upload(size: int) -> None:
                with sparse.open("wb") as file:
                    file.truncate(size)
                arguments = {"file": str(sparse), "filename": f"{size}.iso", "storage": "nas"}
                answer = await client.call_tool("image_upload", arguments)
                assert not answer.is_error, answer.content

            async with Client(app.server()) as client:
                await upload(1024**2)
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                await upload(LARGE)
                grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            table.add("additional memory for 2 GiB, with the receiver", grown / 1024, "MiB", 64)
            await app.close()
    sys.stdout.flush()
