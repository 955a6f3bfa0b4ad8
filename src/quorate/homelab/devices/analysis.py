"""Findings about the homelab, each with its evidence and what to do."""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from quorate.homelab.devices.device import Device, bare
from quorate.homelab.devices.sitemap import Sitemap
from quorate.homelab.devices.view import FULL_PERCENT, used_percent
from quorate.homelab.host import Host

NEARLY_FULL = 80
LITTLE_MEMORY = 10
"""Percent of memory that is still available."""
LONG_UNSEEN = 7 * 86400.0
SEVERITIES = ("critical", "warning", "notice")


@dataclass(frozen=True, slots=True)
class Finding:
    severity: str
    kind: str
    about: str
    evidence: str
    to_do: str


def findings(devices: Sequence[Device], map_: Sitemap, hosts: Sequence[Host], now: float) -> list[Finding]:
    """The most severe first."""
    present = [one for one in devices if one.state == "up"]
    found = [
        *_duplicates(
            present, "address", _addresses, "Assign another address to one of them, or release it in the DHCP server"
        ),
        *_duplicates(
            present, "MAC", lambda one: one.macs, "Assign a new MAC to one of them, as a cloned machine needs"
        ),
        *_single_points(present, map_, hosts),
        *(finding for one in present for finding in _of_machine(one)),
        *_old_kernels(present),
        *(finding for one in present for finding in _old_release(one, now)),
        *(finding for one in devices for finding in _unseen(one, now)),
    ]
    return sorted(found, key=lambda one: (SEVERITIES.index(one.severity), one.kind, one.about))


def _label(device: Device) -> str:
    return f"{device} (device {device.id})"


# -- the network -------------------------------------------------------------------------------------------------------


def _addresses(device: Device) -> Sequence[str]:
    return [bare(one) for one in device.addresses if not bare(one).startswith("127.")]


def _duplicates(
    devices: Sequence[Device], what: str, of: Callable[[Device], Sequence[str]], to_do: str
) -> Iterator[Finding]:
    holders: dict[str, list[Device]] = defaultdict(list)
    for device in devices:
        for value in set(of(device)):
            holders[value].append(device)
    for value, several in sorted(holders.items()):
        if len(several) > 1:
            names = ", ".join(map(_label, several))
            yield Finding("critical", f"duplicate {what}", value, f"{names} all have {what} {value}", to_do)


def _single_points(devices: Sequence[Device], map_: Sitemap, hosts: Sequence[Host]) -> Iterator[Finding]:
    networks = {one.id: one.facts.network for one in devices if one.facts and one.facts.network}
    by_gateway: dict[str, set[int]] = defaultdict(set)
    by_resolver: dict[str, set[int]] = defaultdict(set)
    for number, network in networks.items():
        routes = {gateway.split()[0] for gateway in network.gateways if gateway.split()}
        if len(routes) == 1:
            by_gateway[routes.pop()].add(number)
        resolvers = {one for one in network.dns if not one.startswith("127.") and one != "::1"}
        if len(resolvers) == 1:
            by_resolver[resolvers.pop()].add(number)
    names = {one.id: str(one) for one in devices}
    for gateway, users in sorted(by_gateway.items()):
        if len(users) > 1:
            yield _depends(
                "gateway",
                gateway,
                users,
                names,
                "Without it they cannot reach other networks; keep a spare or a second router",
            )
    for resolver, users in sorted(by_resolver.items()):
        if len(users) > 1:
            yield _depends(
                "DNS", resolver, users, names, "Configure a second resolver, in the DHCP server or on the hosts"
            )
    yield from _only_hypervisor(map_)
    yield from _shared_storage(devices)
    for jump in sorted({one.jump for one in hosts if one.jump}):
        through = [one.name for one in hosts if one.jump == jump]
        evidence = f"{_some(through)} can only be reached through {jump}"
        yield Finding("notice", "single jump host", jump, evidence, "Keep another access, such as a console")


def _depends(what: str, on: str, users: set[int], names: dict[int, str], to_do: str) -> Finding:
    who = _some([names[number] for number in sorted(users)])
    return Finding("notice", f"single {what}", on, f"{len(users)} devices have no other {what}: {who}", to_do)


def _only_hypervisor(map_: Sitemap) -> Iterator[Finding]:
    """A hypervisor whose guests have no other node."""
    carriers = [spot for _, _, spot in map_.everything() if spot.role == "hypervisor"]
    for spot in carriers:
        running = [guest.name for guest in spot.guests if guest.state == "up"]
        cluster = spot.place.partition("/")[0]
        others = [one for one in carriers if cluster and one is not spot and one.place.startswith(f"{cluster}/")]
        if running and not any(one.state == "up" for one in others):
            evidence = f"{len(running)} running guests have no other node: {_some(running)}"
            yield Finding(
                "warning", "single hypervisor", spot.name, evidence, "Keep backups elsewhere, or add a second node"
            )


def _shared_storage(devices: Sequence[Device]) -> Iterator[Finding]:
    users: dict[str, set[str]] = defaultdict(set)
    for device in devices:
        for one in (device.facts.filesystems or ()) if device.facts else ():
            if re.match(r"nfs|cifs|smb", one.type or "") and (server := _server(one.device)):
                users[server].add(str(device))
    for server, names in sorted(users.items()):
        if len(names) > 1:
            evidence = f"{len(names)} devices mount its file systems: {_some(sorted(names))}"
            yield Finding(
                "notice", "single storage", server, evidence, "Know what depends on it, and back it up elsewhere"
            )


