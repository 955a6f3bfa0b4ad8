"""The homelab: real hosts in two segments with a router between them, and Quorate in front of them.

                     the tests (10.78.1.254)
    lan  10.78.1.0/24 ──┬── router .1      BusyBox; the way to the other segment
                        ├── nas .10        Debian; a login with password and sudo, a disk at /srv
                        ├── desk .11       Debian; root's key
                        └── pi .12         BusyBox; root's key
    dmz  10.78.2.0/24 ──┬── router .1
                        ├── web .10        Debian; a login with a key and without sudo
                        ├── bare .11       BusyBox without ip, lsblk, df, useradd, sudo, /sys, and most of /proc
                        └── cellar .30     Debian; knows no way out of its segment: web is its jump host

    host = lab.hosts["nas"]   .address .known_hosts .rootfs .run(*argv) .processes(text) .log
    with host.away():         it is switched off; `with host.other_key():` it shows another host key
    with host.walled():       its firewall lets nothing in
    with host.running(...):   a service of the host
    with silent(LAN, "10.78.1.66"):   a host there accepts connections and says nothing
    with lost(LAN, "10.78.1.77"):     what is sent there is lost, and nobody says so

What changes something puts it back, so that tests do not care for their order.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from mcp import Client

from quorate.app import build
from quorate.config import Access, Approval, Settings
from quorate.config.homelab import HomelabSettings
from quorate.ssh.settings import Login as Usual
from quorate.ssh.settings import SshSettings
from tests.real.homelab_hosts import Login, RealHost, Segment
from tests.real.keys import make_key
from tests.real.network import run
from tests.rigs.mcp_session import Rig

PASSWORD = "correct horse battery"
OURS = "10.78.1.254"
LAN = Segment("lan", "10.78.1", gateway="10.78.1.1")
DMZ = Segment("dmz", "10.78.2", namespace="router", gateway="10.78.2.1")


class HomelabLab:
    """See the module's docstring."""

    def __init__(self, folder: Path, images: Path) -> None:
        self.key = make_key(folder / "key")
        self.strange_key = make_key(folder / "strange_key")
        debian, busybox = images / "debian", images / "busybox"
        self.router = RealHost("router", 1, LAN, busybox, folder, self.key)
        keeper = Login("keeper", PASSWORD)
        others = [
            RealHost("nas", 10, LAN, debian, folder, self.key, login=keeper, disk="/srv"),
            RealHost("desk", 11, LAN, debian, folder, self.key),
            RealHost("pi", 12, LAN, busybox, folder, self.key),
            RealHost("web", 10, DMZ, debian, folder, self.key, login=Login("worker")),
            RealHost("bare", 11, DMZ, busybox, folder, self.key, poor=True),
            RealHost("cellar", 30, DMZ, debian, folder, self.key, routed=False, jump="web"),
        ]
        self.hosts = {host.name: host for host in (self.router, *others)}

    def set_up(self) -> None:
        LAN.lay(OURS)
        self.router.set_up()
        DMZ.lay("10.78.2.1")
        run("nsenter", "--net=/run/netns/router", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        run("ip", "route", "add", DMZ.network, "via", self.router.address)
        for host in self.hosts.values():
            if host is not self.router:
                host.set_up()

    def known_hosts(self, folder: Path) -> Path:
        path = folder / "known_hosts"
        path.write_text("".join(host.known_hosts for host in self.hosts.values()))
        return path

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()


@contextmanager
def silent(segment: Segment, *addresses: str) -> Iterator[None]:
    """The kernel takes connections, and no program ever does."""
    with ExitStack() as stack:
        for address in addresses:
            segment.ip("address", "add", f"{address}/32", "dev", segment.bridge)
            stack.callback(segment.ip, "address", "del", f"{address}/32", "dev", segment.bridge)
            stack.enter_context(socket.create_server((address, 22)))
        yield


@contextmanager
def lost(segment: Segment, *addresses: str) -> Iterator[None]:
    """Everything goes to a network card that nobody has."""
    with ExitStack() as stack:
        for address in addresses:
            place = (address, "dev", segment.bridge)
            segment.ip("neighbour", "replace", *place, "lladdr", "02:00:5e:00:00:01", "nud", "permanent")
            stack.callback(segment.ip, "neighbour", "del", *place)
        yield


@asynccontextmanager
async def serving(
    lab: HomelabLab, folder: Path, *names: str, known: str | None = None, **settings: Any
) -> AsyncIterator[Rig]:
    """A server that knows these hosts, or all of them, and a client of it. `known` takes the place of all host keys."""
    secrets = folder / "secrets.d"
    secrets.mkdir(mode=0o700, exist_ok=True)
    (secrets / "password").write_text(PASSWORD)
    (secrets / "password").chmod(0o600)
    trusted = lab.known_hosts(folder)
    if known is not None:
        trusted.write_text(known)
    homelab = HomelabSettings(
        ssh=SshSettings(Usual(user="root", key=lab.key), known_hosts=(trusted,), pins=folder / "pins"),
        secrets_folder=secrets,
        secrets_file=folder / "secrets",
        work=folder / "work",
    )
    usual = {
        "clusters": (),
        "access": Access.ADMIN,
        "toolsets": ("hosts", "host_admin", "map", "workloads", "services"),
        "approval": Approval.NONE,
        "audit_file": folder / "audit.jsonl",
        "state": str(folder / "state.sqlite"),
        "homelab": homelab,
    }
    app = build(Settings(**{**usual, **settings}))
    try:
        async with Client(app.server()) as client:
            quorate = Rig(None, app, client, folder / "audit.jsonl")  # type: ignore[arg-type]
            for host in [lab.hosts[name] for name in names or lab.hosts]:
                await register(quorate, host)
            yield quorate
    finally:
        await app.close()


async def gone(host: RealHost, text: str) -> None:
    """Wait until no process on the host has it in its command line."""
    async with asyncio.timeout(30):
        while await asyncio.to_thread(host.processes, text):
            await asyncio.sleep(0.05)


async def register(quorate: Rig, host: RealHost) -> None:
    login: dict[str, Any] = {"user": host.login.user, "jump": host.jump}
    if host.login.password is not None:
        login |= {"password": "file:password", "sudo_password": "file:password"}
    await quorate.facts(
        "host_register", host=host.name, address=host.address, verify=False,
        **{name: value for name, value in login.items() if value is not None},
    )  # fmt: skip
