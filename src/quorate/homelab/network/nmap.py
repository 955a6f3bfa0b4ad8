"""A scan by nmap, if the operator has installed it."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import shutil
from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

from quorate.hints import Advice, either
from quorate.homelab.network.probe import Scan, ScannedDevice
from quorate.homelab.network.targets import Address
from quorate.problems import NotConfigured, Problem, ServerFailed


def is_installed() -> bool:
    return shutil.which("nmap") is not None


async def scan(wanted: Sequence[Address], ports: Sequence[int], *, rate: float, seconds: float) -> Scan:
    """A connect scan after pings; addresses that are not finished in time do not count as silent."""
    if not is_installed():
        raise NotConfigured(
            "nmap is not installed where Quorate runs",
            next_step=either(Advice("Use {engine}", engine="builtin"), "install nmap there"),
        )
    found: dict[Address, ScannedDevice] = {}
    unfinished: list[Address] = []
    for version in (4, 6):
        group = [one for one in wanted if one.version == version]
        if not group:
            continue
        text = await _run(_command(group, ports, rate, version), seconds)
        if text is None:
            unfinished += group
            continue
        found |= {one.address: one for one in parse(text) if one.address in group}
    for one in found.values():
        one.closed = set(ports) - one.open
    return Scan(found, unfinished, tuple(ports), "nmap")


def _command(group: Sequence[Address], ports: Sequence[int], rate: float, version: int) -> list[str]:
    """Contains only our own numbers and addresses."""
    four = [ipaddress.IPv4Network(one) for one in group if one.version == 4]
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


def parse(text: str) -> Iterable[ScannedDevice]:
    """The hosts that are up in nmap's XML."""
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - nmap is the operator's own
    except ElementTree.ParseError as error:
        raise Problem("The output of nmap cannot be parsed", why=str(error)) from None
    for host in root.iter("host"):
        status = host.find("status")
        if status is None or status.get("state") != "up" or status.get("reason") == "user-set":
            continue
        given = {one.get("addrtype"): one.get("addr", "") for one in host.iter("address")}
        try:
            seen = ScannedDevice(ipaddress.ip_address(given.get("ipv4") or given.get("ipv6") or ""))
        except ValueError:
            continue
        seen.mac = given.get("mac", "").lower()
        for port in host.iter("port"):
            state, number = port.find("state"), port.get("portid", "")
            if state is not None and state.get("state") == "open" and number.isdecimal():
                seen.open.add(int(number))
        yield seen
