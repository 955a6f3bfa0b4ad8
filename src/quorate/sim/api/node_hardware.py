"""Hardware of a node, and what its QEMU can do."""

from __future__ import annotations

import re
from typing import Any

from quorate.sim import cpu_models, hardware
from quorate.sim.refusals import failure
from quorate.sim.routing import Call, route

_LIST = re.compile(r"[,;\s]+")
# Memory controllers, bridges and processors.
_HIDDEN_CLASSES = "05;06;0b"


@route("GET /nodes/{node}/hardware")
def index(_call: Call) -> list[dict[str, str]]:
    return [{"type": "pci"}, {"type": "usb"}]


@route("GET /nodes/{node}/hardware/pci")
def pci(call: Call) -> list[dict[str, Any]]:
    hidden = [kind for kind in _LIST.split(call.params.get("pci-class-blacklist", _HIDDEN_CLASSES)) if kind]
    return hardware.pci_devices(verbose=call.params.get("verbose", True), hidden_classes=hidden)


@route("GET /nodes/{node}/hardware/pci/{pci-id-or-mapping}")
def pci_index(_call: Call) -> list[dict[str, str]]:
    return [{"method": "mdev"}]


@route("GET /nodes/{node}/hardware/pci/{pci-id-or-mapping}/mdev")
def mediated_devices(call: Call) -> list[dict[str, Any]]:
    """None of the devices can be divided."""
    name = call.values["pci-id-or-mapping"]
    if re.fullmatch(r"(?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]", name):
        return []
    raise failure(f"no such resource mapping '{name}'" if name else "no such device")


@route("GET /nodes/{node}/hardware/usb")
def usb(_call: Call) -> list[dict[str, Any]]:
    return hardware.usb_devices()


@route("GET /nodes/{node}/capabilities")
def capabilities(_call: Call) -> list[dict[str, str]]:
    return [{"name": "qemu"}]


@route("GET /nodes/{node}/capabilities/qemu")
def qemu_capabilities(_call: Call) -> list[dict[str, str]]:
    return [{"name": name} for name in ("cpu", "machines", "migration")]


@route("GET /nodes/{node}/capabilities/qemu/cpu")
def cpu(_call: Call) -> list[dict[str, Any]]:
    return cpu_models.cpu_models()


@route("GET /nodes/{node}/capabilities/qemu/cpu-flags")
def cpu_flags(_call: Call) -> list[dict[str, str]]:
    return cpu_models.cpu_flags()


@route("GET /nodes/{node}/capabilities/qemu/machines")
def machines(_call: Call) -> list[dict[str, str]]:
    return cpu_models.machine_types()


@route("GET /nodes/{node}/capabilities/qemu/migration")
def migration(_call: Call) -> dict[str, bool]:
    return {"has-dbus-vmstate": True}
