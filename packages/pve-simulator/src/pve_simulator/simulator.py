"""The simulated cluster as a server: start it, use its URL, stop it."""

from __future__ import annotations

import random
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from aiohttp import web

from pve_schema.schema import facts
from pve_simulator.access.directory import ROOT, Access, Token
from pve_simulator.clock import Clock, RealClock
from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.cluster.resources import rows_of
from pve_simulator.demo_world import build_demo_world, build_scaled_world
from pve_simulator.faults import Faults
from pve_simulator.guests import remote_migration
from pve_simulator.http.certificates import ServerIdentity, create_identity
from pve_simulator.http.listener import Listener
from pve_simulator.http.routing import all_routes
from pve_simulator.http.server import ApiServer
from pve_simulator.nodes.shell import SshServers
from pve_simulator.nodes.status_daemon import StatusDaemon
from pve_simulator.routes.nodes.certificates import Certificates
from pve_simulator.world import World

_VERSION = re.compile(r"[89]\.\d+(\.\d+)*")
_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_TOKEN = re.compile(r"(?P<id>[^\s!=@]+@[^\s!=@]+![A-Za-z][A-Za-z0-9._-]+)=(?P<secret>" + _UUID + ")")
_DEFAULT_NODES = 3
_DEFAULT_GUESTS = 20
_TOKEN_NAME = "simulator"  # noqa: S105


