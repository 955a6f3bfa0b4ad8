"""Agreement of replay and scenarios with PVE, and the known differences, as docs/reference.md shows them.

    python -m simulator.fidelity        replay, then update the lists and the document

Reasons are added manually to known_disagreements.json and known_scenario_differences.json; the tests fail for a
difference without one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pve_schema.schema import NEWEST, facts
from pve_simulator.http.routing import all_routes
from simulator import scenarios, two_nodes
from simulator.host_specific import HOST_SPECIFIC_PATHS
from simulator.replay import Outcome, by_section, replay

KNOWN = Path(__file__).with_name("known_disagreements.json")
KNOWN_IN_SCENARIOS = Path(__file__).with_name("known_scenario_differences.json")
KNOWN_IN_TWO_NODES = Path(__file__).with_name("known_two_nodes_differences.json")
DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "reference.md"

_LEFT_OUT = {
    "/cluster/config/nodes/": "called by `pvecm` on the command line, not by the web interface",
    "/cluster/sdn/prefix-lists": "new in PVE 9.2",
    "/cluster/sdn/route-maps": "new in PVE 9.2",
    "mtunnelwebsocket": "carries the migration between two clusters; clients do not use it",
    "/identity": "new in PVE 9.2",
}

_BEGIN = "<!-- from here on written by `python -m simulator.fidelity` -->"
_END = "<!-- up to here -->"
_BEGIN_SCENARIOS = "<!-- scenarios: from here on written by `python -m simulator.fidelity` -->"
_END_SCENARIOS = "<!-- scenarios: up to here -->"
_BEGIN_TWO_NODES = "<!-- two nodes: from here on written by `python -m simulator.fidelity` -->"
_END_TWO_NODES = "<!-- two nodes: up to here -->"


def known_disagreements(path: Path = KNOWN) -> dict[int, dict[str, str]]:
    """By number of the recording: the request, its differences, and the reason."""
    return {entry["number"]: entry for entry in json.loads(path.read_text())} if path.exists() else {}


def disagreements(outcomes: Sequence[Outcome]) -> dict[int, str]:
    """By number of the recording: the current differences."""
    return {outcome.recording.number: "; ".join(outcome.differences) for outcome in outcomes if not outcome.agrees}


def scenario_differences(outcomes: Sequence[scenarios.Outcome]) -> dict[int, str]:
    """By number of the step: the current differences."""
    return {
        outcome.recorded.number: "; ".join(f"{aspect}: {current}" for aspect, current in outcome.differences.items())
        for outcome in outcomes
        if not outcome.agrees
    }


def generated_part(outcomes: Sequence[Outcome]) -> str:
    """The part of the document that is generated from a replay."""
    parts = (_figures(outcomes), _disagreements(KNOWN), _host_specific(), _left_out())
    return "\n".join([_BEGIN, "", *(line for part in parts for line in (*part, "")), _END])


def scenarios_part(outcomes: Sequence[scenarios.Outcome]) -> str:
    """The part of the document that is generated from the scenarios."""
    rows = ["| compared | steps | the same |", "|---|---:|---:|"]
    for aspect, (agreed, count) in scenarios.agreement(outcomes).items():
        rows.append(f"| {aspect} | {count} | {agreed} ({agreed / count:.1%}) |")
    return "\n".join([_BEGIN_SCENARIOS, "", *rows, "", *_disagreements(KNOWN_IN_SCENARIOS), "", _END_SCENARIOS])


def two_nodes_part(outcomes: Sequence[two_nodes.Outcome]) -> str:
    """The part of the document that is generated from the requests to two nodes."""
    figure = f"Of the {len(outcomes)} requests to two nodes, {agreement(outcomes)} have the same answer."
    return "\n".join([_BEGIN_TWO_NODES, "", figure, "", *_disagreements(KNOWN_IN_TWO_NODES), "", _END_TWO_NODES])


def two_nodes_in_document() -> str:
    return document_part(_BEGIN_TWO_NODES, _END_TWO_NODES)


def agreement(outcomes: Sequence[Outcome | scenarios.Outcome | two_nodes.Outcome]) -> str:
    """Such as "728 (99.5%)"."""
    agreed = sum(outcome.agrees for outcome in outcomes)
    return f"{agreed} ({agreed / len(outcomes):.1%})"


def document_part(begin: str = _BEGIN, end: str = _END) -> str:
    """That part of the current document."""
    text = DOCUMENT.read_text()
    return text[text.index(begin) : text.index(end) + len(end)]


def scenarios_in_document() -> str:
    return document_part(_BEGIN_SCENARIOS, _END_SCENARIOS)


def _figures(outcomes: Sequence[Outcome]) -> list[str]:
    rows = ["| section | requests | agree |", "|---|---:|---:|"]
    for name, group in by_section(outcomes).items():
        rows.append(f"| {name} | {len(group)} | {sum(outcome.agrees for outcome in group)} |")
    rows.append(f"| **all** | **{len(outcomes)}** | **{agreement(outcomes)}** |")
    return rows


def _disagreements(path: Path) -> list[str]:
    known = known_disagreements(path).values()
    title = "### Disagreements left" if path == KNOWN else "### Differences left"
    rows = [title, "", "| request | the simulator's answer | why |", "|---|---|---|"]
    rows += [
        f"| {_cell(entry['request'])} | {_cell(entry['differences'])} | {_cell(entry['reason'])} |" for entry in known
    ]
    return rows if known else [title, "", "None."]


def _host_specific() -> list[str]:
    rows = ["### Not compared, because it belongs to the recorded host", ""]
    rows += ["| endpoint | field | why |", "|---|---|---|"]
    return rows + [f"| `{place.template}` | `{place.path}` | {place.reason} |" for place in HOST_SPECIFIC_PATHS]


def _left_out() -> list[str]:
    known = all_routes()
    endpoints = list(facts(NEWEST).endpoints())
    missing = [endpoint for endpoint in endpoints if (endpoint.method, endpoint.template) not in known]
    count = f"{len(endpoints) - len(missing)} of the {len(endpoints)} methods of PVE's API are simulated."
    rows = ["### Endpoints not simulated", "", f"{count} The others answer 501, as PVE does for an unknown path:", ""]
    rows += ["| endpoint | methods | why |", "|---|---|---|"]
    by_path: dict[str, list[str]] = {}
    for endpoint in missing:
        by_path.setdefault(endpoint.template, []).append(endpoint.method)
    return rows + [
        f"| `{path}` | {', '.join(sorted(methods))} | {reason_for_leaving_out(path)} |"
        for path, methods in sorted(by_path.items())
    ]


def reason_for_leaving_out(path: str) -> str:
    return next(reason for part, reason in _LEFT_OUT.items() if part in path)


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


def _write_known_in_scenarios(outcomes: Sequence[scenarios.Outcome]) -> None:
    known, current = known_disagreements(KNOWN_IN_SCENARIOS), scenario_differences(outcomes)
    entries = [
        {
            "number": outcome.recorded.number,
            "request": outcome.recorded.title,
            "differences": current[outcome.recorded.number],
            "reason": known.get(outcome.recorded.number, {}).get("reason", ""),
        }
        for outcome in outcomes
        if not outcome.agrees
    ]
    KNOWN_IN_SCENARIOS.write_text(json.dumps(entries, indent=2, ensure_ascii=False) + "\n")


def main() -> None:
    outcomes, played = asyncio.run(replay()), scenarios.play()
    _write_known(outcomes)
    _write_known_in_scenarios(played)
    text = DOCUMENT.read_text().replace(document_part(), generated_part(outcomes))
    text = text.replace(scenarios_in_document(), scenarios_part(played))
    DOCUMENT.write_text(text.replace(two_nodes_in_document(), two_nodes_part(asyncio.run(two_nodes.replay()))))
    for entry in (*known_disagreements().values(), *known_disagreements(KNOWN_IN_SCENARIOS).values()):
        if not entry["reason"]:
            sys.stdout.write(f"needs a reason: #{entry['number']} {entry['request']}\n")


if __name__ == "__main__":
    main()
