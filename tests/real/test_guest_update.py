"""Updating a guest with real packages: apt in a real container, its services, and health checks inside."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quorate.config import Access
from tests.real.containers import Container
from tests.real.lab import Lab
from tests.real.transports import Inside, reached

pytestmark = pytest.mark.anyio

NAME = "quorate-probe"
ENTRY = """Package: {name}
Version: {version}
Architecture: all
Maintainer: Laboratory <lab@example.org>
Description: a package to update
"""


class Repository:
    """A package source inside the container, which has no other."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._container.run("mkdir", "-p", "/srv/packages")
        self._container.run("mv", "/etc/apt", "/etc/apt.aside")
        self._container.run("sh", "-c", "mkdir -p /etc/apt/apt.conf.d /etc/apt/preferences.d /etc/apt/trusted.gpg.d")
        self._write("/etc/apt/sources.list", "deb [trusted=yes] file:/srv/packages ./\n")

    def offer(self, version: int, after_installation: str = "true") -> str:
        """A version that can be installed; returns its file."""
        entry, file = ENTRY.format(name=NAME, version=version), f"{NAME}_{version}_all.deb"
        self._container.run("rm", "-rf", "/srv/build")
        self._container.run("mkdir", "-p", "/srv/build/DEBIAN")
        self._write("/srv/build/DEBIAN/control", entry)
        self._write("/srv/build/DEBIAN/postinst", f"#!/bin/sh\n{after_installation}\n")
        self._container.run("chmod", "755", "/srv/build/DEBIAN/postinst")
        self._container.run("dpkg-deb", "--build", "/srv/build", f"/srv/packages/{file}")
        content = (self._container.rootfs / "srv/packages" / file).read_bytes()
        sums = f"Filename: ./{file}\nSize: {len(content)}\nSHA256: {hashlib.sha256(content).hexdigest()}\n"
        self._write("/srv/packages/Packages", f"{entry}{sums}")
        return f"/srv/packages/{file}"

    def close(self) -> None:
        self._container.run("dpkg", "--purge", NAME, check=False)
        self._container.run("rm", "-rf", "/srv/packages", "/srv/build", "/etc/apt", "/var/lib/apt/lists")
        self._container.run("mv", "/etc/apt.aside", "/etc/apt")

    def _write(self, path: str, text: str) -> None:
        self._container.run("sh", "-c", f"printf %s {_quoted(text)} > {path}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@contextmanager
def repository(container: Container) -> Iterator[Repository]:
    made = Repository(container)
    try:
        yield made
    finally:
        made.close()


async def update(inside: Inside, **arguments: Any) -> dict[str, Any]:
    started = await inside.facts("run_guest_update", **arguments)
    await inside.quorate.app.runs.work()
    return await inside.quorate.facts("run_get", run=started["run"], lines=200, inside=True)


async def test_apt_installs_what_is_new_and_a_package_that_fails_is_rolled_back(lab: Lab, tmp_path: Path):
    is_two = f"test $(dpkg-query -W -f '${{Version}}' {NAME}) = 2"
    async with reached(lab, "pct", tmp_path, access=Access.ADMIN) as inside:
        with repository(lab.debian) as packages:
            lab.debian.run("dpkg", "--install", packages.offer(1))
            packages.offer(2)
            run = await update(inside, check=is_two, port=22, services=["cron"])
            assert run["state"] == "done", run
            assert f"Setting up {NAME} (2)" in run["report"]["output"]
            assert (await inside.look("systemctl", "is-active", "cron")).strip() == "active"
            packages.offer(3, after_installation="exit 1")
            failed = await update(inside, check="true")
            assert failed["state"] == "failed"
            assert "exit code 100" in failed["report"]["why"]
            assert failed["report"]["rolled_back"] is True
            assert "post-installation script" in failed["report"]["output"]


async def test_a_closed_port_is_not_healthy(lab: Lab, tmp_path: Path):
    async with reached(lab, "pct", tmp_path, access=Access.ADMIN) as inside:
        with repository(lab.debian) as packages:
            lab.debian.run("dpkg", "--install", packages.offer(1))
            run = await update(inside, port=9, health_seconds=0)
            assert "was not healthy" in run["report"]["why"]
            assert run["report"]["rolled_back"] is True
