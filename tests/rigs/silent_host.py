"""Ports on loopback that refuse connections, accept them without answering, or drop them like a machine that is off."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


def free_port(address: str = "127.0.0.1") -> int:
    """A port where nobody listens: connections are refused."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def listening(address: str, port: int = 0) -> Iterator[int]:
    """A port that accepts connections and sends nothing."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(100)
        yield listener.getsockname()[1]


@contextmanager
def silent(address: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """A port with a full queue: the kernel drops new connections without an answer."""
    with socket.socket() as listener, socket.socket() as first:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(0)
        first.connect(listener.getsockname())
        yield listener.getsockname()[1]
