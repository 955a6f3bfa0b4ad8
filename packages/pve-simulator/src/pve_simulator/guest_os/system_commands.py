"""Programs for the system: uname, df, ps, ip, kill, su, apt and others."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from pve_simulator.guest_os.execution import Io, command, split_options
from pve_simulator.guest_os.machine import kernel_of
from pve_simulator.guests.guest import Address

_SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "TERM": 15, "USR1": 10, "USR2": 12}
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@command("uname")
def uname(io: Io, args: list[str]) -> None:
    options = split_options(args)[0]
    machine = io.machine
    parts = {
        "s": "Linux",
        "n": machine.hostname,
        "r": kernel_of(machine),
        "v": "#1 SMP PREEMPT_DYNAMIC",
        "m": "x86_64",
        "o": "GNU/Linux",
    }
    keys = list(parts) if "a" in options else [key for key in parts if key in options] or ["s"]
    io.say(" ".join(parts[key] for key in keys))


@command("hostname")
def hostname(io: Io, args: list[str]) -> None:
    addresses = " ".join(address.ip for address in io.machine.guest.addresses)
    io.say(addresses if args == ["-I"] else io.machine.hostname)


@command("whoami")
def whoami(io: Io, _args: list[str]) -> None:
    io.say(io.user)


@command("id")
def id_(io: Io, args: list[str]) -> int:
    options, names = split_options(args)
    name = names[0] if names else io.user
    number = io.machine.users.get(name)
    if number is None:
        return io.fail(f"id: '{name}': no such user")
    if "u" in options or "g" in options:
        io.say(name if "n" in options else str(number))
    else:
        io.say(f"uid={number}({name}) gid={number}({name}) groups={number}({name})")
    return 0


@command("date")
def date(io: Io, args: list[str]) -> None:
    now = datetime.fromtimestamp(io.machine.now(), UTC)
    template = next((each[1:] for each in args if each.startswith("+")), "%a %b %e %H:%M:%S UTC %Y")
    io.say(now.strftime(template.replace("%s", str(int(io.machine.now())))))


@command("sleep")
async def sleep(io: Io, args: list[str]) -> int:
    if not args:
        return io.fail("sleep: missing operand")
    seconds = 0.0
    for each in args:
        match = re.fullmatch(r"(\d*\.?\d+)([smhd]?)", each)
        if match is None:
            return io.fail(f"sleep: invalid time interval '{each}'")
        seconds += float(match[1]) * _SECONDS[match[2]]
    await io.machine.world.clock.sleep(seconds)
    return 0


@command("uptime")
def uptime(io: Io, _args: list[str]) -> None:
    seconds = int(io.machine.uptime())
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    now = datetime.fromtimestamp(io.machine.now(), UTC).strftime("%H:%M:%S")
    load = io.machine.load()
    averages = ", ".join(f"{load * factor:.2f}" for factor in (1.0, 0.95, 0.9))
    io.say(f" {now} up {days} days, {hours:>2}:{minutes:02},  0 users,  load average: {averages}")


@command("df")
def df(io: Io, args: list[str]) -> int:
    options, paths = split_options(args, with_value=("t", "x"))
    for path in paths:
        if io.machine.files.find(io.path(path)) is None:
            return io.fail(f"df: {path}: No such file or directory")
    size, used = io.machine.disk()
    tmpfs = io.machine.guest.memory // 10
    rows = [(_root_device(io), "ext4", size, used, "/")]
    if not paths:
        rows.append(("tmpfs", "tmpfs", tmpfs, 560 * 1024, "/run"))
    human = "h" in options

    def format_size(value: int) -> str:
        if not human:
            return str(value // 1024)
        for unit, scale in (("T", 1024**4), ("G", 1024**3), ("M", 1024**2)):
            if value >= scale:
                return f"{value / scale:.1f}{unit}" if value < 10 * scale else f"{value // scale}{unit}"
        return f"{value // 1024}K"

    kind = "Type     " if "T" in options else ""
    blocks, share = ("1024-blocks", "Capacity") if "P" in options else ("1K-blocks", "Use%")
    heads = ("Size", "Used", "Avail") if human else (blocks, "Used", "Available")
    io.say(f"Filesystem     {kind}" + " ".join(f"{head:>10}" for head in heads) + f" {share} Mounted on")
    for device, filesystem, total, used_bytes, where in rows:
        part = f"{filesystem:<9}" if "T" in options else ""
        percent = -(-used_bytes * 100 // total)
        numbers = " ".join(f"{format_size(value):>10}" for value in (total, used_bytes, total - used_bytes))
        io.say(f"{device:<14} {part}{numbers} {percent:>3}% {where}")
    return 0


def _root_device(io: Io) -> str:
    guest = io.machine.guest
    if guest.kind == "qemu":
        return "/dev/vda1" if str(guest.boot_disk() or "").startswith("virtio") else "/dev/sda1"
    return str(guest.config.get("rootfs", "overlay")).split(",")[0].replace("local-lvm:", "/dev/mapper/pve-")


@command("ps")
def ps(io: Io, args: list[str]) -> None:
    full = any(each in ("aux", "-ef", "-aux", "-A", "-e", "ax") for each in args)
    rows = [(1, "/sbin/init")]
    rows += [(unit.pid, f"/usr/sbin/{unit.name}") for unit in io.machine.services.values() if unit.active]
    rows += [(each.pid, " ".join(each.argv)) for each in io.machine.processes.values() if not each.exited]
    if not full:
        rows = [row for row in rows if row[0] > 600]
    io.say("USER         PID %CPU %MEM COMMAND" if full else "    PID TTY          TIME CMD")
    for pid, name in sorted(rows):
        line = f"root     {pid:>7}  0.0  0.3 {name}" if full else f"{pid:>7} ?        00:00:00 {name.split()[0]}"
        io.say(line)


@command("kill")
def kill(io: Io, args: list[str]) -> int:
    """A negative number is a process group; signal 0 only checks that it exists."""
    signal, rest = 15, list(args)
    if rest and re.fullmatch(r"-(SIG)?[A-Z]+|-\d{1,2}", rest[0]) and len(rest) > 1:
        name = rest.pop(0)[1:].removeprefix("SIG")
        signal = int(name) if name.isdecimal() else _SIGNALS.get(name, 15)
    for each in rest:
        if not re.fullmatch(r"-?\d+", each):
            return io.fail(f"kill: failed to parse argument: '{each}'")
        if not _send_signal(io, int(each), signal):
            io.complain(f"kill: ({each}): No such process")
    return io.code


def _send_signal(io: Io, number: int, signal: int) -> bool:
    process = io.machine.processes.get(abs(number))
    if number < 0 and (process is None or not process.leads_group):
        return False
    if signal == 0:
        return io.machine.is_alive(abs(number)) or any(unit.pid == number for unit in io.machine.services.values())
    if number < 0:
        return io.machine.kill(-number, signal, group=True)
    return _end_process(io, number, signal)


@command("setsid")
async def setsid(io: Io, args: list[str]) -> int:
    if io.pid in io.machine.processes:
        io.machine.processes[io.pid].leads_group = True
    return await _exec(io, "setsid", args)


@command("su")
async def su(io: Io, args: list[str]) -> int:
    """`su [-s SHELL] -c TEXT [--] USER [ARGS…]`, as run by root."""
    options, words = split_options(args, ("s", "c"))
    name = words[0] if words else "root"
    if name not in io.machine.users:
        return io.fail(f"su: user {name} does not exist or the user entry does not contain all the required fields")
    home = "/root" if name == "root" else f"/home/{name}"
    inner = io.copy(env={**io.env, "HOME": home, "USER": name, "LOGNAME": name}, user=name)
    text = ["-c", options["c"]] if "c" in options else []
    return await _exec(inner, "su", [options.get("s", "/bin/sh"), *text, *words[1:]])


async def _exec(io: Io, name: str, argv: list[str]) -> int:
    program = io.machine.program(argv[0]) if argv else None
    if program is None:
        return io.fail(f"{name}: failed to execute {argv[0] if argv else ''}: No such file or directory", 127)
    return await program(io, argv)


def _end_process(io: Io, pid: int, signal: int) -> bool:
    for unit in io.machine.services.values():
        if unit.active and unit.pid == pid:
            unit.active = signal not in (9, 15)
            return True
    return io.machine.kill(pid, signal)


@command("ip")
def ip(io: Io, args: list[str]) -> int:
    options, words = split_options(args)
    what = words[0] if words else ""
    if "address".startswith(what) and what:
        return _ip_addresses(io, words, brief="br" in "".join(options) or "brief" in options or "b" in options)
    if "route".startswith(what) and what:
        first = io.machine.primary_address()
        if first is not None:
            gateway = first.rpartition(".")[0] + ".1"
            name = io.machine.guest.addresses[0].interface
            io.say(f"default via {gateway} dev {name} proto static")
        return 0
    io.complain(f'Object "{what}" is unknown, try "ip help".' if what else "Usage: ip [ OPTIONS ] OBJECT { COMMAND }")
    return 1 if what else 255


def _ip_addresses(io: Io, words: list[str], *, brief: bool) -> int:
    by_name: dict[str, list[Address]] = {"lo": [Address("lo", "00:00:00:00:00:00", "127.0.0.1", 8)]}
    for address in io.machine.guest.addresses:
        by_name.setdefault(address.interface, []).append(address)
    device = words[words.index("dev") + 1] if "dev" in words[:-1] else words[2] if len(words) > 2 else None
    if device is not None and device not in by_name:
        return io.fail(f'Device "{device}" does not exist.')
    for number, (name, addresses) in enumerate(by_name.items(), start=1):
        if device not in (None, name):
            continue
        if brief:
            state = "UNKNOWN" if name == "lo" else "UP"
            io.say(f"{name:<16} {state:<14} " + " ".join(f"{each.ip}/{each.prefix}" for each in addresses))
            continue
        flags = "LOOPBACK,UP,LOWER_UP" if name == "lo" else "BROADCAST,MULTICAST,UP,LOWER_UP"
        io.say(f"{number}: {name}: <{flags}> mtu {65536 if name == 'lo' else 1500} state UP group default")
        io.say(f"    link/{'loopback' if name == 'lo' else 'ether'} {addresses[0].mac.lower()} brd ff:ff:ff:ff:ff:ff")
        for each in addresses:
            io.say(f"    inet {each.ip}/{each.prefix} scope {'host' if name == 'lo' else 'global'} {name}")
    return 0


@command("apt-get", "apt")
def apt(io: Io, args: list[str]) -> int:
    """Most guests have no package source, so nothing can be fetched."""
    options, words = split_options(args, with_value=("o", "option"))
    action = words[0] if words else ""
    if options.keys() & {"s", "simulate", "dry-run"} and action in ("upgrade", "dist-upgrade", "full-upgrade"):
        return _simulate(io, io.machine.updates or [])
    if io.machine.unfetched and action == "update" and io.machine.updates is not None:
        io.machine.updates += io.machine.unfetched
        io.machine.unfetched.clear()
    if io.machine.updates is not None and action in ("update", "upgrade", "dist-upgrade", "full-upgrade"):
        return _upgrade(io, io.machine.updates, refresh=action == "update")
    if action == "update":
        strict = "APT::Update::Error-Mode=any" in args
        mark = "E" if strict else "W"
        io.complain(f"{mark}: Failed to fetch http://deb.debian.org/debian/dists/trixie/InRelease  Temporary failure "
                    "resolving 'deb.debian.org'")  # fmt: skip
        io.complain(f"{mark}: Some index files failed to download. They have been ignored, or old ones used instead.")
        return 100 if strict else 0
    if action in ("upgrade", "dist-upgrade", "full-upgrade"):
        return _upgrade(io, [], refresh=False)
    if action in ("install", "remove", "purge"):
        io.say("Reading package lists...\nBuilding dependency tree...\nReading state information...")
        for name in words[1:]:
            io.complain(f"E: Unable to locate package {name}")
        return 100 if words[1:] else 0
    return io.fail(f"E: Invalid operation {action}", 100)


def _simulate(io: Io, updates: list[str]) -> int:
    """Simulate an upgrade from the local package lists, even without a source."""
    io.say("Reading package lists...\nBuilding dependency tree...\nReading state information...")
    io.say(f"{len(updates)} upgraded, 0 newly installed, 0 to remove and 0 not upgraded.")
    for name in updates:
        io.say(f"Inst {name} [1.0-1] (1.0-2 Debian:13.1/stable [amd64])")
    return 0


def _upgrade(io: Io, updates: list[str], *, refresh: bool) -> int:
    if refresh:
        io.say("Hit:1 http://deb.debian.org/debian trixie InRelease\nReading package lists...")
        return 0
    io.say("Reading package lists...\nBuilding dependency tree...\nReading state information...")
    io.say(f"{len(updates)} upgraded, 0 newly installed, 0 to remove and 0 not upgraded.")
    for name in updates:
        io.say(f"Setting up {name} ...")
    updates.clear()
    io.machine.on_upgrade()
    return 0


command("who")(lambda _io, _args: 0)
