"""Container templates that can be downloaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pve_simulator.guests.guest import MIB
from pve_simulator.http.refusals import bad_parameters, existing, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.routes.storage import download_url as download_routes
from pve_simulator.routes.storage.download_url import RemoteFile
from pve_simulator.storage import volumes

_SYSTEM_SERVER = "http://download.proxmox.com/images/system"
_TURNKEY_SERVER = "https://releases.turnkeylinux.org/pve"


@dataclass(frozen=True, slots=True)
class Appliance:
    """A container template in the list."""

    template: str
    package: str
    version: str
    os: str
    section: str
    headline: str
    megabytes: int

    @property
    def location(self) -> str:
        server = _TURNKEY_SERVER if self.section == "turnkeylinux" else _SYSTEM_SERVER
        return f"{server}/{self.template}"

    @property
    def file(self) -> RemoteFile:
        """The file of its download."""
        return RemoteFile(self.location, self.megabytes * MIB + len(self.template) * 512, "application/octet-stream")

    def row(self) -> dict[str, Any]:
        """Its row in the list."""
        turnkey = self.section == "turnkeylinux"
        return {
            "template": self.template,
            "type": "lxc",
            "package": self.package,
            "version": self.version,
            "os": self.os,
            "section": self.section,
            "source": _TURNKEY_SERVER if turnkey else _SYSTEM_SERVER,
            "architecture": "amd64",
            "headline": self.headline,
            "description": f"{self.headline}\n",
            "infopage": f"https://www.turnkeylinux.org/{self.package.removeprefix('turnkey-')}"
            if turnkey
            else "https://pve.proxmox.com/wiki/Linux_Container#pct_supported_distributions",
            "location": self.location,
            "maintainer": "TurnKey GNU/Linux" if turnkey else "Proxmox Support Team <support@proxmox.com>",
            "manageurl": "https://__IPADDRESS__:12321/" if turnkey else "",
            "md5sum": hashlib.md5(self.location.encode(), usedforsecurity=False).hexdigest(),
            "sha512sum": self.file.checksum("sha512"),
        }


def _system(package: str, version: str, os: str, headline: str, megabytes: int, ending: str = "zst") -> Appliance:
    template = f"{package}_{version}_amd64.tar.{ending}"
    return Appliance(template, package, version, os, "system", headline, megabytes)


def _default(os: str, release: str, version: str, megabytes: int) -> Appliance:
    headline = f"LXC default image for {os} {release} ({version})"
    return _system(f"{os}-{release}-default", version, os, headline, megabytes, "xz")


def _turnkey(name: str, headline: str, megabytes: int) -> Appliance:
    version = "18.1-1"
    template = f"debian-12-turnkey-{name}_{version}_amd64.tar.gz"
    return Appliance(
        template, f"turnkey-{name}", version, "debian-12", "turnkeylinux", f"TurnKey {headline}", megabytes
    )


_ALL = (
    _default("almalinux", "10", "20250930", 106),
    _default("alpine", "3.22", "20250617", 3),
    _system("archlinux-base", "20240911-1", "archlinux", "ArchLinux base image.", 150),
    _default("centos", "9-stream", "20240828", 95),
    _system("debian-12-standard", "12.12-1", "debian-12", "Debian 12 Bookworm (standard)", 120),
    _system("debian-13-standard", "13.1-2", "debian-13", "Debian 13 Trixie (standard)", 124),
    _system("devuan-5.0-standard", "5.0", "devuan-5.0", "Devuan 5.0 (standard)", 104, "gz"),
    _default("fedora", "42", "20250428", 78),
    _default("opensuse", "15.6", "20240910", 47),
    _default("rockylinux", "10", "20251001", 104),
    _system("ubuntu-22.04-standard", "22.04-1", "ubuntu-22.04", "Ubuntu 22.04 Jammy (standard)", 123),
    _system("ubuntu-24.04-standard", "24.04-2", "ubuntu-24.04", "Ubuntu 24.04 Noble (standard)", 135),
    _turnkey("core", "Core", 214),
    _turnkey("fileserver", "File Server", 300),
    _turnkey("nextcloud", "Nextcloud", 561),
    _turnkey("wordpress", "WordPress", 340),
)
APPLIANCES: Mapping[str, Appliance] = {appliance.template: appliance for appliance in _ALL}


@route("GET /nodes/{node}/aplinfo")
def list_appliances(_call: Call) -> list[dict[str, Any]]:
    return [appliance.row() for appliance in APPLIANCES.values()]


@route("POST /nodes/{node}/aplinfo")
def fetch_appliance(call: Call) -> str:
    appliance = existing(APPLIANCES.get(call.params["template"]), bad_parameters({"template": "no such template"}))
    storage = volumes.usable_storage(call.world, call.node, call.params["storage"])
    if "vztmpl" not in storage.content:
        raise failure(f"storage '{storage.id}' does not support templates")
    name, file = appliance.template, appliance.file
    expected = ("sha512", file.checksum("sha512"))
    work = download_routes.download(
        call.world, call.node, storage, "vztmpl", name, file.url, source=file, expected=expected, overwrite=True
    )
    return call.start_task("download", name, work)
