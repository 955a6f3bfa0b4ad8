"""Who is really gone, of those that a scan did not meet."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Iterable, Sequence

from quorate.homelab.devices.device import Device, bare
from quorate.homelab.network.probing import Answer, Pace
from quorate.homelab.network.seen import Scan
from quorate.homelab.network.targets import Address

KNOCKS = 3
PATIENCE_SECONDS = 2.0
AT_ONCE = 128
SECONDS = 8.0


async def absent(devices: Iterable[Device], scan: Scan, wanted: Sequence[Address], pace: Pace) -> list[Device]:
    """Devices that stood where the scan looked and do not answer where they used to.

    One that had open ports has to answer at them: the neighbour table remembers for a while who has left.
    """
    looked_at = {str(one) for one in wanted} - {str(one) for one in scan.unfinished}
    answered = {str(one.address) for one in scan.seen.values() if not one.quiet}
    heard = {str(one.address) for one in scan.seen.values() if one.quiet}

    def is_missed(device: Device) -> bool:
        met = answered if _known_open(device) else answered | heard
        return device.state == "up" and device.address in looked_at and not met & _bare(device)

    missing = [one for one in devices if is_missed(one)]
    queue = iter(missing)
    answers: dict[int, bool] = {}

    async def work() -> None:
        for one in queue:
            answers[one.id] = await _answers(one, pace)

    with contextlib.suppress(TimeoutError):  # of whom it is not known by then, nothing is said
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as workers:
            for _ in range(min(AT_ONCE, len(missing))):
                workers.create_task(work())
    return [one for one in missing if answers.get(one.id) is False]


def _bare(device: Device) -> set[str]:
    return {bare(one) for one in device.addresses}


async def _answers(device: Device, pace: Pace) -> bool:
    """Whether it is there at a port that was open. Of one that never had any, the neighbour table has told."""
    for port in _known_open(device)[:KNOCKS]:
        address = ipaddress.ip_address(device.address)
        if await pace.probe(address, port, PATIENCE_SECONDS) is not Answer.SILENT:
            return True
    return not (_known_open(device) or device.macs)


def _known_open(device: Device) -> list[int]:
    listening = (device.facts.ports or ()) if device.facts else ()
    heard = [one.port for one in listening if one.protocol == "tcp" and not one.address.startswith(("127.", "::1"))]
    return list(dict.fromkeys([*device.open_ports, *heard]))
