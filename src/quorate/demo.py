"""A guided tour: a simulated cluster, a real MCP server over stdio, and a client."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.state.trail import fold
from quorate.surfaces.rendering import ProgressBar, align
from quorate.units import count_of

if TYPE_CHECKING:
    from mcp import Client

    from pve_simulator.simulator import SimulatedCluster


async def tour() -> int:
    from pve_simulator.simulator import SimulatedCluster

    _say("A simulated Proxmox VE cluster, over real HTTPS")
    async with SimulatedCluster() as cluster:
        _print(f"listening on {cluster.url} with its own CA; the token is {cluster.token_id}")
        with tempfile.TemporaryDirectory() as folder:
            environment = _environment(cluster, Path(folder) / "audit.jsonl")
            async with _server(environment, "read") as client:
                await _look_around(client)
            async with _server(environment, "operate") as client:
                await _start_a_guest(client)
            _show_audit(Path(folder) / "audit.jsonl")
    _how_to_connect()
    return 0


async def _look_around(client: Client) -> None:
    _say("An MCP server on stdio, at access level read (the default)")
    tools = (await client.list_tools()).tools
    _print(f"{count_of(len(tools), 'tool')}: {', '.join(tool.name for tool in tools)}")
    for name, arguments in (("cluster_status", {}), ("guest_list", {"limit": 12})):
        _say(f"{name} {json.dumps(arguments) if arguments else ''}".rstrip())
        await _show(client, name, arguments)
    guest = await _first(client, "running")
    _say(f"guest_stop {guest}: cutting the power, requested at access level read")
    await _show(client, "guest_stop", {"guest": guest})


async def _start_a_guest(client: Client) -> None:
    guest = await _first(client, "stopped")
    _say(f"The same server at access level operate: what would starting {guest} do?")
    await _show(client, "guest_power", {"guest": guest, "action": "start", "dry_run": True})
    _say(f"guest_power: start {guest}, and follow the task to its end")
    await _show(client, "guest_power", {"guest": guest, "action": "start"})
    _say(f"guest_list name={guest}")
    await _show(client, "guest_list", {"name": guest})


async def _first(client: Client, status: str) -> str:
    """The name of the first guest in that state, as a client would find it."""
    answer = await client.call_tool("guest_list", {"status": status, "template": False, "type": "vm", "limit": 1})
    content: dict[str, Any] = answer.structured_content or {}
    return str(dict(zip(content["columns"], content["rows"][0], strict=True))["name"])


async def _show(client: Client, tool: str, arguments: dict[str, Any]) -> None:
    bar = ProgressBar(sys.stdout, always=True)

    async def draw(progress: float, total: float | None, message: str | None) -> None:
        await bar.show(progress, total, message or "")

    answer = await client.call_tool(tool, arguments, progress_callback=draw)
    bar.clear()
    text = "\n".join(block.text for block in answer.content if block.type == "text")
    _print(("refused: " if answer.is_error else "") + align(text))


@asynccontextmanager
async def _server(environment: dict[str, str], access: str) -> AsyncIterator[Client]:
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "quorate", "serve", "--access", access, "--log-level", "warning"],  # the tour shows the answers
        env=environment,
        cwd=environment["XDG_CONFIG_HOME"],  # a folder without a .env
    )
    async with Client(stdio_client(command)) as client:
        yield client


def _environment(cluster: SimulatedCluster, audit_file: Path) -> dict[str, str]:
    """The settings for a real cluster, isolated from the user's own configuration file."""
    return {
        "XDG_CONFIG_HOME": str(audit_file.parent),
        "PROXMOX_URL": cluster.url,
        "PROXMOX_TOKEN_ID": cluster.token_id,
        "PROXMOX_TOKEN_SECRET": cluster.token_secret,
        "PROXMOX_CA_FILE": str(cluster.ca_file),
        "QUORATE_AUDIT_FILE": str(audit_file),
        "QUORATE_STATE": str(audit_file.parent / "state.sqlite"),
    }


def _show_audit(file: Path) -> None:
    _say("The audit trail")
    for entry in fold(json.loads(line) for line in file.read_text().splitlines()):
        _print(f"{entry['time']}  {entry['tool']:<12} {entry['outcome']:<8} {entry['plan']}".rstrip())


def _how_to_connect() -> None:
    _say("Connect your own client: add this to its MCP servers")
    command = str(Path(sys.executable).with_name("quorate"))
    _print(json.dumps({"mcpServers": {"quorate": {"command": command, "args": ["serve", "--demo"]}}}, indent=2))
    _print("For a real cluster, `quorate init` creates a token with you, checks it and writes the client's entry.")


def _say(heading: str) -> None:
    _print(f"\n\033[1m== {heading}\033[0m" if sys.stdout.isatty() else f"\n== {heading}")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
