"""The terminal page: an invitation is used once, by a person who proves to be the operator; then bytes pass between
the page and the machine. Only their number is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Message, Scope
from starlette.websockets import WebSocket, WebSocketDisconnect

from quorate.documents import Unreadable, read_json
from quorate.homelab.shells import PATH, Invitation, Shells
from quorate.operations.plan import Plan
from quorate.pipeline.caller import Caller
from quorate.pipeline.record import Record
from quorate.pipeline.redaction import clean
from quorate.problems import Problem
from quorate.pve.connection import Clock
from quorate.ssh.pool import Screen
from quorate.ssh.process import Terminal
from quorate.state.journal import Outcome
from quorate.state.limits import Freeze
from quorate.state.passphrase import Passphrase
from quorate.state.store import Store
from quorate.state.trail import AuditTrail
from quorate.surfaces.web.authentication import Authenticator
from quorate.surfaces.web.replies import NO_STORE, refusal
from quorate.surfaces.web.requests import address_key, own_origin

TOKEN_SECONDS = 10.0
"""Our page sends the token at once; a client without one does not occupy a connection."""
PASSPHRASE_SECONDS = 120.0
MOST_TRIES = 3
_KINDS = {"mjs": "text/javascript", "css": "text/css", "html": "text/html"}
_FILES = ("shell.mjs", "shell.css", "xterm.mjs", "xterm.css", "addon-fit.mjs")
_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; "  # xterm.js writes the colors of its theme into a style element
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = NO_STORE | {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"}


class BrowserMessage(msgspec.Struct, forbid_unknown_fields=True):
    """What the page sends besides what is typed into the terminal."""

    token: str = ""
    passphrase: str = ""
    columns: int = 80
    rows: int = 24

    @property
    def screen(self) -> Screen:
        return Screen(min(max(self.columns, 2), 1000), min(max(self.rows, 2), 1000))


class Rejection(Exception):
    """Why the page gets no terminal, in words for the person."""


@dataclass(frozen=True, slots=True)
class ShellPages:
    shells: Shells
    store: Store
    audit: AuditTrail
    authenticator: Authenticator
    public_url: str | None
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Checking a passphrase is slow and takes memory by design."""

    def routes(self) -> list[BaseRoute]:
        return [
            Route(PATH, self._page, methods=["GET"]),
            WebSocketRoute(f"{PATH}/ws", self._serve),
            Route(f"{PATH}/{{name}}", self._file, methods=["GET"]),
        ]

    async def _page(self, _: Request) -> Response:
        return _content("shell.html")

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        return _content(name) if name in _FILES else refusal(404, "not_found", "There is no such file")

    async def _serve(self, socket: WebSocket) -> None:
        if socket.headers.get("origin", "").lower() not in {own_origin(socket.scope), self.public_url}:
            await refusal(403, "invalid_origin", "Terminals are opened by this server's own page")(
                socket.scope, socket.receive, socket.send
            )
        else:
            await socket.accept()
            with suppress(WebSocketDisconnect):  # the page was closed: there is nobody to tell
                await _send(socket, ended=clean(await self._serve_terminal(socket)))
                await socket.close()

    async def _serve_terminal(self, socket: WebSocket) -> str:
        """Serve a terminal from the token to its end. Returns why it ended, for the person."""
        try:
            token = await self._receive_invitation(socket)
            await Freeze(self.store).require_none()
            await self._prove(socket)
            await Freeze(self.store).require_none()  # the person took their time
            invitation = self.shells.redeem(token)
            if invitation is None:
                return "The link has already been used, or has expired."
            try:
                return await self._open(socket, invitation)
            finally:
                self.shells.release()
        except (Rejection, Problem) as problem:
            return str(problem)
        except TimeoutError:
            return "You took too long. Ask for a new link."

    async def _receive_invitation(self, socket: WebSocket) -> str:
        token = (await _receive_message(socket, TOKEN_SECONDS)).token
        invitation = self.shells.find(token)
        if invitation is None:
            if self.authenticator.count_failure(socket.scope, "terminal"):
                raise Rejection("Too many failed attempts from this address. Wait a minute.")
            raise Rejection("The link has already been used, or has expired. Ask for a new one.")
        await _send(socket, machine=clean(invitation.machine))
        return token

    async def _prove(self, socket: WebSocket) -> None:
        """A model could follow a link, too; the passphrase it does not have."""
        passphrase = Passphrase(self.store)
        if not self.shells.needs_passphrase():
            return
        await passphrase.ensure_set()
        await _send(socket, passphrase=True)
        for _ in range(MOST_TRIES):
            message = await _receive_message(socket, PASSPHRASE_SECONDS)
            async with self._one_at_a_time:
                right = await passphrase.verify(message.passphrase)
            if right:
                return
            self.authenticator.count_failure(socket.scope, "passphrase")
            await _send(socket, error="That is not the operator's passphrase.", passphrase=True)
        raise Rejection("That is not the operator's passphrase. The link can be opened again.")

    async def _open(self, socket: WebSocket, invitation: Invitation) -> str:
        session = Session(socket, self.shells.idle_seconds)
        clock = self.store.clock
        begun = clock.monotonic()
        await self.audit.record(_entry(invitation, socket.scope, clock, Outcome.TERMINAL_OPENED))  # or there is none
        try:
            terminal = await Terminal.open(invitation.target, invitation.argv, Screen())
        except Problem as problem:
            await self.audit.record(_entry(invitation, socket.scope, clock, Outcome.FAILED, str(problem)))
            raise
        try:
            return await session.run(terminal)
        finally:
            await terminal.stop()
            seconds = clock.monotonic() - begun
            entry = _entry(invitation, socket.scope, clock, Outcome.TERMINAL_CLOSED, seconds=seconds)
            await self.audit.record({**entry, "bytes_typed": session.typed, "bytes_shown": session.shown})


