"""Calls at 5,000 guests and 5 ms per request, compared with a direct HTTPS client that makes the fewest requests.

The floor of a status is what a script does: it knows the node, opens a connection, reads the status and closes it.
Fifty at once are fifty connections. Quorate keeps connections open, as does the second floor: a pool opened before.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import aiohttp
import msgspec

from bench.processes import PROCESS, QUORATE, StdioServer, Stopwatch, cpu_seconds, started, synthetic
from bench.synthetic_pve import FIRST, NODES, TOKEN_ID, TOKEN_SECRET
from bench.table import Table, ratio

GUESTS = 5000
ROUNDS = 15
MANY_ROUNDS = 9
AT_ONCE = 50
DIRECTLY = "read by a client that opens a connection for each request"
STOPPED = 1000
"""Offset of the vmids of guests to start."""
ROOM = 1.6
"""Room for noise in wall time."""


class Direct:
    """The floor: a client that knows where everything is."""

    def __init__(self, environ: dict[str, str], session: aiohttp.ClientSession) -> None:
        self._url = environ["PROXMOX_URL"]
        self._session = session
        self.cluster = int(environ[PROCESS])

    async def requests(self) -> int:
        """Requests that the cluster has answered so far."""
        async with self._session.get(f"{self._url}/requests") as response:
            return int(await response.text())

    async def send(self, method: str, path: str) -> object:
        async with self._session.request(method, f"{self._url}/api2/json{path}") as response:
            return msgspec.json.decode(await response.read())["data"]

    async def status(self, vmid: int) -> object:
        return await self.send("GET", f"{guest(vmid)}/status/current")

    async def start(self, vmid: int) -> None:
        upid = await self.send("POST", f"{guest(vmid)}/status/start")
        status = f"/nodes/pve{vmid % NODES}/tasks/{upid}/status"
        while (await self.send("GET", status)) == {"status": "running"}:  # noqa: ASYNC110 (it is a poll)
            await asyncio.sleep(0.01)


def guest(vmid: int) -> str:
    return f"/nodes/pve{vmid % NODES}/qemu/{vmid}"


@contextlib.asynccontextmanager
async def direct(environ: dict[str, str], *, pooled: bool) -> AsyncIterator[Direct]:
    """Pooled connections stay open; otherwise each request opens its own."""
    context = ssl.create_default_context(cafile=environ["PROXMOX_CA_FILE"])
    headers = {"Authorization": f"PVEAPIToken={TOKEN_ID}={TOKEN_SECRET}"}
    connector = aiohttp.TCPConnector(ssl=context, force_close=not pooled)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        yield Direct(environ, session)


async def calls(table: Table) -> None:
    with synthetic(GUESTS) as environ:
        async with direct(environ, pooled=False) as floor, direct(environ, pooled=True) as pool:
            async with started([*QUORATE, "serve", "--access", "operate"], environ) as server:
                await server.open()
                await _reads(table, server, floor, pool)
                await _pages(table, server, GUESTS)
                table.add("memory after these reads", server.megabytes, "MB", 95, room=1.2)
                await _starts(table, server, pool)
            await _compat(table, environ, floor, pool)
            await _over_http(table, environ, pool)
    with synthetic(4 * GUESTS) as environ:
        async with started([*QUORATE, "serve"], environ) as server:
            await server.open()
            await _pages(table, server, 4 * GUESTS)


@dataclass(frozen=True, slots=True)
class Measured:
    """One call, many times, each paired with its floor."""

    requests: float
    cpu: float
    """Milliseconds of the server."""
    times: float
    """The median ratio of wall times."""
    floor: float
    """Its time in milliseconds."""
    pooled_times: float
    """The same with a pool of open connections."""
    pooled_floor: float
    busy: float

    def add_time(self, table: Table, what: str, target: float, room: float = ROOM) -> None:
        table.add(what, self.times, "x", target, room=room, remark=f"floor {self.floor:.3g} ms", busy=self.busy)

    def add_pooled_time(self, table: Table, what: str, target: float, room: float = ROOM) -> None:
        remark = f"open pool {self.pooled_floor:.3g} ms"
        table.add(what, self.pooled_times, "x", target, room=room, remark=remark, busy=self.busy)


Work = Callable[[int], Awaitable[object]]


async def measure(
    server: StdioServer, pool: Direct, ours: Work, floor: Work, pooled: Work | None = None, rounds: int = ROUNDS
) -> Measured:
    pooled = pooled or floor
    watch = Stopwatch(server.pid, pool.cluster)
    for work in (ours, floor, pooled):
        await work(FIRST)
    walls, floors, pools, requests, cpu = [], [], [], [], []
    for vmid in range(FIRST + 1, FIRST + 1 + rounds):
        floors.append(await watch.seconds(floor(vmid)))
        pools.append(await watch.seconds(pooled(vmid)))
        before, used = await pool.requests(), server.cpu
        walls.append(await watch.seconds(ours(vmid)))
        cpu.append(server.cpu - used)
        requests.append(await pool.requests() - before)
    return Measured(
        requests=statistics.median(requests),
        cpu=statistics.median(cpu) * 1000,
        times=ratio(walls, floors),
        floor=statistics.median(floors) * 1000,
        pooled_times=ratio(walls, pools),
        pooled_floor=statistics.median(pools) * 1000,
        busy=watch.busy,
    )


def at_once(work: Work) -> Work:
    async def many(vmid: int) -> object:
        return await asyncio.gather(*(work(vmid + each) for each in range(AT_ONCE)))

    return many


async def _reads(table: Table, server: StdioServer, floor: Direct, pool: Direct) -> None:
    table.section(f"guest_get (floor: the guest's status, {DIRECTLY})")

    async def get(vmid: int) -> object:
        return await server.call("guest_get", guest=vmid)

    async def get_afresh(vmid: int) -> object:
        await asyncio.sleep(2.05)  # until the view of the cluster is outdated
        return await get(vmid)

    measured = await measure(server, pool, get, floor.status, pool.status)
    table.add("requests without detail, with a fresh view", measured.requests, "", 3)
    table.add("CPU", measured.cpu, "ms", 3, room=2)
    measured.add_time(table, "time, times the floor", 1.5)
    measured.add_pooled_time(table, "time, times an open connection", 2)
    afresh = await measure(server, pool, get_afresh, floor.status, rounds=3)
    table.add("requests, with an outdated view", afresh.requests, "", 4)
    table.add("CPU, with an outdated view", afresh.cpu, "ms", 25, room=2)
    many = await measure(server, pool, at_once(get), at_once(floor.status), at_once(pool.status), MANY_ROUNDS)
    table.add("requests of 50 at once", many.requests, "", 3 * AT_ONCE + 1)
    table.add("CPU of 50 at once", many.cpu, "ms", 75, room=1.8)
    many.add_time(table, "time of 50 at once, times the floor", 1, room=2)
    many.add_pooled_time(table, "time of 50 at once, times an open pool", 5, room=2)


async def _starts(table: Table, server: StdioServer, floor: Direct) -> None:
    table.section("guest_power action=start, followed to its end (floor: start, then poll every 10 ms)")
    for vmid in range(FIRST, FIRST + 20):
        await floor.send("POST", f"{guest(STOPPED + vmid)}/status/stop")

    async def start(vmid: int) -> object:
        return await server.call("guest_power", guest=STOPPED + vmid, action="start")

    async def start_directly(vmid: int) -> None:
        await floor.start(vmid + 100)

    measured = await measure(server, floor, start, start_directly, rounds=7)
    table.add("requests", measured.requests, "", 6)
    table.add("CPU", measured.cpu, "ms", 30, room=2)
    measured.add_time(table, "time, times the floor", 1.25, room=1.4)


async def _pages(table: Table, server: StdioServer, count: int) -> None:
    table.section(f"guest_list, all {count:,} guests in pages of 200")

    async def everything() -> int:
        offset, rows = 0, 0
        while offset is not None:
            answer = (await server.call("guest_list", limit=200, offset=offset))["structuredContent"]
            rows, offset = rows + len(answer["rows"]), answer.get("next_offset")
        return rows

    assert await everything() == count
    spent = []
    for _ in range(3):
        used = server.cpu
        await everything()
        spent.append(server.cpu - used)
    table.add("CPU, each 5,000", min(spent) * 1000 * GUESTS / count, "ms", 100, room=1.5)


async def _compat(table: Table, environ: dict[str, str], floor: Direct, pool: Direct) -> None:
    table.section(f"a guest's status by a drop-in tool, get_vm_status of gilby125 (floor: the same, {DIRECTLY})")
    async with started([*QUORATE, "serve", "--surface", "gilby125"], environ) as server:
        await server.open()

        async def status(vmid: int) -> object:
            return await server.call("proxmox_get_vm_status", node=f"pve{vmid % NODES}", vmid=str(vmid), type="qemu")

        measured = await measure(server, pool, status, floor.status, pool.status)
        table.add("requests", measured.requests, "", 1)
        table.add("CPU", measured.cpu, "ms", 3, room=2)
        measured.add_time(table, "time, times the floor", 1.5)
        measured.add_pooled_time(table, "time, times an open connection", 2)
        many = await measure(server, pool, at_once(status), at_once(floor.status), at_once(pool.status), MANY_ROUNDS)
        table.add("CPU of 50 at once", many.cpu, "ms", 75, room=1.8)
        many.add_time(table, "time of 50 at once, times the floor", 1, room=2)
        many.add_pooled_time(table, "time of 50 at once, times an open pool", 5, room=2)


async def _over_http(table: Table, environ: dict[str, str], floor: Direct) -> None:
    table.section("guest_get over HTTP, one client (floor: the guest's status, read over an open connection)")
    command = [*QUORATE, "serve", "--http", "127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(*command, env=environ, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        url = ""
        while not (match := re.search(r"listening on (\S+)", url)):
            url = (await process.stderr.readline()).decode()
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
            await _http_calls(table, session, match[1], floor, Stopwatch(process.pid, floor.cluster))
            await _console_pages(table, session, match[1].removesuffix("/mcp"), process.pid)
    finally:
        process.terminate()
        await process.wait()


async def _console_pages(table: Table, session: aiohttp.ClientSession, origin: str, pid: int) -> None:
    table.section("the console at 5,000 guests")
    cpu, page = [], b""
    for _ in range(ROUNDS):
        before = cpu_seconds(pid)
        async with session.get(f"{origin}/console/inventory") as response:
            page = await response.read()
        cpu.append(1000 * (cpu_seconds(pid) - before))
    assert b"Guests <small>5000</small>" in page, page[:500]
    files = 0
    for name in ("console.css", "console.js", "htmx.min.js", "sse.min.js", "icon.svg"):
        async with session.get(f"{origin}/console/static/{name}") as response:
            files += len(await response.read())
    async with session.get(f"{origin}/console") as response:
        first = len(await response.read())
    table.add("size of the first page with its files", (first + files) / 1000, "kB", 100)
    table.add("CPU of the inventory", statistics.median(cpu[1:]), "ms", 100, room=1.6)


async def _http_calls(table: Table, session: aiohttp.ClientSession, url: str, floor: Direct, watch: Stopwatch) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28"}

    async def get(vmid: int) -> None:
        params = {"name": "guest_get", "arguments": {"guest": vmid}, "_meta": meta}
        body = {"jsonrpc": "2.0", "id": vmid, "method": "tools/call", "params": params}
        route = {"Mcp-Method": "tools/call", "Mcp-Name": "guest_get"}
        async with session.post(url, json=body, headers={**headers, **route}) as response:
            answer = await response.text()
            assert response.status == 200, answer
            assert f"guest-{vmid}" in answer, answer

    await get(FIRST)
    walls, floors = [], []
    for vmid in range(FIRST + 1, FIRST + 1 + 2 * ROUNDS):
        floors.append(await watch.seconds(floor.status(vmid)))
        walls.append(await watch.seconds(get(vmid)))
    table.add("time", statistics.median(walls) * 1000, "ms", 12, room=2, busy=watch.busy)
    table.add("time, times the floor", ratio(walls, floors), "x", 2, room=ROOM, busy=watch.busy)
