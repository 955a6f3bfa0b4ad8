"""Evacuating a node while other callers take snapshots and change options."""

from __future__ import annotations

import random
from collections import Counter

from quorate.runs.store import Run, RunState
from tests.simulation.evidence import Evidence, ToolCall
from tests.simulation.kinds import Scenario

MOVES = ("qmigrate", "vzmigrate")


class Evacuate(Scenario):
    def begin(self, evidence: Evidence, chance: random.Random) -> list[ToolCall]:
        guests = evidence.lab.guests(chance, 2, 4)
        calls = [
            ToolCall("run_evacuate", {"node": "pve1", "with_local_disks": True, "parallel": chance.choice((1, 2))})
        ]
        for _ in range(chance.randint(0, 2)):
            vmid = chance.choice(guests).vmid
            calls.append(
                chance.choice(
                    [
                        ToolCall("snapshot_create", {"guest": vmid, "snapshot": f"s{len(calls)}"}),
                        ToolCall("guest_configure", {"guest": vmid, "description": f"by caller {len(calls)}"}),
                    ]
                )
            )
        return calls

    def follow_up(self, evidence: Evidence, call: ToolCall) -> ToolCall | None:
        return None

    def objections(self, evidence: Evidence, run: Run | None) -> list[str]:
        for call in evidence.calls:
            if call.tool != "snapshot_create" or not call.is_done:
                continue
            if call.arguments["snapshot"] not in evidence.guests[call.arguments["guest"]].snapshots:
                return [f"{call.arguments} answered that it is done and is not there"]
        return _evacuated(evidence, run) if run is not None else []


def _evacuated(evidence: Evidence, run: Run) -> list[str]:
    objections = []
    guests = evidence.guests
    there = [vmid for vmid in map(int, run.scope["guests"]) if vmid in guests and guests[vmid].node == "pve1"]
    if run.state is RunState.DONE and there:
        objections.append(f"the run says that all were moved, and {there} are still there")
    if run.state is RunState.FAILED:
        unexplained = [vmid for vmid in there if str(vmid) not in run.report.get("not_moved", {})]
        if unexplained:
            objections.append(f"the run does not say why {unexplained} were not moved")
    moves = Counter(
        str(entry["arguments"].get("guest"))
        for entry in evidence.entries()
        if entry["tool"] == "guest_migrate"
        and entry["outcome"] == "done"
        and entry["caller"]["client"] == f"run {run.id}"
    )
    objections += _misreported(evidence, run)
    objections += too_many_at_once(evidence, run)
    objections += [f"guest {vmid} was moved {count} times" for vmid, count in moves.items() if count > 1]
    away = evidence.before.keys() - {int(vmid) for vmid in run.scope["guests"]}
    objections += [
        f"guest {vmid} was moved, and nobody approved that"
        for vmid in away
        if vmid in guests and guests[vmid].node != evidence.before[vmid][0]
    ]
    return objections


def _misreported(evidence: Evidence, run: Run) -> list[str]:
    """What the report says about each guest is what PVE shows."""
    guests = evidence.guests
    moved = {task.upid.id for task in evidence.tasks(*MOVES) if task.exitstatus == "OK"}
    objections = []
    for vmid, why in run.report.get("not_moved", {}).items():
        if guests[int(vmid)].node != "pve1":
            objections.append(f"guest {vmid} was moved, and the run says that it was not: {why}")
        if "came back" in why and vmid not in moved:
            objections.append(f"guest {vmid} never left, and the run says that it came back")
    there = [label for label in run.report.get("moved", {}) if guests[int(label.split()[0])].node == "pve1"]
    return objections + [f"guest {label} is still there, and the run says that it was moved" for label in there]


def too_many_at_once(evidence: Evidence, run: Run) -> list[str]:
    edges: list[tuple[float, int]] = []
    for task in evidence.tasks(*MOVES):
        end = float(task.endtime or task.upid.starttime)
        edges += [(min(task.upid.starttime + 1.0, end), 1), (end, -1)]  # a UPID has whole seconds
    edges.sort()
    running = most = 0
    for _, change in edges:
        running += change
        most = max(most, running)
    limit = int(run.scope["parallel"])
    return [f"{most} guests were on their way at a time, {limit} were approved"] if most > limit else []
