"""Replays the recorded requests against the simulator and reports differences.

    python -m simulator.replay [--section NAME] [--verbose]

All requests are sent in order to one cluster, because each depends on the ones before. Names that differ between the
two worlds (UPIDs, secrets, PIDs, dates in file names) are learned from the answers and used in later requests.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import re
import ssl
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from pve_schema.schema import facts
from pve_simulator.clock import ManualClock
from pve_simulator.simulator import SimulatedCluster
from simulator.comparison import Response, SentRequest, differences
from simulator.recorded_world import INTERLUDES, STARTED_AT, TOKEN_SECRET, recorded_cluster

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings.jsonl.gz"

_UPID = re.compile(r"UPID:[^:]+:[0-9A-F]{8}:[0-9A-F]{8,9}:([0-9A-F]{8}):[^:]+:[^:]*:[^:]+:")
_BACKUP = re.compile(r"vzdump-(qemu|lxc)-(\d+)-(\d{4}_\d\d_\d\d-\d\d_\d\d_\d\d)")

_PAUSE = 0.2  # seconds between two requests of the recorded client
_LONGEST_TASK = 600.0
_STUCK_SECONDS = 5.0  # real seconds after which a request is assumed to wait for simulated time

_FORMATS = {"unknown format": "xml", "extjs format": "extjs", "extjs format error": "extjs"}
_JSON_BODIES = {
    "JSON body POST": {"poolid": "pj", "comment": "json body"},
    "exec JSON array body": {"command": ["/bin/echo", "json array"]},
}
_UPLOADS = {"upload iso": "up.iso", "upload bad ext": "up.exe"}
_UPLOAD_SIZE = 5000

# Requests that followed immediately after one that started work without a UPID.
_AT_ONCE = {("lxc", "config 210")}

# Seconds that the recorded client waited before a request.
_WAITS = {("guest-agent", "ping"): 11.0}


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded request with its answer."""

    number: int
    section: str
    label: str
    method: str
    path: str
    params: Any
    auth: str | None
    answer: Response

    @property
    def template(self) -> str:
        """The endpoint's path template, or the path itself if there is no such endpoint."""
        match = facts("9.1.8").find(self.method, self.path.replace("%3A", ":").replace("%40", "@").replace("%21", "!"))
        return self.path if match is None else match.endpoint.template

    @property
    def sees_running_task(self) -> bool:
        """Whether the answer shows a running task, so that no time may pass before it."""
        body = self.answer.body
        data = body.get("data") if isinstance(body, dict) else None
        if self.path.endswith("/status") and isinstance(data, dict) and "upid" in data:
            return bool(data["status"] == "running")
        return self.path.endswith("/tasks") and (self.params or {}).get("source") == "active"

    @property
    def time(self) -> int | None:
        """When it was sent, if its answer has the start of a task."""
        body = self.answer.body
        data = body.get("data") if isinstance(body, dict) else None
        match = _UPID.fullmatch(data) if isinstance(data, str) else None
        return None if match is None else int(match[1], 16)


@dataclass(slots=True)
class Outcome:
    """The result of one recorded request in the simulator."""

    recording: Recording
    answer: Response
    differences: list[str]

    @property
    def agrees(self) -> bool:
        return not self.differences

    @property
    def missing(self) -> bool:
        """Whether the simulator lacks the endpoint."""
        return self.answer.status == 501 and self.recording.answer.status != 501


@dataclass(slots=True)
class Names:
    """Names that differ between the recorded and the simulated world."""

    upids: dict[str, str] = field(default_factory=dict)
    processes: dict[int, int] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    backups: dict[str, str] = field(default_factory=dict)

    def translate(self, text: str) -> str:
        """Translate a recorded text to the names of the simulated world."""
        for known in (self.upids, self.jobs, self.backups):
            for recorded, own in known.items():
                text = text.replace(recorded, own).replace(quote(recorded, safe=""), quote(own, safe=""))
        return text


