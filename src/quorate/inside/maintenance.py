"""Restarting a machine and upgrading its packages."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from quorate.hints import Advice, tools
from quorate.inside.facts.collector import collect_answers, read_facts
from quorate.inside.facts.model import Updates
from quorate.inside.facts.software import MANAGERS, parse_updates, updates
from quorate.inside.posix_files import failure, shell_script
from quorate.inside.transport import Transport
from quorate.problems import GuestRefused, NotConfigured, Problem
from quorate.pve.connection import Clock

ASK_SECONDS = 10.0
PAUSE_SECONDS = 2.0
LIST_SECONDS = 40.0

# The first process of a machine starts once per boot; in a container the kernel's own boot id does not change.
_BOOT = """
cat /proc/sys/kernel/random/boot_id 2>/dev/null
set -- $(cat /proc/1/stat 2>/dev/null | sed 's/.*) //'); echo "${20}"
[ -n "${20}" ] || { who -b || uptime -s || sysctl -n kern.boottime; } 2>/dev/null
"""
# The restart begins only after the requesting session has ended cleanly.
_RESTART = """
if [ -d /run/systemd/system ]; then set -- systemctl reboot
elif command -v reboot >/dev/null; then set -- reboot
else set -- shutdown -r now; fi
command -v "$1" >/dev/null || exit 127
( trap "" HUP; sleep 1; "$@" || reboot -f ) </dev/null >/dev/null 2>&1 &
"""


async def read_boot_id(transport: Transport) -> str:
    """Different after every restart."""
    output = await transport.run(shell_script(_BOOT), seconds=ASK_SECONDS)
    boot_id = output.stdout.decode("utf-8", "replace").strip()
    if not boot_id:
        raise GuestRefused(
            "This machine does not report its boot time", next_step=Advice("Restart it with a command", tools.host_exec)
        )
    return boot_id


async def restart(transport: Transport) -> None:
    output = await transport.run(shell_script(_RESTART), seconds=ASK_SECONDS)
    if output.exit_code != 0:
        raise failure(output, "Restarting")


async def is_back(transport: Transport, before: str) -> bool:
    try:
        return await read_boot_id(transport) != before
    except Problem:
        return False


async def wait_until_back(transport: Transport, before: str, clock: Clock, seconds: float) -> float | None:
    """The seconds until it answered again; None if it has not yet."""
    begun = clock.monotonic()
    while True:
        if await is_back(transport, before):
            return clock.monotonic() - begun
        left = seconds - (clock.monotonic() - begun)
        if left <= 0:
            return None
        await clock.sleep(min(PAUSE_SECONDS, left))


LOCK_SECONDS = 600
"""How long to wait for another apt, such as the nightly one."""
NO_MANAGER, NOT_FETCHED = 69, 75
"""Exit codes of no package manager: nothing was changed."""
UNCHANGED = {
    NO_MANAGER: "it has no package manager that Quorate knows",
    NOT_FETCHED: "its package lists could not be fetched",
}
_LOCK = f"-o DPkg::Lock::Timeout={LOCK_SECONDS}"
_ALL_REPOSITORIES = '"--setopt=*.skip_if_unavailable=0"'
_REFRESH = {
    "apt": f"apt-get -q {_LOCK} -o APT::Update::Error-Mode=any update",
    "dnf": f"dnf -q {_ALL_REPOSITORIES} makecache --refresh",
    "apk": "apk update",
    "pacman": "pacman -Sy --noconfirm",
    "opkg": "opkg update",
    "zypper": "zypper -n refresh",
}
_UNFETCHED = {
    "apt": "^[WE]: (Failed to fetch|Some index files failed)",
    "dnf": "Failed to (download metadata|synchronize cache)|gnoring (this repo|repositories)",
    "apk": "^(WARNING|ERROR): (Ignoring|fetching|updating|opening)",
    "pacman": "^error: failed to (synchronize|update)",
    "opkg": "Failed to download|wget returned",
    "zypper": "because of (an )?error|Skipping repository",
}
"""What they print, as an extended regular expression, when they keep old lists and may still end with 0."""
_LIST = {
    "apt": "apt-get -s -q dist-upgrade",
    "dnf": "dnf -q -C check-update",
    "apk": 'apk version -l "<"',
    "pacman": "pacman -Qu",
    "opkg": "opkg list-upgradable",
    "zypper": "zypper -n list-updates",
}
_APPLY = {
    "apt": (
        "export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l APT_LISTCHANGES_FRONTEND=none && "
        f"apt-get -q -y {_LOCK} -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold dist-upgrade"
    ),
    "dnf": f"dnf -q -y {_ALL_REPOSITORIES} upgrade",
    "apk": "apk upgrade",
    "pacman": "pacman -Su --noconfirm",
    "opkg": "opkg list-upgradable | cut -d' ' -f1 | xargs -r opkg upgrade",
    "zypper": "zypper -n update || { code=$?; test $code = 102 || test $code = 103 || (exit $code); }",
}
"""zypper ends with 102 and 103 if all went well and a restart is due."""
_FROM_CACHE = {"dnf": "dnf -q -y -C upgrade"}

_DPKG = re.compile(r"^dpkg: error processing (?:package|archive) (\S+) \(.*\):\n((?: .*(?:\n|$))+)", re.M)
_COMPLAINT = re.compile(
    r"^(?:[WE]: Failed to fetch .*|E: (?!Sub-process|Some index).*|error: .*|ERROR: .*|Error: .*)", re.M
)
_LONGEST_COMPLAINT = 300


@dataclass(frozen=True, slots=True)
class PendingUpdates:
    manager: str
    packages: list[tuple[str, str, str, bool]] = field(default_factory=list)
    """Name, old and new version, whether it is for security."""
    age: int | None = None
    """Seconds since the lists were fetched."""
    unfinished: tuple[str, ...] = ()
    """Packages that dpkg has not finished to install or configure."""

    @property
    def lines(self) -> list[str]:
        return [
            f"{name} {old + ' -> ' if old else ''}{new}{' (security)' if security else ''}"
            for name, old, new, security in self.packages
        ]


async def list_pending(transport: Transport, label: str, *, seconds: float = LIST_SECONDS) -> PendingUpdates:
    """The updates in the machine's current package lists. Raises NotConfigured without a known manager."""
    answers = await collect_answers(transport, label, seconds=seconds, sections=("updates",), each=seconds - 2)
    manager = next((name for name in MANAGERS if name in answers.texts), None)
    if manager is None:
        raise NotConfigured(
            f"{label} has no package manager that Quorate knows",
            why=f"It knows {', '.join(MANAGERS)}",
            next_step="Update it the way its maker intends",
        )
    if manager in answers.late:
        raise GuestRefused(f"{manager} did not answer in time on {label}", next_step="Try again when it is less busy")
    summary = updates(answers) or Updates()
    return PendingUpdates(manager, parse_updates(manager, answers.get(manager)), summary.age, summary.unfinished)


