"""A cluster of any size that takes 5 ms for every request and next to no CPU, so that only the client is measured.

It serves prepared answers to what the measured calls read; it is not a simulator. `/requests` counts requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from pve_simulator.http.certificates import create_identity

LATENCY = 0.005
TASK_SECONDS = 0.3
NODES = 32
FIRST = 100
TOKEN_ID, TOKEN_SECRET = "root@pam!bench", "00000000-0000-0000-0000-000000000000"


def guests(count: int) -> list[dict[str, Any]]:
    return [
        {
            "type": "qemu", "id": f"qemu/{vmid}", "vmid": vmid, "name": f"guest-{vmid}", "node": f"pve{vmid % NODES}",
            "status": "running", "cpu": 0.013, "maxcpu": 4, "mem": 1_234_567_890, "maxmem": 4 << 30, "disk": 0,
            "maxdisk": 32 << 30, "uptime": 86400, "netin": 10**9, "netout": 10**9, "diskread": 10**9,
            "diskwrite": 10**9, "template": 0, "tags": "prod;web", "pool": "production",
        }
        for vmid in range(FIRST, FIRST + count)
    ]  # fmt: skip


class Cluster:
    def __init__(self, count: int) -> None:
        self._requests = 0
        self._tasks: dict[str, float] = {}
        nodes = [{"type": "node", "id": f"node/pve{n}", "node": f"pve{n}", "status": "online"} for n in range(NODES)]
        self._resources = _envelope([*nodes, *guests(count)])
        self._nodes = _envelope(nodes)
        self._running = set(range(FIRST, FIRST + count))
        privileges = dict.fromkeys(("VM.Audit", "VM.PowerMgmt", "VM.Config.Options", "Sys.Audit", "Datastore.Audit"), 1)
        self._fixed = {
            "/version": _envelope({"version": "9.1.8", "release": "9.1", "repoid": "bench"}),
            "/access/permissions": _envelope({"/": privileges}),
            "/cluster/resources": self._resources,
            "/nodes": self._nodes,
            **{f"/nodes/pve{n}/qemu": _envelope([]) for n in range(NODES)},
        }

    async def handle(self, request: web.Request) -> web.Response:
        path = request.path.removeprefix("/api2/json")
        if path == "/requests":
            return web.json_response(self._requests)
        self._requests += 1
        await asyncio.sleep(LATENCY)
        body = self._fixed.get(path) or self._answer(request.method, path)
        if body is None:
            sys.stderr.write(f"unknown: {request.method} {path}\n")
            return web.Response(status=501, reason="Method not implemented")
        return web.Response(body=body, content_type="application/json")

    def _answer(self, method: str, path: str) -> bytes | None:
        if match := re.fullmatch(r"/nodes/(\w+)/qemu/(\d+)/(\w+)(?:/([\w-]+))?", path):
            return self._guest(method, match[1], int(match[2]), match[3], match[4])
        if match := re.fullmatch(r"/nodes/\w+/tasks/([^/]+)/(status|log)", path):
            ended = time.monotonic() - self._tasks[match[1]] > TASK_SECONDS
            if match[2] == "log":
                return _envelope([{"n": 1, "t": "TASK OK" if ended else "starting"}])
            return _envelope({"status": "stopped", "exitstatus": "OK"} if ended else {"status": "running"})
        return None

    def _guest(self, method: str, node: str, vmid: int, what: str, more: str | None) -> bytes | None:
        if method == "POST" and (what, more) == ("status", "start"):
            upid = f"UPID:{node}:{vmid:08X}:00FF00FF:{int(time.time()):08X}:qmstart:{vmid}:{TOKEN_ID}:"
            self._tasks[upid] = time.monotonic()
            self._running.add(vmid)
            return _envelope(upid)
        if method == "POST" and (what, more) == ("status", "stop"):
            self._running.discard(vmid)
            return _envelope("")
        if (what, more) == ("status", "current"):
            status = "running" if vmid in self._running else "stopped"
            known = {"vmid": vmid, "name": f"guest-{vmid}", "status": status, "qmpstatus": status, "cpus": 4}
            return _envelope({**known, "maxmem": 4 << 30, "maxdisk": 32 << 30, "uptime": 86400, "ha": {"managed": 0}})
        if (what, more) == ("agent", "network-get-interfaces"):
            address = {"ip-address": f"10.0.{vmid // 250}.{vmid % 250 + 1}", "ip-address-type": "ipv4", "prefix": 16}
            card = {"name": "eth0", "hardware-address": "bc:24:11:00:00:01", "ip-addresses": [address]}
            return _envelope({"result": [card]})
        config = {"name": f"guest-{vmid}", "cores": 4, "memory": "4096", "scsi0": "local:vm-1-disk-0,size=32G",
                  "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "ostype": "l26", "agent": "1",
                  "digest": "0" * 40}  # fmt: skip
        if what == "config":
            return _envelope(config)
        return _envelope([{"key": key, "value": value} for key, value in config.items()]) if what == "pending" else None


def _envelope(data: Any) -> bytes:
    return json.dumps({"data": data}).encode()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--guests", type=int, default=5000)
    count: int = parser.parse_args().guests
    with tempfile.TemporaryDirectory(prefix="quorate-bench-") as folder:
        identity = create_identity(Path(folder), ["pve0"])
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", Cluster(count).handle)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=identity.context, backlog=500).start()
        url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        print(json.dumps({"url": url, "ca_file": str(identity.ca_file)}), flush=True)  # noqa: T201
        await asyncio.to_thread(sys.stdin.read)  # until the parent is gone
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
