"""Replays the recorded requests to a cluster of two nodes, among them a dead node and a lost quorum.

    python -m simulator.two_nodes [--verbose]

Each request goes to the node that was asked. What was done between them is in `two_nodes_world`. Compared are what
`comparison` compares, the ends of tasks, how long the refusals took, and what HA says of its parts and services. HA's
delays are not: before each of its answers, the services are put where they were.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import re
import ssl
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from pve_schema.schema import facts
from pve_simulator.clock import ManualClock
from pve_simulator.cluster.ha_manager import HaManager
from pve_simulator.simulator import SimulatedCluster
from pve_simulator.world import HaResource
from simulator.comparison import Response, SentRequest, differences
from simulator.two_nodes_world import SCENES, STARTED_AT, TOKEN_SECRET, two_nodes_cluster

RECORDINGS = Path(__file__).parent.parent / "data" / "two-nodes.jsonl.gz"

_UPID = re.compile(r"UPID:\w+:[0-9A-F]{8}:[0-9A-F]{8}:([0-9A-F]{8}):")
_HA = "/cluster/ha/status/current"
_MOMENT = re.compile(r", \w{3} \w{3} +\d+ [\d:]+ \d{4}")
_NAMES_ONE_HOST = re.compile(r"tmp\.\d+|Temporary failure in name resolution|Name or service not known")
_LONGEST_TASK = 120.0
_PATIENCE = 0.05  # real seconds after which a request is assumed to wait for simulated time
_OUT_OF_ORDER = ((156, 204, 114.2), (216, 218, 114.4), (205, 208, 116.5), (152, 152, 117.5), (209, 215, 150.5))
"""Recordings that stand elsewhere in the file: first, last, and after which one they were made."""
_LATER = {117: 40.0, 146: 320.0, 150: 60.0}
"""Seconds between a request and the one before, where they matter."""


@dataclass(frozen=True, slots=True)
class Outcome:
    number: int
    row: dict[str, Any]
    differences: list[str]

    @property
    def agrees(self) -> bool:
        return not self.differences


def recordings() -> list[tuple[int, dict[str, Any]]]:
    """All requests by number, in the order in which they were made."""
    with gzip.open(RECORDINGS, "rt", encoding="utf-8") as lines:
        rows = [(number, json.loads(line)) for number, line in enumerate(lines)]
    return sorted(rows, key=lambda row: _position(row[0]))


def _position(number: int) -> float:
    return next((after for first, last, after in _OUT_OF_ORDER if first <= number <= last), float(number))


class Replay:
    def __init__(self, cluster: SimulatedCluster, clock: ManualClock, session: aiohttp.ClientSession) -> None:
        self._cluster = cluster
        self._clock = clock
        self._session = session

    async def run(self) -> list[Outcome]:
        return [await self._replay(number, row) for number, row in recordings()]

    async def _replay(self, number: int, row: dict[str, Any]) -> Outcome:
        await self._finish_tasks()
        for scene in SCENES.get(number, ()):
            scene(self._cluster.world)
        if row["path"] == _HA:
            self._place_services(row)
        else:
            await self._clock.advance(_LATER.get(number, 0.2))
        begun = self._clock.now()
        answer = await self._ask(row)
        waited = self._clock.now() - begun
        recorded = Response(row["status"], row["reason"], _plain(row.get("body")))
        match = facts("9.1.8").find(row["method"], row["path"])
        template = row["path"] if match is None else match.endpoint.template
        asked = SentRequest(template, row["section"])
        given = Response(answer.status, _plain(answer.reason), _plain(answer.body))
        recorded.reason = _plain(recorded.reason)
        differing = differences(asked, recorded, given, lambda text: text)
        if row["path"] == _HA and not differing:
            differing += _ha_differences(row["body"]["data"], answer.body["data"])
        if not differing and "task" in row:
            differing += await self._task_differences(row["task"], answer.body, row["section"])
        if row["status"] != 200 and abs(waited - row["seconds"]) > 1.0:
            differing.append(f"took {waited:.0f} s instead of {row['seconds']:.0f}")
        return Outcome(number, row, differing)

    def _place_services(self, row: dict[str, Any]) -> None:
        """Put the services where HA had them, in their states."""
        world = self._cluster.world
        self._place_managers({each["id"]: each for each in row["body"]["data"]}, row["label"])
        services = {each["sid"]: each for each in row["body"]["data"] if each["type"] == "service"}
        for sid in [known for known in world.ha if known not in services]:
            del world.ha[sid]
        for sid, shown in services.items():
            resource = world.ha.setdefault(sid, HaResource(sid))
            resource.state = shown.get("request_state", resource.state)
            resource.crm_state = shown.get("crm_state")
            resource.shown_state = shown["state"]
            guest = world.guests[int(sid.partition(":")[2])]
            guest.node = shown["node"]
            guest.touch()

    def _place_managers(self, shown: dict[str, dict[str, Any]], label: str) -> None:
        """Let the managers have reported as long ago as they had."""
        manager, now = self._cluster.world.part(HaManager), self._clock.now()
        stamps = [row["timestamp"] for name, row in shown.items() if name.startswith(("master", "lrm:"))]
        at = _asked_at(label, max(stamps)) if shown["quorum"]["quorate"] or " 04:" in label else max(stamps) + 60.0
        manager.active, manager.decided_by = True, shown["master"]["node"]
        manager.decided_at = now - at + shown["master"]["timestamp"]
        for name in self._cluster.world.nodes:
            report = shown[f"lrm:{name}"]
            manager.acted_at[name] = now - at + report["timestamp"]
            manager.busy_at[name] = now if "watchdog active" in report["status"] else float("-inf")

    async def _finish_tasks(self) -> None:
        waited = 0.0
        while self._cluster.world.tasks.active() and waited < _LONGEST_TASK:
            await self._clock.advance(0.25)
            waited += 0.25

    async def _task_differences(self, expected: dict[str, Any], body: Any, section: str) -> list[str]:
        upid = body.get("data") if isinstance(body, dict) else None
        task = self._cluster.world.tasks.find(str(upid))
        if task is None:
            return [f"no task; {expected['exitstatus']!r}"]
        await self._finish_tasks()
        found = []
        if _plain(expected["exitstatus"]) != _plain(str(task.exitstatus)):
            found.append(f"ended with {task.exitstatus!r} instead of {expected['exitstatus']!r}")
        waits = expected["seconds"] if "no quorum" in section else 0  # how long real work takes depends on the host
        if waits and abs(_seconds(task) - waits) > max(1.5, waits / 2):
            found.append(f"the task took {_seconds(task):.0f} s instead of {expected['seconds']:.0f}")
        return found

    async def _ask(self, row: dict[str, Any]) -> Response:
        request = asyncio.ensure_future(self._send(row))
        while not (await asyncio.wait({request}, timeout=_PATIENCE))[0]:
            await self._clock.advance(0.1)
        return request.result()

    async def _send(self, row: dict[str, Any]) -> Response:
        base = self._cluster.urls[0 if row["via"] == "pve1" else 1]
        form = urlencode({key: str(value) for key, value in (row["params"] or {}).items()})
        headers = {"Authorization": f"PVEAPIToken=root@pam!rig={TOKEN_SECRET}"}
        url, body = f"{base}/api2/json{quote(row['path'])}", None
        if row["method"] in ("POST", "PUT") and form:
            body, headers["Content-Type"] = form, "application/x-www-form-urlencoded"
        elif form:
            url += f"?{form}"
        async with self._session.request(row["method"], URL(url, encoded=True), data=body, headers=headers) as response:
            text = await response.text()
            return Response(response.status, response.reason or "", json.loads(text) if text else None)


def _asked_at(label: str, latest: float) -> float:
    """When HA was asked: the labels of its transitions have the time, the other requests followed a report."""
    moment = re.search(r"(\d\d):(\d\d):(\d\d)$", label)
    if moment is None:
        return latest + 1.0
    midnight = STARTED_AT - STARTED_AT % 86400
    hours, minutes, seconds = map(int, moment.groups())
    return midnight + hours * 3600 + minutes * 60 + seconds


def _seconds(task: Any) -> float:
    return float(task.endtime - task.upid.starttime)


def _plain(value: Any) -> Any:
    """Without process ids, and without what the resolver of one host said."""
    if isinstance(value, str):
        return _NAMES_ONE_HOST.sub("…", value)
    if isinstance(value, dict) and "lrm_status" in (value.get("data") or ()):
        value = json.loads(json.dumps(value))
        for report in value["data"]["lrm_status"].values():
            report["results"] = sorted(report["results"].values(), key=str)  # each under a random id
    if isinstance(value, dict) and "message" in value:
        return value | {"message": _plain(value["message"])}
    return value


def _ha_differences(recorded: list[dict[str, Any]], answered: list[dict[str, Any]]) -> list[str]:
    """What HA says of quorum, master, fencing, nodes and services, without the times."""
    then, now = (
        {row["id"]: (row.get("node"), _MOMENT.sub("", row["status"])) for row in rows} for rows in (recorded, answered)
    )
    return [
        f"{name}: {then.get(name)} -> {now.get(name)}"
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    ]


async def replay() -> list[Outcome]:
    """Replay everything on a new cluster."""
    clock = ManualClock(STARTED_AT)
    async with two_nodes_cluster(clock) as cluster:
        trusted = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=cluster.ca_file))
        async with aiohttp.ClientSession(connector=trusted) as session:
            return await Replay(cluster, clock, session).run()


def by_section(outcomes: list[Outcome]) -> dict[str, tuple[int, int]]:
    """How many agree of how many, by section."""
    counts: dict[str, tuple[int, int]] = {}
    for outcome in outcomes:
        agreed, count = counts.get(outcome.row["section"], (0, 0))
        counts[outcome.row["section"]] = agreed + outcome.agrees, count + 1
    return counts


def report(outcomes: list[Outcome], *, verbose: bool) -> Iterator[str]:
    for outcome in outcomes:
        if not outcome.agrees:
            row = outcome.row
            yield f"#{outcome.number} [{row['section']}] {row['label']}: {row['method']} {row['path']} {row['params']}"
            text = "; ".join(outcome.differences)
            yield "    " + (text if verbose else text[:500])
    for section, (agreed, count) in by_section(outcomes).items():
        yield f"{section:28} {agreed:4} of {count:4}"
    agreed = sum(outcome.agrees for outcome in outcomes)
    yield f"{'all':28} {agreed:4} of {len(outcomes):4} ({agreed / len(outcomes):.1%})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--verbose", action="store_true")
    for line in report(asyncio.run(replay()), verbose=parser.parse_args().verbose):
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
