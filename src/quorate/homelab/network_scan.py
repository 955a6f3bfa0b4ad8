"""A network scan (by connecting, or with nmap where it is installed), and which known devices it missed."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import shutil
import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from quorate.hints import Advice, either
from quorate.homelab.devices.device import Device, Sighting, bare, macs, read_fingerprint
from quorate.homelab.homelab import Homelab
from quorate.homelab.machines import Machine, find_machine
from quorate.homelab.network_probe import Address, Pace, PortState, Scan, ScannedDevice, heard_of, neighbors, probe_all
from quorate.homelab.selection import HOST_SECONDS, NoSshServer, has_gone_silent, knock
from quorate.problems import NotConfigured, Problem, ServerFailed, Unreachable
from quorate.pve.tasks import Report, for_each


def is_installed() -> bool:
    return shutil.which("nmap") is not None


async def scan_with_nmap(addresses: Sequence[Address], ports: Sequence[int], *, rate: float, seconds: float) -> Scan:
    """A connect scan after pings; addresses that are not finished in time do not count as silent."""
    if not is_installed():
        raise NotConfigured(
            "nmap is not installed where Quorate runs",
            next_step=either(Advice("Use {engine}", engine="builtin"), "install nmap there"),
        )
    devices: dict[Address, ScannedDevice] = {}
    unfinished: list[Address] = []
    for version in (4, 6):
        group = [address for address in addresses if address.version == version]
        if not group:
            continue
        text = await _run(_command(group, ports, rate, version), seconds)
        if text is None:
            unfinished += group
            continue
        devices |= {device.address: device for device in parse_nmap(text) if device.address in group}
    for device in devices.values():
        device.closed = set(ports) - device.open
    return Scan(devices, unfinished, tuple(ports), "nmap")


def _command(group: Sequence[Address], ports: Sequence[int], rate: float, version: int) -> list[str]:
    """Contains only our own numbers and addresses."""
    four = [ipaddress.IPv4Network(address) for address in group if address.version == 4]
    places = list(ipaddress.collapse_addresses(four)) if four else group
    return [
        "nmap", *(["-6"] if version == 6 else []), "-sT", "-n", "--max-rate", f"{rate:g}", "--max-retries", "1",
        "--host-timeout", "20s", "-p", ",".join(map(str, ports)), "-oX", "-", *map(str, places),
    ]  # fmt: skip


async def _run(command: list[str], seconds: float) -> str | None:
    """Its output; None if it did not finish in time."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(seconds):
            text, complaint = await process.communicate()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        why = complaint.decode("utf-8", "replace").strip()[:300] or f"It ended with {process.returncode}"
        raise ServerFailed("nmap failed", why=why, next_step=Advice("Use {engine}", engine="builtin"))
    return text.decode("utf-8", "replace")


def parse_nmap(text: str) -> Iterable[ScannedDevice]:
    """The hosts that are up in nmap's XML."""
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - nmap is the operator's own
    except ElementTree.ParseError as error:
        raise Problem("The output of nmap cannot be parsed", why=str(error)) from None
    for host in root.iter("host"):
        status = host.find("status")
        if status is None or status.get("state") != "up" or status.get("reason") == "user-set":
            continue
        addresses = {element.get("addrtype"): element.get("addr", "") for element in host.iter("address")}
        try:
            seen = ScannedDevice(ipaddress.ip_address(addresses.get("ipv4") or addresses.get("ipv6") or ""))
        except ValueError:
            continue
        seen.mac = addresses.get("mac", "").lower()
        for port in host.iter("port"):
            state, number = port.find("state"), port.get("portid", "")
            if state is not None and state.get("state") == "open" and number.isdecimal():
                seen.open.add(int(number))
        yield seen


Engine = Literal["builtin", "nmap", "auto"]

PATIENCE_SECONDS = 1.0
FIRST_LOOK = 3
"""The number of ports that are tried at every address; the others only where something answers."""
NEIGHBOR_SECONDS = 10.0
"""The kernel verifies a stale neighbor after five seconds, with up to three requests."""
NAME_SECONDS = 1.0
NAMES_SECONDS = 3.0
REPORT_EVERY = 256


