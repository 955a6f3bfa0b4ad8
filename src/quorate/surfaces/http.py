"""MCP over streamable HTTP, for clients on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn
from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings


class _Server(uvicorn.Server):
    """Says where it listens once it does, and ends by returning, so that what surrounds it can be tidied up."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        for listening in sockets or ():
            host, port = listening.getsockname()[:2]
            sys.stderr.write(f"quorate: listening on http://{_bracketed(host)}:{port}/mcp\n")
        sys.stderr.flush()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


async def serve(server: MCPServer, host: str, port: int) -> None:
    """Run until ended. Host and Origin must be local, so that no web page can reach it by a rebound DNS name."""
    names = {"127.0.0.1", "localhost", "[::1]", _bracketed(host)}
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[f"{name}:*" for name in sorted(names)],
        allowed_origins=[f"http://{name}:*" for name in sorted(names)],
    )
    app = server.streamable_http_app(transport_security=security, host=host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        await _Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listening])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
