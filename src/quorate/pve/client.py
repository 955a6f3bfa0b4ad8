"""HTTPS to one PVE cluster: credentials, failover between nodes, retries of reads, never a blind resend of a write."""

from __future__ import annotations

import asyncio
import email.utils
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
import yarl

from quorate.pve import trust
from quorate.pve.clock import Clock, SystemClock
from quorate.pve.connection import Connection, Password, Token
from quorate.pve.errors import (
    AuthenticationFailed,
    BadArgument,
    NodeOffline,
    OutcomeUnknown,
    Problem,
    ServerFailed,
    TimedOut,
    Unreachable,
    from_answer,
)
from quorate.pve.tasks import Report
from quorate.pve.uploads import Upload, UploadBody

T = TypeVar("T")

READ_ATTEMPTS = 3
FIRST_PAUSE = 0.2
TICKET_SECONDS = 5400.0  # a ticket lives two hours; it is renewed after one and a half
KEEP_ALIVE_SECONDS = 4.0  # PVE closes an idle connection after five; reusing it later would race with that
CONNECT_SECONDS = 10.0
CONSOLE_MESSAGE_BYTES = 1 << 20  # PVE cuts what a console sends into pieces of 128 KiB
HANG_UP_SECONDS = 2.0
NEVER_SENT = {None, 595}  # no connection to us, or none from PVE's proxy to the node: nothing was done


class Answer(msgspec.Struct, frozen=True):
    """A successful answer of PVE: `data`, and what stands beside it."""

    data: Any = None
    total: int | None = None
    changes: str | None = None
    """What waits to be applied, as a patch; only the networks of nodes have it."""


class _Ticket(msgspec.Struct, frozen=True):
    ticket: str
    csrf: str
    obtained: float


class _Console(msgspec.Struct, frozen=True):
    port: int
    ticket: str
    password: str = ""


@dataclass(slots=True)
class _Raw:
    status: int
    reason: str
    body: bytes
    endpoint: str
    """Who answered."""