class SimulatedCluster:
    """A PVE cluster over real HTTPS on loopback, as an async context manager.

    Without `nodes` and `guests` it is the demo homelab; with either it is a cluster of that size; `build` fills a world
    of your own. Every endpoint is one node's address, and all of them serve the same cluster. `token` is
    USER@REALM!NAME=SECRET of an existing user, instead of a generated one. `identity` writes the certificates of its
    nodes to a folder.
    """

    def __init__(
        self,
        *,
        nodes: int | None = None,
        guests: int | None = None,
        seed: int = 0,
        listen: str = "127.0.0.1:0",
        endpoints: int = 1,
        clock: Clock | None = None,
        faults: Sequence[str] = (),
        auth_delay: float = 3.0,
        version: str = "9.1.8",
        build: Callable[[World], None] | None = None,
        ssh: bool = False,
        token: str | None = None,
        identity: Callable[[Path, Iterable[str]], ServerIdentity] = create_identity,
    ) -> None:
        if not _VERSION.fullmatch(version):
            raise ValueError(f"'{version}' is not a version of PVE that can be simulated: 8.x or 9.x, such as 9.1.8")
        self.clock: Clock = clock or RealClock()
        self._facts = facts(version)
        self._version = version
        self._seed = seed
        self._build = build or _choose_world(nodes, guests)
        self._initial_faults = tuple(faults)
        self.token_id, self.token_secret = parse_token(token or f"{ROOT}!{_TOKEN_NAME}={_secret(seed)}")
        self.world, self.faults = self._create_world(self._build)
        self.requests: list[tuple[str, str]] = []
        """Every (method, path) served, in order."""
        self.fingerprint = ""
        self._listen = listen
        self._endpoints = endpoints
        self._auth_delay = auth_delay
        self._directory: Path | None = None
        self._listeners: list[Listener] = []
        self._with_ssh = ssh
        self._identity = identity
        self._ssh: SshServers | None = None

    @property
    def url(self) -> str:
        """The base address of the first endpoint."""
        return self.urls[0]

    @property
    def urls(self) -> list[str]:
        return [listener.url for listener in self._listeners]

    @property
    def ca_file(self) -> str:
        """The certificate of the authority that signed the endpoints' certificate."""
        if self._directory is None:
            raise RuntimeError("the simulated cluster is not running")
        return str(self._directory / "ca.pem")

    @property
    def has_ssh(self) -> bool:
        return self._ssh is not None

    @property
    def ssh_ports(self) -> dict[str, int]:
        """The port of every node's SSH server on loopback, by the node's name."""
        return self._ssh_servers.ports

    @property
    def ssh_key_file(self) -> str:
        """The private key that may log in as root."""
        return str(self._ssh_servers.key_file)

    @property
    def ssh_known_hosts(self) -> str:
        """The file with the host keys of the SSH servers."""
        return str(self._ssh_servers.known_hosts)

    @property
    def _ssh_servers(self) -> SshServers:
        if self._ssh is None:
            raise RuntimeError("the simulated cluster does not serve SSH; start it with ssh=True")
        return self._ssh

    @property
    def node(self) -> str:
        """The first node's name."""
        return next(iter(self.world.nodes))

    async def __aenter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="pve-simulator-"))
        try:
            await self._start()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def reset(self, build: Callable[[World], None] | None = None) -> None:
        """Start over with the first world or with `build`, at the same address, with the same token and certificate."""
        if self._with_ssh:
            raise ValueError("a cluster that serves SSH cannot start over")
        world, faults = self._create_world(build or self._build)
        remote_migration.unreachable(self.world)
        await self.world.tasks.close()
        self.world, self.faults = world, faults
        self.requests.clear()
        self._open_world()

    async def start_endpoint(self, index: int) -> None:
        """Restart a stopped endpoint at the same address."""
        await self._listeners[index].start()

    async def stop_endpoint(self, index: int) -> None:
        """Stop one endpoint, as if its node were unreachable."""
        await self._listeners[index].stop()

    async def _start(self) -> None:
        assert self._directory is not None
        identity = self._identity(self._directory, self.world.nodes)
        self.fingerprint = identity.fingerprint
        host, port = parse_address(self._listen)
        for index in range(self._endpoints):
            listener = Listener(host, port + index if port else 0, identity.context, _not_open)
            self._listeners.append(listener)
            await listener.start()
        self._open_world()
        if self._with_ssh:
            self._ssh = SshServers(self.world, self._directory)
            await self._ssh.start()

    def _create_world(self, build: Callable[[World], None]) -> tuple[World, Faults]:
        """A world with the token and the initial faults, not served yet."""
        access = Access(self._facts.roles)
        world = World(clock=self.clock, access=access, name="homelab", seed=self._seed, version=self._version)
        build(world)
        if not world.nodes:
            raise ValueError("a cluster needs at least one node")
        user, _, name = self.token_id.partition("!")
        if user not in access.users:
            raise ValueError(f"the token belongs to {user}, who is not a user of this cluster")
        access.users[user].tokens[name] = Token(self.token_secret, privsep=False)
        faults = Faults(world, self._seed)
        for text in self._initial_faults:
            faults.add(text)
        return world, faults

    def _open_world(self) -> None:
        """Serve the world at all endpoints."""
        assert self._directory is not None
        for node in self.world.nodes.values():
            node.fingerprint = self.fingerprint
        self.world.part(Certificates).load(self._directory)
        all_routes()  # import the endpoints and build the rows now, so that the first request is not slower
        rows_of(self.world).guests(self.world.guests.values())
        self.server = ApiServer(
            self.world, self._facts, self.faults, auth_delay=self._auth_delay, requests=self.requests
        )
        nodes = list(self.world.nodes.values())
        for index, listener in enumerate(self._listeners):
            node = nodes[index % len(nodes)]
            listener.handler = self.server.for_node(node)
            address = urlsplit(listener.url)
            remote_migration.reachable(address.hostname or "", address.port or 0, self.world, node)
        self.world.part(HaManager).wake()
        self.world.tasks.in_background(self.world.part(StatusDaemon).run())

    async def _end(self) -> None:
        remote_migration.unreachable(self.world)
        for listener in self._listeners:
            await listener.stop()
        if self._ssh is not None:
            await self._ssh.stop()
        await self.world.tasks.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


def _choose_world(nodes: int | None, guests: int | None) -> Callable[[World], None]:
    """The demo homelab, or a cluster of the given size."""
    if nodes is None and guests is None:
        return build_demo_world
    node_count = _DEFAULT_NODES if nodes is None else nodes
    guest_count = _DEFAULT_GUESTS if guests is None else guests
    return lambda world: build_scaled_world(world, node_count, guest_count)


async def _not_open(_request: web.BaseRequest) -> web.StreamResponse:
    """Until the world is served, which is in the same turn of the event loop."""
    return web.Response(status=503)


def parse_token(text: str) -> tuple[str, str]:
    """Id and secret of USER@REALM!NAME=SECRET."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise ValueError(
            f"'{text.partition('=')[0]}' is not a token of the form USER@REALM!NAME=SECRET, with a UUID as secret"
        )
    return match["id"], match["secret"]


def _secret(seed: int) -> str:
    """A token secret in PVE's format, derived from the seed: it protects nothing real."""
    return str(uuid.UUID(int=random.Random(f"token {seed}").getrandbits(128), version=4))  # noqa: S311


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT."""
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"'{text}' is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)