async def scan(
    addresses: Sequence[Address],
    ports: Sequence[int],
    pace: Pace,
    *,
    seconds: float,
    engine: Engine = "builtin",
    report: Report | None = None,
) -> Scan:
    """Scan all of them. Addresses that were not finished within `seconds` are listed as such."""
    if engine == "nmap" or (engine == "auto" and is_installed()):
        done = await scan_with_nmap(addresses, ports, rate=pace.per_second, seconds=seconds)
    else:
        done = await _connect_scan(addresses, ports, pace, seconds, report)
    known = await neighbors()
    for device in done.devices.values():
        device.mac = device.mac or known.get(str(device.address), "")
    await _name(list(done.devices.values()))
    return done


async def _connect_scan(
    addresses: Sequence[Address], ports: Sequence[int], pace: Pace, seconds: float, report: Report | None
) -> Scan:
    """First a few ports of every address, then the others of those that answer."""
    seen: dict[Address, ScannedDevice] = {}
    looked_at: dict[Address, int] = {}
    first, rest = ports[:FIRST_LOOK], ports[FIRST_LOOK:]
    tried = 0

    async def note(address: Address, port: int, answer: PortState) -> None:
        nonlocal tried
        tried += 1
        looked_at[address] = looked_at.get(address, 0) + 1
        if answer is not PortState.SILENT:
            seen.setdefault(address, ScannedDevice(address)).quiet = False
        if answer is PortState.OPEN:
            seen[address].open.add(port)
        if report is not None and tried % REPORT_EVERY == 0:
            line = f"{len(seen)} of {len(looked_at)} addresses have answered"
            await report(float(len(looked_at)), float(len(addresses)), line)

    async def add_quiet(patience: float) -> None:
        silent = {str(address): address for address in addresses if address not in seen}
        heard = await heard_of(silent.keys(), pace.clock, patience)
        seen.update({silent[address]: ScannedDevice(silent[address], quiet=True) for address in heard})

    try:
        async with asyncio.timeout(seconds):
            # Address by address, so that finished addresses are complete when the time is up.
            await probe_all(
                ((address, port) for address in addresses for port in first), pace, patience=PATIENCE_SECONDS, note=note
            )
            await add_quiet(NEIGHBOR_SECONDS)
            present = list(seen)
            await probe_all(
                ((address, port) for address in present for port in rest), pace, patience=PATIENCE_SECONDS, note=note
            )
    except TimeoutError:
        await add_quiet(0)
    unfinished = [
        address for address in addresses if looked_at.get(address, 0) < (len(ports) if address in seen else len(first))
    ]
    for address in unfinished:
        seen.pop(address, None)
    for device in seen.values():
        device.closed = set(ports) - device.open
    return Scan(seen, unfinished, tuple(ports), "builtin")


async def _name(devices: list[ScannedDevice]) -> None:
    """Resolve names, unless the first lookup is slow: a hanging resolver is asked only once."""
    if not devices:
        return
    loop = asyncio.get_running_loop()
    helpers = ThreadPoolExecutor(4, thread_name_prefix="quorate-names")

    async def ask(device: ScannedDevice) -> None:
        device.name = await loop.run_in_executor(helpers, _reverse, str(device.address))

    try:
        async with asyncio.timeout(NAME_SECONDS):
            await ask(devices[0])
        async with asyncio.timeout(NAMES_SECONDS):
            await asyncio.gather(*(ask(device) for device in devices[1:]))
    except TimeoutError:
        pass
    finally:
        helpers.shutdown(wait=False, cancel_futures=True)


def _reverse(address: str) -> str:
    try:
        return socket.getnameinfo((address, 0), socket.NI_NAMEREQD)[0]
    except OSError:
        return ""


# -- known devices after a scan ----------------------------------------------------------------------------------------


KNOCKS = 3
KNOCK_PATIENCE_SECONDS = 2.0
AT_ONCE = 128
SECONDS = 8.0


