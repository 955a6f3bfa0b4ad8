"""Creates and removes an administration account in steps. Each is one fixed script that gets its values as arguments.

Removal undoes only what was created, and never deletes a home directory.
"""

from __future__ import annotations

from quorate.hints import Advice, either
from quorate.homelab.admin.account import PATHS, AccountState, run_as_account, run_as_root, sudo_rule
from quorate.homelab.machines import Machine
from quorate.problems import NotConfigured

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


def require_programs(machine: Machine, found: AccountState, *, user: bool, sudo: bool) -> None:
    """Refuse before the first change what could not be finished."""
    if user and "useradd" not in found.programs and not {"adduser", "chpasswd"} <= found.programs:
        raise NotConfigured(
            f"{machine} has no program to create accounts",
            why="Neither useradd nor adduser with chpasswd was found",
            next_step="Create the account with that system's own tools, and register the host with it",
        )
    if not sudo:
        return
    if not {"sudo", "visudo"} <= found.programs:
        raise NotConfigured(
            f"{machine} has no sudo" if "sudo" not in found.programs else f"{machine} has sudo, but no visudo",
            why="A rule that visudo has not checked could break sudo for everybody, so none is written",
            next_step=either(
                "Install the package sudo there", Advice("use {sudo} for an account without root access", sudo=False)
            ),
        )
    if "includedir" not in found.programs:
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
