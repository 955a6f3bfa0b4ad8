"""Updates of a machine: what would change, and applying it, with the package manager that it has."""

from __future__ import annotations

from dataclasses import dataclass, field

from quorate.inside.facts.collector import collect_answers, read_facts
from quorate.inside.facts.model import Updates
from quorate.inside.facts.software import MANAGERS, parse_updates
from quorate.inside.transport import Transport
from quorate.problems import GuestRefused, NotConfigured

SECONDS = 40.0

LOCK_SECONDS = 600
"""How long to wait for another apt, such as the nightly one."""
NO_MANAGER = 3
_LOCK = f"-o DPkg::Lock::Timeout={LOCK_SECONDS}"
_REFRESH = {
    "apt": f"apt-get -q {_LOCK} update",
    "apk": "apk update",
    "opkg": "opkg update",
    "zypper": "zypper -n refresh",
}
_APPLY = {
    "apt": (
        "export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l APT_LISTCHANGES_FRONTEND=none && "
        f"apt-get -q -y {_LOCK} -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold dist-upgrade"
    ),
    "dnf": "dnf -q -y upgrade --refresh",
    "apk": "apk upgrade",
    "pacman": "pacman -Syu --noconfirm",
    "opkg": "opkg list-upgradable | cut -d' ' -f1 | xargs -r opkg upgrade",
    "zypper": "zypper -n update || { code=$?; test $code = 102 || test $code = 103 || (exit $code); }",
}
"""zypper ends with 102 and 103 if all went well and a restart is due."""
_NO_REFRESH = {"dnf": "dnf -q -y -C upgrade", "pacman": "pacman -Su --noconfirm"}


@dataclass(frozen=True, slots=True)
class PendingUpdates:
    manager: str
    packages: list[tuple[str, str, str, bool]] = field(default_factory=list)
    """Name, old and new version, whether it is for security."""

    @property
    def lines(self) -> list[str]:
        return [
            f"{name} {old + ' -> ' if old else ''}{new}{' (security)' if security else ''}"
            for name, old, new, security in self.packages
        ]


async def list_pending(transport: Transport, label: str, *, seconds: float = SECONDS) -> PendingUpdates:
    """From the machine's current package lists; nothing is fetched. Raises NotConfigured without a known manager."""
    answers = await collect_answers(transport, label, seconds=seconds, sections=("updates",), each=seconds - 2)
    manager = next((one for one in MANAGERS if one in answers.texts), None)
    if manager is None:
        raise NotConfigured(
            f"{label} has no package manager that Quorate knows",
            why=f"It knows {', '.join(MANAGERS)}",
            next_step="Update it the way its maker intends",
        )
    if manager in answers.late:
        raise GuestRefused(f"{manager} did not answer in time on {label}", next_step="Try again when it is less busy")
    return PendingUpdates(manager, parse_updates(manager, answers.get(manager)))


async def count_pending(transport: Transport, label: str, *, seconds: float) -> Updates | None:
    """In short; None if its package manager does not answer in that time."""
    answers = await collect_answers(transport, label, seconds=seconds, sections=("updates",), each=seconds - 2)
    return read_facts(answers, ("updates",)).updates


def apply_script(manager: str, *, refresh: bool) -> str:
    """For /bin/sh, as root. A failed refresh stops it: old lists may name packages that are gone."""
    if not refresh:
        return _NO_REFRESH.get(manager, _APPLY[manager])
    return " && ".join(part for part in (_REFRESH.get(manager), _APPLY[manager]) if part)


def any_manager_script() -> str:
    """The same with whichever manager the machine has; exit code NO_MANAGER without one."""
    programs = {one: "apt-get" if one == "apt" else one for one in _APPLY}
    branches = [
        f"if command -v {program} >/dev/null 2>&1; then {apply_script(manager, refresh=True)}; el"
        for manager, program in programs.items()
    ]
    return f"{''.join(branches)}se echo 'no known package manager'; exit {NO_MANAGER}; fi"
