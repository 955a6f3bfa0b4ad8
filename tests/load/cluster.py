"""`python -m tests.load.cluster NODES GUESTS [FAULT…]`: a simulated cluster that can be asked how it really stands.

Its first line says how to reach it. Then, for each line on standard input: `heal` takes the faults away, `tell` does
not. Both wait until no task runs and answer with the writes that came in, the tasks and the guests, as one line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from pve_simulator.simulator import SimulatedCluster


async def main(nodes: str, guests: str, *faults: str) -> None:
    async with SimulatedCluster(nodes=int(nodes), guests=int(guests), faults=faults) as cluster:
        _say({name: getattr(cluster, name) for name in ("url", "ca_file", "token_id", "token_secret")})
        while line := await asyncio.to_thread(sys.stdin.readline):
            if line.strip() == "heal":
                cluster.faults.clear()
            while cluster.world.tasks.active():
                await asyncio.sleep(0.1)
            _say(_facts(cluster))


def _facts(cluster: SimulatedCluster) -> dict[str, Any]:
    world = cluster.world
    tasks = [task for node in world.nodes for task in world.tasks.newest_first(node)]
    return {
        "writes": [f"{method} {path}" for method, path in cluster.requests if method != "GET"],
        "requests": len(cluster.requests),
        "tasks": {str(task.upid): task.exitstatus for task in tasks},
        "guests": {
            vmid: {
                "tags": guest.config.get("tags", ""),
                "running": guest.running,
                "snapshots": sorted(guest.snapshots),
            }
            for vmid, guest in world.guests.items()
        },
    }


def _say(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
