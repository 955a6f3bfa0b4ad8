"""The screens of VMs as images."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from quorate.hints import GUEST_CLONE, GUEST_CONFIGURE, GUEST_GET, GUEST_POWER, NAMED, Advice, Sentence, see
from quorate.operations.registry import GuestRef, IllustratedFacts, Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve import values
from quorate.pve.cluster import Cluster, Guest

LEAST_WIDTH = 256
_SERIAL = re.compile(r"serial\d")


@operation(
    risk=Risk.LOOK_INSIDE,
    search_words="screen picture console display monitor show say boot stuck see grub",
    example="guest=docker01",
)
async def guest_screenshot(pve: Cluster, guest: GuestRef, max_width: int = 1280) -> IllustratedFacts:
    """A running VM's screen, as an image."""
    if max_width < LEAST_WIDTH:
        raise BadArgument(
            Sentence("{max_width} is too small to show anything", max_width=max_width),
            next_step=f"Give at least {LEAST_WIDTH}",
        )
    found = await pve.guest(guest)
    await _refuse_without_screen(pve, found)
    # PVE wants a POST for a console, which a read does not send otherwise. It changes nothing: it starts a task that
    # waits for us on a port and ends when we hang up, and neither a key nor a pointer is ever sent to the guest.
    from quorate.pve.console import look  # aiohttp and cryptography are not needed to list the tools

    picture = await look(pve.client, found.path())
    factor = -(-picture.width // max_width)
    png = await asyncio.to_thread(picture.png, factor)
    facts: dict[str, Any] = {"guest": found.label, "size": f"{picture.width}x{picture.height}"}
    if factor > 1:
        facts["shown"] = Advice(f"1/{factor} of each side").then(
            Advice("{max_width} shows every pixel", max_width=picture.width), "; "
        )
    if picture.plain:
        facts["note"] = "The whole screen has one color: it may be blank, asleep or just starting"
    return IllustratedFacts(facts, (png,))


async def _refuse_without_screen(pve: Cluster, guest: Guest) -> None:
    if not guest.is_vm:
        raise BadArgument(
            f"{guest} is a container and has no screen",
            next_step=Advice("Only VMs have a screen; see its state", GUEST_GET(guest=guest.vmid)),
        )
    if not await pve.may(f"/vms/{guest.vmid}", "VM.Console"):
        raise await pve.refusal(f"see the screen of {guest}", f"/vms/{guest.vmid}", ["VM.Console"])
    status, config = await asyncio.gather(guest.get("status/current"), guest.get("config", current=True))
    if guest.row.template:
        raise BadArgument(
            f"{guest} is a template and never runs",
            next_step=Advice("Clone it and start the clone", GUEST_CLONE(guest=guest.vmid)),
        )
    if status.get("status") != "running":
        raise Conflict(
            f"{guest} is not running, so it has no screen",
            next_step=Advice("Start it first", GUEST_POWER(guest=guest.vmid, action="start")),
        )
    if reason := _without_display(config):
        raise Conflict(
            f"{guest} has no screen to capture",
            why=reason,
            next_step=see("See its state", GUEST_GET).then(
                see("vga=std in {options} gives it a screen after a restart", GUEST_CONFIGURE, options=NAMED), "; "
            ),
        )


def _without_display(config: Mapping[str, Any]) -> str | None:
    display = values.parse(str(config.get("vga", "")), "type").get("type", "")
    if display == "none":
        return "Its option vga is none"
    if _SERIAL.fullmatch(display):
        return f"Its option vga is {display}: the console is a serial line with text"
    passed = [key for key, value in config.items() if key.startswith("hostpci") and _is_graphics_card(str(value))]
    # Without an option vga, PVE leaves the emulated card out when a real one is passed through.
    return f"Its display goes to a graphics card of the node ({passed[0]})" if passed and not display else None


def _is_graphics_card(value: str) -> bool:
    return values.is_on(values.parse(value, "host").get("x-vga", "0"))
