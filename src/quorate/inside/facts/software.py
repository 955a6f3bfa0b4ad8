"""Containers, virtual machines, services and pending updates."""

from __future__ import annotations

import re
from collections.abc import Iterable

from quorate.inside.facts.model import Container, Services, Updates, Vm
from quorate.inside.facts.script import Answers
from quorate.inside.facts.system import name, number, rows

_SOURCES = {
    "containers": ("docker", "podman", "lxd", "incus", "lxc_ls", "jls", "pct"),
    "vms": ("qm", "virsh", "lxd", "incus"),
}
_ERROR = re.compile(r"denied|cannot connect|can't|unable|error|fail|not permitted|refused|no such", re.I)


def containers(answers: Answers) -> tuple[Container, ...]:
    """Empty on a machine without an engine; an engine that does not answer is reported by `refusals`."""
    listed = [
        *_of_docker("docker", _output(answers, "docker")),
        *_of_docker("podman", answers.get("podman")),
        *(Container(engine, *row[:2]) for engine in ("lxd", "incus") for row in _csv(answers, engine) if not row[2]),
        # On Proxmox VE, pct lists these containers with their names.
        *(Container("lxc", *row) for row in _two_columns("" if answers.get("pct") else answers.get("lxc_ls"))),
        *(Container("jail", words[0], "running") for words in rows(answers.get("jls")) if len(words) == 1),
        *_pct(answers.get("pct")),
    ]
    return tuple(sorted(set(listed), key=lambda container: (container.engine, container.name)))


def vms(answers: Answers) -> tuple[Vm, ...]:
    listed = [
        *_qm(answers.get("qm")),
        *_virsh(answers.get("virsh")),
        *(Vm(engine, *row[:2]) for engine in ("lxd", "incus") for row in _csv(answers, engine) if row[2]),
    ]
    return tuple(sorted(set(listed), key=lambda vm: (vm.manager, vm.name)))


def refusals(answers: Answers, section: str) -> str | None:
    """The error messages of engines that are installed and did not answer."""
    refused = []
    for source in _SOURCES[section]:
        only = Answers({source: _output(answers, source)})
        if source in answers.late:
            refused.append(f"{source} did not answer in time")
        elif not containers(only) and not vms(only):
            lines = _output(answers, source).splitlines()
            refused += [f"{source}: {name(line)}" for line in lines if _ERROR.search(line)][:1]
    return "; ".join(refused) or None


def _output(answers: Answers, engine: str) -> str:
    """Podman may answer in Docker's place; it is asked by its own name, too."""
    return "" if "Emulate Docker CLI" in answers.get(engine) else answers.get(engine)


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


def _csv(answers: Answers, engine: str) -> Iterable[tuple[str, str | None, bool]]:
    """web01,RUNNING,CONTAINER"""
    for line in answers.get(engine).splitlines():
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


def services(answers: Answers) -> Services | None:
    readers = (
        ("systemctl", "systemd", _systemctl),
        ("rc_status", "openrc", _rc_status),
        ("launchctl", "launchd", _launchctl),
        ("status_all", "sysvinit", _status_all),
    )
    for source, manager, read in readers:
        states = list(read(answers.get(source)))
        if states:
            return Services(manager, _in_state(states, "running"), _in_state(states, "failed"))
    return None


def _in_state(states: list[tuple[str, str]], state: str) -> tuple[str, ...]:
    return tuple(sorted({label for label, reported in states if reported == state}))


def _systemctl(text: str) -> Iterable[tuple[str, str]]:
    """`ssh.service loaded active running OpenBSD Secure Shell server`; older versions put a dot before failed ones."""
    for line in text.splitlines():
        words = line.lstrip("●*\u00d7 ").split()
        if len(words) >= 4 and words[0].endswith(".service"):
            state = "failed" if "failed" in words[2:4] else words[3]
            yield words[0].removesuffix(".service"), state


def _rc_status(text: str) -> Iterable[tuple[str, str]]:
    for match in re.finditer(r"^\s*(\S+)\s.*\[\s*(started|crashed)\b", text, re.M):
        yield match[1], "running" if match[2] == "started" else "failed"


def _launchctl(text: str) -> Iterable[tuple[str, str]]:
    """PID, last exit status, label. Those of the system itself are left out: hundreds of them."""
    for words in rows(text, 3):
        if words[2].startswith("com.apple.") or words[2] == "Label":
            continue
        if number(words[0]) is not None:
            yield words[2], "running"
        elif words[0] == "-" and number(words[1].lstrip("-")):
            yield words[2], "failed"


def _status_all(text: str) -> Iterable[tuple[str, str]]:
    for match in re.finditer(r"^\s*\[\s*([+-])\s*\]\s+(\S+)", text, re.M):
        yield match[2], "running" if match[1] == "+" else "stopped"


# -- updates, as far as the package lists of the machine know them -----------------------------------------------------

_APT = re.compile(r"^Inst (?P<package>\S+) (?:\[(?P<old>[^\]]*)\] )?\((?P<new>\S+) (?P<origin>.*)\)", re.M)
_APK = re.compile(r"^(?P<package>\S+)-(?P<old>\d\S*)\s+<\s+(?P<new>\S+)", re.M)
_DNF = re.compile(r"^(?P<package>\S+\.\S+)\s+(?P<new>\d\S*)\s+\S+\s*$", re.M)
_ARROW = re.compile(r"^(?P<package>\S+) (?:- )?(?P<old>\S+) (?:->|-) (?P<new>\S+)", re.M)
_ZYPPER = re.compile(r"^v +\|[^|\n]*\| (?P<package>\S+) +\| (?P<old>\S+) +\| (?P<new>\S+) +\|", re.M)
_UPDATE_READERS = {"apt": _APT, "apk": _APK, "dnf": _DNF, "pacman": _ARROW, "opkg": _ARROW, "zypper": _ZYPPER}
MANAGERS = tuple(_UPDATE_READERS)


def updates(answers: Answers) -> Updates | None:
    """A summary of the pending updates; None only if no source answered at all."""
    manager = next((known for known in _UPDATE_READERS if known in answers.texts and known not in answers.late), None)
    restart = name(answers.get("restart")) or ""
    if manager is None:
        return Updates(restart=restart) if "restart" in answers.texts else None
    pending = parse_updates(manager, answers.get(manager))
    safe = sum(security for *_, security in pending) if manager == "apt" else None
    age = next((number(words[0]) for words in rows(answers.get("lists_age"))), None)
    unfinished = tuple(words[1] for words in rows(answers.get("unfinished"), 2))
    return Updates(manager, len(pending), safe, age, restart, unfinished)


def parse_updates(manager: str, text: str) -> list[tuple[str, str, str, bool]]:
    """Package, old and new version, and whether the update is for security, from what the manager prints."""
    return [
        (match["package"], _group(match, "old"), match["new"], "security" in _group(match, "origin").lower())
        for match in _UPDATE_READERS[manager].finditer(text)
    ]


def _group(match: re.Match[str], group: str) -> str:
    return (match.groupdict().get(group) or "").strip()
