"""Machines made of small programs: each prints the recorded output of the real one, from files of the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_SILENT = (
    "docker",
    "podman",
    "lxc",
    "incus",
    "lxc-ls",
    "pct",
    "qm",
    "virsh",
    "lsusb",
    "lspci",
    "who",
    "nmap",
    "timedatectl",
)
_PROGRAMS = {
    "cat": 'case "$1" in /etc/machine-id) echo "$NAME";; */product_serial) exit 1;; *) exec /bin/cat "$@";; esac',
    "uname": 'case "$1" in -n) echo "$NAME";; -r) echo 6.1.0-18-amd64;; *) exec /bin/uname "$@";; esac',
    "ip": 'case "$*" in "-j addr") /bin/cat "$FOLDER/ip.json";; route) /bin/cat "$FOLDER/routes";; esac',
    "ss": '/bin/cat "$FOLDER/ss"',
    "df": '/bin/cat "$FOLDER/df"',
    "lsblk": "echo '{\"blockdevices\": []}'",
    "systemctl": '/bin/cat "$FOLDER/units"',
}


class PaperMachine:
    """Pass its `options` to the homelab rig; the methods change what it reports."""

    def __init__(self, folder: Path, name: str, number: int) -> None:
        self.folder, self.name, self.number = folder, name, number
        (folder / "bin").mkdir(parents=True)
        for program, body in {**_PROGRAMS, **dict.fromkeys(_SILENT, ":")}.items():
            file = folder / "bin" / program
            file.write_text(f"#!/bin/sh\nNAME={name}; FOLDER={folder}\n{body}\n")
            file.chmod(0o755)
        self.addresses(f"192.168.1.{number}/24")
        self.listens(22)
        self.fills(40)
        self.failed()
        (folder / "routes").write_text("default via 192.168.1.1 dev eth0\n")

    @property
    def options(self) -> dict[str, Any]:
        return {"environment": {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin"}}

    def addresses(self, *addresses: str) -> None:
        parts = [address.split("/") for address in addresses]
        known = [{"family": "inet", "local": address, "prefixlen": int(bits)} for address, bits in parts]
        card = {"ifname": "eth0", "operstate": "UP", "flags": ["UP"], "address": f"bc:24:11:00:00:{self.number:02x}"}
        (self.folder / "ip.json").write_text(json.dumps([{**card, "addr_info": known}]))

    def listens(self, *ports: int) -> None:
        lines = [f'tcp LISTEN 0 128 0.0.0.0:{port} 0.0.0.0:* users:(("server",pid=1,fd=3))' for port in ports]
        heading = "Netid State Recv-Q Send-Q Local Address:Port Peer Address:Port Process"
        (self.folder / "ss").write_text("\n".join([heading, *lines, ""]))

    def fills(self, percent: int, mount: str = "/") -> None:
        heading = "Filesystem 1024-blocks Used Available Capacity Mounted on"
        row = f"/dev/sda1 {100 << 20} {percent << 20} {(100 - percent) << 20} {percent}% {mount}"
        (self.folder / "df").write_text(f"{heading}\n{row}\n")

    def failed(self, *units: str) -> None:
        lines = [f"{unit} loaded failed failed A unit" for unit in units]
        (self.folder / "units").write_text("\n".join(["ssh.service loaded active running OpenSSH", *lines, ""]))


def paper_machines(folder: Path, *names: str) -> dict[str, PaperMachine]:
    return {name: PaperMachine(folder / f"{name}-machine", name, number) for number, name in enumerate(names, start=5)}
