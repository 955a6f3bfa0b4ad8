"""What cloud-init would find on a VM's drive: the files, and whether they are as old as the last start."""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import unquote

from quorate.sim import drives
from quorate.sim.guest_options import is_cloudinit_option
from quorate.sim.guests import Guest, Value
from quorate.sim.world import World

_MASKED = "**********"
_IDENTITY = ("name", "hostname")


def settings(config: dict[str, Value]) -> dict[str, Value]:
    """The options that end up on the drive."""
    return {key: value for key, value in config.items() if _is_on_drive(key)}


def _is_on_drive(key: str) -> bool:
    return is_cloudinit_option(key) or key in _IDENTITY or drives.is_net(key)


def rows(world: World, guest: Guest) -> list[dict[str, Any]]:
    """Every setting as the drive has it, with the value that a new drive would have if it differs."""
    if drives.cloudinit_drive(world, guest.config) is None:
        return []
    now = settings(guest.effective_config())
    written = now if not guest.running or guest.cloudinit is None else guest.cloudinit
    found = []
    for key in sorted(written.keys() | now.keys()):
        row: dict[str, Any] = {"key": key}
        if key in written:
            row["value"] = _shown(key, written[key])
        if key not in now:
            row["delete"] = 1
        elif now[key] != written.get(key):
            row["pending"] = _shown(key, now[key])
        found.append(row)
    return found


def _shown(key: str, value: Value) -> Value:
    return _MASKED if key == "cipassword" else value


def user_data(guest: Guest) -> str:
    """The cloud-config with the user and its keys."""
    config = guest.effective_config()
    hostname = str(config.get("name", f"VM{guest.vmid}"))
    lines = ["#cloud-config", f"hostname: {hostname.partition('.')[0]}", "manage_etc_hosts: true", f"fqdn: {hostname}"]
    if "ciuser" in config:
        lines.append(f"user: {config['ciuser']}")
    if "cipassword" in config:
        lines.append(f"password: {config['cipassword']}")
    keys = [line for line in unquote(str(config.get("sshkeys", ""))).splitlines() if line.strip()]
    if keys:
        lines += ["ssh_authorized_keys:", *(f"  - {key}" for key in keys)]
    lines += ["chpasswd:", "  expire: False"]
    if config.get("ciuser") != "root":
        lines += ["users:", "  - default"]
    else:
        lines.append("disable_root: False")
    if config.get("ciupgrade", 1):
        lines.append("package_upgrade: true")
    return "\n".join(lines) + "\n"


def network_data(world: World, guest: Guest) -> str:
    """The network settings in cloud-init's first format."""
    config = guest.effective_config()
    lines = ["version: 1", "config:"]
    for key in sorted((key for key in config if drives.is_net(key)), key=lambda key: int(key[3:])):
        net = drives.parse(world, "qemu", key, str(config[key]))
        number = key[3:]
        lines += ["    - type: physical", f"      name: eth{number}"]
        lines.append(f"      mac_address: '{net.get('macaddr', '').lower()}'")
        text = str(config.get(f"ipconfig{number}", ""))
        address = drives.parse(world, "qemu", f"ipconfig{number}", text) if text else {}
        lines += _subnets(address)
    lines += ["    - type: nameserver", "      address:"]
    lines += [f"      - '{server}'" for server in str(config.get("nameserver", "")).split()]
    lines.append("      search:")
    lines += [f"      - '{domain}'" for domain in str(config.get("searchdomain", "")).split()]
    return "\n".join(lines) + "\n"


def _subnets(address: dict[str, str]) -> list[str]:
    lines = ["      subnets:"] if address else []
    for family, gateway in (("ip", "gw"), ("ip6", "gw6")):
        setting = address.get(family)
        if setting is None:
            continue
        if setting in ("dhcp", "auto"):
            kind = "dhcp4" if family == "ip" else "dhcp6" if setting == "dhcp" else "ipv6_slaac"
            lines.append(f"      - type: {kind}")
            continue
        lines += [f"      - type: {'static' if family == 'ip' else 'static6'}", f"        address: '{setting}'"]
        if gateway in address:
            lines.append(f"        gateway: '{address[gateway]}'")
    return lines


def meta_data(world: World, guest: Guest) -> str:
    """An identity that changes with the settings, so that cloud-init runs again."""
    text = user_data(guest) + network_data(world, guest)
    return f"instance-id: {hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()}\n"
