"""Two servers in processes of their own, on one store: a freeze counts on both, also for a plan on its way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quorate.pve.connection import SystemClock
from quorate.state.passphrase import Passphrase
from quorate.state.store import open_store
from quorate.state.tokens import Tokens
from tests.load.clients import STATELESS, Answer, McpClient, http_session
from tests.load.processes import cluster, command, serving

pytestmark = pytest.mark.anyio
PHRASE = "a few random words"


@pytest.mark.thorough
async def test_a_freeze_counts_on_every_replica_and_for_a_plan_on_its_way(location: str, tmp_path: Path):
    async with open_store(location, clock=SystemClock()) as store, cluster(2, 12) as pve, http_session() as http:
        token = (await Tokens(store).create("assistant", "admin")).plain
        await Passphrase(store).set(PHRASE)
        environ = {**pve.environ, "QUORATE_STATE": location, "QUORATE_AUDIT_FILE": str(tmp_path / "audit.jsonl")}
        options = ("--access", "admin", "--approval", "none")
        async with serving(environ, *options) as first, serving(environ, *options) as second:
            clients = [McpClient(http, replica.url, token, STATELESS) for replica in (first, second)]
            known = (await pve.tell())["guests"]
            running = [int(vmid) for vmid, facts in known.items() if facts["running"]]
            going = asyncio.create_task(_power_cycle_until_frozen(clients[0], running[0]))
            for client in clients:
                assert not (await client.call("guest_get", guest=running[1])).error
            code, output = await command(environ, "freeze", "--reason", "moving house")
            assert code == 0, output
            for client in clients:
                refused = await client.call("guest_stop", guest=running[1])
                assert refused.error
                assert "moving house" in refused.text
                assert not (await client.call("guest_list", limit=1)).error, "reading goes on"
            last = await asyncio.wait_for(going, 60)
            assert "moving house" in last.text
            before = (await pve.tell())["writes"]
            headers = {"Authorization": f"Bearer {token}"}
            for server in (first, second):
                async with http.get(f"{server.url}/healthz") as health:
                    assert (await health.json())["changes"] == "frozen"
            wish = {"action": "unfreeze", "passphrase": PHRASE}
            async with http.post(f"{second.url}/freeze", json=wish, headers=headers) as lifted:
                assert await lifted.json() == {"frozen": False}
            assert (await pve.tell())["writes"] == before, "no change starts once the command has returned"
            for client, vmid in zip(clients, running[1:], strict=False):
                done = await client.call("guest_stop", guest=vmid)
                assert not done.error, done.text
        code, output = await command(environ, "audit", "--verify")
        assert code == 0, output


async def _power_cycle_until_frozen(client: McpClient, vmid: int) -> Answer:
    """One change after the other, as fast as they go; the answer that ended it."""
    while True:
        for tool, arguments in (("guest_stop", {}), ("guest_power", {"action": "start"})):
            answer = await client.call(tool, guest=vmid, **arguments)
            if answer.error:
                return answer
