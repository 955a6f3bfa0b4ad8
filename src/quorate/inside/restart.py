"""Restarting a machine, and finding out whether it has been restarted."""

from __future__ import annotations

from quorate.hints import HOST_EXEC, Advice
from quorate.inside.posix_script import failure, shell_script
from quorate.inside.transport import Transport
from quorate.problems import GuestRefused, Problem
from quorate.pve.clock import Clock

ASK_SECONDS = 10.0
PAUSE_SECONDS = 2.0

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
    found = output.stdout.decode("utf-8", "replace").strip()
    if not found:
        raise GuestRefused(
            "This machine does not report its boot time", next_step=Advice("Restart it with a command", HOST_EXEC)
        )
    return found


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
    """After how many seconds it answered again; None if it has not yet."""
    begun = clock.monotonic()
    while True:
        if await is_back(transport, before):
            return clock.monotonic() - begun
        left = seconds - (clock.monotonic() - begun)
        if left <= 0:
            return None
        await clock.sleep(min(PAUSE_SECONDS, left))
