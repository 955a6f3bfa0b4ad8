"""Ports on loopback that answer, that say no, and that are silent as a machine that is switched off."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


def free_port(address: str = "127.0.0.1") -> int:
    """Nobody listens there: connections are refused."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def listening(address: str, port: int = 0) -> Iterator[int]:
    """Takes connections and says nothing."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(100)
        yield listener.getsockname()[1]


@contextmanager
def silent(address: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """Its queue is full, so that the kernel drops new connections: no answer at all."""
    with socket.socket() as listener, socket.socket() as first:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(0)
        first.connect(listener.getsockname())
        yield listener.getsockname()[1]
