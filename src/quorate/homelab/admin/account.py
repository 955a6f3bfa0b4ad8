"""An administration account as it stands on a machine, found out by one fixed script."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from quorate.homelab.machines import Machine
from quorate.inside.posix_script import script, words_of
from quorate.inside.way import Command, Output
from quorate.problems import BadArgument, GuestRefused

USUAL_GROUPS = ("docker", "lxd", "libvirt", "kvm", "incus-admin")
"""They let their members use what is installed, each as good as root."""
SECONDS = 60.0
# Where an account is made, the programs for it may be in folders that a plain login does not search.
PATHS = 'PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin"; export PATH\n'

_ACCOUNT = re.compile(r"[a-z_][a-z0-9_-]{0,30}", re.ASCII)
_GROUP = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", re.ASCII)
_REMEDIES = {
    "currently used by process": "End what runs as that account there, then call again",
    "sudo:": "It takes a login as root, or one that may use sudo",
}
_PROGRAMS = "useradd usermod userdel gpasswd adduser addgroup deluser delgroup chpasswd sudo visudo bash"

# $1 account, $2 the line of its key, $3 its sudo rule, then groups to ask for. Says one fact a line.
_LOOK = f"""{PATHS}
u=$1; key=$2; rule=$3; shift 3
entry() {{ getent "$1" "$2" 2>/dev/null || grep "^$2:" "/etc/$1"; }}
for program in {_PROGRAMS}; do
  if command -v "$program" >/dev/null 2>&1; then echo "has=$program"; fi
done
if grep -Eq "^[#@]includedir[[:space:]]+\\"?/etc/sudoers[.]d" /etc/sudoers 2>/dev/null; then echo "has=includedir"; fi
for group in "$@"; do if entry group "$group" >/dev/null; then echo "group=$group"; fi; done
if [ -e "/etc/sudoers.d/$u" ]; then
  if [ "$(cat "/etc/sudoers.d/$u")" = "$rule" ]; then echo "sudo=ours"; else echo "sudo=other"; fi
fi
user=$(entry passwd "$u") || exit 0
echo "passwd=$user"
echo "member=$(id -Gn "$u")"
home=$(printf '%s\\n' "$user" | cut -d: -f6)
if [ -n "$key" ] && grep -qxF -- "$key" "$home/.ssh/authorized_keys" 2>/dev/null; then echo "key=there"; fi
"""


@dataclass(frozen=True, slots=True)
class Standing:
    """What was found."""

    programs: frozenset[str]
    groups: tuple[str, ...]
    """Of those asked for, the ones that there are."""
    sudo: str
    """Of the sudo rule: `ours`, `other`, or nothing."""
    uid: int | None = None
    comment: str = ""
    home: str = ""
    member: frozenset[str] = frozenset()
    key: bool = False

    @property
    def exists(self) -> bool:
        return self.uid is not None


def checked_account(name: str) -> str:
    if not _ACCOUNT.fullmatch(name) or name == "root":
        raise BadArgument(
            f"{name!r} is no name for an administration account",
            next_step="Use small letters, digits, _ and -, at most 31 of them, and not root",
        )
    return name


def checked_groups(names: list[str]) -> tuple[str, ...]:
    if wrong := next((name for name in names if not _GROUP.fullmatch(name)), None):
        raise BadArgument(f"{wrong!r} is no name of a group")
    return tuple(dict.fromkeys(names))


def sudo_rule(account: str) -> str:
    return (
        "# Made by Quorate for its administration account; host_admin_remove takes it away.\n"
        f"Defaults:{account} !requiretty\n"
        f"{account} ALL=(ALL) NOPASSWD: ALL"
    )


async def look(machine: Machine, account: str, key: str | None, groups: tuple[str, ...]) -> Standing:
    output = await as_root(
        machine, f"Looking for the account {account}", _LOOK, account, key or "", sudo_rule(account), *groups
    )
    facts: dict[str, list[str]] = {}
    for name, _, value in (line.partition("=") for line in output.stdout.decode("utf-8", "replace").splitlines()):
        facts.setdefault(name, []).append(value)
    found = Standing(frozenset(facts.get("has", ())), tuple(facts.get("group", ())), "".join(facts.get("sudo", ())))
    if "passwd" not in facts:
        return found
    fields = facts["passwd"][0].split(":")
    if len(fields) < 7 or not fields[2].isdecimal() or not PurePosixPath(fields[5]).is_absolute():
        raise GuestRefused(f"The entry of {account} on {machine} cannot be understood")
    return Standing(
        found.programs, found.groups, found.sudo,
        int(fields[2]), fields[4], fields[5], frozenset("".join(facts["member"]).split()), "key" in facts,
    )  # fmt: skip


async def as_root(machine: Machine, doing: str, text: str, *values: str) -> Output:
    return await _done(machine, doing, machine.as_root(script(text, *values)))


async def as_account(machine: Machine, account: str, doing: str, text: str, *values: str) -> Output:
    """What is in the account's own home is changed by the account itself, never by root: links there lead nowhere."""
    command = script(text, *values)
    ran_by = Command(command.argv, command.stdin, command.env, user=account, password=machine.sudo_password)
    return await _done(machine, doing, ran_by)


async def _done(machine: Machine, doing: str, command: Command) -> Output:
    output = await machine.way.run(command, seconds=SECONDS)
    if output.exit_code != 0:
        said = words_of(output)
        raise GuestRefused(
            f"{doing}: {machine} refused",
            why=f"It said: {said}" if said else f"It ended with exit code {output.exit_code}",
            next_step=next((step for word, step in _REMEDIES.items() if word in said), None),
        )
    return output
