"""Whether an administration account is good for something: log in with its key, and try what it is there for."""

from __future__ import annotations

from typing import Any

from quorate.homelab.machines import Machine
from quorate.inside.posix_script import script

SECONDS = 45.0

# Says one fact a line. What does not answer within some seconds is not usable. Podman is not asked: it needs no group,
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


async def tried(machine: Machine) -> dict[str, Any]:
    """`machine` is reached as the account. Raises the Problem of the login if there is no way in."""
    output = await machine.way.run(script(_TRY), seconds=SECONDS)
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


def hang_up(machine: Machine) -> None:
    """End our own connection as the account: a user that is logged in cannot be removed."""
    if machine.target is not None and machine.ssh is not None:
        machine.ssh.pool.hang_up(machine.target)
