"""Parses and checks a caller's description of a workload."""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Iterable, Mapping

from quorate.homelab.workloads.model import Mount, Port
from quorate.problems import BadArgument

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,511}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*", re.ASCII)
_PORT = re.compile(
    r"(?:(?:(?P<address>\[[^\]]+\]|[0-9.]+):)?(?P<outside>\d*):)?(?P<inside>\d+)(?:/(?P<protocol>tcp|udp))?"
)
_SOCKETS = ("docker.sock", "podman.sock", "containerd.sock", "unix.socket")
_WITH_SOCKETS = ("/", "/run", "/var", "/var/run")
_OF_THE_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/root", "/sbin", "/sys", "/usr", "/var/lib/docker")
_WITH_SECRETS = ("/etc", "/home", "/root", "/var/lib")


def name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise BadArgument(
            f"{text!r} is not a valid workload name", next_step="Use letters and digits, with . _ - between them"
        )
    return text


def image(text: str) -> str:
    if not _IMAGE.fullmatch(text):
        raise BadArgument(f"{text!r} is not an image name", next_step="Write it like nginx:1.27 or images:debian/12")
    return text


def ports(texts: Iterable[str]) -> tuple[Port, ...]:
    return tuple(dict.fromkeys(_port(text) for text in texts))


def _port(text: str) -> Port:
    found = _PORT.fullmatch(text.strip())
    if found is None:
        raise BadArgument(f"{text!r} is not a port", next_step="Write 80, 8080:80, 127.0.0.1:8080:80 or 53:53/udp")
    inside, outside = int(found["inside"]), int(found["outside"] or 0)
    address = (found["address"] or "").strip("[]")
    try:
        if address:
            ipaddress.ip_address(address)
    except ValueError:
        raise BadArgument(f"{address!r} in the port {text!r} is not an IP address") from None
    if not 0 < inside < 65536 or not 0 <= outside < 65536:
        raise BadArgument(f"The port {text!r} is out of range", next_step="Use 1 to 65535")
    return Port(inside, outside or None, found["protocol"] or "tcp", address)


def mounts(texts: Iterable[str]) -> tuple[Mount, ...]:
    found = tuple(_mount(text) for text in texts)
    if len({one.path for one in found}) < len(found):
        raise BadArgument("Two volumes have the same path inside")
    return found


def _mount(text: str) -> Mount:
    source, colon, rest = text.partition(":")
    path, _, mode = rest.partition(":")
    sound = source.startswith("/") or _NAME.fullmatch(source)
    if not colon or not sound or not path.startswith("/") or mode not in ("", "ro", "rw") or "\0" in text:
        raise BadArgument(
            f"{text!r} is not a volume", next_step="Write NAME:/path or /host/path:/path, with :ro for read-only"
        )
    return Mount(_normal(source) if source.startswith("/") else source, _normal(path), mode == "ro")


def _normal(path: str) -> str:
    """Python keeps two leading slashes; to Linux they are one."""
    return f"/{posixpath.normpath(path).lstrip('/')}"


def environment(given: Mapping[str, str]) -> dict[str, str]:
    for one, value in given.items():
        if not _VARIABLE.fullmatch(one) or "\0" in value:
            raise BadArgument(f"{one!r} is not an environment variable", next_step="Use letters, digits and _")
    return dict(given)


def labels(given: Mapping[str, str]) -> dict[str, str]:
    for one in given:
        if not _LABEL.fullmatch(one):
            raise BadArgument(f"{one!r} is not a label", next_step="Use letters, digits and . _ / -")
    return dict(given)


def warnings(wanted: Iterable[Mount]) -> tuple[str, ...]:
    """Volumes that give the container control of the host, or show it the host's secrets."""
    return tuple(f"{one.source} {words}" for one in wanted if one.is_path and (words := _danger(one)))


def has_sockets(one: Mount) -> bool:
    """A socket works even if its folder is read-only."""
    return one.source in _WITH_SOCKETS or one.source.endswith(_SOCKETS)


def _danger(one: Mount) -> str:
    system = f"{one.source}/".startswith(tuple(f"{path}/" for path in _OF_THE_SYSTEM)) or one.source in _WITH_SECRETS
    if (system and not one.read_only) or has_sockets(one):
        return "gives the container control of the host"
    return "shows the container secrets of the host, such as its keys" if one.source in _WITH_SECRETS else ""
