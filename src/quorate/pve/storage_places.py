"""Where volumes really are: the same data can have several names.

Two storages may lead to the same folder, export, volume group or pool, a linked clone carries the name of its base,
and a drive can be given as a path of the node. Each volume has a set of locators; two names that share a locator are
the same volume.
"""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

_FOLDERS: Final = {
    "iso": "template/iso",
    "vztmpl": "template/cache",
    "backup": "dump",
    "snippets": "snippets",
    "import": "import",
    "images": "images",
}
"""Where a file storage keeps each kind of content, unless its content-dirs say otherwise."""
_FILES: Final = frozenset({"dir", "btrfs", "nfs", "cifs", "cephfs", "glusterfs"})
_PATH, _ID = "path", "id"
_WORDS: Final = re.compile(r"[,;\s=]+")
_VOLUME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*:[^/:\s].*")
_FREE_TEXT: Final = frozenset({"description", "name", "hostname", "tags", "sshkeys", "cipassword", "ciuser"})


class Locator(NamedTuple):
    """One way to say where a volume is."""

    kind: str
    """path, lvm, zfs, nfs and so on; `id` for the name of the storage itself."""
    server: str
    """Empty for what is on the node."""
    place: str


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """Where a storage keeps its volumes, from its definition."""

    id: str
    type: str
    roots: tuple[Locator, ...]
    folders: Mapping[str, str]
    shared: bool
    """Whether its volumes are the same on every node; then another cluster may have them, too."""

    def locate(self, name: str) -> set[Locator]:
        """The locators of a volume by the part after the storage's name."""
        own = self._relative_path(name)
        locators = {Locator(_ID, "", f"{self.id}:{own}")}
        for root in self.roots:
            locators.add(root._replace(place=posixpath.join(root.place, own)))
            if root.kind == "lvm":
                locators |= {Locator(_PATH, "", path) for path in _device_paths(root.place, own)}
            if root.kind == "zfs":
                locators |= {Locator(_PATH, "", f"{top}/{root.place}/{own}") for top in ("/dev/zvol", "")}
        return locators

    def locate_bases(self, name: str) -> set[Locator]:
        """The locators of the volumes that this one builds on, as its name shows them."""
        return {locator for base in self._bases(name) for locator in self.locate(base)}

    def _relative_path(self, name: str) -> str:
        parts = name.split("/")
        if self.type not in _FILES:
            return parts[-1]
        if parts[0] in self.folders and parts[0] != "images":
            return posixpath.join(self.folders[parts[0]], *parts[1:])
        return posixpath.join(self.folders["images"], *parts[-2:])

    def _bases(self, name: str) -> Iterator[str]:
        parts = name.split("/")
        if self.type not in _FILES:
            yield from parts[:-1]
        elif parts[0] in self.folders and parts[0] != "images":
            if len(parts) > 2:  # a disk inside an appliance
                yield "/".join(parts[:2])
        else:
            yield from ("/".join(parts[at : at + 2]) for at in range(0, len(parts) - 2, 2))


def read_place(definition: Mapping[str, Any], servers: ServerNames, cluster: str) -> StoragePlace:
    """The place that a row of `/storage` describes."""
    folders = dict(_FOLDERS)
    for part in str(definition.get("content-dirs") or "").split(","):
        kind, equals, folder = part.partition("=")
        if equals:
            folders[kind.strip()] = folder.strip().strip("/")
    name, kind = str(definition["storage"]), str(definition.get("type", ""))
    remote = kind in ("nfs", "cifs", "cephfs", "glusterfs", "rbd", "iscsi", "iscsidirect", "zfs", "pbs", "esxi")
    shared = remote or str(definition.get("shared") or "0") == "1"
    return StoragePlace(name, kind, tuple(_roots(definition, servers, cluster)), folders, shared)


