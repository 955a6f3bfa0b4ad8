"""Application images on the simulated internet: their registries, and what PVE makes of an image's configuration."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from pve_simulator.guests.guest import MIB

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DEFAULT_REGISTRY = "docker.io"
_INIT = "/sbin/init"


@dataclass(frozen=True, slots=True)
class OciImage:
    """An image as a registry has it."""

    repository: str
    megabytes: int
    os: str = ""
    """The distribution in its os-release; empty if it has none."""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return self.megabytes * MIB + len(self.repository) * 512

    @property
    def init(self) -> str:
        """What a container of it starts instead of an init system; empty if the image has one."""
        words = (*self.entrypoint, *self.command)
        return "" if not words or words[0] == _INIT else shlex.join(words)

    @property
    def environment(self) -> str:
        """Its variables as PVE's option `env` has them."""
        return "\0".join((_PATH, *self.env))


_NGINX = OciImage(
    "docker.io/library/nginx", 69, "debian", ("/docker-entrypoint.sh",), ("nginx", "-g", "daemon off;"),
    ("NGINX_VERSION=1.29.3", "PKG_RELEASE=1~trixie"),
)  # fmt: skip
_POSTGRES = OciImage(
    "docker.io/library/postgres", 152, "debian", ("docker-entrypoint.sh",), ("postgres",),
    ("PG_MAJOR=18", "PGDATA=/var/lib/postgresql/18/docker"), ("/var/lib/postgresql",),
)  # fmt: skip
_NTFY = OciImage("docker.io/binwiederhier/ntfy", 18, "alpine", ("ntfy",), env=("NTFY_HOME=/var/lib/ntfy",))
_JELLYFIN = OciImage(
    "ghcr.io/jellyfin/jellyfin", 410, "debian", ("/jellyfin/jellyfin",),
    env=("JELLYFIN_DATA_DIR=/config", "JELLYFIN_CACHE_DIR=/cache"), volumes=("/config", "/cache"),
)  # fmt: skip
_TAGS = (
    (OciImage("docker.io/library/alpine", 4, "alpine", command=("/bin/sh",)), "3.20 3.21 3.22 latest"),
    (OciImage("docker.io/library/debian", 48, "debian", command=("bash",)), "12 13 bookworm latest trixie"),
    (_NGINX, "1.27 1.28 1.29 1.29-alpine latest stable"),
    (_POSTGRES, "16 17 18 latest"),
    (_NTFY, "latest v2.14.0 v2.15.0"),
    (_JELLYFIN, "10.10.7 10.11.3 latest"),
)
REGISTRIES: Mapping[str, tuple[OciImage, tuple[str, ...]]] = {
    image.repository: (image, tuple(tags.split())) for image, tags in _TAGS
}
"""The repositories that can be reached, each with its image and tags."""


def tags_of(repository: str) -> tuple[str, ...] | None:
    """The tags of a repository; None if its registry does not have it."""
    known = REGISTRIES.get(_full_name(repository))
    return known[1] if known else None


def look_up(reference: str) -> OciImage | None:
    """The image of a reference with a tag, such as `nginx:1.29`."""
    repository, _, tag = reference.rpartition(":")
    image, tags = REGISTRIES.get(_full_name(repository), (None, ()))
    return image if tag in tags else None


def _full_name(repository: str) -> str:
    """A repository with its registry; a plain name is one of Docker Hub's own."""
    first, slash, _ = repository.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return repository
    return f"{_DEFAULT_REGISTRY}/{repository}" if slash else f"{_DEFAULT_REGISTRY}/library/{repository}"
