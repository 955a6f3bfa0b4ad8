"""Requested changes of a device, and those that scripts make: its name, and SSH logins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import msgspec

from quorate.hints import HOST_ADMIN_SETUP, Advice
from quorate.homelab.machines import Machine
from quorate.homelab.workloads import request
from quorate.homelab.workloads.docker_shapes import NANO, create_request, storage
from quorate.homelab.workloads.model import Power, Restart, Spec
from quorate.inside.posix_script import error_message, failure, shell_script
from quorate.problems import BadArgument, Conflict, NotConfigured

ServiceAction = Literal["start", "stop", "restart", "reload", "enable", "disable"]
_HOSTNAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?", re.ASCII)
_UNLIKE, _LACKING = 44, 45


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Unknown keys are errors."""


class WorkloadChange(Strict, frozen=True):
    image: str | None = None
    memory: str | None = None
    cpus: float | None = None
    restart: Restart | None = None
    ports: list[str] | None = None
    """The complete list: ports that are not in it are no longer published."""
    volumes: list[str] | None = None
    env: dict[str, str] | None = None
    """Merged into the existing variables; an empty value removes one."""


class ServiceChange(Strict, frozen=True):
    """A systemd unit."""

    unit: str | None = None
    """The whole file."""
    enabled: bool | None = None
    running: bool | None = None


class NetworkChange(Strict, frozen=True):
    hostname: str | None = None


class SecurityChange(Strict, frozen=True):
    ssh_password_login: bool | None = None
    ssh_root_login: Literal["yes", "no", "prohibit-password"] | None = None


class ResourceChange(Strict, frozen=True):
    cores: int | None = None
    memory: str | int | None = None


class Changes(Strict, frozen=True):
    services: dict[str, ServiceAction | ServiceChange] = {}
    workloads: dict[str, Power | WorkloadChange] = {}
    network: NetworkChange = NetworkChange()
    security: SecurityChange = SecurityChange()
    resources: ResourceChange = ResourceChange()


def parse_changes(given: dict[str, Any]) -> Changes:
    try:
        changes = msgspec.convert(given, Changes, strict=False)
    except msgspec.ValidationError as error:
        raise BadArgument(
            "The changes cannot be read",
            why=str(error),
            next_step="Use services {name: restart, or {unit, enabled, running}}, workloads {name: stop, or {image, "
            "ports, volumes, env, memory, cpus, restart}}, "
            "network {hostname}, security {ssh_password_login, ssh_root_login}, resources {cores, memory}",
        ) from None
    if changes == Changes():
        raise BadArgument("There is nothing to change", next_step="Give at least one section")
    if changes.network.hostname is not None and not _HOSTNAME.fullmatch(changes.network.hostname):
        advice = "Use letters and digits, with - between them"
        raise BadArgument(f"{changes.network.hostname!r} is not a valid hostname", next_step=advice)
    return changes


def apply_workload_change(old: Spec, change: WorkloadChange, memory: int | None) -> Spec:
    """The same container with the requested changes."""
    exact = dict(old.exact or {})
    limits = dict(exact.get("HostConfig") or {})
    if memory is not None:
        limits |= {"Memory": memory, "MemorySwap": 0}
    if change.cpus is not None:
        limits |= {"NanoCpus": round(change.cpus * NANO)}
    if change.restart is not None:
        limits |= {"RestartPolicy": {"Name": change.restart}}
    ports, mounts = old.ports, old.mounts
    if change.ports is not None:
        ports = request.ports(change.ports)
        published = create_request(Spec(old.name, old.image, ports))
        limits["PortBindings"] = published["HostConfig"]["PortBindings"]
        exact["ExposedPorts"] = {**(exact.get("ExposedPorts") or {}), **published["ExposedPorts"]}
    if change.volumes is not None:
        mounts = request.mounts(change.volumes)
        limits |= storage(mounts)
    if change.env is not None:
        exact["Env"] = _environment(exact.get("Env") or [], request.environment(change.env))
    exact |= {"HostConfig": limits, "Image": change.image or old.image}
    return replace(
        old,
        image=change.image or old.image,
        restart=change.restart or old.restart,
        ports=ports,
        mounts=mounts,
        exact=exact,
    )


