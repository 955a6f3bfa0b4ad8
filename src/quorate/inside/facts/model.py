"""What is known about a machine, in a stable form that can be stored, compared and shown.

A section is None if it was not requested or could not be found out; then `not_known` says why. An empty tuple means
that there are none. Sizes are bytes, times are seconds, speeds are Mbit/s. Lists have a stable order, so two
collections from an unchanged machine are equal except for what is marked with *.

    hardware     vendor, model, virtualisation ("none" for bare metal, kvm, vmware, lxc, docker …)
    system       hostname, family (linux, freebsd, darwin …), id, name, version, kernel, architecture
    cpu          model, sockets, cores, threads
    memory       total, available*, swap_total, swap_used*
    disks        name, size, model, rotational
    filesystems  mount, device, type, size, used*, free*
    network      interfaces (name, mac, state, addresses with prefix, speed), gateways, dns
    usb, pci     id or slot, name (pci: kind, too); gpus: names
    containers   engine, name, state*, image
    vms          manager, name, state*
    ports        protocol, address, port, process
    services     manager, running, failed
    uptime*      seconds, load
    users*       who is logged in, and from where
    time         zone, synchronised

Two more sections are collected only on request, because they take the machine some time or say nothing lasting:

    temperature  degrees Celsius of the hottest sensor
    updates      pending, security, age of the package lists, restart (why the machine has to be restarted)
"""

from __future__ import annotations

from typing import Any

import msgspec


class Hardware(msgspec.Struct, frozen=True, omit_defaults=True):
    vendor: str | None = None
    model: str | None = None
    virtualisation: str | None = None


class System(msgspec.Struct, frozen=True, omit_defaults=True):
    hostname: str | None = None
    family: str | None = None
    id: str | None = None
    """debian, alpine, rocky, freebsd, macos …"""
    name: str | None = None
    """Debian GNU/Linux 12 (bookworm)"""
    version: str | None = None
    kernel: str | None = None
    architecture: str | None = None


class Cpu(msgspec.Struct, frozen=True, omit_defaults=True):
    model: str | None = None
    sockets: int | None = None
    cores: int | None = None
    """In all sockets together."""
    threads: int | None = None


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    total: int | None = None
    available: int | None = None
    swap_total: int | None = None
    swap_used: int | None = None


class Disk(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    size: int | None = None
    model: str | None = None
    rotational: bool | None = None


class Filesystem(msgspec.Struct, frozen=True, omit_defaults=True):
    mount: str
    device: str
    type: str | None = None
    size: int | None = None
    used: int | None = None
    free: int | None = None
    """What ordinary users may still write. File systems reserve blocks for root, so it is less than size minus used."""

    @property
    def available(self) -> int | None:
        if self.free is not None or self.size is None or self.used is None:
            return self.free
        return self.size - self.used

    @property
    def share(self) -> float | None:
        """How full it is, as `df` counts: 1.0 once ordinary users can write nothing more."""
        if self.used is None or not self.size or self.available is None:
            return None
        return self.used / (self.used + self.available or 1)


class Interface(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    mac: str | None = None
    state: str | None = None
    """up or down"""
    addresses: tuple[str, ...] = ()
    """Each with its prefix, such as 192.168.1.5/24."""
    speed: int | None = None


class Network(msgspec.Struct, frozen=True, omit_defaults=True):
    interfaces: tuple[Interface, ...] = ()
    gateways: tuple[str, ...] = ()
    """192.168.1.1 dev eth0"""
    dns: tuple[str, ...] = ()


class Usb(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    """1d6b:0002"""
    name: str | None = None


class Pci(msgspec.Struct, frozen=True, omit_defaults=True):
    slot: str
    kind: str | None = None
    """VGA compatible controller, Ethernet controller …"""
    name: str | None = None


class Container(msgspec.Struct, frozen=True, omit_defaults=True):
    engine: str
    """docker, podman, lxd, incus, lxc or pct"""
    name: str
    state: str | None = None
    """running, stopped, paused …"""
    image: str | None = None


class Vm(msgspec.Struct, frozen=True, omit_defaults=True):
    manager: str
    """qm, virsh, lxd, incus or bhyve"""
    name: str
    state: str | None = None


class Port(msgspec.Struct, frozen=True, omit_defaults=True):
    protocol: str
    """tcp or udp"""
    address: str
    """* for all"""
    port: int
    process: str | None = None


class Services(msgspec.Struct, frozen=True, omit_defaults=True):
    manager: str
    running: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class Uptime(msgspec.Struct, frozen=True, omit_defaults=True):
    seconds: int | None = None
    load: tuple[float, ...] = ()
    """Averages of one, five and fifteen minutes."""


class User(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    origin: str | None = None
    """The address or terminal of the session."""


class Time(msgspec.Struct, frozen=True, omit_defaults=True):
    zone: str | None = None
    synchronised: bool | None = None


class Updates(msgspec.Struct, frozen=True, omit_defaults=True):
    manager: str | None = None
    """apt, apk, dnf, pacman, opkg or zypper; None if there is none that is known."""
    pending: int | None = None
    security: int | None = None
    age: int | None = None
    """Seconds since the package lists were fetched."""
    restart: str = ""
    """Why the machine has to be restarted; empty if it does not."""
    unfinished: tuple[str, ...] = ()
    """Packages that are half-installed or half-configured."""


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    hardware: Hardware | None = None
    system: System | None = None
    cpu: Cpu | None = None
    memory: Memory | None = None
    disks: tuple[Disk, ...] | None = None
    filesystems: tuple[Filesystem, ...] | None = None
    network: Network | None = None
    usb: tuple[Usb, ...] | None = None
    pci: tuple[Pci, ...] | None = None
    gpus: tuple[str, ...] | None = None
    containers: tuple[Container, ...] | None = None
    vms: tuple[Vm, ...] | None = None
    ports: tuple[Port, ...] | None = None
    services: Services | None = None
    uptime: Uptime | None = None
    users: tuple[User, ...] | None = None
    time: Time | None = None
    temperature: float | None = None
    updates: Updates | None = None
    not_known: dict[str, str] = {}
    """Section -> why."""

    def to_builtins(self) -> dict[str, Any]:
        """Plain dicts and lists, without what is unknown."""
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return plain


ON_REQUEST = ("temperature", "updates")
EVERY_SECTION = tuple(name for name in Facts.__struct_fields__ if name != "not_known")
SECTIONS = tuple(name for name in EVERY_SECTION if name not in ON_REQUEST)
