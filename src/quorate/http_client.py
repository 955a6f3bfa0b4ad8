"""aiohttp, imported without the CAs of the system, and with small buffers.

While it is imported, aiohttp reads them twice, for callers who do not say which certificates they trust. That takes a
sixth of the time of a short command, and Quorate always says it. A request without `ssl=` trusts no certificate at all.
"""

from __future__ import annotations

import asyncio.sslproto
import functools
import os
import ssl

ssl.SSLContext.set_default_verify_paths = lambda self: None  # type: ignore[method-assign]  # noqa: ARG005
try:
    import aiohttp
finally:
    del ssl.SSLContext.set_default_verify_paths  # it is inherited again

# Per connection: the 256 KiB that asyncio allocates add up to 4 MB for 16 connections; a record has 16 KiB.
asyncio.sslproto.SSLProtocol.max_size = 32 * 1024

__all__ = ["aiohttp", "public_connector", "public_context"]


def public_connector() -> aiohttp.TCPConnector:
    """For servers whose certificates the system's CAs signed."""
    return aiohttp.TCPConnector(ssl=public_context())


def public_context() -> ssl.SSLContext:
    """The system's CAs, or those that SSL_CERT_FILE and SSL_CERT_DIR name. Do not change it: others use it, too.

    To read them takes tenths of a second on a small machine, so that is done only if they have changed.
    """
    paths = ssl.get_default_verify_paths()
    return _read_context(*((path, _state(path)) for path in (paths.cafile, paths.capath)))


@functools.lru_cache(maxsize=1)
def _read_context(*_places: tuple[str | None, tuple[int, ...]]) -> ssl.SSLContext:
    return ssl.create_default_context()


def _state(path: str | None) -> tuple[int, ...]:
    """A value that differs once the file or folder has changed."""
    try:
        found = os.stat(path or "")
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