async def count_pending(transport: Transport, label: str, *, seconds: float) -> Updates | None:
    """A summary of the updates; None if the package manager does not answer in that time."""
    answers = await collect_answers(transport, label, seconds=seconds, sections=("updates",), each=seconds - 2)
    return read_facts(answers, ("updates",)).updates


def apply_script(manager: str, *, refresh: bool, listing: bool = False) -> str:
    """The upgrade for /bin/sh, as root. It ends with NOT_FETCHED, without a change, unless all lists were fetched.

    Old lists would make an upgrade without a network look complete. `listing` prints what the new lists contain.
    """
    if not refresh:
        return _FROM_CACHE.get(manager, _APPLY[manager])
    fetch = (
        f"q_said=$(LC_ALL=C {_REFRESH[manager]} 2>&1); q_code=$?; printf '%s\\n' \"$q_said\"; "
        f"if [ $q_code != 0 ] || printf '%s\\n' \"$q_said\" | grep -Eq '{_UNFETCHED[manager]}'; "
        f"then exit {NOT_FETCHED}; fi; "
    )
    return f"{fetch}{f'LC_ALL=C {_LIST[manager]}; ' if listing else ''}{_APPLY[manager]}"


def parse_listing(manager: str, output: str) -> list[tuple[str, str, str, bool]]:
    """The packages that such a script found in the lists that it fetched."""
    return parse_updates(manager, output) if manager in MANAGERS else []


def any_manager_script() -> str:
    """The upgrade with whichever package manager the machine has; exit code NO_MANAGER without one."""
    programs = {manager: "apt-get" if manager == "apt" else manager for manager in _APPLY}
    branches = [
        f"if command -v {program} >/dev/null 2>&1; then {apply_script(manager, refresh=True)}; el"
        for manager, program in programs.items()
    ]
    return f"{''.join(branches)}se echo 'no known package manager'; exit {NO_MANAGER}; fi"


def explain_failure(output: str) -> str:
    """Why an upgrade failed, in the words of dpkg or of the package manager; empty if it printed nothing."""
    if packages := _DPKG.findall(output):
        return "; ".join(dict.fromkeys(f"package {package}: {' '.join(words.split())}" for package, words in packages))
    lines = _COMPLAINT.findall(output) or [line for line in output.splitlines() if line.strip()][-1:]
    return lines[0].strip()[:_LONGEST_COMPLAINT] if lines else ""
