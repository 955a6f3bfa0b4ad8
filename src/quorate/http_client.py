"""aiohttp, imported without the CAs of the system, and with small buffers.

While it is imported, aiohttp reads them twice, for callers who do not say which certificates they trust. That takes a
sixth of the time of a short command, and Quorate always says it. A request without `ssl=` trusts no certificate at all.
"""

from __future__ import annotations

import asyncio.sslproto
import ssl

ssl.SSLContext.set_default_verify_paths = lambda self: None  # type: ignore[method-assign]  # noqa: ARG005
try:
    import aiohttp
finally:
    del ssl.SSLContext.set_default_verify_paths  # it is inherited again

# Of each connection. The 256 KiB that asyncio takes add up to 4 MB for 16 connections; a record has 16 KiB.
asyncio.sslproto.SSLProtocol.max_size = 32 * 1024

__all__ = ["aiohttp", "public_connector"]


def public_connector() -> aiohttp.TCPConnector:
    """For servers whose certificates the system's CAs vouch for."""
    return aiohttp.TCPConnector(ssl=ssl.create_default_context())
