"""The contents of a VM's cloud-init drive, and pending changes to it."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pve_simulator.guests import drives
from pve_simulator.guests.create_vm import is_windows
from pve_simulator.guests.guest import Guest, Value
from pve_simulator.guests.options import CLOUDINIT_OPTIONS, is_cloudinit_option
from pve_simulator.world import World

_MASKED = "**********"
_IDENTITY = ("name", "hostname")
_SUBNETS = {("inet", "dhcp"): "dhcp4", ("inet6", "dhcp"): "dhcp6", ("inet6", "auto"): "ipv6_slaac"}


def settings(config: dict[str, Value]) -> dict[str, Value]:
    """The options that the drive contains."""
    return {key: value for key, value in config.items() if _is_on_drive(key)}


def _is_on_drive(key: str) -> bool:
    return is_cloudinit_option(key) or key in _IDENTITY or drives.is_net(key)


def rows(guest: Guest) -> list[dict[str, Any]]:
    """Every setting on the drive, with the pending value if it differs."""
    now = settings(guest.effective_config())
    written = now if not guest.running or guest.cloudinit is None else guest.cloudinit
    shown = []
    for key in sorted(written.keys() | now.keys()):
        if key not in CLOUDINIT_OPTIONS and now.get(key) == written.get(key):
            continue  # names and nics are listed only if they are not on the drive yet
        if not now.get(key) and not written.get(key):
            continue
        row: dict[str, Any] = {"key": key}
        if key in written:
            row["value"] = _mask(key, written[key])
        if key not in now:
            row["delete"] = 1
        elif now[key] != written.get(key):
            row["pending"] = _mask(key, now[key])
        shown.append(row)
    return shown


def _mask(key: str, value: Value) -> Value:
    return _MASKED if key == "cipassword" else value


def dump(world: World, guest: Guest, kind: str, dns: dict[str, str]) -> str:
    """One of the generated files; `dns` holds the node's own settings."""
    config = guest.effective_config()
    user = _user_data(str(config.get("name", f"VM{guest.vmid}")), config)
    if kind == "user":
        return user
    default = "configdrive2" if is_windows(config) else "nocloud"
    is_nocloud = config.get("citype", default) == "nocloud"
    host_servers = (dns[name] for name in ("dns1", "dns2", "dns3") if dns.get(name))
    servers = str(config.get("nameserver", " ".join(host_servers))).split()
    domains = str(config.get("searchdomain", dns.get("search", ""))).split()
    network = (_nocloud_network if is_nocloud else _interfaces_file)(_nics(world, config), servers, domains)
    if kind == "network":
        return network
    identity = hashlib.sha1((user + network).encode(), usedforsecurity=False).hexdigest()
    if is_nocloud:
        return f"instance-id: {identity}\n"
    content = '"network_config": { "content_path": "/content/0000" }'
    return f'{{\n     "uuid": "{identity}",\n     {content}\n}}\n'


def _user_data(hostname: str, config: dict[str, Value]) -> str:
    domain = config.get("searchdomain")
    fqdn = hostname if "." in hostname or not domain else f"{hostname}.{domain}"
    lines = ["#cloud-config", f"hostname: {hostname.partition('.')[0]}", "manage_etc_hosts: true", f"fqdn: {fqdn}"]
    is_root = config.get("ciuser") == "root"
    if "ciuser" in config:
        lines.append(f"user: {config['ciuser']}")
    if is_root:
        lines.append("disable_root: False")
    if "cipassword" in config:
        lines.append(f"password: {config['cipassword']}")
    if "sshkeys" in config:
        keys = unquote(str(config["sshkeys"])).splitlines()
        lines += ["ssh_authorized_keys:", *(f"  - {key}" for key in keys if key.strip())]
    lines += ["chpasswd:", "  expire: False"]
    if not is_root:
        lines += ["users:", "  - default"]
    if config.get("ciupgrade", 1):
        lines.append("package_upgrade: true")
    return "\n".join(lines) + "\n"


@dataclass(slots=True)
class _Nic:
    name: str
    mac: str
    addresses: dict[str, str]

    def families(self) -> Iterator[tuple[str, str, str | None]]:
        """The family as in an interfaces file, the setting and the gateway."""
        for family, name, gateway in (("inet", "ip", "gw"), ("inet6", "ip6", "gw6")):
            if name in self.addresses:
                yield family, self.addresses[name], self.addresses.get(gateway)


def _nics(world: World, config: dict[str, Value]) -> list[_Nic]:
    """The network devices with an ipconfig; PVE sorts them as text."""
    nics = []
    for key in sorted(key for key in config if drives.is_net(key)):
        setting = f"ipconfig{key[3:]}"
        if config.get(setting):
            mac = drives.parse(world, "qemu", key, str(config[key])).get("macaddr", "").lower()
            nics.append(_Nic(f"eth{key[3:]}", mac, drives.parse(world, "qemu", setting, str(config[setting]))))
    return nics


def _nocloud_network(nics: list[_Nic], servers: list[str], domains: list[str]) -> str:
    """The network settings in cloud-init's version 1 format."""
    lines = ["version: 1", "config:"]
    for nic in nics:
        lines += ["    - type: physical", f"      name: {nic.name}", f"      mac_address: '{nic.mac}'"]
        lines.append("      subnets:")
        for family, setting, gateway in nic.families():
            kind = _SUBNETS.get((family, setting))
            if kind is not None:
                lines.append(f"      - type: {kind}")
                continue
            if family == "inet":
                network = ipaddress.IPv4Interface(setting)
                lines += ["      - type: static", f"        address: '{network.ip}'"]
                lines.append(f"        netmask: '{network.netmask}'")
            else:
                lines += ["      - type: static6", f"        address: '{setting}'"]
            if gateway:
                lines.append(f"        gateway: '{gateway}'")
    lines.append("    - type: nameserver")
    for title, values in (("address", servers), ("search", domains)):
        if values:
            lines += [f"      {title}:", *(f"      - '{value}'" for value in values)]
    return "\n".join(lines) + "\n"


def _interfaces_file(nics: list[_Nic], servers: list[str], domains: list[str]) -> str:
    """The network settings for the formats of OpenStack and OpenNebula."""
    lines = ["auto lo", "iface lo inet loopback", ""]
    for title, values in (("dns_nameservers", servers), ("dns_search", domains)):
        if values:
            lines.append(f"        {title} {' '.join(values)}")
    for nic in nics:
        lines.append(f"auto {nic.name}")
        for family, setting, gateway in nic.families():
            if (family, setting) in _SUBNETS:
                lines.append(f"iface {nic.name} {family} {setting}")
                continue
            address, _, length = setting.partition("/")
            mask = ipaddress.IPv4Interface(setting).netmask if family == "inet" else length
            lines += [f"iface {nic.name} {family} static", f"        address {address}", f"        netmask {mask}"]
            if gateway:
                lines.append(f"        gateway {gateway}")
    return "\n".join(lines) + "\n"
