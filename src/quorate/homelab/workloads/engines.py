"""Which engines a machine has, and how to reach each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from quorate.hints import see, tools
from quorate.homelab.machines import Machine
from quorate.homelab.workloads.docker import DockerApi, DockerCli
from quorate.homelab.workloads.engine import Engine
from quorate.homelab.workloads.lxd import Lxd, LxdQuery
from quorate.homelab.workloads.unix_http import UnixSocket
from quorate.homelab.workloads.workload import EngineName, Workload, parse_name
from quorate.inside.transport import Command
from quorate.problems import BadArgument, GuestRefused, NotConfigured, NotFound, Problem
from quorate.pve.connection import Clock, SystemClock

EVERY: tuple[EngineName, ...] = ("docker", "podman", "lxd", "incus")
# The socket of each engine: from its own variable, else from the usual places. The login may not be allowed to see a
# socket, so the engine's program counts, too, but not a `docker` that is Podman.
_LOOK = """
say() { echo "$1 $2 $3"; }
first() { engine=$1; shift; for at; do [ ! -S "$at" ] || { say socket "$engine" "$at"; return; }; done; }
mine=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}
first docker "${DOCKER_HOST#unix://}" /run/docker.sock /var/run/docker.sock "$mine/docker.sock"
if [ "$(id -u)" = 0 ]; then first podman "${CONTAINER_HOST#unix://}" /run/podman/podman.sock
else first podman "${CONTAINER_HOST#unix://}" "$mine/podman/podman.sock"; fi
first lxd "$LXD_SOCKET" "${LXD_DIR:-/var/snap/lxd/common/lxd}/unix.socket" /var/lib/lxd/unix.socket
first incus "$INCUS_SOCKET" "${INCUS_DIR:-/var/lib/incus}/unix.socket"
for one in podman lxc incus; do command -v "$one" > /dev/null 2>&1 && say program "$one" -; done
case $(docker --version 2> /dev/null) in [Dd]ocker*) say program docker -;; esac
exit 0
"""
_USUAL = {"lxd": "/var/lib/lxd/unix.socket", "incus": "/var/lib/incus/unix.socket"}


async def detect_engines(
    machine: Machine, clock: Clock | None = None, only: EngineName | None = None
) -> tuple[list[Engine], dict[str, str]]:
    """The engines that answer there, and why others do not. Raises a Problem if none answers."""
    clock = clock or SystemClock()
    if machine.transport.system != "posix":
        raise NotConfigured(f"{machine} is not a POSIX system", next_step="Use a Linux host")
    sockets, programs = await _look(machine)
    names = (only,) if only else EVERY
    tried = await asyncio.gather(*(_try_engine(name, machine, sockets.get(name), programs, clock) for name in names))
    engines = [engine for engine in tried if isinstance(engine, Engine)]
    trouble = {name: problem for name, problem in zip(names, tried, strict=True) if isinstance(problem, Problem)}
    if not engines:
        raise next(iter(trouble.values()), None) or _none(machine, only)
    return engines, {name: str(problem) for name, problem in trouble.items()}


async def list_engines(machine: Machine, clock: Clock | None = None, only: EngineName | None = None) -> list[Engine]:
    """The engines that answer there, at least one."""
    return (await detect_engines(machine, clock, only))[0]


async def select_engine(machine: Machine, clock: Clock, name: EngineName | None) -> Engine:
    """The named engine, or the only one."""
    engines = await list_engines(machine, clock, name)
    if len(engines) > 1:
        names = ", ".join(engine.name for engine in engines)
        raise BadArgument(f"{machine} has several engines", why=f"They are {names}", next_step="Choose one with engine")
    return engines[0]


async def find_workload(
    machine: Machine, clock: Clock, workload: str, name: EngineName | None
) -> tuple[Engine, Workload]:
    """The engine that has a workload of that name, and the workload."""
    parse_name(workload)  # it becomes part of a path or command line
    there, silent = await detect_engines(machine, clock, name)
    matches = [(engine, match) for engine in there if (match := await engine.find(workload))]
    if len(matches) > 1:
        names = ", ".join(engine.name for engine, _ in matches)
        raise BadArgument(f"{workload!r} is ambiguous", why=f"{names} have one", next_step="Choose one with engine")
    if matches:
        return matches[0]
    if len(there) == 1 and not silent:
        return there[0], await there[0].get(workload)  # its error lists what exists
    why = "; ".join(f"{engine} did not answer: {words}" for engine, words in silent.items())
    advice = see("See what exists", tools.workload_list)
    raise NotFound(f"{machine} has no workload {workload!r}", why=why or None, next_step=advice)


async def _look(machine: Machine) -> tuple[dict[str, str], set[str]]:
    output = await machine.transport.run(Command(("/bin/sh", "-c", _LOOK)))
    if output.exit_code != 0:
        raise GuestRefused(f"The engines of {machine} could not be detected", why=f"It said: {output.complaint[-300:]}")
    lines = [line.split(" ", 2) for line in output.text.splitlines()]
    sockets = {line[1]: line[2] for line in lines if line[0] == "socket" and len(line) == 3}
    return sockets, {line[1] for line in lines if line[0] == "program" and len(line) == 3}


async def _try_engine(
    name: EngineName, machine: Machine, socket: str | None, programs: Iterable[str], clock: Clock
) -> Engine | Problem | None:
    try:
        return await _connect(name, machine, socket, programs, clock)
    except Problem as problem:
        return problem


async def _connect(
    name: EngineName, machine: Machine, socket: str | None, programs: Iterable[str], clock: Clock
) -> Engine | None:
    if name in ("lxd", "incus"):
        program = "lxc" if name == "lxd" else "incus"
        if not socket and program not in programs:
            return None
        try:
            return await Lxd.connect(name, UnixSocket(machine, socket or _USUAL[name]), clock)
        except NotFound:  # a program without its daemon
            if socket:
                raise
            return None
        except NotConfigured:  # only the program can reach the socket
            if program not in programs:
                raise
        return await Lxd.connect(name, LxdQuery(machine, program), clock)
    # Docker belongs to the machine; Podman to the login user, as if the command were typed there.
    root = name == "docker"
    if socket:
        try:
            return await DockerApi.connect(name, UnixSocket(machine, socket, root=root), clock)
        except Problem:
            if name not in programs:
                raise
    if name not in programs:
        return None
    cli = DockerCli(name, machine, clock, root=root)
    await cli.check()
    return cli


def _none(machine: Machine, only: EngineName | None) -> NotFound:
    return NotFound(
        f"{machine} has no {only or 'container engine'}",
        why=None if only else f"None of {', '.join(EVERY)} was found there",
        next_step="Install one there first, or use another host",
    )