def _server(source: str) -> str:
    """Of nas:/srv, //nas/share and user@nas:/x."""
    if source.startswith("//"):
        return source[2:].partition("/")[0].rpartition("@")[2]
    return source.partition(":/")[0].rpartition("@")[2] if ":/" in source else ""


# -- single machines ---------------------------------------------------------------------------------------------------


def _of_machine(device: Device) -> Iterator[Finding]:
    facts = device.facts
    if facts is None:
        return
    for one in facts.filesystems or ():
        used = used_percent(one)
        if used is not None and used >= NEARLY_FULL:
            severity = "critical" if used >= 95 else "warning" if used >= FULL_PERCENT else "notice"
            evidence = f"{one.mount} is {used}% full, {_gib(one.available or 0)} left"
            yield Finding(severity, "nearly full disk", _label(device), evidence, "Free up space, or enlarge it")
    memory = facts.memory
    if (
        memory
        and memory.total
        and memory.available is not None
        and memory.available * 100 < LITTLE_MEMORY * memory.total
    ):
        evidence = f"{_gib(memory.available)} of {_gib(memory.total)} available"
        yield Finding("warning", "little memory", _label(device), evidence, "Stop or move something, or add memory")
    if facts.services and facts.services.failed:
        failed = _some(facts.services.failed)
        to_do = f"Run `systemctl status {facts.services.failed[0]}` there"
        yield Finding(
            "warning", "failed services", _label(device), f"{len(facts.services.failed)} failed: {failed}", to_do
        )


def _old_kernels(devices: Sequence[Device]) -> Iterator[Finding]:
    """Kernels older than that of another device with the same release."""
    groups: dict[tuple[str, ...], list[tuple[tuple[int, ...], Device]]] = defaultdict(list)
    for device in devices:
        system = device.facts.system if device.facts else None
        if system and system.kernel and system.id and device.kind != "ct" and (number := _version(system.kernel)):
            groups[system.id, system.version or "", system.architecture or ""].append((number, device))
    for (name, version, _), members in sorted(groups.items()):
        newest, model = max(members, key=lambda one: (one[0], -one[1].id))
        for number, device in members:
            if number < newest:
                release = f"{name} {version}".strip()
                evidence = f"It runs {_kernel(device)}; {model} with the same {release} runs {_kernel(model)}"
                yield Finding(
                    "notice", "old kernel", _label(device), evidence, "Update it and boot into the new kernel"
                )


def _kernel(device: Device) -> str:
    return (device.facts.system.kernel or "") if device.facts and device.facts.system else ""


def _version(kernel: str) -> tuple[int, ...]:
    """6.1.0-18-amd64 -> (6, 1, 0, 18)"""
    leading = re.match(r"\d+(?:[.-]\d+)*", kernel)
    return tuple(int(part) for part in re.split(r"[.-]", leading[0])) if leading else ()


def _old_release(device: Device, now: float) -> Iterator[Finding]:
    system = device.facts.system if device.facts else None
    end = end_of_life(system.id, system.version) if system else None
    if system and end and end < datetime.datetime.fromtimestamp(now, datetime.UTC).date():
        evidence = f"{system.name or system.id} has had no security updates since {end}"
        yield Finding(
            "warning", "release out of support", _label(device), evidence, "Upgrade it to a supported release"
        )


def _unseen(device: Device, now: float) -> Iterator[Finding]:
    age = now - device.last_seen
    if device.state not in ("stopped", "retired") and age > LONG_UNSEEN:
        evidence = f"It was last seen {age / 86400:.0f} days ago" + (f" at {device.address}" if device.address else "")
        yield Finding("notice", "not seen for long", _label(device), evidence, "Turn it on, or scan the network for it")


def _some(names: Sequence[str], limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


# ID of /etc/os-release -> version -> last day. Only what a homelab is likely to run.
_ENDS: dict[str, dict[str, str]] = {
    "debian": {"9": "2022-06-30", "10": "2024-06-30", "11": "2026-08-31", "12": "2028-06-30", "13": "2030-06-30"},
    "ubuntu": {
        "16.04": "2021-04-30", "18.04": "2023-05-31", "20.04": "2025-05-31", "22.04": "2027-04-30",
        "23.04": "2024-01-25", "23.10": "2024-07-11", "24.04": "2029-04-30", "24.10": "2025-07-10",
        "25.04": "2026-01-15",
    },
    "alpine": {
        "3.16": "2024-05-23", "3.17": "2024-11-22", "3.18": "2025-05-09", "3.19": "2025-11-01", "3.20": "2026-04-01",
        "3.21": "2026-11-01", "3.22": "2027-05-01",
    },
    "fedora": {"38": "2024-05-21", "39": "2024-11-26", "40": "2025-05-13", "41": "2025-12-15"},
    "centos": {"7": "2024-06-30", "8": "2021-12-31"},
    "rocky": {"8": "2029-05-31", "9": "2032-05-31"},
    "almalinux": {"8": "2029-03-01", "9": "2032-05-31"},
    "freebsd": {"12": "2023-12-31", "13": "2026-04-30", "14": "2028-11-30"},
}  # fmt: skip


def end_of_life(system: str | None, version: str | None) -> datetime.date | None:
    """The last day of a release, if known: for 12.5 that of 12, for 3.19.1 that of 3.19."""
    known = _ENDS.get((system or "").lower(), {})
    parts = re.split(r"[.-]", version or "")
    for length in range(len(parts), 0, -1):
        if end := known.get(".".join(parts[:length])):
            return datetime.date.fromisoformat(end)
    return None