async def find_absent(devices: Iterable[Device], scan: Scan, addresses: Sequence[Address], pace: Pace) -> list[Device]:
    """Devices within the scanned range that no longer answer at their address.

    One that had open ports has to answer on them: the neighbor table remembers departed devices for a while.
    """
    looked_at = {str(address) for address in addresses} - {str(address) for address in scan.unfinished}
    answered = {str(device.address) for device in scan.devices.values() if not device.quiet}
    heard = {str(device.address) for device in scan.devices.values() if device.quiet}

    def is_missed(device: Device) -> bool:
        met = answered if _known_open(device) else answered | heard
        return (
            device.state == "up"
            and device.address in looked_at
            and not met & {bare(address) for address in device.addresses}
        )

    missing = [device for device in devices if is_missed(device)]
    answers: dict[int, bool] = {}

    async def knock_on(device: Device) -> None:
        answers[device.id] = await _answers(device, pace)

    with contextlib.suppress(TimeoutError):  # devices without a verdict keep their state
        async with asyncio.timeout(SECONDS):
            await for_each(AT_ONCE, missing, knock_on)
    return [device for device in missing if answers.get(device.id) is False]


async def _answers(device: Device, pace: Pace) -> bool:
    """True if it answers on a port that was open. For a device without one, the neighbor table decides."""
    for port in _known_open(device)[:KNOCKS]:
        address = ipaddress.ip_address(device.address)
        if await pace.probe(address, port, KNOCK_PATIENCE_SECONDS) is not PortState.SILENT:
            return True
    return not (_known_open(device) or device.macs)


def _known_open(device: Device) -> list[int]:
    listening = (device.facts.ports or ()) if device.facts else ()
    heard = [port.port for port in listening if port.protocol == "tcp" and not port.address.startswith(("127.", "::1"))]
    return list(dict.fromkeys([*device.open_ports, *heard]))


SPARE_SECONDS = 4.0
"""Reserved for the login."""


@dataclass
class SurveyResult:
    """The result for one machine."""

    ref: str
    seen: Sighting | None = None
    why: str = ""
    absent: bool = False
    """True if nothing answers there, as opposed to a refused login."""


async def survey_machines(
    homelab: Homelab, refs: Iterable[str], *, at_once: int, seconds: float, report: Report | None = None
) -> list[SurveyResult]:
    """Log in to each machine and collect its facts, in order. Those not done after `seconds` are abandoned."""
    looks = [SurveyResult(ref, why="There was not enough time for it") for ref in dict.fromkeys(refs)]
    done = 0

    async def look_at(look: SurveyResult) -> None:
        nonlocal done
        await _look(homelab, look)
        done += 1
        if report is not None:
            await report(float(done), float(len(looks)), f"{look.ref}: {look.why or 'discovered'}")

    with contextlib.suppress(TimeoutError):  # finished results count
        async with asyncio.timeout(seconds):
            await for_each(at_once, looks, look_at)
    return looks


async def _look(homelab: Homelab, look: SurveyResult) -> None:
    look.why = "It was not finished in time"
    machine = None
    try:
        async with asyncio.timeout(HOST_SECONDS):
            machine = await find_machine(homelab, look.ref)
            await knock(machine)
            look.seen = await collect_sighting(machine)
            look.why = ""
    except TimeoutError:
        look.why = f"It was not finished after {HOST_SECONDS:g} s"
        look.absent = machine is not None and await has_gone_silent(machine)
    except Problem as problem:
        look.why = problem.what
        if isinstance(problem, Unreachable):
            look.absent = not isinstance(problem, NoSshServer)
        elif machine is not None:  # a command over a dead connection fails in other ways
            look.absent = await has_gone_silent(machine)


async def collect_sighting(machine: Machine) -> Sighting:
    """Everything that can be found out about a machine, as a sighting."""
    looking = machine.collect_facts(seconds=HOST_SECONDS - SPARE_SECONDS)
    facts, (machine_id, serial) = await asyncio.gather(looking, read_fingerprint(machine))
    guest, cluster = machine.guest, machine.where
    place = f"{cluster.name}/{guest.vmid if guest else machine.name}" if cluster else ""
    return Sighting(
        kind=machine.kind,
        name=machine.name,
        ref=place or machine.name,
        place=place,
        node=guest.row.node if guest else "",
        address=machine.target.host if machine.target else "",
        macs=macs(facts.network) if facts.network else (),
        machine_id=machine_id,
        serial=serial,
        facts=facts,
    )
