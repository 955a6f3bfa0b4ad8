"""Which of the devices that a scan did not find are really gone."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Iterable, Sequence

from quorate.homelab.devices.device import Device, bare
from quorate.homelab.network.probe import Pace, PortState, Scan
from quorate.homelab.network.targets import Address

KNOCKS = 3
PATIENCE_SECONDS = 2.0
AT_ONCE = 128
SECONDS = 8.0


async def find_absent(devices: Iterable[Device], scan: Scan, wanted: Sequence[Address], pace: Pace) -> list[Device]:
    """Devices within the scanned range that no longer answer at their address.

    One that had open ports has to answer on them: the neighbor table remembers departed devices for a while.
    """
    looked_at = {str(one) for one in wanted} - {str(one) for one in scan.unfinished}
    answered = {str(one.address) for one in scan.devices.values() if not one.quiet}
    heard = {str(one.address) for one in scan.devices.values() if one.quiet}

    def is_missed(device: Device) -> bool:
        met = answered if _known_open(device) else answered | heard
        return device.state == "up" and device.address in looked_at and not met & _bare(device)

    missing = [one for one in devices if is_missed(one)]
    queue = iter(missing)
    answers: dict[int, bool] = {}

    async def work() -> None:
        for one in queue:
            answers[one.id] = await _answers(one, pace)

    with contextlib.suppress(TimeoutError):  # devices without a verdict keep their state
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as workers:
            for _ in range(min(AT_ONCE, len(missing))):
                workers.create_task(work())
    return [one for one in missing if answers.get(one.id) is False]


def _bare(device: Device) -> set[str]:
    return {bare(one) for one in device.addresses}


async def _answers(device: Device, pace: Pace) -> bool:
    """Whether it answers on a port that was open. For a device without one, the neighbor table decides."""
    for port in _known_open(device)[:KNOCKS]:
        address = ipaddress.ip_address(device.address)
        if await pace.probe(address, port, PATIENCE_SECONDS) is not PortState.SILENT:
            return True
    return not (_known_open(device) or device.macs)


def _known_open(device: Device) -> list[int]:
    listening = (device.facts.ports or ()) if device.facts else ()
    heard = [one.port for one in listening if one.protocol == "tcp" and not one.address.startswith(("127.", "::1"))]
    return list(dict.fromkeys([*device.open_ports, *heard]))
