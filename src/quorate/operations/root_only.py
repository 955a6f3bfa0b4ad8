"""Options of guests that PVE lets only root@pam itself set, which no token is: refused before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from quorate.problems import PermissionMissing
from quorate.pve import values
from quorate.pve.cluster import Cluster

ROOT = "root@pam"

_VM_OPTIONS = frozenset(
    [
        "affinity",
        "amd-sev",
        "arch",
        "args",
        "hookscript",
        "hugepages",
        "intel-tdx",
        "ivshmem",
        "keephugepages",
        "lock",
        "spice_enhancements",
        "vmgenid",
    ]
)
_NUMBERED = re.compile(r"(?P<stem>[a-z]+)\d+")


def refuse_root_only(
    pve: Cluster, settings: Mapping[str, Any], *, is_vm: bool, way_out: str, before: Mapping[str, Any] | None = None
) -> None:
    """`settings` are the options with the values they get, or had if they are removed; `before` is a container's
    configuration, as PVE looks at what changes in its features."""
    if pve.client.identity == ROOT:
        return
    found = _of_vm(settings) if is_vm else _of_container(settings, before or {})
    for name, what in found:
        raise PermissionMissing(
            f"{pve.client.identity} may not set {name}{what}",
            why="PVE lets only root@pam logged in with a password do that; no token can, whatever its privileges",
            next_step=way_out.format(option=name),
        )


def _of_vm(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        stem, text = _stem(name), str(value)
        parts = values.parse(text, "host")
        if name in _VM_OPTIONS or stem == "parallel":
            yield name, ""
        elif stem == "serial" and text != "socket":
            yield name, f" to a device of the node ({text}); any user may use socket"
        elif stem in ("usb", "hostpci") and "mapping" not in parts and parts.get("host", "").lower() != "spice":
            yield name, " to a device of the node; for one with a resource mapping, use mapping=NAME"
        elif values.bus_of(name) in values.DISKS and values.volume_of(text).startswith("/"):
            yield name, " to a path of the node"


def _of_container(settings: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        text = str(value)
        if name == "hookscript" or _stem(name) == "dev":
            yield name, ""
        elif values.bus_of(name) in values.DISKS and values.volume_of(text).startswith("/"):
            yield name, " to a path of the node"
        elif name == "features" and not values.is_on(before.get("unprivileged", 0)):
            yield name, " of a privileged container"
        elif name == "features" and _without_nesting(text) != _without_nesting(str(before.get("features", ""))):
            yield name, " other than nesting"


def _stem(name: str) -> str:
    numbered = _NUMBERED.fullmatch(name)
    return numbered["stem"] if numbered else ""


def _without_nesting(features: str) -> dict[str, str]:
    return {name: value for name, value in values.parse(features).items() if name != "nesting" and value != "0"}
