"""Packages of a node: updates, repositories and versions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from pve_simulator.cluster.config_files import check_digest
from pve_simulator.http.refusals import existing, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.nodes.tasks import TaskContext
from pve_simulator.world import Node, World

_PVE_SOURCES = "/etc/apt/sources.list.d/proxmox.sources"
_ENTERPRISE_SOURCES = "/etc/apt/sources.list.d/pve-enterprise.sources"
_DEBIAN_SOURCES = "/etc/apt/sources.list.d/debian.sources"

_STANDARD = {
    "enterprise": ("Enterprise", "The stable repository, recommended for all with a subscription."),
    "no-subscription": ("No-Subscription", "For testing and non-production use; not as well tested as enterprise."),
    "test": ("Test", "The newest packages, for those who want to try them before anybody else."),
    "ceph-squid-enterprise": ("Ceph Squid Enterprise", "Ceph Squid, for all with a subscription."),
    "ceph-squid-no-subscription": ("Ceph Squid No-Subscription", "Ceph Squid, for testing."),
    "ceph-squid-test": ("Ceph Squid Test", "The newest Ceph Squid packages."),
}
_COMPONENTS = {"enterprise": "pve-enterprise", "no-subscription": "pve-no-subscription", "test": "pve-test"}


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package, with the newer version if there is one."""

    name: str
    title: str
    version: str
    newer: str | None = None
    section: str = "admin"
    origin: str = "Proxmox"
    arch: str = "all"


_PACKAGES = (
    Package("corosync", "cluster engine daemon and utilities", "3.1.9-pve2", arch="amd64"),
    Package("ifupdown2", "Network Interface Management tool similar to ifupdown", "3.3.0-1+pmx11"),
    Package("libknet1", "kronosnet core switching implementation", "1.30-pve2", section="libs", arch="amd64"),
    Package("libpve-access-control", "Proxmox VE access control library", "9.0.4", "9.0.5", "perl"),
    Package("libpve-common-perl", "Proxmox VE base library", "9.1.0", section="perl"),
    Package("libpve-storage-perl", "Proxmox VE storage management library", "9.1.0", "9.1.1", "perl"),
    Package("lvm2", "Linux Logical Volume Manager", "2.03.31-2+pmx1", arch="amd64"),
    Package("lxc-pve", "Linux containers userspace tools", "6.0.5-3", arch="amd64"),
    Package("lxcfs", "LXC userspace filesystem", "6.0.4-pve1", arch="amd64"),
    Package("proxmox-backup-client", "Proxmox Backup Client tools", "4.1.0-1", "4.1.1-1", arch="amd64"),
    Package("pve-cluster", "Cluster Infrastructure for Proxmox Virtual Environment", "9.0.7", arch="amd64"),
    Package("pve-container", "Proxmox VE Container management tool", "6.0.18", section="perl"),
    Package("pve-firewall", "Proxmox VE Firewall", "6.0.4", arch="amd64"),
    Package("pve-ha-manager", "Proxmox VE HA Manager", "5.0.8", section="perl", arch="amd64"),
    Package("pve-qemu-kvm", "Full virtualization on x86 hardware", "10.1.2-4", "10.1.2-5", arch="amd64"),
    Package("qemu-server", "QEMU Server Tools", "9.1.2", "9.1.3", arch="amd64"),
    Package("smartmontools", "control and monitor storage systems using S.M.A.R.T.", "7.4-pve1", arch="amd64"),
    Package("swtpm", "Libtpms-based TPM emulator", "0.8.0+pve3", section="misc", arch="amd64"),
    Package("zfsutils-linux", "command-line tools to manage OpenZFS filesystems", "2.3.4-pve1", arch="amd64"),
)
# Updated, but not in the list of versions.
_DEBIAN_PACKAGES = (
    Package("libssl3t64", "Secure Sockets Layer toolkit", "3.5.1-1", "3.5.4-1", "libs", "Debian", "amd64"),
    Package("openssh-server", "secure shell (SSH) server", "1:10.0p1-7", "1:10.0p1-8", "net", "Debian", "amd64"),
)