def _environment(old: list[str], change: Mapping[str, str]) -> list[str]:
    kept = [one for one in old if one.partition("=")[0] not in change]
    return [*kept, *(f"{name}={value}" for name, value in change.items() if value)]


# -- by scripts --------------------------------------------------------------------------------------------------------

_SET_NAME = """
if command -v hostnamectl > /dev/null 2>&1 && [ -d /run/systemd/system ]; then hostnamectl set-hostname -- "$1" || exit
else printf '%s\\n' "$1" > /etc/hostname && hostname "$1" || exit; fi
[ "$(cat /etc/hostname)" = "$1" ]
"""
# $1 is the file, standard input its content, the others are lines that `sshd -T` must then print. If it does not, or
# sshd would not start, the old file is restored.
_SET_SSHD = f"""
PATH=$PATH:/usr/sbin:/sbin; command -v sshd > /dev/null 2>&1 && [ -d "${{1%/*}}" ] || exit {_LACKING}
file=$1; shift
[ ! -f "$file" ] || cp -p -- "$file" "$file.old" || exit
back() {{ if [ -f "$file.old" ]; then mv -f -- "$file.old" "$file"; else rm -f -- "$file"; fi; }}
cat > "$file" && chmod 600 "$file" || {{ back; exit 1; }}
sshd -t || {{ back; exit 1; }}
effective=$(sshd -T) || {{ back; exit 1; }}
for line; do printf '%s\\n' "$effective" | grep -qix -- "$line" || {{ back; exit {_UNLIKE}; }}; done
rm -f -- "$file.old"
if [ -d /run/systemd/system ]; then systemctl reload ssh 2> /dev/null || systemctl reload sshd
elif [ -s /run/sshd.pid ]; then kill -HUP "$(cat /run/sshd.pid)"; fi
"""
SSHD_FILE = "/etc/ssh/sshd_config.d/01-quorate.conf"


async def set_hostname(machine: Machine, name: str) -> None:
    output = await machine.transport.run(machine.as_root(shell_script(_SET_NAME, name)))
    if output.exit_code != 0:
        raise failure(output, f"Naming {machine} {name}")


def sshd_lines(change: SecurityChange) -> tuple[list[str], list[str]]:
    """The lines to write, and what sshd must then print: it has another word for one of the values."""
    lines, effective = [], []
    if change.ssh_password_login is not None:
        word = "yes" if change.ssh_password_login else "no"
        lines += [f"PasswordAuthentication {word}", f"KbdInteractiveAuthentication {word}"]
        effective += [f"passwordauthentication {word}"]
    if change.ssh_root_login is not None:
        lines.append(f"PermitRootLogin {change.ssh_root_login}")
        effective.append(f"permitrootlogin {change.ssh_root_login.replace('prohibit-password', 'without-password')}")
    return lines, effective


def require_login_afterwards(machine: Machine, change: SecurityChange) -> None:
    """Prevents a lockout: the login in use has to work afterwards."""
    target = machine.target
    if target is None:
        return
    if change.ssh_password_login is False and target.key is None:
        advice = Advice("Set up an account with a key first", HOST_ADMIN_SETUP)
        raise Conflict(f"The login to {machine} uses a password", next_step=advice)
    if target.user == "root" and (
        change.ssh_root_login == "no" or (change.ssh_root_login == "prohibit-password" and target.key is None)
    ):
        raise Conflict(
            f"The login to {machine} is root", next_step=Advice("Set up another account first", HOST_ADMIN_SETUP)
        )


async def set_sshd(machine: Machine, change: SecurityChange) -> None:
    lines, effective = sshd_lines(change)
    content = "".join(f"{line}\n" for line in lines).encode()
    output = await machine.transport.run(machine.as_root(shell_script(_SET_SSHD, SSHD_FILE, *effective, stdin=content)))
    if output.exit_code == _LACKING:
        raise NotConfigured(f"This is not supported for this device: {machine} has no sshd with sshd_config.d")
    if output.exit_code == _UNLIKE:
        raise Conflict(
            f"sshd of {machine} ignores {SSHD_FILE}; the old settings were restored",
            why="Another line precedes it, or sshd_config does not include that folder",
            next_step="Check /etc/ssh/sshd_config there",
        )
    if output.exit_code != 0:
        raise Conflict(
            f"sshd of {machine} would not start with that; the old settings were restored",
            why=error_message(output) or None,
        )
