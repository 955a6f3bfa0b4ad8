"""Whether a host has what a service needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from quorate.homelab.machines import Machine
from quorate.homelab.services.template import Template, bytes_of
from quorate.inside.facts.model import Facts, Filesystem, Memory

SECTIONS = ("system", "memory", "filesystems", "ports")
ARCHITECTURES = {
    "x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64", "armv7l": "arm", "armv6l": "arm",
}  # fmt: skip
_UNITS = ((1024**4, "T"), (1024**3, "G"), (1024**2, "M"))


class Verdict(StrEnum):
    OK = "ok"
    MISSING = "missing"
    NOT_KNOWN = "not known"


class RequirementKind(StrEnum):
    ARCHITECTURE = "architecture"
    PORT = "port"
    MEMORY = "memory"
    DISK = "disk"
    COMPOSE = "Compose"

    @property
    def is_hard(self) -> bool:
        """Whether a service cannot work without it; too little memory or disk is a warning."""
        return self in (RequirementKind.ARCHITECTURE, RequirementKind.PORT)


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a service needs, what a host has, and whether that is enough."""

    kind: RequirementKind
    needed: str
    found: str
    verdict: Verdict
    which: str = ""
    """The one of several: `8080/tcp`."""

    @property
    def name(self) -> str:
        return f"{self.kind} {self.which}".rstrip()


async def collect_requirements(machine: Machine, seconds: float = 30) -> Facts:
    return await machine.collect_facts(sections=SECTIONS, seconds=seconds)


def check_requirements(
    template: Template, values: Mapping[str, Any], facts: Facts, folder: str, own: Mapping[str, Any]
) -> list[Requirement]:
    """Every requirement, checked against what is available.

    `own` are the settings of an existing installation: what it already uses is not missing.
    """
    rows: list[Requirement] = []
    own_ports = template.ports(own) if own else []
    if wanted := template.needs.architectures:
        found = facts.system.architecture if facts.system else None
        known = ARCHITECTURES.get(found or "", found)
        verdict = _verdict(known and known in wanted)
        rows.append(Requirement(RequirementKind.ARCHITECTURE, ", ".join(wanted), known or "", verdict))
    if least := bytes_of(template.needs.memory):
        memory = _memory(facts.memory)
        enough = None if memory is None else bool(own) or memory >= least
        rows.append(Requirement(RequirementKind.MEMORY, template.needs.memory, _size(memory), _verdict(enough)))
    if least := bytes_of(template.needs.disk):
        free = _free(facts.filesystems or (), folder)
        enough = None if free is None else bool(own) or free >= least
        rows.append(Requirement(RequirementKind.DISK, template.needs.disk, _size(free), _verdict(enough)))
    for port, protocol in template.ports(values):
        taken = [one for one in facts.ports or () if (one.protocol, one.port) == (protocol, port)]
        free_port = None if facts.ports is None else (port, protocol) in own_ports or not taken
        by = "" if not taken else f"used{f' by {taken[0].process}' if taken[0].process else ''}"
        found = by or ("free" if free_port else "")
        rows.append(Requirement(RequirementKind.PORT, "free", found, _verdict(free_port), f"{port}/{protocol}"))
    return rows


def _verdict(enough: object) -> Verdict:
    return Verdict.NOT_KNOWN if enough is None else Verdict.OK if enough else Verdict.MISSING


def _free(filesystems: tuple[Filesystem, ...], folder: str) -> int | None:
    """The free space of the file system that contains the folder."""
    holding = [one for one in filesystems if f"{folder}/".startswith(f"{one.mount.rstrip('/')}/")]
    best = max(holding, key=lambda one: len(one.mount), default=None)
    return None if best is None else best.available


def _memory(found: Memory | None) -> int | None:
    if found is None:
        return None
    return found.total if found.available is None else found.available


def _size(count: int | None) -> str:
    if count is None:
        return ""
    return next((f"{count / unit:.1f}{name}" for unit, name in _UNITS if count >= unit), f"{count} bytes")
