"""Starting, stopping and what lies between."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.operations.registry import Risk
from quorate.surfaces.compat.declaring import Tool
from quorate.surfaces.compat.gates import ELEVATED
from quorate.surfaces.compat.gilby125.shapes import BOTH, NODE, VM, VMID, Kind, about_guest, told
from quorate.surfaces.compat.placed import changing_guest


@dataclass(frozen=True, slots=True)
class _Verb:
    name: str
    icon: str
    about: str
    tip: str = ""
    kinds: tuple[Kind, ...] = BOTH
    action: str = ""
    """Of guest_power, where it is called differently there."""


VERBS = (
    _Verb("start", "▶️", "Start a {}.", "**Tip**: `proxmox_get_vm_status` shows how it is doing."),
    _Verb("reboot", "🔄", "Reboot a running {} by asking its system."),
    _Verb(
        "shutdown",
        "⏸️",
        "Shut a {} down by asking its system. proxmox_stop_{} does not ask.",
    ),
    _Verb(
        "pause",
        "⏸️",
        "Pause a running {}; it stays in memory.",
        "**Tip**: `proxmox_resume_vm` lets it go on.",
        (VM,),
        "suspend",
    ),
    _Verb("resume", "▶️", "Let a paused {} go on.", kinds=(VM,)),
)


def _power(verb: _Verb, kind: Kind) -> Tool:
    action = verb.action or verb.name
    return Tool(
        f"proxmox_{verb.name}_{kind.suffix}",
        verb.about.format(kind.word, kind.suffix),
        (NODE, VMID),
        Risk.CHANGE,
        f"guest_power action={action}",
        changing_guest(
            "guest_power",
            type=kind.type,
            action=action,
            shape=told(verb.icon, f"{verb.name.capitalize()} of {kind.word}", about_guest(kind), verb.tip),
        ),
        ELEVATED,
    )


def _stop(kind: Kind) -> Tool:
    return Tool(
        f"proxmox_stop_{kind.suffix}",
        f"Stop a {kind.word} at once; unsaved data is lost. proxmox_shutdown_{kind.suffix} asks it first.",
        (NODE, VMID),
        Risk.DESTROY,
        "guest_stop",
        changing_guest("guest_stop", type=kind.type, shape=told("⏹️", f"Stop of {kind.word}", about_guest(kind))),
        ELEVATED,
    )


TOOLS = (*(_power(verb, kind) for verb in VERBS for kind in verb.kinds), *map(_stop, BOTH))
