"""Configuration sections: jobs, remotes and datastores are created, read, changed and deleted the same way."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pve_schema.calendar_events import Unparsable, parse_calendar_event
from pve_simulator.pbs.refusals import Refusal, bad_parameter
from pve_simulator.pbs.routing import Call

CONFLICT = "detected modified configuration - file changed by other user? Try again."


def check_digest(call: Call, digest: str) -> None:
    """Refuse a change of what someone else has changed since it was read."""
    if call.params.get("digest", digest) != digest:
        raise Refusal(CONFLICT)


def check_schedule(call: Call, *names: str) -> None:
    for name in names:
        if name in call.params:
            try:
                parse_calendar_event(str(call[name]))
            except Unparsable as error:
                text = f"unable to parse calendar event at '{call[name]}' - Context(\"weekday\")"
                raise bad_parameter(name, text) from error


def apply_changes(call: Call, section: dict[str, Any], *, fixed: Collection[str]) -> None:
    """Remove the properties in `delete`, then set the others that were sent."""
    for name in call.params.get("delete", []):
        section.pop(name, None)
    section |= {
        name: value for name, value in call.params.items() if name not in fixed and name not in ("delete", "digest")
    }
