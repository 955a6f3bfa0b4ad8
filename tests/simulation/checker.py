"""Compares PVE's world, the journal, the runs and the answers that callers got."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.simulation.evidence import Evidence
from tests.simulation.kinds import Scenario


def objections(evidence: Evidence, scenario: Scenario) -> list[str]:
    entries = evidence.entries()
    run = evidence.runs[0] if evidence.runs else None
    objections = [
        *evidence.seen,
        *_sent(evidence, entries),
        *_journal(evidence, entries),
        *_runs(evidence),
        *_calls(evidence),
    ]
    if len(evidence.labs) == 1:
        objections += _world(evidence)
    return objections or scenario.objections(evidence, run)


def _world(evidence: Evidence) -> list[str]:
    """No guest is lost, doubled, stopped or left locked."""
    guests = evidence.guests
    objections = [f"guest {vmid} is gone" for vmid in evidence.before if vmid not in guests]
    objections += [f"guest {vmid} appeared" for vmid in guests if vmid not in evidence.before]
    for vmid, (_, running) in evidence.before.items():
        guest = guests.get(vmid)
        if guest is None:
            continue
        if guest.running != running:
            objections.append(f"guest {vmid} {'stopped' if running else 'started'}")
        if "lock" in guest.config:
            objections.append(f"guest {vmid} is left locked ({guest.config['lock']})")
    return objections


def _sent(evidence: Evidence, entries: list[dict[str, Any]]) -> list[str]:
    """Whatever PVE received was announced in the journal, and no more often than that."""
    received = Counter(
        (method, path) for method, path in evidence.lab.requests if method != "GET" and not path.endswith("/vncproxy")
    )
    announced: Counter[tuple[str, str]] = Counter()
    for entry in entries:
        for wire in entry.get("wire", ()):
            for call in wire["calls"] if "action" in wire else (wire,):
                announced[call["method"], call["path"]] += 1
    claimed = Counter(
        (wire["method"], wire["path"])
        for entry in entries
        if entry.get("outcome") == "done"
        for wire in entry.get("wire", ())
        if "method" in wire
    )
    return [
        *(
            f"{call} is recorded as done {count} times, PVE received {received[call]}"
            for call, count in claimed.items()
            if count > received[call]
        ),
        *(
            f"{call} was sent {count} times, announced {announced[call]}"
            for call, count in received.items()
            if count > announced[call]
        ),
    ]


def _journal(evidence: Evidence, entries: list[dict[str, Any]]) -> list[str]:
    objections = []
    tasks = evidence.lab.world.tasks
    for entry in entries:
        if "change" not in entry:
            continue
        if not entry.get("final"):
            objections.append(f"the entry of {entry['tool']} is not closed: {entry['outcome']}")
        for name in entry.get("tasks", ()):
            task = tasks.find(name)
            ended = task.exitstatus if task else None
            if entry["outcome"] == "done" and ended != "OK":
                objections.append(f"{entry['tool']} is recorded as done, its task ended with {ended}")
    claimed = Counter(name for entry in entries for name in set(entry.get("tasks", ())))
    objections += [f"{name} is claimed by {count} changes" for name, count in claimed.items() if count > 1]
    rows = evidence.disk.connection.execute("SELECT id FROM quorate_changes").fetchall()
    objections += [f"the change {row['id']} is left open" for row in rows]
    return objections


def _runs(evidence: Evidence) -> list[str]:
    objections = []
    for run in evidence.runs:
        if not run.state.has_ended:
            objections.append(f"the run {run.kind} has not ended: {run.state} {run.reason}")
        if run.current:
            objections.append(f"the run {run.kind} ended with steps in progress: {list(run.current)}")
        if "internal error" in run.reason or any("internal error" in line.text for line in run.log):
            objections.append(f"the run {run.kind} found a defect: {run.reason}")
    return objections


def _calls(evidence: Evidence) -> list[str]:
    runs = {run.id for run in evidence.runs}
    starts = [call for call in evidence.calls if call.tool.startswith("run_") and call.tool != "run_control"]
    objections = [
        f"{call.tool} answered that it started a run that does not exist: {call.answer}"
        for call in starts
        if call.is_done and call.answer and call.answer.get("run") not in runs
    ]
    return objections + ([f"{len(runs)} runs exist, {len(starts)} were requested"] if len(runs) > len(starts) else [])