def recordings() -> list[Recording]:
    """All recorded requests in their order."""
    recorded = []
    with gzip.open(RECORDINGS, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            row = json.loads(line)
            answer = Response(row["status"], row["reason"], row["body"], row.get("headers", {}))
            recorded.append(
                Recording(
                    number, row["section"], row["label"], row["method"], row["path"], row["params"], row["auth"], answer
                )
            )
    return recorded


class Replay:
    """Sends the recorded requests to one simulated cluster."""

    def __init__(self, cluster: SimulatedCluster, clock: ManualClock, session: aiohttp.ClientSession) -> None:
        self._cluster = cluster
        self._clock = clock
        self._session = session
        self._names = Names()
        self._backup_dates = _backup_dates()
        self._ticket = ("", "")
        self._alice = TOKEN_SECRET
        self._last_seen = (STARTED_AT, clock.now())  # the same moment in recorded and in simulated time

    async def run(self) -> list[Outcome]:
        return [await self._replay(recording) for recording in recordings()]

    async def _replay(self, recording: Recording) -> Outcome:
        await self._pass_time(recording)
        interlude = INTERLUDES.get((recording.section, recording.label))
        if interlude is not None:
            self._names.upids |= await interlude(self._cluster.world, self._do)
        self._learn_backups()
        answer = await self._ask(recording)
        self._learn(recording, answer)
        asked = SentRequest(recording.template, recording.section)
        differing = differences(asked, recording.answer, answer, self._names.translate)
        return Outcome(recording, answer, differing)

    async def _pass_time(self, recording: Recording) -> None:
        if recording.sees_running_task or (recording.section, recording.label) in _AT_ONCE:
            return
        await self._finish_tasks()
        pause = _WAITS.get((recording.section, recording.label), _PAUSE)
        if recording.time is not None:
            then, now = self._last_seen
            pause = max(pause, now + recording.time - then - self._clock.now())
        await self._clock.advance(pause)
        if recording.time is not None:
            self._last_seen = (recording.time, self._clock.now())

    async def _finish_tasks(self) -> None:
        waited = 0.0
        while self._cluster.world.tasks.active() and waited < _LONGEST_TASK:
            await self._clock.advance(0.25)
            waited += 0.25

    async def _do(self, method: str, path: str, params: dict[str, Any]) -> Any:
        """Run an unrecorded event to its end."""
        unrecorded = Recording(-1, "", path, method, path, params, "token root@pam!rig", Response(200, "OK", None))
        answer = await self._ask(unrecorded)
        assert answer.status == 200, f"{method} {path} {params}: {answer.status} {answer.reason}"
        await self._finish_tasks()
        return answer.body["data"]

    async def _ask(self, recording: Recording) -> Response:
        request = asyncio.ensure_future(self._send(recording))
        while not (await asyncio.wait({request}, timeout=_STUCK_SECONDS))[0]:
            await self._clock.advance(0.5)
        return request.result()

    async def _send(self, recording: Recording) -> Response:
        fmt = _FORMATS.get(recording.label, "json")
        url = f"{self._cluster.url}/api2/{fmt}{self._names.translate(recording.path)}"
        headers = self._credentials(recording)
        body: Any = None
        pairs = urlencode(list(self._pairs(recording)))
        if recording.label in _UPLOADS:
            body = _upload(_UPLOADS[recording.label])
        elif recording.label in _JSON_BODIES:
            body = json.dumps(_JSON_BODIES[recording.label])
            headers["Content-Type"] = "application/json"
        elif recording.method in ("POST", "PUT") and pairs:
            body = pairs
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        elif pairs:
            url += f"?{pairs}"
        async with self._session.request(
            recording.method, URL(url, encoded=True), data=body, headers=headers
        ) as response:
            return Response(response.status, response.reason or "", _body(await response.text()), response.headers)

    def _pairs(self, recording: Recording) -> Iterator[tuple[str, str]]:
        params = recording.params or []
        for name, value in params.items() if isinstance(params, dict) else params:
            if name == "pid" and value in self._names.processes:
                yield name, str(self._names.processes[value])
            else:
                yield name, self._names.translate(str(value))

    def _credentials(self, recording: Recording) -> dict[str, str]:
        auth = recording.auth
        if auth is None:
            return {}
        if auth == "Cookie":
            ticket, csrf = self._ticket
            if recording.label == "GET with bad ticket":
                ticket = ticket[:-8] + "AAAAAAA="
            headers = {"Cookie": f"PVEAuthCookie={quote(ticket, safe='')}"}
            return headers | {"CSRFPreventionToken": csrf} if "+ CSRF" in recording.label else headers
        if auth.startswith("token root@pam!rig"):
            return {"Authorization": f"PVEAPIToken=root@pam!rig={TOKEN_SECRET}"}
        if auth.startswith("token alice@pve!t1"):
            return {"Authorization": f"PVEAPIToken=alice@pve!t1={self._alice}"}
        return {"Authorization": auth.replace("<secret>", "00000000-0000-4000-8000-000000000000")}

    def _learn(self, recording: Recording, answer: Response) -> None:
        """Learn this world's names for those in the recorded answer."""
        if not isinstance(recording.answer.body, dict) or not isinstance(answer.body, dict):
            return
        then, now = recording.answer.body.get("data"), answer.body.get("data")
        if isinstance(then, str) and isinstance(now, str) and then.startswith("UPID:") and now.startswith("UPID:"):
            self._names.upids[then] = now
        elif isinstance(then, dict) and isinstance(now, dict):
            if now.get("full-tokenid") == "alice@pve!t1":
                self._alice = str(now.get("value"))
            if "ticket" in now and "CSRFPreventionToken" in now:
                self._ticket = (now["ticket"], now["CSRFPreventionToken"])
            if recording.path.endswith("/agent/exec") and "pid" in now:
                self._names.processes[then["pid"]] = now["pid"]
        elif recording.path == "/cluster/backup" and isinstance(then, list) and isinstance(now, list):
            self._names.jobs |= {old["id"]: new["id"] for old, new in zip(then, now, strict=False)}

    def _learn_backups(self) -> None:
        """Match the n-th recorded backup of a guest with the n-th of this world."""
        own: dict[tuple[str, str], set[str]] = {}
        for storage in self._cluster.world.storages.values():
            for space in storage.spaces.values():
                for match in map(_BACKUP.search, space.volumes):
                    if match is not None:
                        own.setdefault((match[1], match[2]), set()).add(match[0])
        for guest, names in own.items():
            self._names.backups |= dict(zip(self._backup_dates.get(guest, []), sorted(names), strict=False))


def _backup_dates() -> dict[tuple[str, str], list[str]]:
    dates: dict[tuple[str, str], set[str]] = {}
    for recording in recordings():
        if "/content" in recording.path or recording.path.endswith("/extractconfig"):
            for match in _BACKUP.finditer(json.dumps(recording.answer.body)):
                dates.setdefault((match[1], match[2]), set()).add(match[0])
    return {guest: sorted(names) for guest, names in dates.items()}


def _upload(filename: str) -> aiohttp.MultipartWriter:
    form = aiohttp.FormData()
    form.add_field("content", "iso")
    form.add_field("filename", bytes(_UPLOAD_SIZE), filename=filename, content_type="application/octet-stream")
    body = form()
    assert isinstance(body, aiohttp.MultipartWriter)
    for part in body:  # PVE's server expects Content-Disposition before Content-Type
        part[0].headers["Content-Type"] = part[0].headers.pop("Content-Type")
    return body


def _body(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except json.JSONDecodeError:
        return text


async def replay() -> list[Outcome]:
    """Replay everything on a new cluster."""
    clock = ManualClock(STARTED_AT)
    async with recorded_cluster(clock) as cluster:
        trusted = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=cluster.ca_file))
        async with aiohttp.ClientSession(connector=trusted) as session:
            return await Replay(cluster, clock, session).run()


