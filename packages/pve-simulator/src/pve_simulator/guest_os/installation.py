"""The files and services of a fresh system."""

from __future__ import annotations

import ipaddress
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pve_simulator.guest_os.execution import program_names
from pve_simulator.guests.guest import Guest

if TYPE_CHECKING:
    from pve_simulator.guest_os.machine import Machine

# A word in the guest's name or tags -> the service that it runs.
_SERVICES_BY_NAME = {
    "nginx": ("nginx", "A high performance web server and a reverse proxy server"),
    "web": ("nginx", "A high performance web server and a reverse proxy server"),
    "postgres": ("postgresql", "PostgreSQL RDBMS"),
    "db": ("postgresql", "PostgreSQL RDBMS"),
    "docker": ("docker", "Docker Application Container Engine"),
    "pihole": ("pihole-FTL", "Pi-hole FTL"),
    "grafana": ("grafana-server", "Grafana instance"),
    "jellyfin": ("jellyfin", "Jellyfin Media Server"),
    "nextcloud": ("apache2", "The Apache HTTP Server"),
    "k3s": ("k3s", "Lightweight Kubernetes"),
}
_DIRECTORIES = "boot dev home mnt opt proc root run srv tmp usr/bin var/log var/tmp"
_ONLY_ON_ALPINE = frozenset({"rc-service", "rc-status", "rc-update"})
_NOT_ON_ALPINE = frozenset({"apt", "apt-get", "bash", "dash", "journalctl", "systemctl"})


@dataclass(slots=True)
class Unit:
    """A service of the guest."""

    name: str
    description: str
    active: bool = True
    enabled: bool = True
    pid: int = 0
    failed: bool = False
    fails_with: str = ""  # the error with which every start fails
    start_seconds: float = 0.0
    starting: bool = False
    changed_at: float = 0.0
    log: list[str] = field(default_factory=list)


def is_alpine(guest: Guest) -> bool:
    """Whether it runs OpenRC; all others have systemd."""
    return guest.system.id == "alpine"


def first_services(guest: Guest) -> dict[str, Unit]:
    """The services of every system, and the one that this guest's name implies."""
    if is_alpine(guest):
        units = {"crond": Unit("crond", "", pid=301), "sshd": Unit("sshd", "", pid=322)}
    else:
        units = {
            "cron": Unit("cron", "Regular background program processing daemon", pid=301),
            "ssh": Unit("ssh", "OpenBSD Secure Shell server", pid=322),
            "systemd-journald": Unit("systemd-journald", "Journal Service", pid=188),
        }
    if guest.kind == "qemu" and guest.system.agent_installed:
        units["qemu-guest-agent"] = Unit("qemu-guest-agent", "QEMU Guest Agent", pid=344)
    words = f"{guest.name} {guest.config.get('tags', '')}"
    for word, (name, description) in _SERVICES_BY_NAME.items():
        if word in words and name not in units:
            units[name] = Unit(name, description, pid=400 + 7 * len(units))
    for unit in units.values():
        unit.changed_at = guest.started_at
    return units


def install(machine: Machine) -> None:
    """Create the files of a fresh system."""
    files, system = machine.files, machine.guest.system
    for name in _DIRECTORIES.split():
        files.make_directories(f"/{name}")
    files.add_link("/bin", "usr/bin")
    files.add_link("/sbin", "usr/bin")
    files.add_link("/usr/sbin", "bin")
    for name in program_names():
        if name not in (_NOT_ON_ALPINE if is_alpine(machine.guest) else _ONLY_ON_ALPINE):
            files.add(f"/usr/bin/{name}", b"\x7fELF", mode=0o755)
    if not is_alpine(machine.guest):
        files.make_directories("/run/systemd/system")
    files.add("/dev/null", b"", mode=0o666)
    files.get("/dev/null").special = stat.S_IFCHR
    files.add("/etc/hostname", f"{_host_name(machine.guest)}\n")
    files.add("/etc/hosts", f"127.0.0.1\tlocalhost\n127.0.1.1\t{_host_name(machine.guest)}\n")
    files.add("/etc/resolv.conf", "search home.lan\nnameserver 192.168.10.2\n")
    files.add("/etc/timezone", "Etc/UTC\n")
    files.add(f"/etc/{'alpine-release' if is_alpine(machine.guest) else 'debian_version'}", f"{system.version_id}.1\n")
    files.add("/etc/os-release", _os_release(machine))
    files.add("/etc/passwd", _passwd(machine))
    files.add("/etc/group", "root:x:0:\n" + "".join(f"{name}:x:{uid}:\n" for name, uid in machine.users.items() if uid))
    files.add("/etc/fstab", "UUID=6f1c7a52-0b1e-4b39-9f4b-2d1a8a1c0001 / ext4 errors=remount-ro 0 1\n")
    files.add("/etc/ssh/sshd_config", "Include /etc/ssh/sshd_config.d/*.conf\nPermitRootLogin prohibit-password\n")
    files.add("/root/.bashrc", "# ~/.bashrc: executed by bash(1) for non-login shells.\n")
    for name, uid in machine.users.items():
        if uid:
            files.make_directories(f"/home/{name}")
    files.add("/var/log/syslog", f"{_host_name(machine.guest)} systemd[1]: Startup finished in 1.204s.\n")
    if not is_alpine(machine.guest):
        files.add("/var/log/dpkg.log", "2026-01-02 06:11:40 status installed libc-bin:amd64 2.41-12\n")
    _add_proc(machine)


