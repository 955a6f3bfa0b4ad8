"""Administration accounts: one key pair per account, kept on this machine, and the account on each host."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec

from quorate.config.homelab import HomelabSettings
from quorate.hints import Advice, either
from quorate.inside.posix_files import error_message, shell_script
from quorate.inside.transport import Command, Output
from quorate.problems import BadArgument, GuestRefused, NotConfigured
from quorate.state.store import Records, Store

if TYPE_CHECKING:
    from quorate.homelab.machines import Machine  # which uses this module

KEY_FOLDER = "admin-keys"
LONGEST_ACCOUNT = 64
ADOPTED = {"mcp_admin": "~/.ssh/mcp/mcp_admin_key"}
"""Accounts of other programs -> their private key. Used until Quorate has generated its own key."""


@dataclass(frozen=True, slots=True)
class AdminKey:
    path: Path
    account: str

    @property
    def line(self) -> str | None:
        """The line for authorized_keys; None before the key exists."""
        return f"{public} quorate:{self.account}" if (public := self.public) else None

    @property
    def public(self) -> str | None:
        """The key without its comment, which other programs write differently."""
        if not self.path.exists():
            return None
        try:
            kind, blob, *_ = self.path.with_name(f"{self.path.name}.pub").read_text().split()
        except (OSError, ValueError):
            return None
        return f"{kind} {blob}"

    def public_line(self) -> str:
        """The line for authorized_keys; the key is generated if it does not exist."""
        if line := self.line:
            return line
        import asyncssh

        private = asyncssh.generate_private_key("ssh-ed25519", comment=f"quorate:{self.account}")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write(self.path, private.export_private_key(), 0o600)
            _write(self.path.with_name(f"{self.path.name}.pub"), private.export_public_key(), 0o644)
        except OSError as error:
            raise NotConfigured(
                f"The key {self.path} could not be written",
                why=error.strerror,
                next_step="Nothing was changed on the host. Check the permissions of the folder",
            ) from None
        generated = self.line
        assert generated is not None
        return generated


def admin_key(settings: HomelabSettings, account: str) -> AdminKey:
    own = AdminKey(settings.secrets_file.parent / KEY_FOLDER / account, account)
    if own.public is None and account in ADOPTED:
        adopted = AdminKey(Path(ADOPTED[account]).expanduser(), account)
        return adopted if adopted.public else own
    return own


def key_of(settings: HomelabSettings, user: str) -> Path | None:
    """The private key of the administration account of that name, if it exists."""
    if Path(user).name != user or len(user) > LONGEST_ACCOUNT:
        return None
    path = admin_key(settings, user).path
    return path if path.exists() else None


def _write(path: Path, data: bytes, mode: int) -> None:
    """Atomically, and never readable by others."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    new.replace(path)


# -- the account on a host ---------------------------------------------------------------------------------------------


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
    facts = _parse_facts(output)
    state = AccountState(frozenset(facts.get("has", ())), tuple(facts.get("group", ())), "".join(facts.get("sudo", ())))
    if "passwd" not in facts:
        return state
    fields = facts["passwd"][0].split(":")
    if len(fields) < 7 or not fields[2].isdecimal() or not PurePosixPath(fields[5]).is_absolute():
        raise GuestRefused(f"The passwd entry of {account} on {machine} cannot be parsed")
    return AccountState(
        state.programs, state.groups, state.sudo,
        int(fields[2]), fields[4], fields[5], frozenset("".join(facts["member"]).split()), "key" in facts,
    )  # fmt: skip