def by_section(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    sections: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        sections.setdefault(outcome.recording.section, []).append(outcome)
    return sections


def report(outcomes: Sequence[Outcome], section: str | None, *, verbose: bool) -> Iterator[str]:
    """Each difference in two lines, then the agreement by section."""
    for outcome in outcomes:
        if not outcome.agrees and section in (None, outcome.recording.section):
            yield from _describe(outcome, verbose=verbose)
    for name, group in by_section(outcomes).items():
        agreed = sum(outcome.agrees for outcome in group)
        missing = sum(outcome.missing for outcome in group)
        yield f"{name:20} {agreed:4} of {len(group):4} agree, {missing} not implemented"
    agreed = sum(outcome.agrees for outcome in outcomes)
    yield f"{'all':20} {agreed:4} of {len(outcomes):4} agree ({agreed / len(outcomes):.1%})"


def _describe(outcome: Outcome, *, verbose: bool) -> Iterator[str]:
    recording = outcome.recording
    yield f"#{recording.number} [{recording.section}] {recording.label.strip()}: {recording.method} {recording.path}"
    text = "; ".join(outcome.differences)
    yield "    " + (text if verbose or len(text) <= 400 else f"{text[:400]} …")
    if verbose:
        yield f"    sent     {recording.params}"
        yield f"    recorded {json.dumps(recording.answer.body)}"
        yield f"    given    {json.dumps(outcome.answer.body)}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m simulator.replay", description=__doc__)
    parser.add_argument("--section", help="show the disagreements of this section only")
    parser.add_argument("--verbose", action="store_true", help="show both bodies")
    options = parser.parse_args(arguments)
    outcomes = asyncio.run(replay())
    for line in report(outcomes, options.section, verbose=options.verbose):
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
