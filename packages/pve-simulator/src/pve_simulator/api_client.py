"""A plain client for tests: requests as any user, over HTTPS or, without a fault to strike them, in memory."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from pve_simulator.clock import ManualClock
from pve_simulator.http.certificates import shared_identity
from pve_simulator.simulator import SimulatedCluster


@dataclass
class Reply:
    status: int
    reason: str
    headers: dict[str, str]
    text: str

    @property
    def body(self) -> Any:
        return json.loads(self.text)

    @property
    def data(self) -> Any:
        assert self.status == 200, (self.status, self.reason, self.text)
        return self.body["data"]

    @property
    def errors(self) -> dict[str, str]:
        return dict(self.body["errors"])


class Api:
    """Requests as one user; `as_token` and `as_nobody` make another one."""

    def __init__(self, cluster: SimulatedCluster, session: aiohttp.ClientSession, headers: dict[str, str]) -> None:
        self.cluster = cluster
        self.session = session
        self.headers = headers
        self._handler = cluster.server.for_node(cluster.world.nodes[cluster.node])

    def as_nobody(self, **headers: str) -> Api:
        return Api(self.cluster, self.session, {name.replace("_", "-"): value for name, value in headers.items()})

    def as_token(self, token_id: str) -> Api:
        token = self.cluster.world.access.token(token_id)
        assert token is not None
        return self.as_nobody(Authorization=f"PVEAPIToken={token_id}={token.secret}")

    async def as_user(self, username: str, password: str) -> Api:
        login = await self.as_nobody().post("/access/ticket", username=username, password=password)
        return self.as_nobody(
            Cookie=f"PVEAuthCookie={quote(login.data['ticket'], safe='')}",
            CSRFPreventionToken=login.data["CSRFPreventionToken"],
        )

    async def request(self, method: str, path: str, fmt: str = "json", **options: Any) -> Reply:
        headers = {**self.headers, **options.pop("headers", {})}
        base = f"{self.cluster.url}/api2/{fmt}" if fmt else self.cluster.url
        url = URL(base + path, encoded=True)
        async with self.session.request(method, url, headers=headers, allow_redirects=False, **options) as reply:
            return Reply(reply.status, reply.reason or "", dict(reply.headers), await reply.text())

    async def get(self, path: str, /, **query: Any) -> Reply:
        suffix = "?" + "&".join(f"{key}={quote(str(value), safe='')}" for key, value in query.items()) if query else ""
        return await self._ask("GET", path + suffix)

    async def post(self, path: str, /, **params: Any) -> Reply:
        return await self._ask("POST", path, {key: str(value) for key, value in params.items()})

    async def put(self, path: str, /, **params: Any) -> Reply:
        return await self._ask("PUT", path, {key: str(value) for key, value in params.items()})

    async def delete(self, path: str) -> Reply:
        return await self._ask("DELETE", path)

    async def _ask(self, method: str, path: str, form: dict[str, str] | None = None) -> Reply:
        """Without sockets, unless a fault is to strike them; `request` always uses them."""
        if not self.cluster.faults.is_empty:
            return await self.request(method, path, data=form)
        kind = {} if form is None else {"Content-Type": "application/x-www-form-urlencoded"}
        asked = Request(method, f"/api2/json{path}", {**self.headers, **kind}, urlencode(form or {}).encode())
        response = await self._handler(asked)  # type: ignore[arg-type]
        assert isinstance(response, web.Response)
        return Reply(response.status, response.reason, dict(response.headers), response.text or "")

    async def task(self, upid: str) -> dict[str, Any]:
        node = upid.split(":")[1]
        status: dict[str, Any] = (await self.get(f"/nodes/{node}/tasks/{quote(upid, safe='')}/status")).data
        return status

    async def log(self, upid: str, **query: Any) -> Reply:
        return await self.get(f"/nodes/{upid.split(':')[1]}/tasks/{quote(upid, safe='')}/log", **query)

    async def finish_task(self, reply: Reply, seconds: float = 120.0) -> str:
        """Run the task of a reply to its end on the manual clock; returns its exit status."""
        await self.clock.advance(seconds)
        return str((await self.task(reply.data))["exitstatus"])

    @property
    def clock(self) -> ManualClock:
        assert isinstance(self.cluster.clock, ManualClock)
        return self.cluster.clock


@asynccontextmanager
async def simulated_api(**options: Any) -> AsyncIterator[Api]:
    """A cluster on a manual clock without the delay of refused logins, and a client with all privileges."""
    options.setdefault("clock", ManualClock())
    options.setdefault("auth_delay", 0)
    options.setdefault("identity", shared_identity)
    async with SimulatedCluster(**options) as cluster, open_api(cluster) as api:
        yield api


@asynccontextmanager
async def open_api(cluster: SimulatedCluster) -> AsyncIterator[Api]:
    """A client with all privileges for a running cluster."""
    context = ssl.create_default_context(cafile=cluster.ca_file)
    connector = aiohttp.TCPConnector(ssl=context)
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(connector=connector, cookie_jar=jar) as session:
        headers = {"Authorization": f"PVEAPIToken={cluster.token_id}={cluster.token_secret}"}
        yield Api(cluster, session, headers)


class Request:
    """The parts of a request that the simulator reads."""

    transport = None
    keep_alive = True

    def __init__(self, method: str, raw_path: str, headers: Mapping[str, str], body: bytes) -> None:
        self.method = method
        self.raw_path = raw_path
        self.headers = CIMultiDict(headers)
        self.content_length = len(body) or None
        self.content = Content(body)
        self._body = body

    async def read(self) -> bytes:
        return self._body


class Content:
    """A body that is read in pieces."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._size = 0

    def iter_chunked(self, size: int) -> Content:
        self._size = size
        return self

    def __aiter__(self) -> Content:
        return self

    async def __anext__(self) -> bytes:
        """Not a generator: the loop would keep a list of them."""
        if not self._body:
            raise StopAsyncIteration
        piece, self._body = self._body[: self._size], self._body[self._size :]
        return piece