def _parse_facts(output: Output) -> dict[str, list[str]]:
    """The values of each name: a script prints one `name=value` per line."""
    facts: dict[str, list[str]] = {}
    for line in output.text.splitlines():
        name, _, value = line.partition("=")
        facts.setdefault(name, []).append(value)
    return facts


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
        complaint = error_message(output)
        raise GuestRefused(
            f"{doing}: {machine} refused",
            why=f"It said: {complaint}" if complaint else f"It ended with exit code {output.exit_code}",
            next_step=next((step for word, step in _REMEDIES.items() if word in complaint), None),
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
    facts = _parse_facts(output)
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


COMMENT = "Quorate administration"

# $1 account, $2 comment. The password `*` never matches, but unlike `!` it does not lock the account, which would make
# some SSH servers refuse keys, too. A home left by an earlier account keeps its owner if that id is free.
_CREATE_USER = f"""{PATHS}
shell=$(command -v bash) || shell=/bin/sh
left=
[ ! -d "/home/$1" ] || left=$(stat -c %u "/home/$1")
case $left in
0) left=;;
?*) if grep -q "^[^:]*:[^:]*:$left:" /etc/passwd; then left=; fi;;
esac
if command -v useradd >/dev/null 2>&1; then
  exec useradd -m -p "*" -s "$shell" -c "$2" ${{left:+-u "$left"}} "$1"
fi
adduser -D -s "$shell" -g "$2" ${{left:+-u "$left"}} "$1" && printf "%s:*\\n" "$1" | chpasswd -e
"""
# $1 home, $2 line. Other lines are kept; a missing line break at the end is added.
_ADD_KEY = """
umask 077
cd -- "$1" && mkdir -p .ssh && chmod 700 .ssh || exit
file=.ssh/authorized_keys
if [ -s "$file" ] && [ -n "$(tail -c 1 "$file")" ]; then echo >> "$file"; fi
grep -qxF -- "$2" "$file" 2>/dev/null || printf "%s\\n" "$2" >> "$file" || exit
chmod 600 "$file" || exit
if command -v restorecon >/dev/null 2>&1; then restorecon -R .ssh; fi
exit 0
"""
# $1 account, $2 rule. sudo ignores files with a dot in their name, so the temporary file has no effect.
_ADD_SUDO = f"""{PATHS}
umask 077
new=$(mktemp /etc/sudoers.d/.quorate.XXXXXX) || exit
trap 'rm -f "$new"' EXIT
printf "%s\\n" "$2" > "$new" && chmod 0440 "$new" && visudo -cf "$new" >&2 && mv -f "$new" "/etc/sudoers.d/$1"
"""
# $1 account, then groups.
_ADD_GROUPS = f"""{PATHS}
account=$1; shift
for group in "$@"; do
  if command -v usermod >/dev/null 2>&1; then usermod -aG "$group" "$account" || exit
  else addgroup "$account" "$group" || exit; fi
done
"""


async def create_user(machine: Machine, account: str) -> None:
    await run_as_root(machine, f"Creating the account {account}", _CREATE_USER, account, COMMENT)


async def add_key(machine: Machine, account: str, home: str, line: str) -> None:
    await run_as_account(machine, account, f"Adding the key of {account}", _ADD_KEY, home, line)


async def add_sudo_rule(machine: Machine, account: str) -> None:
    await run_as_root(machine, f"Writing the sudo rule of {account}", _ADD_SUDO, account, sudo_rule(account))


async def add_to_groups(machine: Machine, account: str, groups: tuple[str, ...]) -> None:
    await run_as_root(machine, f"Adding {account} to {', '.join(groups)}", _ADD_GROUPS, account, *groups)


def require_programs(machine: Machine, state: AccountState, *, user: bool, sudo: bool) -> None:
    """Refuse before the first change what could not be finished."""
    if user and "useradd" not in state.programs and not {"adduser", "chpasswd"} <= state.programs:
        raise NotConfigured(
            f"{machine} has no program to create accounts",
            why="Neither useradd nor adduser with chpasswd was found",
            next_step="Create the account with that system's own tools, and register the host with it",
        )
    if not sudo:
        return
    if not {"sudo", "visudo"} <= state.programs:
        raise NotConfigured(
            f"{machine} has no sudo" if "sudo" not in state.programs else f"{machine} has sudo, but no visudo",
            why="A rule that visudo has not checked could break sudo for everybody, so none is written",
            next_step=either(
                "Install the package sudo there", Advice("use {sudo} for an account without root access", sudo=False)
            ),
        )
    if "includedir" not in state.programs:
        raise NotConfigured(
            f"sudo on {machine} does not read /etc/sudoers.d",
            next_step=either(
                "Add the line `@includedir /etc/sudoers.d` there with visudo", Advice("use {sudo}", sudo=False)
            ),
        )


# -- removal -----------------------------------------------------------------------------------------------------------

# $1 home, $2 line. All other lines are kept.
_REMOVE_KEY = """
umask 077
cd -- "$1" || exit
file=.ssh/authorized_keys
new=$(mktemp .ssh/.quorate.XXXXXX) || exit
trap 'rm -f "$new"' EXIT
grep -vxF -- "$2" "$file" > "$new"
[ $? -le 1 ] && cat "$new" > "$file"
"""
_REMOVE_SUDO = 'rm -f "/etc/sudoers.d/$1"'
# $1 account, then groups.
_REMOVE_GROUPS = f"""{PATHS}
account=$1; shift
for group in "$@"; do
  if command -v gpasswd >/dev/null 2>&1; then gpasswd -d "$account" "$group" || exit
  else delgroup "$account" "$group" || exit; fi
done
"""
# $1 account. Connections that were just closed need a moment to disappear.
_REMOVE_USER = f"""{PATHS}
if ! command -v userdel >/dev/null 2>&1; then exec deluser "$1"; fi
for second in 1 2 3 4 5; do
  userdel "$1" && exit 0
  [ $? = 8 ] || exit 1
  sleep 1
done
exit 8
"""


async def remove_key(machine: Machine, account: str, home: str, line: str) -> None:
    await run_as_account(machine, account, f"Removing the key of {account}", _REMOVE_KEY, home, line)


async def remove_sudo_rule(machine: Machine, account: str) -> None:
    await run_as_root(machine, f"Removing the sudo rule of {account}", _REMOVE_SUDO, account)


async def remove_from_groups(machine: Machine, account: str, groups: tuple[str, ...]) -> None:
    await run_as_root(machine, f"Removing {account} from {', '.join(groups)}", _REMOVE_GROUPS, account, *groups)


async def remove_user(machine: Machine, account: str) -> None:
    await run_as_root(machine, f"Removing the account {account}", _REMOVE_USER, account)
