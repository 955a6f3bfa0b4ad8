"""Receivers of messages on loopback: an HTTP server for all services, and a mail server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from typing import Any

from aiohttp import web


@dataclass
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class HttpReceiver:
    """Keeps every message; ntfy's and Gotify's lists can be read back."""

    messages: list[Received] = field(default_factory=list)
    status: int = 200
    on_message: Callable[[Received], Awaitable[None]] | None = None
    """Called after a message is stored and before the response."""
    keeps: bool = True
    readable: bool = True
    repeats: bool = False
    """Whether a refusal contains the address and login, as with some servers."""
    url: str = ""

    async def handle(self, request: web.BaseRequest) -> web.Response:
        if request.method == "GET":
            if not self.readable:
                return web.Response(status=503)
            return web.Response(text="\n".join(message.body.decode() for message in self.messages))
        received = Received(request.method, request.path, dict(request.headers), await request.read())
        if self.status == 200 and self.keeps:
            self.messages.append(received)
        if self.on_message is not None:
            await self.on_message(received)
        if self.repeats:
            return web.Response(
                text=f"Cannot POST {request.path} with {request.headers.get('Authorization', '')}", status=self.status
            )
        return web.json_response({"ok": self.status == 200}, status=self.status)


@asynccontextmanager
async def http_receiver() -> AsyncIterator[HttpReceiver]:
    receiver = HttpReceiver()
    server = web.Server(receiver.handle)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    receiver.url = f"http://127.0.0.1:{port}"
    try:
        yield receiver
    finally:
        await runner.cleanup()


@dataclass
class MailReceiver:
    port: int = 0
    mails: list[Message] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    refuses: str = ""
    """Part of the address of recipients that do not exist."""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The part of SMTP that a client needs to send a mail."""

        async def say(text: str) -> None:
            writer.write(f"{text}\r\n".encode())
            await writer.drain()

        await say("220 receiver ESMTP")
        while line := (await reader.readline()).decode().strip():
            word = line.split()[0].upper()
            if word == "EHLO":
                await say("250-receiver\r\n250 AUTH PLAIN")
            elif word == "AUTH":
                self.logins.append(line.split()[-1])
                await say("235 welcome")
            elif word == "RCPT" and self.refuses and self.refuses in line:
                await say("550 no such mailbox")
            elif word == "DATA":
                await say("354 go ahead")
                text = await reader.readuntil(b"\r\n.\r\n")
                self.mails.append(message_from_bytes(text.removesuffix(b".\r\n")))
                await say("250 kept")
            elif word == "QUIT":
                await say("221 bye")
                break
            else:
                await say("250 fine")
        writer.close()


@asynccontextmanager
async def mail_receiver() -> AsyncIterator[MailReceiver]:
    receiver = MailReceiver()
    server = await asyncio.start_server(receiver.talk, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    async with server:
        yield receiver
