"""An administration account on a machine: its state, whether it works, and what was created for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import msgspec

from quorate.homelab.machines import Machine
from quorate.inside.posix_script import error_message, shell_script
from quorate.inside.transport import Command, Output
from quorate.problems import BadArgument, GuestRefused
from quorate.state.records import Records
from quorate.state.store import Store

USUAL_GROUPS = ("docker", "lxd", "libvirt", "kvm", "incus-admin")
"""Their members control what is installed; each is equivalent to root."""
SECONDS = 60.0
# The programs that manage accounts may be in folders outside a plain login's PATH.
PATHS = 'PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin"; export PATH\n'

_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]{0,30}", re.ASCII)
_GROUP = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", re.ASCII)
_REMEDIES = {
    "currently used by process": "Stop what runs as that account there, then call again",
    "sudo:": "Log in as root, or as a user who may use sudo",
}
_PROGRAMS = "useradd usermod userdel gpasswd adduser addgroup deluser delgroup chpasswd sudo visudo bash"

_MARK = "# Made by Quorate"
"""Marks our sudo rule. The rest of the comment differs between versions."""

# $1 account, $2 its public key, $3 its sudo rule, then groups to check. Prints one fact per line.
_LOOK = f"""{PATHS}
u=$1; key=$2; rule=$3; shift 3
entry() {{ getent "$1" "$2" 2>/dev/null || grep "^$2:" "/etc/$1"; }}
for program in {_PROGRAMS}; do
  if command -v "$program" >/dev/null 2>&1; then echo "has=$program"; fi
done
if grep -Eq "^[#@]includedir[[:space:]]+\\"?/etc/sudoers[.]d" /etc/sudoers 2>/dev/null; then echo "has=includedir"; fi
for group in "$@"; do if entry group "$group" >/dev/null; then echo "group=$group"; fi; done
if [ -e "/etc/sudoers.d/$u" ]; then
  bare() {{ sed -e "s/#.*//" | tr -d "[:space:]"; }}
  all=$(bare < "/etc/sudoers.d/$u")
  if [ "$all" = "$(printf "%s\\n" "$rule" | bare)" ] && grep -q "^{_MARK}" "/etc/sudoers.d/$u"; then echo "sudo=ours"
  elif [ "$all" = "${{u}}ALL=(ALL)NOPASSWD:ALL" ]; then echo "sudo=same"
  elif [ "$all" = "${{u}}ALL=(ALL:ALL)NOPASSWD:ALL" ]; then echo "sudo=same"
  else echo "sudo=other"; fi
