"""The figures of the replay and the list of known disagreements, as docs/simulator.md shows them.

    python -m tests.sim.fidelity        replay, then bring the list and the document up to date

Reasons are written by hand into known_disagreements.json; a new disagreement has none, and the tests ask for it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from quorate.pve.schema import facts
from quorate.sim.routing import all_routes
from tests.sim.host_specific import PLACES
from tests.sim.replay import Outcome, by_section, replay

KNOWN = Path(__file__).with_name("known_disagreements.json")
DOCUMENT = Path(__file__).parents[2] / "docs" / "simulator.md"

_BEGIN = "<!-- from here on written by `python -m tests.sim.fidelity` -->"
_END = "<!-- up to here -->"


def known_disagreements() -> dict[int, dict[str, str]]:
    """By number of the recording: the request, in what its answer differs, and why that is so."""
    return {entry["number"]: entry for entry in json.loads(KNOWN.read_text())} if KNOWN.exists() else {}


def disagreements(outcomes: Sequence[Outcome]) -> dict[int, str]:
    """By number of the recording: in what the simulator's answer differs today."""
    return {outcome.recording.number: "; ".join(outcome.differences) for outcome in outcomes if not outcome.agrees}


def generated_part(outcomes: Sequence[Outcome]) -> str:
    """The part of the document that follows from a replay."""
    parts = (_figures(outcomes), _disagreements(), _host_specific(), _left_out())
    return "\n".join([_BEGIN, "", *(line for part in parts for line in (*part, "")), _END])


def document_part() -> str:
    """The same part as the document has it."""
    text = DOCUMENT.read_text()
    return text[text.index(_BEGIN) : text.index(_END) + len(_END)]


def _figures(outcomes: Sequence[Outcome]) -> list[str]:
    rows = ["| section | requests | agree |", "|---|---:|---:|"]
    for name, group in by_section(outcomes).items():
        rows.append(f"| {name} | {len(group)} | {sum(outcome.agrees for outcome in group)} |")
    agreed = sum(outcome.agrees for outcome in outcomes)
    rows.append(f"| **all** | **{len(outcomes)}** | **{agreed} ({agreed / len(outcomes):.1%})** |")
    return rows


def _disagreements() -> list[str]:
    known = known_disagreements().values()
    rows = ["### Disagreements left", "", "| request | the simulator's answer | why |", "|---|---|---|"]
    rows += [
        f"| {_cell(entry['request'])} | {_cell(entry['differences'])} | {_cell(entry['reason'])} |" for entry in known
    ]
    return rows if known else ["### Disagreements left", "", "None."]


def _host_specific() -> list[str]:
    rows = ["### Not compared, because it belongs to the recorded host", ""]
    rows += ["| endpoint | place in the body | why |", "|---|---|---|"]
    return rows + [f"| `{place.template}` | `{place.place}` | {place.reason} |" for place in PLACES]


def _left_out() -> list[str]:
    known = all_routes()
    endpoints = list(facts("9.1.8").endpoints())
    missing = [endpoint for endpoint in endpoints if (endpoint.method, endpoint.template) not in known]
    count = f"{len(endpoints) - len(missing)} of the {len(endpoints)} methods in PVE's API are there."
    rows = ["### Endpoints left out", "", f"{count} These answer 501, as PVE does for a path it does not know:", ""]
    by_path: dict[str, list[str]] = {}
    for endpoint in missing:
        by_path.setdefault(endpoint.template, []).append(endpoint.method)
    return rows + [f"- {', '.join(sorted(methods))} `{path}`" for path, methods in sorted(by_path.items())]


def _cell(text: str) -> str:
    short = text if len(text) <= 160 else f"{text[:160]}…"
    return short.replace("|", "\\|").replace("\n", " ")


def _write_known(outcomes: Sequence[Outcome]) -> None:
    known = known_disagreements()
    entries = [
        {
            "number": outcome.recording.number,
            "request": f"{outcome.recording.section}, {outcome.recording.label.strip()}: "
            f"{outcome.recording.method} {outcome.recording.template}",
            "differences": "; ".join(outcome.differences),
            "reason": known.get(outcome.recording.number, {}).get("reason", ""),
        }
        for outcome in outcomes
        if not outcome.agrees
    ]
    KNOWN.write_text(json.dumps(entries, indent=2, ensure_ascii=False) + "\n")


def main() -> None:
    outcomes = asyncio.run(replay())
    _write_known(outcomes)
    if DOCUMENT.exists() and _BEGIN in DOCUMENT.read_text():
        DOCUMENT.write_text(DOCUMENT.read_text().replace(document_part(), generated_part(outcomes)))
    for entry in known_disagreements().values():
        if not entry["reason"]:
            sys.stdout.write(f"needs a reason: #{entry['number']} {entry['request']}\n")


if __name__ == "__main__":
    main()