def _roots(definition: Mapping[str, Any], servers: ServerNames, cluster: str) -> Iterator[Locator]:
    def text(key: str, default: str = "") -> str:
        return str(definition.get(key) or default)

    kind = text("type")
    if kind in _FILES:
        yield Locator(_PATH, "", posixpath.normpath(text("path", f"/mnt/pve/{text('storage')}")))
    own_ceph = f"the Ceph of {cluster}"
    match kind:
        case "nfs":
            yield Locator("nfs", servers.canonical(text("server")), posixpath.normpath(text("export", "/")))
        case "cifs":
            share = posixpath.join(text("share").lower(), text("subdir").strip("/"))
            yield Locator("cifs", servers.canonical(text("server")), share.rstrip("/"))
        case "glusterfs":
            yield Locator("glusterfs", servers.canonical(text("server")), text("volume"))
        case "cephfs":
            folder = posixpath.join(text("fs-name", "cephfs"), text("subdir").strip("/"))
            yield Locator("cephfs", servers.canonical(text("monhost", own_ceph)), folder.rstrip("/"))
        case "rbd":
            pool = posixpath.join(text("pool", "rbd"), text("namespace"))
            yield Locator("rbd", servers.canonical(text("monhost", own_ceph)), pool.rstrip("/"))
        case "lvm" | "lvmthin":
            yield Locator("lvm", "", text("vgname", text("storage")))
        case "zfspool":
            yield Locator("zfs", "", text("pool", text("storage")))
        case "zfs":
            yield Locator("zfs over iSCSI", servers.canonical(text("portal")), text("pool"))
        case "iscsi" | "iscsidirect":
            yield Locator("iscsi", servers.canonical(text("portal")), text("target"))


def follow_mounts(places: Iterable[StoragePlace]) -> Iterator[StoragePlace]:
    """The places; a folder in the mount point of a file server's storage is also a folder on that server."""
    known = list(places)
    mounts = {
        own.place: [root for root in place.roots if root is not own]
        for place in known
        for own in place.roots
        if own.kind == _PATH and place.shared
    }
    for place in known:
        added = [
            root._replace(place=posixpath.join(root.place, own.place[len(mount) :].strip("/")).rstrip("/"))
            for own in place.roots
            for mount, roots in mounts.items()
            if own.kind == _PATH and not place.shared and f"{own.place}/".startswith(f"{mount}/")
            for root in roots
        ]
        yield replace(place, roots=(*place.roots, *added), shared=True) if added else place


def _device_paths(group: str, volume: str) -> tuple[str, str]:
    mapped = "-".join(part.replace("-", "--") for part in (group, volume))
    return f"/dev/{group}/{volume}", f"/dev/mapper/{mapped}"


class ServerNames:
    """One name for each server. A name and an address may be the same machine, so they count as the same."""

    def __init__(self) -> None:
        self._known: list[tuple[str, frozenset[str]]] = []

    def canonical(self, text: str) -> str:
        hosts = frozenset(part.lower().rstrip(".") for part in re.split(r"[,;\s]+", text) if part)
        for name, known in self._known:
            if any(_may_be_same(host, known_host) for host in hosts for known_host in known):
                return name
        self._known.append((text, hosts))
        return text


def _may_be_same(first: str, second: str) -> bool:
    if first == second:
        return True
    addresses = _is_address(first), _is_address(second)
    if all(addresses):
        return False
    return any(addresses) or first.partition(".")[0] == second.partition(".")[0]


def _is_address(text: str) -> bool:
    host = text.strip("[]") if text.startswith("[") else text if text.count(":") > 1 else text.partition(":")[0]
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def named_volumes(config: Iterable[tuple[str, object]]) -> Iterator[tuple[str, str]]:
    """The volumes and paths that options of a configuration name, each with its option."""
    for option, value in config:
        if option in _FREE_TEXT or option.startswith(("net", "ipconfig")):
            continue
        text = str(value)
        parts = _WORDS.split(text) if option == "args" else text.split(",")
        for name in dict.fromkeys(name for part in parts for name in (part, part.partition("=")[2])):
            if name.startswith("/") or _VOLUME.fullmatch(name):
                yield option, name


def path_locator(path: str) -> Locator:
    return Locator(_PATH, "", posixpath.normpath(path))
