"""Whether a VM without an agent has booted: something of its own answers Enter, which firmware does not.

Enter is pressed only in copies that a run has restored: in a guest that someone uses, it could confirm anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from quorate.problems import Problem
from quorate.pve import values
from quorate.pve.cluster import Guest
from quorate.runs.kind import Next, Step, StepResult, Work
from quorate.units import count_of

FIRMWARE_SECONDS = 60.0
"""How long a VM boots before its screen counts: until then, the firmware may write on it, too."""
POLL_SECONDS = 15.0
ANSWER_SECONDS = 3.0
EVERY_PIXEL = 4096
_SERIAL = re.compile(r"serial\d")


async def prove_without_agent(
    work: Work, guest: Guest, number: int, state: dict[str, Any], config: Mapping[str, Any]
) -> Next:
    """Press Enter in its serial terminal until a prompt answers, then once at its screen.

    Sets `booted` in the state, and `unanswered` if there was no answer.
    """
    waited, boot = work.pve.clock.time() - float(state["booting_since"]), float(work.scope["boot_seconds"])
    serials = sorted(key for key, value in config.items() if _SERIAL.fullmatch(key) and value == "socket")
    if serials and (prompt := await _ask_terminal(work, guest, serials[0])):
        state["booted"] = f"{serials[0]} shows the prompt {prompt!r}"
        return Next(seconds=0.0)
    if waited < (boot if serials else min(FIRMWARE_SECONDS, boot)):
        return Next(waits_for=f"{guest} boots without an agent", seconds=POLL_SECONDS)
    if has_screen(config) and not state.get("unseen"):
        if look := _next_look(guest, number, state):
            return look
        from quorate.pve.screens import count_new_lines  # aiohttp is not needed to list the tools

        if new := count_new_lines(*state["texts"]):
            state["booted"] = f"{count_of(new, 'new line')} of text on its screen after Enter"
            return Next(seconds=0.0)
    state["booted"] = "it runs"
    state["unanswered"] = "it has no agent, and neither a prompt nor new text answered Enter; look at its screen"
    return Next(seconds=0.0)


def _next_look(guest: Guest, number: int, state: dict[str, Any]) -> Next | None:
    """What is left of: look at the screen, press Enter, let it answer, look again."""
    looks, look = len(state.setdefault("texts", [])), {"guest": guest.vmid, "max_width": EVERY_PIXEL}
    if looks == 1 and not state.get("entered"):
        enter = {"method": "PUT", "path": f"{guest.path()}/sendkey", "params": {"key": "ret"}}
        return Next((Step(f"enter-{number}", "api_call", enter, f"Press Enter at the screen of {guest}"),))
    if looks == 1 and not state.get("waited"):
        state["waited"] = True
        return Next(waits_for=f"the screen of {guest} answers", seconds=ANSWER_SECONDS)
    return Next((Step(f"look-{number}", "guest_screenshot", look, f"Look at {guest}"),)) if looks < 2 else None


def remember_screen(state: dict[str, Any], result: StepResult) -> None:
    from quorate.pve.screens import Picture  # aiohttp is not needed to list the tools

    if result.pictures:
        state.setdefault("texts", []).append(Picture.from_png(result.pictures[0]).text_lines())
    else:
        state["unseen"] = True


async def _ask_terminal(work: Work, guest: Guest, serial: str) -> str:
    """The prompt that answers in the serial terminal; nothing if none does, or the terminal cannot be opened."""
    from quorate.pve.screens import find_prompt  # aiohttp is not needed to list the tools

    try:
        return await find_prompt(work.pve.client, guest.path(), serial)
    except Problem as problem:
        work.say(f"{serial} of {guest} cannot be read: {problem}")
        return ""


def has_screen(config: Mapping[str, Any]) -> bool:
    display = values.parse(str(config.get("vga", "")), "type").get("type", "")
    return display != "none" and not display.startswith("serial")
