"""HTTPS to one PVE cluster: credentials, failover between nodes, retries of reads, never a blind resend of a write."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import socket
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote, urlencode
from weakref import WeakSet

import aiohttp
import msgspec
import yarl

from quorate.documents import ACCEPTED, BodyRefused, Unreadable, can_be_deep, read_body, read_json, refuse_depth
from quorate.hints import Advice, see, tools
from quorate.log import count_request
from quorate.problems import (
    AuthenticationFailed,
    ListingRaced,
    NodeOffline,
    NotFound,
    OutcomeUnknown,
    Problem,
    ServerFailed,
    TimedOut,
    Unreachable,
)
from quorate.pve import trust, wire
from quorate.pve.connection import Clock, Connection, Password, Product, SystemClock, Token
from quorate.pve.errors import (
    explain,
    explain_no_address,
    http_problem,
    interrupted_upload,
    node_is_offline,
    not_its_api,
    outcome_unknown,
    unreadable_file,
)
from quorate.pve.tasks import Report
from quorate.pve.uploads import Upload, UploadBody
from quorate.server_files import ServerFile

T = TypeVar("T")

READ_ATTEMPTS = 3
FIRST_PAUSE = 0.2
TICKET_SECONDS = 5400.0  # a ticket is valid for two hours; it is renewed after one and a half
KEEP_ALIVE_SECONDS = 4.0  # PVE closes an idle connection after five; reusing it later would race with that
CONNECT_SECONDS = 10.0
NODES_SECONDS = 2.0  # how long a read of the nodes is good for
CONSOLE_MESSAGE_BYTES = 1 << 20  # PVE splits what a console sends into pieces of 128 KiB
HANG_UP_SECONDS = 2.0
CLOSED = -1  # the number of a socket that is closed
CLOSING_TURNS = 20  # of the event loop; it notices the end of a connection in the next one and closes it in a later one
IN_QUERY = ("GET", "DELETE")  # where PVE takes parameters in the query, and as a form otherwise
NEVER_SENT = {None, 595}  # no connection, or none from PVE's proxy to the node: nothing was done


class ApiResponse(msgspec.Struct, frozen=True):
    """A successful answer of PVE: `data` and its companions."""

    data: Any = None
    total: int | None = None
    changes: str | None = None
    """Pending changes as a patch; only for the networks of nodes."""


class _Ticket(msgspec.Struct, frozen=True):
    ticket: str
    csrf: str
    obtained: float


class _Node(msgspec.Struct, frozen=True):
    node: str
    status: str = "unknown"


class _Login(msgspec.Struct, frozen=True):
    ticket: str = ""
    csrf: str = msgspec.field(name="CSRFPreventionToken", default="")
    second_factor: int = msgspec.field(name="NeedTFA", default=0)


class _Console(msgspec.Struct, frozen=True):
    port: int
    ticket: str
    user: str = ""
    password: str = ""


@dataclass(slots=True)
class RawResponse:
    """An answer as it came, also an error."""

    status: int
    reason: str
    body: bytes | bytearray
    endpoint: str
    """The endpoint that answered."""


class PveClient:
    """The API of one cluster. `await client.get("/nodes")` returns what PVE puts under `data`."""

    def __init__(self, connection: Connection, *, clock: Clock | None = None) -> None:
        self._connection = connection
        self._clock = clock or SystemClock()
        self._session: aiohttp.ClientSession | None = None
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._preferred = 0
        self._ticket: _Ticket | None = None
        self._login = asyncio.Lock()
        self._nodes: Mapping[str, bool] = {}
        self._nodes_read_at = float("-inf")
        self._silent: set[str] = set()
        """Nodes that are offline and did not answer: they are not asked again until they are back."""
        self.measured_skew: float | None = None
        """Seconds the cluster's clock is ahead of this machine's, from its last Date header; None before the first."""
        self.asked: Counter[tuple[str, str]] = Counter()
        """Requests by method and status; "none" if there was no answer."""
        self.leaving = False
        """Set when the server shuts down: tasks are returned instead of followed."""

    @property
    def clock_skew(self) -> float:
        """`measured_skew`, or 0 while it is unknown."""
        return self.measured_skew or 0.0

    @property
    def product(self) -> Product:
        return self._connection.product

    @property
    def identity(self) -> str:
        credentials = self._connection.credentials
        return credentials.id if isinstance(credentials, Token) else credentials.user

    @property
    def is_token(self) -> bool:
        return isinstance(self._connection.credentials, Token)

    def secrets(self) -> list[str]:
        """Every text that redaction must remove."""
        credentials = self._connection.credentials
        own = credentials.secret if isinstance(credentials, Token) else credentials.password
        return [own.reveal(), *((self._ticket.ticket, self._ticket.csrf) if self._ticket else ())]

    async def get(self, path: str, /, **params: Any) -> Any:
        return self._decode(path, await self._send("GET", path, params)).data

    async def get_as(self, kind: type[T], path: str, /, **params: Any) -> T:
        """A read decoded directly into `kind`, ten times as fast for large lists."""
        raw = await self._send("GET", path, params)
        try:
            # PVE is written in Perl, so a number is sometimes a string.
            return msgspec.json.decode(raw.body, type=_envelope(kind), strict=False).data  # type: ignore[no-any-return]
        except msgspec.ValidationError:
            return self._without_nulls(kind, path, raw)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise not_its_api(self.product, path, raw.status, len(raw.body), str(error)) from None

    def _without_nulls(self, kind: type[T], path: str, raw: RawResponse) -> T:
        """The slower decoding for answers that contain null, Perl's way to say that a value is missing."""
        try:
            answer = _dropping_nulls(read_json(raw.body))
            return msgspec.convert(answer, _envelope(kind), strict=False).data  # type: ignore[no-any-return]
        except (msgspec.ValidationError, Unreadable) as error:
            raise not_its_api(self.product, path, raw.status, len(raw.body), str(error)) from None

    async def request(self, method: str, path: str, params: Mapping[str, Any] | None = None) -> ApiResponse:
        """One API call. Reads are retried, also on other nodes; a write is sent at most once."""
        if method == "GET":
            return self._decode(path, await self._send("GET", path, params or {}))
        return self._decoded_write(method, path, await self._write(method, path, params or {}))

    async def download(self, path: str, /, **params: Any) -> bytes:
        """The bytes of a file, as many as an answer may have."""
        return bytes((await self._send("GET", path, params)).body)

    async def upload(
        self, path: str, params: Mapping[str, Any], source: ServerFile | bytes, report: Report | None = None
    ) -> ApiResponse:
        """Send a file. It may take any time as long as it makes progress."""
        return self._decoded_write("POST", path, await self._write("POST", path, params, Upload(source, report)))

    async def open_console(self, path: str) -> tuple[str, aiohttp.ClientWebSocketResponse]:
        """The VNC connection to the VM at `path` and its password. The caller closes it.

        PVE opens the port only on the node that gets the request, wherever the VM is, so both calls use one endpoint.
        """
        asked = {"websocket": True, "generate-password": True}
        opened, socket = await self._open_proxy(path, "vncproxy", asked)
        return opened.password or opened.ticket, socket

    async def open_terminal(self, path: str, serial: str) -> tuple[str, aiohttp.ClientWebSocketResponse]:
        """The connection to a serial port of the VM at `path`, and the line that logs in. The caller closes it."""
        opened, socket = await self._open_proxy(path, "termproxy", {"serial": serial})
        return f"{opened.user}:{opened.ticket}\n", socket

    async def _open_proxy(
        self, path: str, proxy: str, params: Mapping[str, Any]
    ) -> tuple[_Console, aiohttp.ClientWebSocketResponse]:
        try:
            raw = await self._write("POST", f"{path}/{proxy}", params)
        except OutcomeUnknown as problem:  # PVE closes an unused console after ten seconds
            raise TimedOut("PVE did not answer when asked for the console", why=problem.why) from None
        opened = self._decoded_as(_Console, path, raw)
        way = {"port": opened.port, "vncticket": opened.ticket}
        return opened, await self._connect(raw.endpoint, f"{path}/vncwebsocket", way)

    async def _connect(self, endpoint: str, path: str, params: Mapping[str, Any]) -> aiohttp.ClientWebSocketResponse:
        url, _ = _address(endpoint, "GET", path, params)
        try:
            return await self._open().ws_connect(
                url,
                headers=await self._credentials("GET", path),
                protocols=("binary",),
                max_msg_size=CONSOLE_MESSAGE_BYTES,
                timeout=aiohttp.ClientWSTimeout(ws_close=HANG_UP_SECONDS),
            )
        except aiohttp.WSServerHandshakeError as error:
            raise ServerFailed(
                "PVE did not open the console",
                why=f"It answered GET {path} with {error.status}",
                next_step="Try again; a proxy in front of PVE has to forward WebSockets",
            ) from None
        except (_SentOnce, aiohttp.ClientError, OSError) as error:
            cause = error.error if isinstance(error, _SentOnce) else error
            raise await explain(self._connection, endpoint, "GET", path, cause) from None

    def _decoded_as(self, kind: type[T], path: str, raw: RawResponse) -> T:
        try:
            # PVE is written in Perl, so a number is sometimes a string.
            return read_json(raw.body, _envelope(kind), strict=False).data  # type: ignore[no-any-return]
        except Unreadable as error:
            raise not_its_api(self.product, path, raw.status, len(raw.body), str(error)) from None

    def _decode(self, path: str, raw: RawResponse) -> ApiResponse:
        try:
            answer: ApiResponse = read_json(raw.body, ApiResponse, strict=False)
            if can_be_deep(raw.body):
                refuse_depth(answer.data)
            return answer
        except Unreadable as error:
            raise not_its_api(self.product, path, raw.status, len(raw.body), str(error)) from None

    def _decoded_write(self, method: str, path: str, raw: RawResponse) -> ApiResponse:
        """PVE accepted the write, so an answer that cannot be read says nothing about its effect."""
        try:
            return self._decode(path, raw)
        except ServerFailed as garbled:
            raise outcome_unknown(method, path, f"{garbled.what}. {garbled.why}", self.product) from None

    async def close(self) -> None:
        """Close all connections, also those of canceled requests, which aiohttp forgets while TLS says goodbye."""
        if self._session is None:
            return
        await self._session.close()
        self._session = None
        for connection in self._sockets:
            with contextlib.suppress(OSError):  # it is closed
                connection.shutdown(socket.SHUT_RDWR)
        for _ in range(CLOSING_TURNS):
            if all(connection.fileno() == CLOSED for connection in self._sockets):
                break
            await asyncio.sleep(0)

    def _open_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, *_ = address
        connection = socket.socket(family, kind, protocol)
        self._sockets.add(connection)
        return connection

    # -- nodes -----------------------------------------------------------------------------------------------------

    def note_nodes(self, nodes: Mapping[str, bool]) -> None:
        """Record the nodes of the cluster, which were just read, and whether each is online."""
        self._nodes, self._nodes_read_at = dict(nodes), self._clock.monotonic()
        self._silent -= {name for name, online in nodes.items() if online}

    async def require_node(self, name: str) -> None:
        """Refuse a name that is not a node.

        PVE would look it up in the DNS and forward the request to that machine, including the credentials.
        """
        if name not in self._nodes:
            await self._read_nodes()
        if name not in self._nodes:
            raise NotFound(f"There is no node {name!r}", next_step=see("List the nodes", tools.node_list))

    async def _read_nodes(self) -> None:
        self.note_nodes({row.node: row.status == "online" for row in await self.get_as(list[_Node], "/nodes")})

    async def _is_offline(self, node: str) -> bool:
        """Whether the cluster says so, by a read that is at most two seconds old."""
        if self._clock.monotonic() - self._nodes_read_at > NODES_SECONDS:
            await self._read_nodes()
        return not self._nodes.get(node, True)

    async def _is_hopeless(self, node: str) -> bool:
        """Whether it is useless to ask again after a 595: only another endpoint could still reach the node."""
        if len(self._connection.endpoints) == 1:
            return True
        try:
            return bool(node) and await self._is_offline(node)
        except Problem:
            return False

    @asynccontextmanager
    async def _unless_offline(self, node: str) -> AsyncIterator[None]:
        """Ends a read that PVE forwards to a dead node: PVE waits 30 s for it, but the cluster knows after a few."""
        loop, seconds = asyncio.get_running_loop(), self._connection.limits.silence_seconds
        watch: asyncio.Task[None] | None = None

        async def watch_node() -> None:
            while True:
                with contextlib.suppress(Problem):
                    if await self._is_offline(node):
                        limit.reschedule(loop.time())
                        return
                await asyncio.sleep(seconds)

        def begin() -> None:
            nonlocal watch
            watch = loop.create_task(watch_node())

        timer = loop.call_later(seconds, begin)
        try:
            async with asyncio.timeout(None) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            self._silent.add(node)
            raise node_is_offline(node) from None
        finally:
            timer.cancel()
            if watch is not None:
                watch.cancel()

    # -- reads and writes ------------------------------------------------------------------------------------------

    async def _write(
        self, method: str, path: str, params: Mapping[str, Any], upload: Upload | None = None
    ) -> RawResponse:
        try:
            return await self._send(method, path, params, upload)
        except (NodeOffline, Unreachable) as problem:
            if problem.facts.get("status") in NEVER_SENT:
                raise
            raise outcome_unknown(method, path, str(problem.what), self.product) from None

    async def _send(
        self, method: str, path: str, params: Mapping[str, Any], upload: Upload | None = None
    ) -> RawResponse:
        """Send a write once, a read again after a failure; renew an expired ticket once."""
        attempts_left = READ_ATTEMPTS if method == "GET" else 1
        has_ticket = not self.is_token and path != "/access/ticket"
        raced = False
        pause = FIRST_PAUSE
        node = self._node_in(path)
        async with self._time_limit(method, path) as deadline:
            if node:
                await self.require_node(node)
            if method == "GET" and node in self._silent and await self._is_offline(node):
                raise node_is_offline(node)
            while True:
                try:
                    async with self._unless_offline(node) if node and method == "GET" else contextlib.nullcontext():
                        raw = await (
                            self._send_file(path, params, upload) if upload else self._ask(method, path, params)
                        )
                    if raw.status == 401 and has_ticket:
                        # A 401 means that nothing was done, so repeating is safe, even for writes.
                        has_ticket, self._ticket = False, None
                        continue
                    if raw.status < 400:
                        return raw
                    raise self._problem(method, path, raw)
                except ListingRaced:
                    if raced:
                        raise
                    raced = True
                    continue
                except (Unreachable, TimedOut, NodeOffline) as problem:
                    attempts_left -= 1
                    hopeless = problem.facts.get("status") == 595 and await self._is_hopeless(node)
                    if hopeless or not attempts_left or self._clock.monotonic() + pause > deadline:
                        if isinstance(problem, NodeOffline) and node:
                            self._silent.add(node)
                        raise
                    self._preferred += 1
                await self._clock.sleep(pause)
                pause *= 3

    def _node_in(self, path: str) -> str:
        """The node that PVE forwards this request to; empty if there is none."""
        return path.split("/")[2] if path.startswith("/nodes/") else ""

    def _problem(self, method: str, path: str, raw: RawResponse) -> Problem:
        return http_problem(method, path, raw.status, raw.reason, _error_body(raw.body), identity=self.identity)

    @asynccontextmanager
    async def _time_limit(self, method: str, path: str) -> AsyncIterator[float]:
        """The time that a read may take with all its repetitions; a write ends with its only request."""
        total = self._connection.limits.total_seconds
        try:
            async with asyncio.timeout(total if method == "GET" else None):
                yield self._clock.monotonic() + total
        except TimeoutError:
            raise TimedOut(
                f"{self.product.name} did not answer GET {path} within {total:g} s",
                next_step=Advice("Check the nodes, or raise total_seconds", self.product.overview),
            ) from None

    async def _ask(self, method: str, path: str, params: Mapping[str, Any]) -> RawResponse:
        """Send one request to the first endpoint that accepts the connection."""
        headers = await self._credentials(method, path)
        if method not in IN_QUERY:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        failures: list[Unreachable] = []
        for endpoint in self._endpoints_by_preference():
            url, body = _address(endpoint, method, path, params)
            session = self._open()
            try:
                async with session.request(method, url, data=body, headers=headers, allow_redirects=False) as response:
                    return self._note_answer(endpoint, response, await self._read_body(response))
            except FAILURES as error:
                failures.append(_require_unsent(await self._explain_failure(endpoint, method, path, error)))
        raise explain_no_address(failures)

    async def _send_file(self, path: str, params: Mapping[str, Any], upload: Upload) -> RawResponse:
        """Send a file to the first endpoint that accepts the connection.

        PVE acts on an upload only once it is complete, so the outcome of an interrupted one is known.
        """
        headers = await self._credentials("POST", path)
        loop, silence = asyncio.get_running_loop(), self._connection.limits.request_seconds
        failures: list[Unreachable] = []
        for endpoint in self._endpoints_by_preference():
            limit = asyncio.timeout(silence)

            async def report_progress(sent: int, size: int, limit: asyncio.Timeout = limit) -> None:
                if not limit.expired():
                    limit.reschedule(loop.time() + silence)
                if upload.report:
                    await upload.report(sent, size, f"{sent >> 20} of {size >> 20} MiB sent")

            try:
                body = UploadBody(params, upload.source, report_progress)
            except OSError as error:
                raise unreadable_file(error) from None
            try:
                async with (
                    limit,
                    self._open().post(
                        _address(endpoint, "GET", path, {})[0],
                        data=body.pieces(),
                        headers={**headers, **body.headers},
                        allow_redirects=False,
                        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                    ) as response,
                ):
                    return self._note_answer(endpoint, response, await self._read_body(response))
            except FAILURES as error:
                problem = await self._explain_failure(endpoint, "POST", path, error)
                if isinstance(problem, OutcomeUnknown):
                    raise interrupted_upload(body, problem) from None
                failures.append(_require_unsent(problem))
            finally:
                body.close()
        raise explain_no_address(failures)

    def _endpoints_by_preference(self) -> list[str]:
        """All of them, beginning with the one that answered last."""
        endpoints = self._connection.endpoints
        first = self._preferred % len(endpoints)
        return [*endpoints[first:], *endpoints[:first]]

    async def _read_body(self, response: aiohttp.ClientResponse) -> bytes | bytearray:
        return await read_body(response, self._connection.limits.answer_bytes)

    def _note_answer(self, endpoint: str, response: aiohttp.ClientResponse, body: bytes | bytearray) -> RawResponse:
        self._count(response.method, str(response.status))
        self._preferred = self._connection.endpoints.index(endpoint)
        if (date := response.headers.get("Date")) and (seconds := _seconds(date)) is not None:
            self.measured_skew = seconds - self._clock.time()
        return RawResponse(response.status, response.reason or "", body, endpoint)

    def _count(self, method: str, status: str) -> None:
        self.asked[method, status] += 1
        count_request()

    async def _explain_failure(self, endpoint: str, method: str, path: str, error: Exception) -> Problem:
        self._count(method, "none")
        cause = error.error if isinstance(error, _SentOnce) else error
        return await explain(self._connection, endpoint, method, path, cause)

    # -- session and credentials -----------------------------------------------------------------------------------

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            limits = self._connection.limits
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=limits.connections,
                    keepalive_timeout=KEEP_ALIVE_SECONDS,
                    ssl=trust.ssl_setting(self._connection.trust),
                    socket_factory=self._open_socket,
                ),
                timeout=aiohttp.ClientTimeout(total=limits.request_seconds, sock_connect=CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=ACCEPTED,
                auto_decompress=False,
                middlewares=(_send_once,),
            )
        return self._session

    async def _credentials(self, method: str, path: str) -> dict[str, str]:
        credentials = self._connection.credentials
        if isinstance(credentials, Token):
            secret = credentials.secret.reveal()
            return {"Authorization": self.product.authorization.format(id=credentials.id, secret=secret)}
        if path == "/access/ticket":
            return {}
        ticket = await self._valid_ticket(credentials)
        headers = {"Cookie": "PVEAuthCookie=" + quote(ticket.ticket, safe="")}
        return headers if method == "GET" else {**headers, "CSRFPreventionToken": ticket.csrf}

    async def _valid_ticket(self, credentials: Password) -> _Ticket:
        async with self._login:  # one login for everyone who waits
            ticket = self._ticket
            if ticket is None or self._clock.monotonic() - ticket.obtained > TICKET_SECONDS:
                self._ticket = ticket = await self._log_in(credentials)
            return ticket

    async def _log_in(self, credentials: Password) -> _Ticket:
        form = {"username": credentials.user, "password": credentials.password.reveal()}
        try:
            raw = await self._write("POST", "/access/ticket", form)
            login = self._decoded_as(_Login, "/access/ticket", raw)
        except OutcomeUnknown as problem:  # whether a login took effect does not matter
            raise TimedOut("PVE did not answer the login", why=problem.why) from None
        if login.second_factor:
            raise AuthenticationFailed(
                f"{credentials.user} logs in with a second factor, which a server cannot provide",
                next_step="Create an API token instead: `pveum user token add USER quorate`",
            )
        return _Ticket(login.ticket, login.csrf, self._clock.monotonic())


