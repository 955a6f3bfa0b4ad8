"""Answers of the recorded machine that depend on its hardware and setup, not on PVE.

The recordings come from a small single node in a virtual machine without own disks, journal or external network, with
replacements for some system services. Paths of answers where that shows are listed here with the reason; the replay
ignores only these.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class HostSpecific:
    """A path in the answers of some endpoints.

    `template` is the endpoint's path with its placeholders (`*` matches anything). `path` is where in the body:
    `data.[].foo` is the key foo of the elements of data. Its value and its presence depend on the host; nothing at or
    below it is compared.
    """

    template: str
    path: str
    reason: str
    only: str = ""  # the section of the recordings; "" for all


HOST_SPECIFIC_PATHS: tuple[HostSpecific, ...] = (
    HostSpecific(
        "/nodes/{node}/status",
        "data.boot-info.secureboot",
        "the recorded host had started from a legacy BIOS, where PVE omits it",
    ),
    HostSpecific(
        "/nodes/{node}/journal",
        "",
        "the recorded host had no journal; its answer is an empty compressed body instead of a list of lines",
    ),
    HostSpecific(
        "/nodes/{node}/apt/repositories",
        "data.files.[]",
        "the recorded host had no package sources",
    ),
    HostSpecific(
        "/nodes/{node}/apt/repositories",
        "data.infos.[]",
        "the recorded host had no package sources",
    ),
    HostSpecific(
        "/nodes/{node}/apt/repositories",
        "data.standard-repos.[].status",
        "the recorded host had a stand-in for the list of standard repositories",
    ),
    HostSpecific(
        "/nodes/{node}/apt/versions",
        "data.[].RunningKernel",
        "the recorded host ran an unpackaged kernel; PVE marks only a packaged one",
    ),
    HostSpecific(
        "/nodes/{node}/apt/versions",
        "data.[].ManagerVersion",
        "the recorded host's pve-manager was not a package; PVE marks only packages",
    ),
    HostSpecific(
        "/nodes/{node}/aplinfo",
        "data.[]",
        "the recorded host could not load the list of appliance templates",
    ),
    HostSpecific(
        "/nodes/{node}/hardware/usb",
        "data.[]",
        "the recorded host had no USB devices",
    ),
    HostSpecific(
        "/nodes/{node}/rrddata",
        "data.[].*",
        "the recorded host had been up for too short a time to have measurements; a later request has them",
        only="node",
    ),
    HostSpecific(
        "/nodes/{node}/lxc/{vmid}/rrddata",
        "data.[].*",
        "the recorded container was too young to have measurements",
    ),
    HostSpecific(
        "/nodes/{node}/qemu/{vmid}/status/current",
        "data.blockstat.*zone_append*",
        "the recorded host ran an older QEMU, which does not count them",
    ),
    HostSpecific(
        "/nodes/{node}/qemu/{vmid}/status/current",
        "data.proxmox-support.backup-*",
        "the recorded host ran an older QEMU with fewer features",
    ),
    HostSpecific(
        "/cluster/tasks",
        "data.[].saved",
        "a number in the entry that the answering process itself has just written, a string in all others",
    ),
)


def is_host_specific(template: str, section: str, path: str) -> bool:
    """Whether an answer of this endpoint may differ at this path."""
    return any(
        fnmatchcase(template, _literal(known.template))
        and fnmatchcase(path, _literal(known.path))
        and known.only in ("", section)
        for known in HOST_SPECIFIC_PATHS
    )


def _literal(pattern: str) -> str:
    """A pattern in which only `*` is special."""
    return pattern.replace("[", "[[]").replace("?", "[?]")