class PveClient:
    """The API of one cluster. `await client.get("/nodes")` returns what PVE puts under `data`."""

    def __init__(self, connection: Connection, *, clock: Clock | None = None) -> None:
        self._connection = connection
        self._clock = clock or SystemClock()
        self._session: aiohttp.ClientSession | None = None
        self._preferred = 0
        self._ticket: _Ticket | None = None
        self._login = asyncio.Lock()
        self.clock_skew = 0.0
        """Seconds the cluster's clock is ahead of ours, from its last Date header."""
        self.asked: Counter[tuple[str, str]] = Counter()
        """Requests by method and status; "none" where no answer came."""
        self.leaving = False
        """Set when the server ends: tasks are no longer followed, they are handed back."""

    @property
    def identity(self) -> str:
        credentials = self._connection.credentials
        return credentials.id if isinstance(credentials, Token) else credentials.user

    @property
    def is_token(self) -> bool:
        return isinstance(self._connection.credentials, Token)

    def secrets(self) -> list[str]:
        """Every text that must never leave: for the redactor."""
        credentials = self._connection.credentials
        own = credentials.secret if isinstance(credentials, Token) else credentials.password
        return [own.reveal(), *((self._ticket.ticket, self._ticket.csrf) if self._ticket else ())]

    async def get(self, path: str, /, **params: Any) -> Any:
        return (await self.request("GET", path, params)).data

    async def get_as(self, kind: type[T], path: str, /, **params: Any) -> T:
        """A read decoded straight into `kind`: an order of magnitude quicker for big lists."""
        raw = await self._read(path, params)
        try:
            # PVE is written in Perl: now and then a number comes as a string.
            return msgspec.json.decode(raw.body, type=_envelope(kind), strict=False).data  # type: ignore[no-any-return]
        except msgspec.ValidationError:
            return self._without_nulls(kind, path, raw)
        except msgspec.DecodeError as error:
            raise self._not_pve(path, raw, str(error)) from None

    def _without_nulls(self, kind: type[T], path: str, raw: _Raw) -> T:
        """The slower way, for answers in which something is null: that is how Perl says that it is not there."""
        try:
            answer = _dropping_nulls(msgspec.json.decode(raw.body))
            return msgspec.convert(answer, _envelope(kind), strict=False).data  # type: ignore[no-any-return]
        except msgspec.ValidationError as error:
            raise self._not_pve(path, raw, str(error)) from None

    async def request(self, method: str, path: str, params: Mapping[str, Any] | None = None) -> Answer:
        """One API call. Reads are tried again and on other nodes; a write is sent at most once."""
        if method == "GET":
            return self._decoded(path, await self._read(path, params or {}))
        raw = await self._write(method, path, params or {})
        try:
            return self._decoded(path, raw)
        except ServerFailed as garbled:
            if path == "/access/ticket":
                raise
            raise _fate_unknown(method, path, f"{garbled.what}. {garbled.why}") from None

    async def upload(
        self, path: str, params: Mapping[str, Any], source: Path | bytes, report: Report | None = None
    ) -> Answer:
        """Send a file, which goes out as fast as PVE takes it. It may take any time, but not stand still."""
        return self._decoded(path, await self._write("POST", path, params, Upload(source, report)))

    async def open_console(self, path: str) -> tuple[str, aiohttp.ClientWebSocketResponse]:
        """The VNC connection to the VM at `path` and the password for it. Whoever asks has to close it.

        PVE opens the port only on the node that is asked, wherever the VM is: both calls go to the same endpoint.
        """
        asked = {"websocket": True, "generate-password": True}
        try:
            raw = await self._write("POST", f"{path}/vncproxy", asked)
        except OutcomeUnknown as problem:  # a console to which nobody comes is closed by PVE after ten seconds
            raise TimedOut("PVE did not answer when asked for the console", why=problem.why) from None
        opened = self._decoded_as(_Console, path, raw)
        way = {"port": opened.port, "vncticket": opened.ticket}
        return opened.password or opened.ticket, await self._connect(raw.endpoint, f"{path}/vncwebsocket", way)

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
                next_step="Try again; a proxy in front of PVE has to pass WebSockets on",
            ) from None
        except (_SentOnce, aiohttp.ClientError, OSError) as error:
            cause = error.error if isinstance(error, _SentOnce) else error
            raise await self._explain(endpoint, "GET", path, cause) from None

    def _decoded_as(self, kind: type[T], path: str, raw: _Raw) -> T:
        try:
            # PVE is written in Perl: now and then a number comes as a string.
            return msgspec.json.decode(raw.body, type=_envelope(kind), strict=False).data  # type: ignore[no-any-return]
        except msgspec.DecodeError as error:
            raise self._not_pve(path, raw, str(error)) from None

    def _decoded(self, path: str, raw: _Raw) -> Answer:
        try:
            return msgspec.json.decode(raw.body, type=Answer, strict=False)
        except msgspec.DecodeError as error:
            raise self._not_pve(path, raw, str(error)) from None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # -- reads and writes ------------------------------------------------------------------------------------------

    async def _read(self, path: str, params: Mapping[str, Any]) -> _Raw:
        total = self._connection.limits.total_seconds
        try:
            async with asyncio.timeout(total):
                return await self._read_with_retries(path, params)
        except TimeoutError:
            raise TimedOut(
                f"PVE did not answer GET {path} within {total:g} s", next_step="See node_list, or raise total_seconds"
            ) from None

    async def _read_with_retries(self, path: str, params: Mapping[str, Any]) -> _Raw:
        deadline = self._clock.monotonic() + self._connection.limits.total_seconds
        pause = FIRST_PAUSE
        attempts_left = READ_ATTEMPTS
        while True:
            attempts_left -= 1
            try:
                return await self._call("GET", path, params)
            except (Unreachable, TimedOut, NodeOffline) as problem:
                # 595 means the node is down; only another endpoint could see that differently.
                hopeless = problem.facts.get("status") == 595 and len(self._connection.endpoints) == 1
                if hopeless or not attempts_left or self._clock.monotonic() + pause > deadline:
                    raise
                self._preferred += 1
            await self._clock.sleep(pause)
            pause *= 3

    async def _write(self, method: str, path: str, params: Mapping[str, Any], upload: Upload | None = None) -> _Raw:
        try:
            return await self._call(method, path, params, upload)
        except (NodeOffline, Unreachable) as problem:
            if problem.facts.get("status") in NEVER_SENT:
                raise
            raise _fate_unknown(method, path, str(problem.what)) from None

    async def _call(self, method: str, path: str, params: Mapping[str, Any], upload: Upload | None = None) -> _Raw:
        """Send to the first endpoint that takes the connection; a ticket that ran out is renewed once."""
        raw = await self._first_reachable(method, path, params, upload)
        if raw.status == 401 and not self.is_token and path != "/access/ticket":
            self._ticket = None  # a 401 means that nothing was done, so asking again is safe for writes too
            raw = await self._first_reachable(method, path, params, upload)
        if raw.status >= 400:
            raise from_answer(method, path, raw.status, raw.reason, _error_body(raw.body), identity=self.identity)
        return raw

    async def _first_reachable(self, method: str, path: str, params: Mapping[str, Any], upload: Upload | None) -> _Raw:
        headers = await self._credentials(method, path)
        endpoints = self._connection.endpoints
        last: Problem | None = None
        for step in range(len(endpoints)):
            endpoint = endpoints[(self._preferred + step) % len(endpoints)]
            try:
                raw = await (
                    self._exchange(endpoint, method, path, params, headers)
                    if upload is None
                    else self._send_file(endpoint, path, params, headers, upload)
                )
            except Problem as problem:
                self.asked[method, "none"] += 1
                if not isinstance(problem, Unreachable):
                    raise
                last = problem
                continue
            self.asked[method, str(raw.status)] += 1
            self._preferred = (self._preferred + step) % len(endpoints)
            return raw
        assert last is not None
        raise last

    async def _exchange(
        self, endpoint: str, method: str, path: str, params: Mapping[str, Any], headers: Mapping[str, str]
    ) -> _Raw:
        url, body = _address(endpoint, method, path, params)
        if body is not None:
            headers = {**headers, "Content-Type": "application/x-www-form-urlencoded"}
        try:
            async with self._open().request(method, url, data=body, headers=headers, allow_redirects=False) as response:
                content = await response.read()
                self._note_time(response.headers.get("Date"))
                return _Raw(response.status, response.reason or "", content, endpoint)
        except _SentOnce as sent:
            raise await self._explain(endpoint, method, path, sent.error) from None
        except (aiohttp.ClientError, OSError) as error:
            raise await self._explain(endpoint, method, path, error) from None

    async def _send_file(
        self, endpoint: str, path: str, params: Mapping[str, Any], headers: Mapping[str, str], upload: Upload
    ) -> _Raw:
        """PVE acts on an upload only when it has all of it, so one that was cut short has no unknown fate."""
        url, _ = _address(endpoint, "GET", path, {})
        loop, silence = asyncio.get_running_loop(), self._connection.limits.request_seconds
        limit = asyncio.timeout(silence)

        async def moved(sent: int, size: int) -> None:
            if not limit.expired():
                limit.reschedule(loop.time() + silence)
            if upload.report:
                await upload.report(sent, size, f"{sent >> 20} of {size >> 20} MiB sent")

        body = UploadBody(params, upload.source, moved)
        try:
            async with (
                limit,
                self._open().post(
                    url,
                    data=body.pieces(),
                    headers={**headers, **body.headers},
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                ) as response,
            ):
                content = await response.read()
                self._note_time(response.headers.get("Date"))
                return _Raw(response.status, response.reason or "", content, endpoint)
        except (_SentOnce, aiohttp.ClientError, OSError) as error:
            cause = error.error if isinstance(error, _SentOnce) else error
            problem = await self._explain(endpoint, "POST", path, cause)
            raise _cut_short(body, problem) if isinstance(problem, OutcomeUnknown) else problem from None

    async def _explain(self, endpoint: str, method: str, path: str, error: Exception) -> Problem:
        """Why there is no answer: the order matters, aiohttp's errors are kinds of each other."""
        match error:
            case aiohttp.ServerFingerprintMismatch():
                return trust.mismatch(endpoint, self._connection.trust, error.got)
            case aiohttp.ClientConnectorCertificateError():
                return await trust.unverified(endpoint, _certificate_reason(error.certificate_error))
            case aiohttp.ClientSSLError():
                return Unreachable(
                    f"{endpoint} does not speak TLS as expected",
                    why=str(error),
                    next_step="Check the port (PVE's is 8006)",
                )
            case aiohttp.ConnectionTimeoutError() | aiohttp.ClientConnectorError():
                return _no_connection(endpoint, error)
            case TimeoutError():
                return self._too_slow(method, path)
            case _:
                return _broken(method, path, error)

    # -- session and credentials -----------------------------------------------------------------------------------

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            limits = self._connection.limits
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=limits.connections,
                    keepalive_timeout=KEEP_ALIVE_SECONDS,
                    ssl=trust.ssl_setting(self._connection.trust),
                ),
                timeout=aiohttp.ClientTimeout(total=limits.request_seconds, sock_connect=CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                middlewares=(_send_once,),
            )
        return self._session

    async def _credentials(self, method: str, path: str) -> dict[str, str]:
        credentials = self._connection.credentials
        if isinstance(credentials, Token):
            return {"Authorization": f"PVEAPIToken={credentials.id}={credentials.secret.reveal()}"}
        if path == "/access/ticket":
            return {}
        ticket = await self._valid_ticket(credentials)
        headers = {"Cookie": "PVEAuthCookie=" + quote(ticket.ticket, safe="")}
        return headers if method == "GET" else {**headers, "CSRFPreventionToken": ticket.csrf}

    async def _valid_ticket(self, credentials: Password) -> _Ticket:
        async with self._login:  # one login for all who wait
            ticket = self._ticket
            if ticket is None or self._clock.monotonic() - ticket.obtained > TICKET_SECONDS:
                self._ticket = ticket = await self._log_in(credentials)
            return ticket

    async def _log_in(self, credentials: Password) -> _Ticket:
        login = {"username": credentials.user, "password": credentials.password.reveal()}
        try:
            answer = await self.request("POST", "/access/ticket", login)
        except OutcomeUnknown as problem:  # a login has no fate worth asking after
            raise TimedOut("PVE did not answer the login", why=problem.why) from None
        if answer.data.get("NeedTFA"):
            raise AuthenticationFailed(
                f"{credentials.user} logs in with a second factor, which a server cannot give",
                next_step="Make an API token instead: `pveum user token add USER quorate`",
            )
        return _Ticket(answer.data["ticket"], answer.data["CSRFPreventionToken"], self._clock.monotonic())

    # -- small print -----------------------------------------------------------------------------------------------

    def _note_time(self, date: str | None) -> None:
        if date and (parsed := email.utils.parsedate_tz(date)):
            self.clock_skew = email.utils.mktime_tz(parsed) - self._clock.time()

    def _too_slow(self, method: str, path: str) -> Problem:
        seconds = self._connection.limits.request_seconds
        if method != "GET":
            return _fate_unknown(method, path, f"No answer came within {seconds:g} s")
        return TimedOut(
            f"PVE did not answer GET {path} within {seconds:g} s",
            next_step="The node may be overloaded; see node_list, or raise request_seconds in the config",
        )

    def _not_pve(self, path: str, raw: _Raw, error: str) -> Problem:
        return ServerFailed(
            f"The answer to {path} is not one of the PVE API",
            why=f"HTTP {raw.status}, {len(raw.body)} bytes: {error}",
            next_step="Check that the address is PVE's own (port 8006) and not a web proxy in front of it",
        )


