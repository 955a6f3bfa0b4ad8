"""A device: which machine it is, its name, logins and units, and moving its workloads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from quorate.hints import Advice, see, tools
from quorate.homelab.devices.device import Device
from quorate.homelab.devices.store import Devices
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine, find_machine
from quorate.homelab.workloads.docker import NANO, create_request, storage
from quorate.homelab.workloads.engine import DeploymentResult, Engine
from quorate.homelab.workloads.workload import (
    Mount,
    Power,
    Restart,
    Spec,
    Workload,
    environment,
    parse_mounts,
    parse_ports,
)
from quorate.inside import services
from quorate.inside.posix_files import error_message, failure, shell_script
from quorate.inside.transport import unit_name
from quorate.problems import BadArgument, Conflict, NotConfigured, NotFound, Problem
from quorate.pve.connection import Clock
from quorate.pve.tasks import Report


def bare(ref: str) -> str:
    """The host of `user@host`: it is the same device for every login."""
    return ref.rpartition("@")[2]


async def find_device(homelab: Homelab, device: int | str) -> tuple[str, Machine, Device | None]:
    """The reference that tools take, the machine, and its device on the map, if any."""
    devices = Devices(homelab.store)
    try:
        known = await devices.find(bare(device) if isinstance(device, str) else device)
    except NotFound:
        known = None
    is_number = isinstance(device, int) or device.isdecimal()
    if known is None and is_number:
        raise NotFound(
            f"There is no device {device}", next_step=see("See the devices with their ids", tools.network_map)
        )
    ref = str(device)
    if known is not None and is_number:
        if not known.refs:
            raise NotFound(
                f"{known} was only seen on the network",
                next_step=Advice("Register it to log in there", tools.host_register),
            )
        ref = known.refs[0]
    return ref, await find_machine(homelab, ref), known


UNIT_FOLDER = "/etc/systemd/system"
LONGEST = 64 * 1024
_NO_SYSTEMD, _ABSENT = 40, 41

_READ = f'[ -d /run/systemd/system ] || exit {_NO_SYSTEMD}; [ -f "$1" ] || exit {_ABSENT}; cat -- "$1"'
# $1 is the file; standard input is its content. Atomic.
_WRITE = """
new=$(mktemp "${1%/*}/.quorate.XXXXXX") || exit
cat > "$new" && chmod 644 "$new" && mv -f -- "$new" "$1" || { rm -f -- "$new"; exit 1; }
systemctl daemon-reload
"""
_DROP = 'rm -f -- "$1" && systemctl daemon-reload'


def file_of(name: str) -> str:
    return f"{UNIT_FOLDER}/{unit_name(name)}"


def require_unit_text(name: str, content: str) -> str:
    """The text of a unit file. Raises BadArgument before anything is sent."""
    if len(content) > LONGEST or "\0" in content or "[Service]" not in content:
        raise BadArgument(
            f"The unit of {name} cannot be used", next_step="Give the text of a unit file, with [Unit] and [Service]"
        )
    return content if content.endswith("\n") else f"{content}\n"


async def read_unit(machine: Machine, name: str) -> str | None:
    """The current file; None if there is none."""
    output = await machine.transport.run(machine.as_root(shell_script(_READ, file_of(name))))
    if output.exit_code == _NO_SYSTEMD:
        raise NotConfigured(
            f"{machine} does not run systemd, so it has no units", next_step="Deploy it as a container instead"
        )
    if output.exit_code == _ABSENT:
        return None
    if output.exit_code != 0:
        raise failure(output, f"Reading {file_of(name)} of {machine}")
    return output.text


async def install_unit(machine: Machine, clock: Clock, name: str, text: str, *, wait: float) -> dict[str, Any]:
    """Write it, enable it and start it. If it does not run, the previous unit is restored and started."""
    new = require_unit_text(name, text)
    before = await read_unit(machine, name)
    transport = machine.with_root().transport
    await _write(machine, name, new)
    try:
        await services.control(transport, clock, name, "enable", wait=wait)
        _, after = await services.control(transport, clock, name, "restart", wait=wait)
    except Problem as problem:
        problem.next_step = f"{problem.next_step or ''} {await _put_back(machine, clock, name, before, wait)}".strip()
        raise
    return {"unit": file_of(name), "replaced": before is not None, "now": after.summary, "enabled": after.enabled}


async def remove_unit(machine: Machine, clock: Clock, name: str, *, wait: float) -> dict[str, Any]:
    """Stop it, disable it and remove its file."""
    if await read_unit(machine, name) is None:
        return {"note": f"{file_of(name)} does not exist"}
    for action in ("stop", "disable"):
        await services.control(machine.with_root().transport, clock, name, action, wait=wait)
    await _delete(machine, name)
    return {"removed": file_of(name)}


async def _put_back(machine: Machine, clock: Clock, name: str, before: str | None, wait: float) -> str:
    try:
        if before is None:
            for action in ("stop", "disable"):
                await services.control(machine.with_root().transport, clock, name, action, wait=wait)
            await _delete(machine, name)
            return "Its file was removed again"
        await _write(machine, name, before)
        await services.control(machine.with_root().transport, clock, name, "restart", wait=wait)
    except Problem as problem:
        return f"The previous unit could not be restored: {problem}"
    return "The previous unit is restored and running"


async def _write(machine: Machine, name: str, text: str) -> None:
    output = await machine.transport.run(machine.as_root(shell_script(_WRITE, file_of(name), stdin=text.encode())))
    if output.exit_code != 0:
        raise failure(output, f"Writing {file_of(name)} on {machine}")


async def _delete(machine: Machine, name: str) -> None:
    output = await machine.transport.run(machine.as_root(shell_script(_DROP, file_of(name))))
    if output.exit_code != 0:
        raise failure(output, f"Removing {file_of(name)} from {machine}")


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


def parse_changes(request: dict[str, Any]) -> Changes:
    try:
        changes = msgspec.convert(request, Changes, strict=False)
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
        ports = parse_ports(change.ports)
        published = create_request(Spec(old.name, old.image, ports))
        limits["PortBindings"] = published["HostConfig"]["PortBindings"]
        exact["ExposedPorts"] = {**(exact.get("ExposedPorts") or {}), **published["ExposedPorts"]}
    if change.volumes is not None:
        mounts = parse_mounts(change.volumes)
        limits |= storage(mounts)
    if change.env is not None:
        exact["Env"] = _environment(exact.get("Env") or [], environment(change.env))
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
    kept = [variable for variable in old if variable.partition("=")[0] not in change]
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
        advice = Advice("Set up an account with a key first", tools.host_admin_setup)
        raise Conflict(f"The login to {machine} uses a password", next_step=advice)
    if target.user == "root" and (
        change.ssh_root_login == "no" or (change.ssh_root_login == "prohibit-password" and target.key is None)
    ):
        raise Conflict(
            f"The login to {machine} is root", next_step=Advice("Set up another account first", tools.host_admin_setup)
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


MAX_DATA = 128 * 1024 * 1024
"""The most bytes of one volume, because it is held in memory."""
MAX_IMAGE = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Move:
    source: Engine
    target: Engine
    workload: Workload
    spec: Spec

    @property
    def volumes(self) -> tuple[Mount, ...]:
        return self.workload.mounts

    async def prepare_image(self, report: Report | None) -> str:
        """Put the image on the target before the downtime; returns how.

        An image that no registry has (built locally, or gone) is copied from machine to machine.
        """
        image = self.spec.image
        if await self.target.has_image(image):
            return "already exists"
        try:
            await self.target.pull(image, report)
        except Problem as problem:
            if not await self.source.has_image(image):
                raise
            try:
                await self.target.load_image(await self.source.save_image(image, MAX_IMAGE))
            except Problem as other:
                other.why = f"{other.why or ''} No registry had it: {problem}".strip()
                raise
            if not await self.target.has_image(image):
                raise
            return "was copied: no registry has it"
        return "was fetched"

    async def execute(self, report: Report | None, *, data: bool) -> DeploymentResult:
        """Stop, copy, start on the target, wait until it stays up, remove the source. A failure restarts it here."""
        name = self.workload.name
        if self.workload.running:
            await self.source.power(name, "stop")
        try:
            tars = [
                (mount.path, await self.source.read_folder(name, mount.path, MAX_DATA))
                for mount in (self.volumes if data else ())
            ]

            async def fill() -> None:
                for path, tar in tars:
                    await self.target.write_folder(name, path, tar)

            done = await self.target.deploy(self.spec, report, fill=fill)
        except BaseException as error:
            if self.workload.running:
                await self.source.power(name, "start")
            if isinstance(error, Problem):
                error.next_step = f"{error.next_step or ''} {name} runs on its old host again.".strip()
            raise
        if not self.workload.running:
            await self.target.power(name, "stop")
        await self.source.remove(name)
        return done


async def prepare_move(source: Engine, target: Engine, name: str) -> Move:
    """The move. Raises Conflict if the target cannot take the workload."""
    workload = await source.get(name)
    spec = await source.spec_of(name)
    if await target.find(name) is not None:
        raise Conflict(f"{target.name} {name} already exists on the target", next_step="Rename or remove one of them")
    if workload.fleeting:
        raise Conflict(f"{workload} is removed when it stops and cannot be moved")
    requested = {(port.outside, port.protocol) for port in workload.ports if port.outside}
    for other in await target.list() if requested else ():
        conflicts = [port for port in other.ports if other.running and (port.outside, port.protocol) in requested]
        if conflicts:
            raise Conflict(f"Port {conflicts[0].outside}/{conflicts[0].protocol} on the target belongs to {other}")
    if objection := target.objection(spec):
        raise Conflict(f"{target.name} on the target cannot run {name}", why=objection)
    return Move(source, target, workload, spec)
