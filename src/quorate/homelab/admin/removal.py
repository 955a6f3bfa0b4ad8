"""Removes an administration account: only what was created for it, and never a home directory."""

from __future__ import annotations

from quorate.homelab.admin.account import PATHS, run_as_account, run_as_root
from quorate.homelab.machines import Machine

# $1 home, $2 line. All other lines are kept.
_KEY = """
umask 077
cd -- "$1" || exit
file=.ssh/authorized_keys
new=$(mktemp .ssh/.quorate.XXXXXX) || exit
trap 'rm -f "$new"' EXIT
grep -vxF -- "$2" "$file" > "$new"
[ $? -le 1 ] && cat "$new" > "$file"
"""
_SUDO = 'rm -f "/etc/sudoers.d/$1"'
# $1 account, then groups.
_GROUPS = f"""{PATHS}
account=$1; shift
for group in "$@"; do
  if command -v gpasswd >/dev/null 2>&1; then gpasswd -d "$account" "$group" || exit
  else delgroup "$account" "$group" || exit; fi
done
"""
# $1 account. Connections that were just closed need a moment to disappear.
_USER = f"""{PATHS}
if ! command -v userdel >/dev/null 2>&1; then exec deluser "$1"; fi
for second in 1 2 3 4 5; do
  userdel "$1" && exit 0
  [ $? = 8 ] || exit 1
  sleep 1
done
exit 8
"""


async def remove_key(machine: Machine, account: str, home: str, line: str) -> None:
    await run_as_account(machine, account, f"Removing the key of {account}", _KEY, home, line)


async def remove_sudo_rule(machine: Machine, account: str) -> None:
    await run_as_root(machine, f"Removing the sudo rule of {account}", _SUDO, account)


async def remove_from_groups(machine: Machine, account: str, groups: tuple[str, ...]) -> None:
    await run_as_root(machine, f"Removing {account} from {', '.join(groups)}", _GROUPS, account, *groups)


async def remove_user(machine: Machine, account: str) -> None:
    await run_as_root(machine, f"Removing the account {account}", _USER, account)
