"""The control API over plain HTTP on loopback: what Python tests do with the cluster object, for other languages."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web
from yarl import URL

from pve_simulator import world_file
from pve_simulator.clock import ManualClock, log_time
from pve_simulator.simulator import SimulatedCluster

_HOST = "127.0.0.1"
_LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost"})
_MAX_BODY = 64 * 1024**2
_SECONDS_TO_END = 0.05


class ControlServer:
    """Serves the control API of one cluster while it runs, as an async context manager; `port` 0 takes a free one."""

    def __init__(self, cluster: SimulatedCluster, port: int = 0) -> None:
        self._cluster = cluster
        self._port = port
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        application = web.Application(middlewares=[_check_request], client_max_size=_MAX_BODY)
        application.add_routes(
            [
                web.get("/", self._read_state),
                web.post("/advance", self._advance),
                web.get("/faults", self._list_faults),
                web.post("/faults", self._add_fault),
                web.delete("/faults", self._clear_faults),
                web.delete("/faults/{number:[0-9]+}", self._remove_fault),
                web.get("/requests", self._list_requests),
                web.delete("/requests", self._forget_requests),
                web.post("/reset", self._reset),
                web.get("/world", self._dump_world),
                web.put("/world", self._load_world),
                web.get("/world/schema", self._read_schema),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=_SECONDS_TO_END)
        await self._runner.setup()
        site = web.TCPSite(self._runner, _HOST, self._port)
        try:
            await site.start()
        except OSError:
            await self._runner.cleanup()
            raise
        self.url = f"http://{_HOST}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _read_state(self, _request: web.Request) -> web.Response:
        clock = self._cluster.clock
        return web.json_response(
            {
                "url": self._cluster.url,
                "node": self._cluster.node,
                "version": self._cluster.world.version,
                "now": clock.now(),
                "time": log_time(clock.now()),
                "manual": isinstance(clock, ManualClock),
                "requests": len(self._cluster.requests),
                "faults": len(self._cluster.faults.active),
            }
        )

    async def _advance(self, request: web.Request) -> web.Response:
        clock = self._cluster.clock
        if not isinstance(clock, ManualClock):
            raise _error(409, "Time passes on its own. Start the simulator with --speed 0 to turn its clock.")
        seconds = (await _body(request)).get("seconds")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
            raise ValueError('the body is {"seconds": NUMBER}, with zero or more seconds')
        await clock.advance(seconds)
        return await self._read_state(request)

    async def _list_faults(self, _request: web.Request) -> web.Response:
        return web.json_response([{"id": each.number, "fault": each.text} for each in self._cluster.faults.active])

    async def _add_fault(self, request: web.Request) -> web.Response:
        text = (await _body(request)).get("fault")
        if not isinstance(text, str):
            raise ValueError('the body is {"fault": TEXT}, such as {"fault": "no-quorum"}')
        fault = self._cluster.faults.add(text)
        return web.json_response({"id": fault.number, "fault": fault.text}, status=201)

    async def _remove_fault(self, request: web.Request) -> web.Response:
        number, faults = int(request.match_info["number"]), self._cluster.faults
        fault = next((each for each in faults.active if each.number == number), None)
        if fault is None:
            raise _error(404, f"There is no active fault {number}. GET /faults lists them.")
        faults.remove(fault)
        return await self._list_faults(request)

    async def _clear_faults(self, request: web.Request) -> web.Response:
        self._cluster.faults.clear()
        return await self._list_faults(request)

    async def _list_requests(self, _request: web.Request) -> web.Response:
        return web.json_response([{"method": method, "path": path} for method, path in self._cluster.requests])

    async def _forget_requests(self, request: web.Request) -> web.Response:
        self._cluster.requests.clear()
        return await self._list_requests(request)

    async def _reset(self, request: web.Request) -> web.Response:
        await self._cluster.reset()
        return await self._read_state(request)

    async def _dump_world(self, _request: web.Request) -> web.Response:
        text = msgspec.json.encode(world_file.dump(self._cluster.world))
        return web.Response(body=text, content_type="application/json")

    async def _load_world(self, request: web.Request) -> web.Response:
        await self._cluster.reset(world_file.parse(await request.text()).build)
        return await self._read_state(request)

    async def _read_schema(self, _request: web.Request) -> web.Response:
        return web.json_response(world_file.schema())


async def _body(request: web.Request) -> dict[str, Any]:
    text = await request.text()
    try:
        body = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")
    return body


def _error(status: int, text: str) -> web.HTTPException:
    kind = {403: web.HTTPForbidden, 404: web.HTTPNotFound, 409: web.HTTPConflict}[status]
    return kind(text=json.dumps({"error": text}), content_type="application/json")


@web.middleware
async def _check_request(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse web pages, also those that resolve their own name to loopback; a mistake in the body is a 400."""
    host = URL(f"http://{request.host}").host
    if host not in _LOOPBACK_NAMES or "Origin" in request.headers:
        raise _error(403, "The control API answers programs on this machine, not web pages.")
    try:
        return await handler(request)
    except ValueError as error:
        return web.json_response({"error": str(error)}, status=400)
