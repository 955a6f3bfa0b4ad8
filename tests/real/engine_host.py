"""A host with container engines: a real OpenSSH server, and Docker, Podman and LXD, all in the laboratory's namespaces.

    with engine_host("workloads") as host:                        with Docker; skipped where the programs are missing
    host.start_podman(), host.start_lxd()                         the other daemons, with an image each and no way out
    async with serving(host, folder, "workloads") as quorate:     Quorate, which has it registered as `box`
    host.docker("ps"), host.podman("ps"), host.lxd("list")        their own commands, independently of what is tested

The images hold BusyBox alone. Docker also finds one in a registry on its own loopback, to have something to pull.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from quorate.app import build
from quorate.config import Access, Approval, Settings
from quorate.config.homelab import HomelabSettings
from quorate.ssh.settings import Login, SshSettings
from tests.real.keys import make_key
from tests.real.needs import engines_problem
from tests.real.network import run
from tests.real.nodes import Node
from tests.real.polling import wait_until
from tests.rigs.mcp_session import Rig

IMAGE = "quorate/tiny:1"
PULLED = "127.0.0.1:5000/tiny:1"
_APPLETS = ("sh", "sleep", "echo", "cat", "httpd", "ls", "env", "true", "false", "trap", "wget", "id", "head", "mount")
_REGISTRY = "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {0}}}}}\nhttp: {{addr: 127.0.0.1:5000}}\n"
_INIT = '#!/bin/sh\ntrap "exit 0" PWR TERM\necho the instance is up\nwhile :; do sleep 1; done\n'
_LXD_PRESEED = """
storage_pools: [{name: default, driver: dir}]
profiles:
- name: default
  config: {security.privileged: "true"}
  devices: {root: {type: disk, pool: default, path: /}}
"""


class EngineHost(Node):
    """Its engines keep everything in folders of the laboratory, which end with it."""

    def __init__(self, folder: Path, key: Path) -> None:
        super().__init__("engines", 3, 22, folder, key)
        self._daemons: list[subprocess.Popen[bytes]] = []

    def set_up(self) -> None:
        for place in ("/var/lib/lxd", "/var/log/lxd", "/etc/containers", "/var/lib/containers", "/var/cache/lxd"):
            Path(place).mkdir(parents=True, exist_ok=True)
            run("mount", "-t", "tmpfs", "none", place)
        super().set_up()
        Path(self.folder, "tiny.tar").write_bytes(_root())

    def docker(self, *argv: str) -> str:
        return run(*self.inside(), "docker", *argv)

    def podman(self, *argv: str) -> str:
        return run(*self.inside(), "podman", *argv)

    def lxd(self, *argv: str) -> str:
        return run(*self.inside(), "env", f"HOME={self.folder}", "lxc", *argv)

    def start_docker(self) -> None:
        data = self.folder / "docker"
        # The storage driver that works on everything; its own bridge is in the host's own network.
        self._start(
            "dockerd", "dockerd", "--data-root", str(data), "--exec-root", str(self.folder / "docker-run"),
            "--pidfile", str(self.folder / "docker.pid"), "--host", "unix:///run/docker.sock", "--iptables=false",
            "--ip6tables=false", "--storage-driver", "vfs",
        )  # fmt: skip
        wait_until(lambda: "API listen on" in self._said("dockerd"), "dockerd", 60.0)
        self.docker("import", "--change", 'CMD ["sleep","1000"]', str(self.folder / "tiny.tar"), IMAGE)
        (self.folder / "registry.yml").write_text(_REGISTRY.format(self.folder / "registry"))
        self._start("registry", "docker-registry", "serve", str(self.folder / "registry.yml"))
        wait_until(lambda: "listening on" in self._said("registry"), "the registry", 30.0)
        self.docker("tag", IMAGE, PULLED)
        self.docker("push", PULLED)
        self.docker("rmi", PULLED)

    def start_podman(self) -> None:
        folder = Path("/etc/containers")
        (folder / "policy.json").write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
        (folder / "storage.conf").write_text(
            f'[storage]\ndriver = "vfs"\nrunroot = "{self.folder}/podman-run"\ngraphroot = "{self.folder}/podman"\n'
        )
        (folder / "containers.conf").write_text(
            "[containers]\npids_limit = 0\n"
            '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "runc"\n'
        )
        self.podman("import", "--change", 'CMD ["sleep","1000"]', str(self.folder / "tiny.tar"), IMAGE)

    def serve_podman(self) -> None:
        """Its API, which listens only on request."""
        Path("/run/podman").mkdir(exist_ok=True)
        socket = Path("/run/podman/podman.sock")
        self._start("podman-api", "podman", "system", "service", "--time", "0", f"unix://{socket}")
        wait_until(socket.is_socket, "Podman's API", 30.0)

    def start_lxd(self) -> None:
        self._start("lxd", "lxd", "--group", "root")
        wait_until(lambda: Path("/var/lib/lxd/unix.socket").is_socket(), "LXD", 60.0)
        run(*self.inside(), "lxd", "waitready", "--timeout", "60")
        subprocess.run([*self.inside(), "lxd", "init", "--preseed"], input=_LXD_PRESEED.encode(), check=True)
        (self.folder / "tiny-instance.tar").write_bytes(_instance())
        self.lxd("image", "import", str(self.folder / "tiny-instance.tar"), "--alias", "tiny")

    @contextmanager
    def without_forwarding(self) -> Iterator[None]:
        """The SSH server opens no sockets for its clients."""
        settings = self.folder / "sshd_config"
        text = settings.read_text()
        settings.write_text(text + "AllowStreamLocalForwarding no\n")
        self.stop()
        self.start()
        try:
            yield
        finally:
            settings.write_text(text)
            self.stop()
            self.start()

    @contextmanager
    def without_curl(self) -> Iterator[None]:
        """As where it is not installed."""
        tool = self.folder / "bin/curl"
        tool.write_text("#!/bin/sh\necho curl: not found >&2\nexit 127\n")
        tool.chmod(0o755)
        try:
            yield
        finally:
            tool.unlink()

    def close(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
        super().close()
        self.cable.take_up()

    def _said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            daemon = subprocess.Popen(
                [*self.inside(), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", "HOME": "/root"},
            )
        self._daemons.append(daemon)


def _root(*more: tuple[str, bytes, int], prefix: str = "") -> bytes:
    """The files of a system that is BusyBox alone, as a tar archive."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in ("bin", "sbin", "dev", "proc", "sys", "tmp", "etc", "root", "run", "var", "usr", "data"):
            _add(archive, f"{prefix}{name}", b"", 0o755, tarfile.DIRTYPE)
        _add(archive, f"{prefix}bin/busybox", Path(busybox).read_bytes(), 0o755)
        for name in _APPLETS:
            _add(archive, f"{prefix}bin/{name}", b"", 0o777, tarfile.SYMTYPE, "busybox")
        for name, data, mode in more:
            _add(archive, name, data, mode)
    return made.getvalue()