class Repositories:
    """The package sources of one node."""

    def __init__(self, suite: str) -> None:
        self._suite = suite
        self.files: dict[str, list[dict[str, Any]]] = {
            _DEBIAN_SOURCES: [
                _source("http://deb.debian.org/debian/", [suite, f"{suite}-updates"], ["main", "contrib"]),
                _source("http://security.debian.org/debian-security/", [f"{suite}-security"], ["main", "contrib"]),
            ],
            _ENTERPRISE_SOURCES: [
                _source("https://enterprise.proxmox.com/debian/pve", [suite], ["pve-enterprise"], enabled=0)
            ],
            _PVE_SOURCES: [_source("http://download.proxmox.com/debian/pve", [suite], ["pve-no-subscription"])],
        }

    def digest(self) -> str:
        return hashlib.sha256(repr(self.files).encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        return {
            "digest": self.digest(),
            "errors": [],
            "files": [
                {
                    "path": path,
                    "file-type": "sources",
                    "digest": list(hashlib.sha256(repr(entries).encode()).digest()),
                    "repositories": entries,
                }
                for path, entries in self.files.items()
            ],
            "infos": self._infos(),
            "standard-repos": [
                {"handle": handle, "name": name, "description": text} | self._state(handle)
                for handle, (name, text) in _STANDARD.items()
            ],
        }

    def enable(self, path: str, index: int, *, enabled: bool) -> None:
        entries = existing(self.files.get(path), f"error - no such file: {path}")
        if not 0 <= index < len(entries):
            raise failure(f"error - no repository at index {index} in {path}")
        entries[index]["Enabled"] = int(enabled)

    def add(self, handle: str) -> None:
        if handle not in _STANDARD:
            raise failure(f"unknown repository handle '{handle}'")
        existing = self._state(handle)
        if existing.get("status") == 1:
            raise failure(f"standard repository already configured: {handle}")
        for entry in self._entries(handle):
            entry["Enabled"] = 1
        if not existing:
            component = _COMPONENTS.get(handle, handle.removeprefix("ceph-squid-"))
            kind = "ceph-squid" if handle.startswith("ceph") else "pve"
            entry = _source(f"http://download.proxmox.com/debian/{kind}", [self._suite], [component])
            path = _PVE_SOURCES if kind == "pve" else "/etc/apt/sources.list.d/ceph.sources"
            self.files.setdefault(path, []).append(entry)

    def _entries(self, handle: str) -> list[dict[str, Any]]:
        kind = "/ceph-squid" if handle.startswith("ceph") else "/pve"
        component = _COMPONENTS.get(handle, handle.removeprefix("ceph-squid-"))
        return [
            entry
            for entries in self.files.values()
            for entry in entries
            if entry["URIs"][0].endswith(kind) and component in entry["Components"]
        ]

    def _state(self, handle: str) -> dict[str, int]:
        entries = self._entries(handle)
        return {"status": int(any(entry["Enabled"] for entry in entries))} if entries else {}

    def _infos(self) -> list[dict[str, Any]]:
        return [
            {"path": path, "index": str(index), "kind": "origin", "message": _origin(entry["URIs"][0])}
            for path, entries in self.files.items()
            for index, entry in enumerate(entries)
        ]


class Packages:
    """The software of every node."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._repositories: dict[str, Repositories] = {}
        self._upgraded: set[str] = set()

    def upgrade(self, node: str) -> None:
        """Record that `apt-get dist-upgrade` has run on the node."""
        self._upgraded.add(node)

    def repositories(self, node: str) -> Repositories:
        suite = "trixie" if self._world.version_at_least(9, 0) else "bookworm"
        return self._repositories.setdefault(node, Repositories(suite))

    def versions(self, node: Node) -> list[dict[str, Any]]:
        """The installed versions of PVE's packages."""
        world = self._world
        number = node.kernel.partition("-pve")[0]
        kernel = Package("proxmox-kernel-6.17", "Latest Proxmox Kernel Image", number, section="kernel")
        manager = Package("pve-manager", "Proxmox Virtual Environment Management Tools", world.version)
        meta = Package("proxmox-ve", "Proxmox Virtual Environment", f"{world.release}.0")
        rows = [_installed_row(package) for package in (meta, manager, kernel, *_PACKAGES)]
        rows[0]["RunningKernel"] = node.kernel
        rows[1]["ManagerVersion"] = f"{world.version}/{hashlib.sha256(world.version.encode()).hexdigest()[:16]}"
        ceph = _installed_row(
            Package("ceph-fuse", "FUSE-based client for the Ceph distributed file system", "19.2.3-pve2")
        )
        del ceph["OldVersion"]
        return [*rows, ceph | {"CurrentState": "NotInstalled"}]

    def updates(self, node: str) -> list[dict[str, Any]]:
        """The available updates."""
        return (
            []
            if node in self._upgraded
            else [
                _package_row(package, str(package.newer)) | {"OldVersion": package.version}
                for package in (*_PACKAGES, *_DEBIAN_PACKAGES)
                if package.newer is not None
            ]
        )

    def changelog(self, name: str, version: str | None) -> str:
        for package in (*_PACKAGES, *_DEBIAN_PACKAGES):
            if package.name == name:
                shown = version or package.newer or package.version
                return (
                    f"{name} ({shown}) trixie; urgency=medium\n\n  * fix issues that were found since the release\n\n"
                    f" -- Proxmox Support Team <support@proxmox.com>  Tue, 06 Jan 2026 10:12:31 +0100\n"
                )
        raise failure(f"Unable to find package '{name}'")


def _origin(uri: str) -> str:
    return "Proxmox" if "proxmox" in uri else "Debian"


def _package_row(package: Package, version: str) -> dict[str, Any]:
    return {
        "Package": package.name, "Title": package.title, "Description": package.title, "Version": version,
        "Section": package.section, "Priority": "optional", "Origin": package.origin, "Arch": package.arch,
    }  # fmt: skip


def _installed_row(package: Package) -> dict[str, Any]:
    return _package_row(package, package.version) | {"OldVersion": package.version, "CurrentState": "Installed"}


def _source(uri: str, suites: list[str], components: list[str], *, enabled: int = 1) -> dict[str, Any]:
    keyring = "proxmox-archive-keyring" if "proxmox" in uri else "debian-archive-keyring"
    return {
        "Types": ["deb"],
        "URIs": [uri.rstrip("/") if "proxmox" in uri else uri],
        "Suites": suites,
        "Components": components,
        "Options": [{"Key": "Signed-By", "Values": [f"/usr/share/keyrings/{keyring}.gpg"]}],
        "Enabled": enabled,
        "FileType": "sources",
        "Comment": "",
    }


_BASE = "/nodes/{node}/apt"


@route(f"GET {_BASE}/versions")
def versions(call: Call) -> list[dict[str, Any]]:
    return call.world.part(Packages).versions(call.world.nodes[call.node])


@route(f"GET {_BASE}/update")
def updates(call: Call) -> list[dict[str, Any]]:
    return call.world.part(Packages).updates(call.node)


@route(f"POST {_BASE}/update")
def refresh(call: Call) -> str:
    """Read the package lists again."""
    repositories = call.world.part(Packages).repositories(call.node)

    async def work(context: TaskContext) -> None:
        if not call.params.get("quiet"):
            context.log("starting apt-get update")
        sources = [entry for entries in repositories.files.values() for entry in entries if entry["Enabled"]]
        for number, source in enumerate(sources, start=1):
            await context.sleep(1.0)
            if "enterprise.proxmox.com" in source["URIs"][0]:
                context.warn("the enterprise repository needs a subscription (401  Unauthorized)")
            else:
                context.log(f"Hit:{number} {source['URIs'][0]} {source['Suites'][0]} InRelease")
        context.log("Reading package lists...")

    return call.start_task("aptupdate", "", work)


@route(f"GET {_BASE}/changelog")
def changelog(call: Call) -> str:
    return call.world.part(Packages).changelog(call.params["name"], call.params.get("version"))


@route(f"GET {_BASE}/repositories")
def repositories(call: Call) -> dict[str, Any]:
    return call.world.part(Packages).repositories(call.node).as_dict()


@route(f"POST {_BASE}/repositories")
def change_repository(call: Call) -> None:
    own = call.world.part(Packages).repositories(call.node)
    check_digest(own.digest(), call.params.get("digest"))
    if "enabled" in call.params:
        own.enable(call.params["path"], call.params["index"], enabled=call.params["enabled"])


@route(f"PUT {_BASE}/repositories")
def add_repository(call: Call) -> None:
    own = call.world.part(Packages).repositories(call.node)
    check_digest(own.digest(), call.params.get("digest"))
    own.add(call.params["handle"])