class _SentOnce(Exception):
    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """aiohttp sends GET, PUT and DELETE again by itself when a connection breaks; for a write that must not happen."""
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _SentOnce(error) from error


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
    """PVE wants parameters in the query for GET and DELETE and as a form otherwise; booleans are 1 and 0."""
    form = urlencode(_pairs(params))
    url = f"{endpoint.rstrip('/')}/api2/json{quote(path, safe='/:@!$,;=+')}"
    if method in ("GET", "DELETE"):
        return yarl.URL(f"{url}?{form}" if form else url, encoded=True), None
    return yarl.URL(url, encoded=True), form.encode()


def _pairs(params: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, str(int(one)) if isinstance(one, bool) else str(one))
        for name, value in params.items()
        for one in (value if isinstance(value, (list, tuple)) else (value,))
        if one is not None
    ]


def _error_body(body: bytes) -> Mapping[str, Any]:
    try:
        decoded = msgspec.json.decode(body) if body else {}
    except msgspec.DecodeError:  # errors of the HTTP server itself are plain text and stand in the reason phrase, too
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _certificate_reason(error: Exception) -> str:
    return str(getattr(error, "verify_message", "") or error)


def _no_connection(endpoint: str, error: Exception) -> Unreachable:
    why = str(getattr(error, "os_error", None) or error) or type(error).__name__
    return Unreachable(
        f"No connection to {endpoint}",
        why=why,
        next_step="Check the address and port, that the node is up, and that no firewall is in between",
    )


def _broken(method: str, path: str, error: Exception) -> Problem:
    why = str(error) or type(error).__name__
    if method != "GET":
        return _fate_unknown(method, path, f"The connection broke: {why}")
    return TimedOut(
        f"The connection broke during GET {path}", why=why, next_step="Try again; if it stays, see node_list"
    )


def _cut_short(body: UploadBody, problem: OutcomeUnknown) -> Problem:
    if body.fault is not None:
        return BadArgument("The file could not be read to its end", why=str(body.fault), next_step="Nothing was stored")
    if body.complete:
        return problem
    return TimedOut(
        f"The upload broke off after {body.sent >> 20} of {body.size >> 20} MiB",
        why=f"{problem.why} PVE keeps nothing of an upload that is cut short",
        next_step="Nothing was stored; try again. If it stays, the node may be out of space in /var/tmp",
    )


def _fate_unknown(method: str, path: str, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"It is not known whether {method} {path} took effect",
        why=why,
        next_step="It was not sent again. See task_list and the target's state before repeating it",
    )