def _add_proc(machine: Machine) -> None:
    def uptime() -> bytes:
        return f"{machine.uptime():.2f} {machine.uptime() * machine.cpus() * 0.9:.2f}\n".encode()

    def average() -> bytes:
        load = machine.load()
        return f"{load:.2f} {load * 0.95:.2f} {load * 0.9:.2f} 1/213 {machine.next_pid()}\n".encode()

    def memory() -> bytes:
        total, used = (value // 1024 for value in machine.memory())
        rows = {"MemTotal": total, "MemFree": (total - used) // 2, "MemAvailable": total - used, "SwapTotal": 0}
        return "".join(f"{name + ':':<16}{value:>8} kB\n" for name, value in rows.items()).encode()

    def cpus() -> bytes:
        model = machine.world.nodes[machine.guest.node].cpu_model
        return "".join(f"processor\t: {n}\nmodel name\t: {model}\n\n" for n in range(machine.cpus())).encode()

    files = machine.files
    files.add("/proc/uptime", uptime)
    files.add("/proc/loadavg", average)
    files.add("/proc/meminfo", memory)
    files.add("/proc/cpuinfo", cpus)
    files.add("/proc/version", lambda: f"Linux version {kernel_of(machine)}\n".encode())
    files.add("/proc/sys/kernel/hostname", lambda: f"{machine.hostname}\n".encode())
    files.add("/proc/net/route", lambda: _routes(machine))
    files.add("/proc/net/ipv6_route", lambda: _ipv6_routes(machine))


def _routes(machine: Machine) -> bytes:
    """The kernel's route table: addresses in little-endian hexadecimal. The first address determines the gateway."""
    rows = ["Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"]
    own = [address for address in machine.guest.addresses if ":" not in address.ip]
    if own:
        gateway = ipaddress.IPv4Address(own[0].ip.rpartition(".")[0] + ".1")
        rows.append(_route(own[0].interface, "0.0.0.0/0", gateway, 0x3))
    rows += [_route(one.interface, f"{one.ip}/{one.prefix}", None, 0x1) for one in own]
    return ("\n".join(rows) + "\n").encode()


def _route(interface: str, network: str, gateway: ipaddress.IPv4Address | None, flags: int) -> str:
    where = ipaddress.IPv4Network(network, strict=False)
    numbers = [where.network_address, gateway or ipaddress.IPv4Address(0), where.netmask]
    destination, via, mask = (number.packed[::-1].hex().upper() for number in numbers)
    return f"{interface}\t{destination}\t{via}\t{flags:04X}\t0\t0\t0\t{mask}\t0\t0\t0"


def _ipv6_routes(machine: Machine) -> bytes:
    zeros = "0" * 32
    rows = [f"{zeros} 00 {zeros} 00 {zeros} ffffffff 00000001 00000000 00200200       lo"]
    for one in machine.guest.addresses:
        if ":" in one.ip:
            network = ipaddress.IPv6Network(f"{one.ip}/{one.prefix}", strict=False)
            where = network.network_address.packed.hex()
            rows.append(
                f"{where} {one.prefix:02x} {zeros} 00 {zeros} 00000100 00000001 00000000 00000001 {one.interface:>8}"
            )
    return ("\n".join(rows) + "\n").encode()


def kernel_of(machine: Machine) -> str:
    """A container runs on the kernel of its node."""
    guest = machine.guest
    return guest.system.kernel if guest.kind == "qemu" else machine.world.nodes[guest.node].kernel


def _host_name(guest: Guest) -> str:
    name = str(guest.config.get("name" if guest.kind == "qemu" else "hostname", ""))
    return name or f"{'vm' if guest.kind == 'qemu' else 'CT'}{guest.vmid}"


def _os_release(machine: Machine) -> str:
    system = machine.guest.system
    return (
        f'PRETTY_NAME="{system.name} {system.version}"\nNAME="{system.name}"\nVERSION_ID="{system.version_id}"\n'
        f'VERSION="{system.version}"\nID={system.id}\n'
    )


def _passwd(machine: Machine) -> str:
    lines = ["root:x:0:0:root:/root:/bin/bash", "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin"]
    lines += [f"{name}:x:{uid}:{uid}::/home/{name}:/bin/bash" for name, uid in machine.users.items() if uid]
    return "\n".join(lines) + "\n"
