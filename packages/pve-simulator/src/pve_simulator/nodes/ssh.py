"""SSH to the simulated nodes: one server each on loopback, key login, commands in the node's shell."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex

from pve_simulator.nodes.shell import NodeShells
from pve_simulator.world import Node, World

if TYPE_CHECKING:  # the library is heavy and only needed for SSH
    import asyncssh

_HOST = "127.0.0.1"
_KEY_TYPE = "ssh-ed25519"
_CIPHER = "aes128-gcm@openssh.com"  # of those that all clients know, the quickest here
# Only these programs read input; a client that neither sends nor closes it is taken to send none.
_READERS = re.compile(r"\b(?:cat|tee|head|tail|grep|wc|base64|sh|bash|sha256sum|stdin)\b")
_SILENCE_SECONDS = 0.5
_MISSING_LIBRARY = "SSH to the simulated nodes needs the package asyncssh"


class SshServers:
    """The SSH servers of a cluster. The files for the client are in `directory`."""

    def __init__(self, world: World, directory: Path) -> None:
        self._world = world
        self._servers: list[asyncssh.SSHAcceptor] = []
        self.key_file = directory / "id_ed25519"
        self.known_hosts = directory / "known_hosts"
        self.ports: dict[str, int] = {}

    async def start(self) -> None:
        """Generate keys and listen, on a free port for every node."""
        try:
            import asyncssh
        except ImportError as error:
            raise RuntimeError(_MISSING_LIBRARY) from error
        host_key = asyncssh.generate_private_key(_KEY_TYPE)
        client_key = asyncssh.generate_private_key(_KEY_TYPE, comment="pve-simulator")
        self.key_file.touch(mode=0o600)
        client_key.write_private_key(str(self.key_file))
        allowed = asyncssh.import_authorized_keys(client_key.export_public_key().decode())
        for node in self._world.nodes.values():
            server = await asyncssh.listen(
                _HOST,
                0,
                server_factory=_offline_guard(node),
                server_host_keys=[host_key],
                authorized_client_keys=allowed,
                process_factory=self._session_of(node),
                encoding=None,
                encryption_algs=[_CIPHER],
            )
            self._servers.append(server)
            self.ports[node.name] = server.get_port()
        public = host_key.export_public_key().decode().strip()
        lines = [f"[{_HOST}]:{port} {public}\n" for port in self.ports.values()]
        self.known_hosts.write_text("".join(lines))

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    def _session_of(self, node: Node) -> object:
        async def session(process: asyncssh.SSHServerProcess[bytes]) -> None:
            stdin = await _input_of(process)
            machine = self._world.part(NodeShells).of(node)
            out, err = _StreamedOutput(process.stdout.write), _StreamedOutput(process.stderr.write)
            done = await machine.execute(["/bin/sh", "-c", process.command or ""], stdin, out, err)
            assert done is not None
            out.flush()
            err.flush()
            if done.exitcode is not None:
                process.exit(done.exitcode)
            else:
                process.exit_with_signal(signal.Signals(done.signal or signal.SIGKILL).name.removeprefix("SIG"))

        return session


class _StreamedOutput(bytearray):
    """Output that is streamed to the client. A client that disconnects does not end the command."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        super().__init__()
        self._send = send
        self._sent = 0
        self._due = False

    def extend(self, data: Iterable[SupportsIndex]) -> None:
        super().extend(data)
        if not self._due:  # send everything of one turn together
            self._due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._due = False
        with contextlib.suppress(BrokenPipeError):
            self._send(bytes(self[self._sent :]))
        self._sent = len(self)


def _offline_guard(node: Node) -> object:
    """Close connections to a node that is off."""
    import asyncssh

    class OfflineGuard(asyncssh.SSHServer):
        def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
            if not node.online:
                conn.abort()

    return OfflineGuard


async def _input_of(process: asyncssh.SSHServerProcess[bytes]) -> bytes:
    """The client's input; empty if it sends none or the command does not read any."""
    if process.command is not None and not _READERS.search(process.command):
        return b""
    with contextlib.suppress(TimeoutError):
        first = await asyncio.wait_for(process.stdin.read(65536), _SILENCE_SECONDS)
        return first + await process.stdin.read() if first else b""
    return b""
