"""A cycle of the watch at 5,000 guests."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.table import Table
from quorate.app import build
from quorate.config import ClusterSettings, Settings
from quorate.config.watch import WatchSettings
from quorate.pve.connection import Connection, Secret, Token, Trust


async def watch(table: Table) -> None:
    """CPU time of this process alone; the first cycles import modules and do not count."""
    table.section("the watch (32 nodes and 5,000 guests in the simulator)")
    command = [sys.executable, "-m", "quorate", "sim", "--nodes", "32", "--guests", "5000"]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as simulator,  # noqa: ASYNC220
    ):
        try:
            assert simulator.stdout is not None
            ready = json.loads(simulator.stdout.readline())
            token = Token(ready["token_id"], Secret(ready["token_secret"]))
            connection = Connection((ready["url"],), token, Trust(ca_file=ready["ca_file"]))
            app = build(
                Settings(
                    clusters=(ClusterSettings("bench", connection),),
                    audit_file=Path(folder) / "audit.jsonl",
                    state=str(Path(folder) / "state.sqlite"),
                    watch=WatchSettings(),
                )
            )
            assert app.watch is not None
            assert app.cluster is not None
            cpu, requests = [], []
            for _ in range(9):
                asked, begun = app.cluster.client.asked.total(), time.process_time()
                await app.watch.cycle()
                cpu.append(1000 * (time.process_time() - begun))
                requests.append(app.cluster.client.asked.total() - asked)
            table.add("requests of a cycle", max(requests), "", 48)
            table.add("CPU of a cycle", statistics.median(cpu[2:]), "ms", 150, room=1.6)
            await app.close()
        finally:
            simulator.terminate()
