"""The guests' systems, made from Debian's packages with the machine's own apt, and kept for the next run.

debian/      a Debian with systemd, the root file system of a container (owners shifted, as for any unprivileged one)
openrc/      BusyBox and OpenRC and nothing else, as on Alpine; shifted too
vm.ext4      the same Debian as the disk of a VM
vmlinuz      Debian's kernel for the VM
initrd       just enough to mount that disk and to set an address
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from tests.real.image_cache import cached_build, suite

FIRST_ID = 100_000
"""The user outside who is root inside an unprivileged container, as on PVE."""
IDS = 65_536
VM_ADDRESS = "10.0.2.15"
VM_GATEWAY = "10.0.2.2"

_DEBIAN = "systemd systemd-sysv udev dbus openssh-server iproute2 procps cron qemu-guest-agent"
_OPENRC = "busybox-static openrc"
_KERNEL = "linux-image-cloud-amd64 busybox-static"
_MODULES = ("virtio_pci", "virtio_blk", "virtio_console", "virtio_net")

_SMALLER = ["--dpkgopt=force-unsafe-io", '--aptopt=Acquire::Languages "none"'] + [
    f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale", "info")
]

_UNITS = {
    "failing.service": "[Service]\nExecStart=/bin/false\n",
    "napping.service": (
        "[Unit]\nDescription=Sleeps until it is stopped\n"
        "[Service]\nExecStart=/bin/sleep infinity\nExecReload=/bin/true\n"
        "[Install]\nWantedBy=multi-user.target\n"
    ),
    # A shell on the VM's second serial port: the way in for the laboratory itself when the agent is gone.
    "backdoor.service": (
        "[Unit]\nConditionVirtualization=vm\n"
        "[Service]\nExecStart=/bin/sh\nStandardInput=tty\nStandardOutput=null\nTTYPath=/dev/ttyS1\nRestart=always\n"
        "[Install]\nWantedBy=multi-user.target\n"
    ),
}
_MASKED = (
    "apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer getty.target"
    " sys-kernel-debug.mount sys-kernel-tracing.mount"
)

_OPENRC_FILES = {
    "etc/resolv.conf": "",
    "etc/os-release": 'ID=busybox\nNAME="BusyBox with OpenRC"\nPRETTY_NAME="BusyBox with OpenRC"\nVERSION_ID=1\n',
    "etc/passwd": "root:x:0:0:root:/root:/bin/ash\nworker:x:1000:1000::/home/worker:/bin/ash\n",
    "etc/group": "root:x:0:\nuucp:x:14:\nworker:x:1000:\n",
    "etc/shadow": "root:*::0:::::\nworker:*::0:::::\n",
    "etc/inittab": (
        "::sysinit:/sbin/openrc sysinit\n::sysinit:/sbin/openrc boot\n::wait:/sbin/openrc default\n"
        "::shutdown:/sbin/openrc shutdown\n"
    ),
    "etc/rc.conf": 'rc_sys="lxc"\nrc_controller_cgroups="NO"\nunicode="YES"\n',
    "etc/init.d/crond": (
        "#!/sbin/openrc-run\ncommand=/usr/sbin/crond\ncommand_args=-f\ncommand_background=true\n"
        "pidfile=/run/crond.pid\nextra_started_commands=reload\n"
        'reload() { ebegin "Reloading crond"; echo root > /var/spool/cron/crontabs/cron.update; eend $?; }\n'
    ),
    "etc/init.d/napping": (
        "#!/sbin/openrc-run\ncommand=/bin/sleep\ncommand_args=86400\ncommand_background=true\n"
        "pidfile=/run/napping.pid\n"
    ),
    "etc/init.d/failing": "#!/sbin/openrc-run\ncommand=/bin/false\n",
}


def build() -> Path:
    """The folder with all of it."""
    return cached_build("quorate-real", __file__, "the guests' systems", _make)


def _make(work: Path) -> None:
    with ThreadPoolExecutor() as pool:
        debian = pool.submit(_debian, work)
        small = pool.submit(_openrc, work)
        _kernel(work)
        small.result()
        debian.result()


def _bootstrap(variant: str, packages: str, archive: Path, *options: str) -> None:
    _run(
        "mmdebstrap",
        f"--variant={variant}",
        *_SMALLER,
        f"--include={packages.replace(' ', ',')}",
        *options,
        suite(),
        archive,
    )


def _debian(work: Path) -> None:
    units = work / "units"
    units.mkdir()
    for name, text in _UNITS.items():
        (units / name).write_text(text)
    inside = [
        "useradd --create-home --shell /bin/bash worker",
        "rm -f /etc/ssh/ssh_host_* /etc/resolv.conf",
        f"systemctl mask {_MASKED}",
        "systemctl enable backdoor.service",
    ]
    hooks = [f"--customize-hook=copy-in {shlex.quote(str(units / name))} /etc/systemd/system" for name in _UNITS]
    hooks += [f'--customize-hook=chroot "$1" sh -c {shlex.quote(each)}' for each in inside]
    archive, plain = work / "debian.tar", work / "plain"
    _bootstrap("minbase", _DEBIAN, archive, *hooks)
    _shifted(archive, work / "done" / "debian")
    plain.mkdir()
    _run("tar", "-C", plain, "-xf", archive)
    (plain / "etc/hostname").write_text("vm\n")
    disk = work / "done" / "vm.ext4"
    _run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", plain, disk, "600M")


def _openrc(work: Path) -> None:
    first, tree, archive = work / "openrc-packages.tar", work / "openrc-tree", work / "openrc.tar"
    _bootstrap("extract", _OPENRC, first)
    tree.mkdir()
    _run("tar", "-C", tree, "-xf", first)
    _run("chroot", tree, "/bin/busybox", "--install", "-s")
    for script in (tree / "etc/init.d").iterdir():
        script.unlink()  # Debian's own are for a whole Debian
    for name, text in _OPENRC_FILES.items():
        path = tree / name
        path.write_text(text)
        path.chmod(0o755 if "init.d" in name else 0o644)
    for name in ("dev", "proc", "sys", "run", "root", "var/log", "var/spool/cron/crontabs", "home/worker"):
        (tree / name).mkdir(parents=True, exist_ok=True)
    os.chown(tree / "home/worker", 1000, 1000)
    (tree / "etc/runlevels/default/crond").symlink_to("/etc/init.d/crond")
    _run("tar", "-C", tree, "-cf", archive, ".")
    _shifted(archive, work / "done" / "openrc")


def _shifted(archive: Path, target: Path) -> None:
    """Unpack as the root of an unprivileged container, who cannot make devices and gets them from outside."""
    target.mkdir()
    os.chown(target, FIRST_ID, FIRST_ID)
    with archive.open("rb") as file:
        # The folder is entered before the rights are given up: its parents may be closed to others.
        unpack = ["tar", "-xpf", "-", "--exclude=./dev/*"]
        _run("lxc-usernsexec", "-m", f"b:0:{FIRST_ID}:{IDS}", "--", *unpack, cwd=target, stdin=file)


def _kernel(work: Path) -> None:
    archive, tree, initrd = work / "kernel.tar", work / "kernel", work / "initrd"
    _bootstrap("extract", _KERNEL, archive)
    tree.mkdir()
    _run("tar", "-C", tree, "-xf", archive, "./boot", "./lib/modules", "./bin/busybox")
    shutil.copy(next((tree / "boot").glob("vmlinuz-*")), work / "done" / "vmlinuz")
    for name in ("bin", "modules", "dev", "root"):
        (initrd / name).mkdir(parents=True)
    shutil.copy(tree / "bin/busybox", initrd / "bin/busybox")
    modules = _with_dependencies(tree / "lib/modules", _MODULES)
    for module in modules:
        shutil.copy(module, initrd / "modules")
    start = initrd / "init"
    start.write_text(_first_steps(modules))
    start.chmod(0o755)
    names = "\n".join(str(path.relative_to(initrd)) for path in sorted(initrd.rglob("*")))
    pack = [str(tree / "bin/busybox"), "cpio", "-o", "-H", "newc"]
    packed = subprocess.run(pack, cwd=initrd, input=names.encode(), capture_output=True, check=True).stdout
    (work / "done" / "initrd").write_bytes(packed)


def _with_dependencies(folder: Path, names: Iterable[str]) -> list[Path]:
    """The kernel's modules in the order they load: each says what it needs, which differs from kernel to kernel."""
    modules: list[Path] = []
    for name in names:
        module = next(path for path in folder.rglob("*.ko") if path.stem.replace("-", "_") == name)
        needed = re.search(rb"\0depends=([^\0]+)\0", module.read_bytes())
        modules += [*_with_dependencies(folder, needed[1].decode().split(",") if needed else []), module]
    return list(dict.fromkeys(modules))


def _first_steps(modules: Iterable[Path]) -> str:
    lines = ["#!/bin/busybox sh", "busybox=/bin/busybox", "$busybox mount -t devtmpfs dev /dev"]
    lines += [f"$busybox insmod /modules/{module.name}" for module in modules]
    lines += [
        f"$busybox ip address add {VM_ADDRESS}/24 dev eth0",
        "$busybox ip link set eth0 up",
        f"$busybox ip route add default via {VM_GATEWAY}",
        "$busybox mount -t ext4 /dev/vda /root",
        "exec $busybox switch_root /root /sbin/init",
    ]
    return "\n".join(lines) + "\n"


def _run(*command: str | Path, cwd: Path | None = None, stdin: IO[bytes] | int = subprocess.DEVNULL) -> None:
    """Run it quietly; what it had to say is shown if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stdout[-4000:]}")
