"""Changes of a device, as they are asked for, and those that are made by scripts: its name, and who may log in."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal

import msgspec

from quorate.homelab.machines import Machine
from quorate.homelab.workloads.docker_shapes import NANO
from quorate.homelab.workloads.model import Power, Restart, Spec
from quorate.inside.posix_script import failure, script, words_of
from quorate.problems import BadArgument, Conflict, NotConfigured

ServiceAction = Literal["start", "stop", "restart", "reload", "enable", "disable"]
_HOSTNAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", re.ASCII)
_UNLIKE, _LACKING = 44, 45


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A word that nobody knows is a mistake of whoever wrote it."""


class WorkloadChange(Strict, frozen=True):
    image: str | None = None
    memory: str | None = None
    cpus: float | None = None
    restart: Restart | None = None


class NetworkChange(Strict, frozen=True):
    hostname: str | None = None


class SecurityChange(Strict, frozen=True):
    ssh_password_login: bool | None = None
    ssh_root_login: Literal["yes", "no", "prohibit-password"] | None = None


class ResourceChange(Strict, frozen=True):
    cores: int | None = None
    memory: str | int | None = None


class Changes(Strict, frozen=True):
    services: dict[str, ServiceAction] = {}
    workloads: dict[str, Power | WorkloadChange] = {}
    network: NetworkChange = NetworkChange()
    security: SecurityChange = SecurityChange()
    resources: ResourceChange = ResourceChange()


def checked(given: dict[str, Any]) -> Changes:
    try:
        changes = msgspec.convert(given, Changes, strict=False)
    except msgspec.ValidationError as error:
        raise BadArgument(
            "The changes cannot be read",
            why=str(error),
            next_step="services {name: restart}, workloads {name: stop, or {image, memory, cpus, restart}}, "
            "network {hostname}, security {ssh_password_login, ssh_root_login}, resources {cores, memory}",
        ) from None
    if changes == Changes():
        raise BadArgument("Nothing to change was given", next_step="Give at least one section")
    if changes.network.hostname is not None and not _HOSTNAME.fullmatch(changes.network.hostname):
        raise BadArgument(f"{changes.network.hostname!r} is no host name", next_step="Letters, digits and - between")
    return changes


def changed_spec(old: Spec, change: WorkloadChange, memory: int | None) -> Spec:
    """The same container but for what is asked for."""
    exact = dict(old.exact or {})
    limits = dict(exact.get("HostConfig") or {})
    if memory is not None:
        limits |= {"Memory": memory, "MemorySwap": 0}
    if change.cpus is not None:
        limits |= {"NanoCpus": round(change.cpus * NANO)}
    if change.restart is not None:
        limits |= {"RestartPolicy": {"Name": change.restart}}
    exact |= {"HostConfig": limits, "Image": change.image or old.image}
    return replace(old, image=change.image or old.image, restart=change.restart or old.restart, exact=exact)


# -- by scripts --------------------------------------------------------------------------------------------------------

_SET_NAME = """
if command -v hostnamectl > /dev/null 2>&1 && [ -d /run/systemd/system ]; then hostnamectl set-hostname -- "$1" || exit
else printf '%s\\n' "$1" > /etc/hostname && hostname "$1" || exit; fi
[ "$(cat /etc/hostname)" = "$1" ]
"""
# $1 is the file, standard input what it is to hold, the others are lines of `sshd -T` that have to come of it. Where
# they do not, or sshd would not start with it, all is as before.
_SET_SSHD = f"""
PATH=$PATH:/usr/sbin:/sbin; command -v sshd > /dev/null 2>&1 && [ -d "${{1%/*}}" ] || exit {_LACKING}
file=$1; shift
[ ! -f "$file" ] || cp -p -- "$file" "$file.old" || exit
back() {{ if [ -f "$file.old" ]; then mv -f -- "$file.old" "$file"; else rm -f -- "$file"; fi; }}
cat > "$file" && chmod 600 "$file" || {{ back; exit 1; }}
sshd -t || {{ back; exit 1; }}
told=$(sshd -T) || {{ back; exit 1; }}
for line; do printf '%s\\n' "$told" | grep -qix -- "$line" || {{ back; exit {_UNLIKE}; }}; done
rm -f -- "$file.old"
if [ -d /run/systemd/system ]; then systemctl reload ssh 2> /dev/null || systemctl reload sshd
elif [ -s /run/sshd.pid ]; then kill -HUP "$(cat /run/sshd.pid)"; fi
"""
SSHD_FILE = "/etc/ssh/sshd_config.d/01-quorate.conf"


async def set_hostname(machine: Machine, name: str) -> None:
    output = await machine.way.run(machine.as_root(script(_SET_NAME, name)))
    if output.exit_code != 0:
        raise failure(output, f"Naming {machine} {name}")


def sshd_lines(change: SecurityChange) -> tuple[list[str], list[str]]:
    """What is written, and what sshd has to say then: it has another word for one of the values."""
    lines, told = [], []
    if change.ssh_password_login is not None:
        word = "yes" if change.ssh_password_login else "no"
        lines += [f"PasswordAuthentication {word}", f"KbdInteractiveAuthentication {word}"]
        told += [f"passwordauthentication {word}"]
    if change.ssh_root_login is not None:
        lines.append(f"PermitRootLogin {change.ssh_root_login}")
        told.append(f"permitrootlogin {change.ssh_root_login.replace('prohibit-password', 'without-password')}")
    return lines, told


def require_way_back(machine: Machine, change: SecurityChange) -> None:
    """Nobody locks themselves out: the login that is used here has to work afterwards."""
    target = machine.target
    if target is None:
        return
    if change.ssh_password_login is False and target.key is None:
        raise Conflict(f"The login to {machine} is by password", next_step="host_admin_setup makes one with a key")
    if target.user == "root" and (
        change.ssh_root_login == "no" or (change.ssh_root_login == "prohibit-password" and target.key is None)
    ):
        raise Conflict(f"The login to {machine} is root's", next_step="host_admin_setup makes another one")


async def set_sshd(machine: Machine, change: SecurityChange) -> None:
    lines, told = sshd_lines(change)
    content = "".join(f"{line}\n" for line in lines).encode()
    output = await machine.way.run(machine.as_root(script(_SET_SSHD, SSHD_FILE, *told, stdin=content)))
    if output.exit_code == _LACKING:
        raise NotConfigured(f"That is not supported for this device: {machine} has no sshd with sshd_config.d")
    if output.exit_code == _UNLIKE:
        raise Conflict(
            f"sshd of {machine} does not take it from {SSHD_FILE}; all is as before",
            why="Another line stands before it, or sshd_config does not include that folder",
            next_step="Look at /etc/ssh/sshd_config there",
        )
    if output.exit_code != 0:
        raise Conflict(f"sshd of {machine} would not start so; all is as before", why=words_of(output) or None)
