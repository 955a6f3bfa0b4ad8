"""USB and PCI devices, and graphics cards."""

from __future__ import annotations

import re

from quorate.inside.facts.model import Pci, Usb
from quorate.inside.facts.parsing import name, quoted_words, settings
from quorate.inside.facts.script import Answers

_ROOT_HUB = "1d6b:"  # the Linux kernel's own name for its controllers
_GRAPHICS = ("VGA", "3D controller", "Display controller", "display", "Class 03")
# The first byte of a class, as the kernel reports it.
_KINDS = {
    1: "Storage controller", 2: "Network controller", 3: "Display controller", 4: "Multimedia controller",
    5: "Memory controller", 6: "Bridge", 7: "Communication controller", 8: "System peripheral",
    12: "Serial bus controller", 13: "Wireless controller", 18: "Processing accelerator",
}  # fmt: skip


def usb(answers: Answers) -> tuple[Usb, ...] | None:
    found = re.findall(r"^Bus [0-9]+ Device [0-9]+: ID ([0-9a-f]{4}:[0-9a-f]{4})(.*)$", answers.get("lsusb"), re.M)
    if not found:
        found = re.findall(r"^([0-9a-f]{4}:[0-9a-f]{4})\t(.*)$", answers.get("sys_usb"), re.M)
    if not found and not _is_empty(answers, "lsusb", "sys_usb"):
        return None
    named = [Usb(identity, name(words)) for identity, words in found if not identity.startswith(_ROOT_HUB)]
    return tuple(sorted(named, key=lambda one: (one.id, one.name or "")))


def pci(answers: Answers) -> tuple[Pci, ...] | None:
    for source, read in (("lspci", _lspci), ("pciconf", _pciconf), ("sys_pci", _sys_pci)):
        if found := read(answers.get(source)):
            return tuple(sorted(found, key=lambda one: one.slot))
    return () if _is_empty(answers, "lspci", "sys_pci") else None


def gpus(answers: Answers) -> tuple[str, ...] | None:
    listed = pci(answers)
    if listed is None:
        return None
    return tuple(one.name or one.kind or one.slot for one in listed if (one.kind or "").startswith(_GRAPHICS))


def _is_empty(answers: Answers, *sources: str) -> bool:
    """Empty output of a source means that there are none; an error message does not."""
    return any(answers.texts.get(one) == "" for one in sources)


def _lspci(text: str) -> list[Pci]:
    """00:02.0 "VGA compatible controller" "Intel Corporation" "UHD Graphics 630" -r02 "" "" """
    found = []
    for line in text.splitlines():
        words = quoted_words(line)
        if len(words) >= 4 and re.fullmatch(r"[0-9a-f:]{2,10}:[0-9a-f]{2}\.[0-7]", words[0]):
            found.append(Pci(words[0], name(words[1]), name(f"{words[2]} {words[3]}")))
    return found


def _pciconf(text: str) -> list[Pci]:
    """`vgapci0@pci0:0:2:0: class=0x030000 …`, then indented `vendor = '…'`, `device = '…'`, `class = display`."""
    found = []
    for block in re.split(r"\n(?=\S)", text):
        head = re.match(r"\S+@pci([0-9:]+):\s", block)
        values = settings(block.partition("\n")[2])
        if head and values:
            model = name(f"{values.get('vendor', '')} {values.get('device', '')}")
            found.append(Pci(head[1], name(values.get("class", "")), model))
    return found


def _sys_pci(text: str) -> list[Pci]:
    listed = re.findall(
        r"^([0-9a-f:.]{5,16})\t0x([0-9a-f]{2})[0-9a-f]{4}\t0x([0-9a-f]{4}):0x([0-9a-f]{4})$", text, re.M
    )
    return [Pci(slot, _KINDS.get(int(kind, 16)), f"{vendor}:{device}") for slot, kind, vendor, device in listed]
