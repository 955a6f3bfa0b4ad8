"""The calls that the help of the tools for hosts and the map begins with."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from quorate.operations.registry import operations
from quorate.surfaces.arguments import example_pairs, parse_pairs
from tests.rigs.homelab import house
from tests.rigs.mcp_session import text_of

pytestmark = pytest.mark.anyio

ELSEWHERE = {
    "host_register": "Host 'nas' already exists",
    "host_shell_open": "no page to show a terminal on",
    "network_scan": "may not be scanned",
}
"""Those that want what a house on loopback with a registered NAS does not have, and what is said about it."""
ACCOUNTS = "host_admin_"
"""What these answer depends on the accounts and on the sudo of the machine that the test runs on."""


@pytest.mark.thorough
async def test_every_example_runs_unchanged_in_a_homelab_with_a_nas(tmp_path: Path) -> None:
    loopback = {"networks": (ipaddress.ip_network("127.0.0.0/8"),)}
    examples = [
        operation
        for operation in operations({"hosts", "host_admin", "map"}).values()
        if not operation.name.startswith(ACCOUNTS)
    ]
    async with house(tmp_path, homelab=loopback) as built:
        for operation in examples:
            arguments = parse_pairs(example_pairs(operation), operation.schema())
            arguments |= (
                {"dry_run": True} if operation.changes and "dry_run" in operation.schema()["properties"] else {}
            )
            answer = await built.quorate.call(operation.name, **arguments)
            expected = ELSEWHERE.get(operation.name, "")
            assert bool(answer.is_error) is bool(expected), f"{operation.name}: {text_of(answer)}"
            assert expected in text_of(answer)
