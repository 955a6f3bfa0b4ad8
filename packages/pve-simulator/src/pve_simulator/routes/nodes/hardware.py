"""PCI and USB devices of a node, and the capabilities of CPU and QEMU."""

from __future__ import annotations

import re
from typing import Any

from pve_simulator.cluster.datacenter import Datacenter
from pve_simulator.guests import options
from pve_simulator.http.parameters import split_list
from pve_simulator.http.refusals import failure
from pve_simulator.http.routing import Call, route

# id, class, vendor, vendor's name, device, device's name, IOMMU group
_PCI = (
    ("0000:00:00.0", "0x060000", "0x1022", "Advanced Micro Devices, Inc. [AMD]", "0x1630", "Renoir Root Complex", 0),
    ("0000:01:00.0", "0x010802", "0x144d", "Samsung Electronics Co Ltd", "0xa80a", "NVMe SSD Controller PM9A1", 8),
    ("0000:02:00.0", "0x020000", "0x8086", "Intel Corporation", "0x15f3", "Ethernet Controller I225-V", 9),
    ("0000:05:00.0", "0x030000", "0x1002", "Advanced Micro Devices, Inc. [AMD/ATI]", "0x1638", "Cezanne [Radeon]", 12),
    ("0000:05:00.3", "0x0c0330", "0x1022", "Advanced Micro Devices, Inc. [AMD]", "0x1639", "Renoir USB 3.1", 12),
    ("0000:06:00.0", "0x010601", "0x1022", "Advanced Micro Devices, Inc. [AMD]", "0x7901", "FCH SATA Controller", 13),
)


def pci_devices(*, verbose: bool, hidden_classes: list[str]) -> list[dict[str, Any]]:
    """The PCI devices, without bridges, memory controllers and processors."""
    return [
        _pci(*device, verbose=verbose)
        for device in _PCI
        if not any(device[1].startswith(f"0x{hidden}") for hidden in hidden_classes)
    ]


_PCI_FIELDS = split_list("id class vendor vendor_name device device_name iommugroup")
_PCI_SUBSYSTEM = split_list("vendor vendor_name device")


def _pci(*values: str | int, verbose: bool) -> dict[str, Any]:
    row = dict(zip(_PCI_FIELDS, values, strict=True))
    return row | {f"subsystem_{name}": row[name] for name in _PCI_SUBSYSTEM} if verbose else {"id": row["id"]}


def usb_devices() -> list[dict[str, Any]]:
    """The USB devices: the root hub, a Zigbee stick and a UPS."""
    return [
        _usb(1, 1, 0, 0, 9, "1d6b", "0002", "480", "Linux Foundation", "xHCI Host Controller"),
        _usb(1, 3, 1, 2, 0, "10c4", "ea60", "12", "Silicon Labs", "Sonoff Zigbee 3.0 USB Dongle Plus"),
        _usb(1, 4, 1, 3, 0, "051d", "0002", "1.5", "American Power Conversion", "Back-UPS ES 700G"),
    ]


_USB_FIELDS = split_list("busnum devnum level port class vendid prodid speed manufacturer product")


def _usb(*values: str | int) -> dict[str, Any]:
    row = dict(zip(_USB_FIELDS, values, strict=True))
    return row | ({"usbpath": str(row["port"])} if row["level"] else {})


# Memory controllers, bridges and processors.
_HIDDEN_CLASSES = "05;06;0b"


@route("GET /nodes/{node}/hardware/pci")
def pci(call: Call) -> list[dict[str, Any]]:
    hidden = split_list(call.params.get("pci-class-blacklist", _HIDDEN_CLASSES))
    return pci_devices(verbose=call.params.get("verbose", True), hidden_classes=hidden)


@route("GET /nodes/{node}/hardware/pci/{pci-id-or-mapping}/mdev")
def mediated_devices(call: Call) -> list[dict[str, Any]]:
    """No device supports mediated devices."""
    name = call.values["pci-id-or-mapping"]
    if re.fullmatch(r"(?:[0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]", name):
        return []
    raise failure(f"no such resource mapping '{name}'" if name else "no such device")


@route("GET /nodes/{node}/hardware/usb")
def usb(_call: Call) -> list[dict[str, Any]]:
    return usb_devices()


@route("GET /nodes/{node}/capabilities/qemu/cpu")
def cpu(call: Call) -> list[dict[str, Any]]:
    own = call.world.part(Datacenter).cpu_models.sections
    return options.cpu_models() + [
        {"name": f"custom-{name}", "vendor": options.vendor(model.get("reported-model", "kvm64")), "custom": 1}
        for name, model in own.items()
    ]


@route("GET /nodes/{node}/capabilities/qemu/cpu-flags")
def cpu_flags(_call: Call) -> list[dict[str, str]]:
    return options.cpu_flags()


@route("GET /nodes/{node}/capabilities/qemu/machines")
def machines(_call: Call) -> list[dict[str, str]]:
    return options.machine_types()
