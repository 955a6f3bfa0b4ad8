"""MCP over streamable HTTP, for clients on this machine."""

from __future__ import annotations

import socket
import sys

import uvicorn
from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings


class _Announcing(uvicorn.Server):
    """Says where it listens once it does; with port 0 nobody could know before."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        for server in getattr(self, "servers", []):
            for listening in server.sockets:
                host, port = listening.getsockname()[:2]
                sys.stderr.write(f"quorate: listening on http://{_bracketed(host)}:{port}/mcp\n")
        sys.stderr.flush()


async def serve(server: MCPServer, host: str, port: int) -> None:
    """Run until ended. Host and Origin must be local, so that no web page can reach it by a rebound DNS name."""
    names = {"127.0.0.1", "localhost", "[::1]", _bracketed(host)}
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[f"{name}:*" for name in sorted(names)],
        allowed_origins=[f"http://{name}:*" for name in sorted(names)],
    )
    app = server.streamable_http_app(transport_security=security, host=host)
    await _Announcing(uvicorn.Config(app, host=host, port=port, log_level="warning")).serve()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