@lru_cache(maxsize=8)  # it changes once a second
def _seconds(date: str) -> int | None:
    parsed = email.utils.parsedate_tz(date)
    return email.utils.mktime_tz(parsed) if parsed else None


class _SentOnce(Exception):
    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Stops aiohttp from resending GET, PUT and DELETE after a broken connection, which must not happen to a write."""
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _SentOnce(error) from error


FAILURES = (_SentOnce, aiohttp.ClientError, OSError, BodyRefused)
"""How a request ends without a usable answer."""


def _require_unsent(problem: Problem) -> Unreachable:
    """Only a request that reached nobody may go to another endpoint."""
    if not isinstance(problem, Unreachable):
        raise problem from None
    return problem


def _dropping_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _dropping_nulls(held) for key, held in value.items() if held is not None}
    return [_dropping_nulls(held) for held in value] if isinstance(value, list) else value


def _envelope(kind: type[T]) -> type[Any]:
    cached = _ENVELOPES.get(kind)
    if cached is None:
        cached = _ENVELOPES[kind] = msgspec.defstruct("Envelope", [("data", kind)])
    return cached


_ENVELOPES: dict[Any, type[Any]] = {}


def _address(endpoint: str, method: str, path: str, params: Mapping[str, Any]) -> tuple[yarl.URL, bytes | None]:
    form = urlencode(wire.pairs(wire.encode(params)))
    url = f"{endpoint.rstrip('/')}/api2/json{quote(path, safe='/:@!$,;=+')}"
    if method in IN_QUERY:
        return yarl.URL(f"{url}?{form}" if form else url, encoded=True), None
    return yarl.URL(url, encoded=True), form.encode()


def _error_body(body: bytes | bytearray) -> Mapping[str, Any]:
    try:
        decoded = read_json(body) if body else {}
    except Unreadable:  # errors of the HTTP server itself are plain text, repeated in the reason phrase
        return {}
    return decoded if isinstance(decoded, dict) else {}