class Session:
    """The bytes of one terminal, both ways, until one side ends it."""

    def __init__(self, socket: WebSocket, idle_seconds: float) -> None:
        self._socket = socket
        self._idle_seconds = idle_seconds
        self.typed = self.shown = 0

    async def run(self, terminal: Terminal) -> str:
        """Why it has ended, for the person."""
        await _send(self._socket, open=True)
        ways = [asyncio.ensure_future(direction) for direction in (self._show(terminal), self._type(terminal))]
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            return next(way.result() for way in ways if way in done)
        finally:
            for direction in ways:
                direction.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _show(self, terminal: Terminal) -> str:
        while data := await terminal.read():
            self.shown += len(data)
            await self._socket.send_bytes(data)
        return "The shell has ended."

    async def _type(self, terminal: Terminal) -> str:
        while True:
            try:
                async with asyncio.timeout(self._idle_seconds):
                    message = await _receive(self._socket)
            except TimeoutError:
                return f"Nothing was typed for {self._idle_seconds / 60:g} minutes, so the terminal was closed."
            if data := message.get("bytes"):
                self.typed += len(data)
                await terminal.write(data)
            else:
                terminal.resize(_parse(message).screen)


async def _receive_message(socket: WebSocket, seconds: float) -> BrowserMessage:
    async with asyncio.timeout(seconds):
        return _parse(await _receive(socket))


async def _receive(socket: WebSocket) -> Message:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"])
    return message


def _parse(message: Message) -> BrowserMessage:
    try:
        parsed: BrowserMessage = read_json(message.get("text") or "", BrowserMessage)
        return parsed
    except Unreadable:
        raise Rejection("That is not a message of our page.") from None


async def _send(socket: WebSocket, **facts: Any) -> None:
    await socket.send_text(msgspec.json.encode(facts).decode())


def _entry(
    invitation: Invitation, scope: Scope, clock: Clock, outcome: Outcome, error: str = "", seconds: float = 0.0
) -> Mapping[str, Any]:
    record = Record(
        "host_shell_open",
        "change",
        {"host": invitation.machine, "terminal": invitation.id},
        Caller("the terminal page", "http", address_key(scope.get("client"))),
        cluster=invitation.cluster,
        plan=Plan(f"Terminal {invitation.id} on {invitation.machine}"),
        outcome=outcome,
        error=error,
    )
    entry: Mapping[str, Any] = clean(record.entry(now=clock.time(), seconds=seconds))
    return entry


@cache
def _bytes(name: str) -> bytes:
    return files(__package__).joinpath("terminal", name).read_bytes()


def _content(name: str) -> Response:
    return Response(_bytes(name), headers=_HEADERS, media_type=_KINDS[name.rpartition(".")[2]])
