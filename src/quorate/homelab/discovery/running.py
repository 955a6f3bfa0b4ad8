"""What runs there: containers, virtual machines, services."""

from __future__ import annotations

import re
from collections.abc import Iterable

from quorate.homelab.discovery.asking import Told
from quorate.homelab.discovery.facts import Container, Services, Vm
from quorate.homelab.discovery.words import name, number, rows

ENGINES = ("docker", "podman", "lxd", "incus", "lxc_ls", "jls", "pct")
MANAGERS = ("qm", "virsh", "lxd", "incus")
_WORDS_OF_REFUSAL = re.compile(r"denied|cannot connect|can't|unable|error|fail|not permitted|refused|no such", re.I)


def containers(told: Told) -> tuple[Container, ...]:
    """Who has no engine has no containers; whom the engine does not answer is told by `refusals`."""
    found = [
        *_of_docker("docker", _said(told, "docker")),
        *_of_docker("podman", told.get("podman")),
        *(Container(engine, *row[:2]) for engine in ("lxd", "incus") for row in _csv(told, engine) if not row[2]),
        # Under Proxmox VE these are the containers that pct tells with their names.
        *(Container("lxc", *row) for row in _two_columns("" if told.get("pct") else told.get("lxc_ls"))),
        *(Container("jail", words[0], "running") for words in rows(told.get("jls")) if len(words) == 1),
        *_pct(told.get("pct")),
    ]
    return tuple(sorted(set(found), key=lambda one: (one.engine, one.name)))


def vms(told: Told) -> tuple[Vm, ...]:
    found = [
        *_qm(told.get("qm")),
        *_virsh(told.get("virsh")),
        *(Vm(engine, *row[:2]) for engine in ("lxd", "incus") for row in _csv(told, engine) if row[2]),
    ]
    return tuple(sorted(set(found), key=lambda one: (one.manager, one.name)))


def refusals(told: Told, asked: Iterable[str]) -> str | None:
    """The words of those who were there and did not answer."""
    refused = []
    for one in asked:
        alone = Told({one: _said(told, one)})
        if one in told.late:
            refused.append(f"{one} did not answer in time")
        elif not containers(alone) and not vms(alone):
            lines = _said(told, one).splitlines()
            refused += [f"{one}: {name(line)}" for line in lines if _WORDS_OF_REFUSAL.search(line)][:1]
    return "; ".join(refused) or None


def _said(told: Told, engine: str) -> str:
    """Podman may answer in Docker's place; it is heard by its own name."""
    return "" if "Emulate Docker CLI" in told.get(engine) else told.get(engine)


def _of_docker(engine: str, text: str) -> Iterable[Container]:
    """web|Up 3 days (healthy)|nginx:1.27"""
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) == 3 and (label := name(cells[0])):
            yield Container(engine, label, _docker_state(cells[1]), name(cells[2]))


def _docker_state(status: str) -> str | None:
    word = status.partition(" ")[0].lower()
    if word == "up":
        return "paused" if "(Paused)" in status else "running"
    return {"exited": "stopped", "": None}.get(word, word[:20])


def _csv(told: Told, engine: str) -> Iterable[tuple[str, str | None, bool]]:
    """web01,RUNNING,CONTAINER"""
    for line in told.get(engine).splitlines():
        cells = line.split(",")
        if len(cells) == 3 and (label := name(cells[0])):
            yield label, name(cells[1].lower()), cells[2].startswith("VIRTUAL")


def _two_columns(text: str) -> Iterable[tuple[str, str]]:
    for words in rows(text, 2):
        if words[1] in ("RUNNING", "STOPPED", "FROZEN"):
            yield words[0], words[1].lower()


def _pct(text: str) -> Iterable[Container]:
    """VMID Status Lock Name; the lock is often empty."""
    for words in rows(text, 3):
        if number(words[0]) is not None:
            yield Container("pct", f"{words[0]} {words[-1]}", words[1])


def _qm(text: str) -> Iterable[Vm]:
    """VMID NAME STATUS MEM(MB) BOOTDISK(GB) PID"""
    for words in rows(text, 6):
        if number(words[0]) is not None:
            yield Vm("qm", f"{words[0]} {words[1]}", words[2])


def _virsh(text: str) -> Iterable[Vm]:
    """` 3   web01   running`, ` -   old   shut off`"""
    for words in rows(text, 3):
        if words[0] == "-" or number(words[0]) is not None:
            yield Vm("virsh", words[1], {"shut off": "stopped"}.get(" ".join(words[2:]), " ".join(words[2:])))


# -- services ----------------------------------------------------------------------------------------------------------


def services(told: Told) -> Services | None:
    readers = (
        ("systemctl", "systemd", _systemctl),
        ("rc_status", "openrc", _rc_status),
        ("launchctl", "launchd", _launchctl),
        ("status_all", "sysvinit", _status_all),
    )
    for source, manager, read in readers:
        states = list(read(told.get(source)))
        if states:
            return Services(manager, _those(states, "running"), _those(states, "failed"))
    return None


def _those(states: list[tuple[str, str]], state: str) -> tuple[str, ...]:
    return tuple(sorted({label for label, one in states if one == state}))


def _systemctl(text: str) -> Iterable[tuple[str, str]]:
    """`ssh.service loaded active running OpenBSD Secure Shell server`; older versions put a dot before failed ones."""
    for line in text.splitlines():
        words = line.lstrip("●*\u00d7 ").split()
        if len(words) >= 4 and words[0].endswith(".service"):
            state = "failed" if "failed" in words[2:4] else words[3]
            yield words[0].removesuffix(".service"), state


def _rc_status(text: str) -> Iterable[tuple[str, str]]:
    for found in re.finditer(r"^\s*(\S+)\s.*\[\s*(started|crashed)\b", text, re.M):
        yield found[1], "running" if found[2] == "started" else "failed"


def _launchctl(text: str) -> Iterable[tuple[str, str]]:
    """PID, last exit status, label. Of the hundreds that come with the system those that failed are not of interest."""
    for words in rows(text, 3):
        if words[2].startswith("com.apple.") or words[2] == "Label":
            continue
        if number(words[0]) is not None:
            yield words[2], "running"
        elif words[0] == "-" and number(words[1].lstrip("-")):
            yield words[2], "failed"


def _status_all(text: str) -> Iterable[tuple[str, str]]:
    for found in re.finditer(r"^\s*\[\s*([+-])\s*\]\s+(\S+)", text, re.M):
        yield found[2], "running" if found[1] == "+" else "stopped"
