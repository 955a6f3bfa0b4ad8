"""What is plugged into the nodes: PCI and USB devices."""

from __future__ import annotations

from typing import Any

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
    """The PCI devices, without the classes that nobody passes through (bridges, memory, processors)."""
    return [
        _pci(*device, verbose=verbose)
        for device in _PCI
        if not any(device[1].startswith(f"0x{hidden}") for hidden in hidden_classes)
    ]


def _pci(
    path: str, kind: str, vendor: str, vendor_name: str, device: str, name: str, group: int, *, verbose: bool
) -> dict[str, Any]:
    row: dict[str, Any] = {"id": path}
    if not verbose:
        return row
    return row | {
        "class": kind,
        "vendor": vendor,
        "vendor_name": vendor_name,
        "device": device,
        "device_name": name,
        "subsystem_vendor": vendor,
        "subsystem_vendor_name": vendor_name,
        "subsystem_device": device,
        "iommugroup": group,
    }


def usb_devices() -> list[dict[str, Any]]:
    """The USB devices: the root hub, a Zigbee stick and a UPS."""
    return [
        _usb(1, 1, 0, 0, 9, "1d6b", "0002", "480", "Linux Foundation", "xHCI Host Controller"),
        _usb(1, 3, 1, 2, 0, "10c4", "ea60", "12", "Silicon Labs", "Sonoff Zigbee 3.0 USB Dongle Plus"),
        _usb(1, 4, 1, 3, 0, "051d", "0002", "1.5", "American Power Conversion", "Back-UPS ES 700G"),
    ]


def _usb(
    bus: int, device: int, level: int, port: int, kind: int, vendor: str, model: str, speed: str, maker: str, name: str
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "busnum": bus,
        "devnum": device,
        "level": level,
        "port": port,
        "class": kind,
        "vendid": vendor,
        "prodid": model,
        "speed": speed,
        "manufacturer": maker,
        "product": name,
    }
    return row | ({"usbpath": str(port)} if level else {})
