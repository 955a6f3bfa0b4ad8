"""The root file systems of the homelab's hosts, made once from Debian's packages and kept for the next run.

debian/    a Debian with an OpenSSH server and sudo, and without an init: the SSH server is the first process
busybox/   BusyBox and nothing else of a Unix; OpenSSH, sudo and the programs for accounts are Debian's, with their
           libraries
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tests.real.image_cache import cached_build, suite

_DEBIAN = "openssh-server sudo iproute2 procps busybox-static"
_PROGRAMS = (
    "/usr/sbin/sshd", "/usr/lib/openssh/sftp-server", "/usr/bin/sudo", "/usr/sbin/visudo", "/usr/sbin/useradd",
    "/usr/sbin/usermod", "/usr/sbin/userdel", "/usr/bin/gpasswd",
)  # fmt: skip
_OPTIONAL = ("/usr/lib/openssh/sshd-session", "/usr/lib/openssh/sshd-auth")
"""Newer servers consist of several programs."""
_PLUGINS = ("usr/libexec/sudo", "usr/lib/x86_64-linux-gnu/security")
_SETTINGS = ("etc/pam.d", "etc/login.defs", "etc/sudoers", "etc/nsswitch.conf", "etc/security", "etc/ssh/moduli")
_FILES = {
    "etc/os-release": 'ID=busybox\nNAME="BusyBox"\nPRETTY_NAME="BusyBox with OpenSSH"\nVERSION_ID=1\n',
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nsshd:x:105:65534::/run/sshd:/bin/false\n",
    "etc/group": "root:x:0:\ntty:x:5:\nkvm:x:106:\nnogroup:x:65534:\n",
    "etc/shadow": "root:*:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n",
    "etc/gshadow": "root:*::\ntty:*::\nkvm:!::\nnogroup:*::\n",
}


def build() -> Path:
    """The folder with both."""
    return cached_build("quorate-real-hosts", __file__, "the hosts' systems", _make)


def _make(work: Path) -> None:
    debian, busybox = work / "done" / "debian", work / "done" / "busybox"
    debian.mkdir()
    packages = ["--variant=minbase", "--dpkgopt=force-unsafe-io", f"--include={_DEBIAN.replace(' ', ',')}"]
    _run("mmdebstrap", *packages, suite(), work / "debian.tar")
    _run("tar", "-C", debian, "-xpf", work / "debian.tar", "--exclude=./dev/*")
    for path in (*debian.glob("etc/ssh/ssh_host_*"), debian / "etc/resolv.conf"):
        path.unlink(missing_ok=True)
    _fill_busybox(busybox, debian)


def _fill_busybox(tree: Path, debian: Path) -> None:
    for name in (
        "dev",
        "proc",
        "sys",
        "run/sshd",
        "tmp",
        "root",
        "home",
        "srv",
        "var/log",
        "usr/bin",
        "usr/sbin",
        "etc",
    ):
        (tree / name).mkdir(parents=True)
    (tree / "tmp").chmod(0o1777)
    for name in ("bin", "sbin", "lib", "lib64"):
        (tree / "usr" / name).mkdir(exist_ok=True)
        (tree / name).symlink_to(f"usr/{name}")
    optional = [each for each in _OPTIONAL if (debian / each[1:]).exists()]
    plugins = [f"/{path.relative_to(debian)}" for place in _PLUGINS for path in (debian / place).glob("*.so")]
    for program in (*_PROGRAMS, *optional, *plugins, "/usr/bin/busybox"):
        _copy(debian, tree, program)
    for library in _libraries(debian, (*_PROGRAMS, *optional, *plugins)):
        _copy(debian, tree, library)
    for name in _SETTINGS:
        source, target = debian / name, tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, target)
    (tree / "etc/sudoers.d").mkdir()
    for name, text in _FILES.items():
        (tree / name).write_text(text)
    (tree / "etc/shadow").chmod(0o600)
    _run("chroot", tree, "/usr/bin/busybox", "--install", "-s")


def _libraries(debian: Path, programs: tuple[str, ...]) -> set[str]:
    """What the loader would look for, asked in the Debian itself."""
    told = subprocess.run(["chroot", debian, "ldd", *programs], capture_output=True, text=True).stdout
    return set(re.findall(r"(/\S+\.so[.\d]*) \(0x", told))


def _copy(debian: Path, tree: Path, path: str) -> None:
    """The file itself, with its rights, at the same place; `/lib` is `/usr/lib` in both."""
    source = debian / path[1:]
    target = tree / path[1:]
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy2(_real(debian, source), target)


def _real(debian: Path, path: Path) -> Path:
    """Where links lead within the tree."""
    while path.is_symlink():
        leads = path.readlink()
        path = debian / str(leads)[1:] if leads.is_absolute() else path.parent / leads
    return path


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{done.stderr[-4000:]}")