fi
user=$(entry passwd "$u") || exit 0
echo "passwd=$user"
echo "member=$(id -Gn "$u")"
home=$(printf '%s\\n' "$user" | cut -d: -f6)
if [ -n "$key" ] && grep -v "^[[:space:]]*#" "$home/.ssh/authorized_keys" 2>/dev/null | grep -qF -- "$key"
then echo "key=there"; fi
"""


@dataclass(frozen=True, slots=True)
class AccountState:
    programs: frozenset[str]
    groups: tuple[str, ...]
    """The requested groups that exist."""
    sudo: str
    """The sudo rule: `ours`, `same` (not ours, but equivalent), `other`, or empty."""
    uid: int | None = None
    comment: str = ""
    home: str = ""
    member: frozenset[str] = frozenset()
    key: bool = False

    @property
    def exists(self) -> bool:
        return self.uid is not None


def require_account(name: str) -> str:
    if not _ACCOUNT.fullmatch(name) or name == "root":
        raise BadArgument(
            f"{name!r} is not a valid name for an administration account",
            next_step="Use up to 31 lowercase letters, digits, _ and -, and not root",
        )
    return name


def require_groups(names: list[str]) -> tuple[str, ...]:
    if wrong := next((name for name in names if not _GROUP.fullmatch(name)), None):
        raise BadArgument(f"{wrong!r} is not a group name")
    return tuple(dict.fromkeys(names))


def sudo_rule(account: str) -> str:
    return f"{_MARK} for its administration account.\nDefaults:{account} !requiretty\n{account} ALL=(ALL) NOPASSWD: ALL"


async def read_account_state(machine: Machine, account: str, key: str | None, groups: tuple[str, ...]) -> AccountState:
    output = await run_as_root(
        machine, f"Looking for the account {account}", _LOOK, account, key or "", sudo_rule(account), *groups
    )
    facts: dict[str, list[str]] = {}
    for name, _, value in (line.partition("=") for line in output.stdout.decode("utf-8", "replace").splitlines()):
        facts.setdefault(name, []).append(value)
    found = AccountState(frozenset(facts.get("has", ())), tuple(facts.get("group", ())), "".join(facts.get("sudo", ())))
    if "passwd" not in facts:
        return found
    fields = facts["passwd"][0].split(":")
    if len(fields) < 7 or not fields[2].isdecimal() or not PurePosixPath(fields[5]).is_absolute():
        raise GuestRefused(f"The passwd entry of {account} on {machine} cannot be parsed")
    return AccountState(
        found.programs, found.groups, found.sudo,
        int(fields[2]), fields[4], fields[5], frozenset("".join(facts["member"]).split()), "key" in facts,
    )  # fmt: skip


async def run_as_root(machine: Machine, doing: str, text: str, *values: str) -> Output:
    return await _run(machine, doing, machine.as_root(shell_script(text, *values)))


async def run_as_account(machine: Machine, account: str, doing: str, text: str, *values: str) -> Output:
    """The account itself changes its home, never root: links there could point anywhere."""
    command = shell_script(text, *values)
    ran_by = Command(command.argv, command.stdin, command.env, user=account, password=machine.sudo_password)
    return await _run(machine, doing, ran_by)


async def _run(machine: Machine, doing: str, command: Command) -> Output:
    output = await machine.transport.run(command, seconds=SECONDS)
    if output.exit_code != 0:
        said = error_message(output)
        raise GuestRefused(
            f"{doing}: {machine} refused",
            why=f"It said: {said}" if said else f"It ended with exit code {output.exit_code}",
            next_step=next((step for word, step in _REMEDIES.items() if word in said), None),
        )
    return output


TRY_SECONDS = 45.0

# Prints one fact per line. What does not answer within seconds is not usable. Podman is left out: it needs no group,
# and leaves a process behind.
_TRY = """
PATH="$PATH:/usr/sbin:/sbin:/snap/bin"
patience=; if command -v timeout >/dev/null 2>&1; then patience="timeout 8"; fi
answers() { $patience "$@" </dev/null >/dev/null 2>&1; }
try() {
  what=$1; shift
  command -v "$1" >/dev/null 2>&1 || return 0
  if answers "$@"; then echo "usable=$what"; else echo "unusable=$what"; fi
}
echo "user=$(id -un)"
echo "groups=$(id -Gn)"
if command -v sudo >/dev/null 2>&1; then if answers sudo -n true; then echo sudo=yes; else echo sudo=no; fi; fi
try docker docker ps -q
try lxd lxc list --format csv
try incus incus list --format csv
try libvirt virsh -c qemu:///system list --name
if [ -e /dev/kvm ]; then if [ -r /dev/kvm ] && [ -w /dev/kvm ]; then echo usable=kvm; else echo unusable=kvm; fi; fi
"""


async def try_account(machine: Machine) -> dict[str, Any]:
    """`machine` uses the account's login. Raises the login's Problem if it fails."""
    output = await machine.transport.run(shell_script(_TRY), seconds=TRY_SECONDS)
    facts: dict[str, list[str]] = {}
    for name, _, value in (line.partition("=") for line in output.stdout.decode("utf-8", "replace").splitlines()):
        facts.setdefault(name, []).append(value)
    return {
        "logged_in_as": "".join(facts.get("user", ())),
        "sudo": {"yes": "without a password", "no": "no"}.get("".join(facts.get("sudo", ())), "not installed"),
        "groups": "".join(facts.get("groups", ())).split(),
        "usable": facts.get("usable", []),
        **({"not_usable": facts["unusable"]} if "unusable" in facts else {}),
    }


def disconnect(machine: Machine) -> None:
    """Close our own connection as the account: a logged-in user cannot be removed."""
    if machine.target is not None and machine.ssh is not None:
        machine.ssh.pool.disconnect(machine.target)


_KIND = "admin account"


class FormerLogin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The previous login of a registered host; secrets are references, as in the registry."""

    user: str | None = None
    key: str | None = None
    password: str | None = None
    sudo_password: str | None = None


class AccountRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    user: bool = False
    uid: int | None = None
    """Identifies the created user: another one of the same name is not ours."""
    sudo: bool = False
    groups: tuple[str, ...] = ()
    former: FormerLogin | None = None
    """If the registry was changed."""


class AccountLedger:
    """Written before each step, so that interrupted steps are known, too."""

    def __init__(self, store: Store, machine: Machine, account: str) -> None:
        self._records = Records(store, _KIND, AccountRecord)
        cluster = f"{machine.where.name}/" if machine.where else ""
        self._id = f"{machine.kind} {cluster}{machine.name} {account}"

    async def read(self) -> AccountRecord:
        return await self._records.find(self._id) or AccountRecord()

    async def note(self, **changes: object) -> None:
        await self._records.keep(self._id, msgspec.structs.replace(await self.read(), **changes))

    async def forget(self) -> None:
        await self._records.forget(self._id)
