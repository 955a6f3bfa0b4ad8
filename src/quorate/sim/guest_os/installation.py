"""What a fresh system has on its disk, and which services it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorate.sim.guest_os.running import program_names
from quorate.sim.guests import Guest

if TYPE_CHECKING:
    from quorate.sim.guest_os.machine import Machine

# What a word in the guest's name or tags says about the service it is there for.
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
_DIRECTORIES = (
    "boot",
    "dev",
    "home",
    "mnt",
    "opt",
    "proc",
    "root",
    "run",
    "srv",
    "tmp",
    "usr/bin",
    "var/log",
    "var/tmp",
)


@dataclass(slots=True)
class Unit:
    """A service of the guest."""

    name: str
    description: str
    active: bool = True
    enabled: bool = True
    pid: int = 0


def first_services(guest: Guest) -> dict[str, Unit]:
    """The services of every system, and the one that this guest is there for."""
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
    return units


def install(machine: Machine) -> None:
    """Fill the disk."""
    files, system = machine.files, machine.guest.system
    for name in _DIRECTORIES:
        files.make_directories(f"/{name}")
    files.add_link("/bin", "usr/bin")
    files.add_link("/sbin", "usr/bin")
    files.add_link("/usr/sbin", "bin")
    for name in program_names():
        files.add(f"/usr/bin/{name}", b"\x7fELF", mode=0o755)
    files.add("/dev/null", b"")
    files.add("/etc/hostname", f"{_host_name(machine.guest)}\n")
    files.add("/etc/hosts", f"127.0.0.1\tlocalhost\n127.0.1.1\t{_host_name(machine.guest)}\n")
    files.add("/etc/resolv.conf", "search home.lan\nnameserver 192.168.10.2\n")
    files.add("/etc/timezone", "Etc/UTC\n")
    files.add("/etc/debian_version", f"{system.version_id}.1\n")
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