def _instance() -> bytes:
    """The same as an image of LXD: a file about it, and the system below `rootfs`."""
    about = json.dumps({"architecture": "x86_64", "creation_date": 1700000000, "properties": {"description": "tiny"}})
    return _root(
        ("metadata.yaml", about.encode(), 0o644), ("rootfs/sbin/init", _INIT.encode(), 0o755), prefix="rootfs/"
    )


def _add(
    archive: tarfile.TarFile, name: str, data: bytes, mode: int, kind: bytes = tarfile.REGTYPE, link: str = ""
) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.type, entry.linkname = len(data), mode, kind, link
    archive.addfile(entry, io.BytesIO(data))


@contextmanager
def engine_host(name: str) -> Iterator[EngineHost]:
    absent = engines_problem()
    if absent and not os.environ.get("CI"):
        pytest.skip(absent)
    assert absent is None, absent
    folder = Path("/run/lab") / name
    folder.mkdir()
    built = EngineHost(folder, make_key(folder / "key"))
    try:
        built.set_up()
        built.start_docker()
        yield built
    finally:
        built.close()


@asynccontextmanager
async def serving(host: EngineHost, folder: Path, *toolsets: str, **homelab: Any) -> AsyncIterator[Rig]:
    """Quorate without a cluster, with these toolsets and settings of the homelab."""
    known = folder / "known_hosts"
    known.write_text(host.known_hosts)
    ssh = SshSettings(Login(user="root", key=host.key), known_hosts=(known,), pins=folder / "pins")
    settings = Settings(
        clusters=(),
        access=Access.ADMIN,
        toolsets=("hosts", "host_admin", *toolsets),
        approval=Approval.NONE,
        audit_file=folder / "audit.jsonl",
        state=str(folder / "state.sqlite"),
        homelab=HomelabSettings(ssh=ssh, **homelab),
    )
    app = build(settings)
    try:
        async with Client(app.server()) as client:
            quorate = Rig(None, app, client, folder / "audit.jsonl")  # type: ignore[arg-type]
            await quorate.facts("host_register", host="box", address=host.host, port=host.port)
            yield quorate
    finally:
        await app.close()
