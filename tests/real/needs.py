"""What the laboratory needs of the machine it is built on."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

# Debian's packages, and the program of each by which it is recognised.
PACKAGES = {
    "e2fsprogs": "mke2fs",
    "iproute2": "ip",
    "lxc": "lxc-start",
    "mmdebstrap": "mmdebstrap",
    "openssh-client": "ssh-keygen",
    "openssh-server": "sshd",
    "python3": "/usr/bin/python3",
    "qemu-system-x86": "qemu-system-x86_64",
    "sudo": "visudo",
    "util-linux": "unshare",
    "zstd": "zstd",
}

# What the tests of container engines need in addition.
ENGINES = {
    "busybox-static": "busybox",
    "crun": "crun",
    "curl": "curl",
    "docker.io": "dockerd",
    "docker-compose": "docker-compose",
    "docker-registry": "docker-registry",
    "lxd": "lxd",
    "podman": "podman",
}

# What the tests of scans need: another scanner, and a firewall against both.
SCANS = {"nftables": "nft", "nmap": "nmap"}

_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


def program(name: str) -> str | None:
    """Where a program is; the system's own directories count also if the user does not look there."""
    return shutil.which(name, path=_PATH)


def engines_problem() -> str | None:
    """Why the engines cannot be tried here."""
    absent = [package for package, name in ENGINES.items() if program(name) is None]
    return f"apt-get install --no-install-recommends {' '.join(absent)}" if absent else None


def problem() -> str | None:
    """Why there can be no laboratory here; None if there can."""
    if os.geteuid() != 0:
        return "it takes root to make namespaces, containers and their files"
    if release().get("ID") != "debian" or platform.machine() != "x86_64":
        return "its guests are made from Debian's packages for amd64, on Debian"
    absent = [package for package, name in PACKAGES.items() if program(name) is None]
    if absent:
        return f"some of Debian's packages are missing: apt-get install --no-install-recommends {' '.join(absent)}"
    return None


def release() -> dict[str, str]:
    """The operating system's word about itself."""
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip('"') for name, separator, value in (line.partition("=") for line in lines) if separator}
