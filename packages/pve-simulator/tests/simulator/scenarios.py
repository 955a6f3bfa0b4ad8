"""Runs the recorded scenarios on the simulator and reports differences from PVE.

    python -m simulator.scenarios [AREA[/SCENARIO]] [--verbose] [--log]

Every scenario gets its own world, in the state of the recorded one (`scenario_world`). The recordings have placeholders
for guests, storages, tasks and backups; answers are translated to them before the comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import re
import ssl
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from pve_simulator.clock import ManualClock
from pve_simulator.simulator import SimulatedCluster
from simulator.scenario_words import Words, errors_agree, logs_agree, shapes_differ, texts_agree, values_differ
from simulator.scenario_world import (
    BACKGROUNDS,
    BASE_ID,
    NAMES,
    NODE,
    TOKEN_SECRET,
    Key,
    Step,
    rights_before,
    scenario_clock,
    scenario_cluster,
)

SCENARIOS = Path(__file__).parent.parent / "data" / "scenarios.jsonl.gz"
ASPECTS = ("status", "reason", "errors", "shape", "values", "task")

_PAUSE = 0.2
_LONGEST_TASK = 900.0
_STUCK_SECONDS = 0.4  # real time after which a request is taken to wait for simulated time
_STATUS_ROUND = 12.0  # how long the recording waited for data of pvestatd
_ROOT = {"Authorization": f"PVEAPIToken=root@pam!rig={TOKEN_SECRET}"}
_BAD_SECRET = "99999999-2222-4333-8444-555555555555"
_CREDENTIALS: tuple[dict[str, str], ...] = (
    {},
    {"Authorization": f"PVEAPIToken=root@pam!rig={_BAD_SECRET}"},
    {"Authorization": f"PVEAPIToken root@pam!rig={TOKEN_SECRET}"},
    {"Authorization": f"pveapitoken=root@pam!rig={TOKEN_SECRET}"},
    {"Authorization": "Basic cm9vdDpyb290"},
    {"Cookie": "PVEAuthCookie=PVE%3Aroot@pam%3A00000000%3A%3Aabc"},
    _ROOT | {"Cookie": "PVEAuthCookie=PVE%3Aroot@pam%3A00000000%3A%3Aabc"},
    _ROOT | {"Cookie": "other=1"},
    {"Cookie": "other=1"},
    {}, {}, {}, {}, {}, _ROOT, {"Authorization": f"PVEAPIToken=root@pam!rig={_BAD_SECRET}"},
)  # fmt: skip
_USERS = {"a token without any right": "difu7@pve!bare", "rights piece by piece": "difu9@pve!key"}
_FORMATS = {("verbs and paths", 17): "xml", ("verbs and paths", 18): "html"}
_RAW_PATHS = range(19, 24)  # of the scenario for methods and paths
_MADE_UP = {"<when>": "2026_01_01-00_00_00", "<sha256>": "a" * 64, "<uuid>": "9a5d2b5c-3f0e-4d5b-8a76-1f2e3d4c5b6a"}


@dataclass(frozen=True, slots=True)
class Recorded:
    """One step of a scenario."""

    number: int
    row: Mapping[str, Any]

    @property
    def key(self) -> Key:
        return self.row["area"], self.row["scenario"]

    @property
    def step(self) -> int:
        return int(self.row["step"])

    @property
    def title(self) -> str:
        return f"{self.row['area']}, {self.row['scenario']}, {self.step}: {self.row['request']}"


@dataclass(slots=True)
class Outcome:
    """The result of one step: the differences by aspect."""

    recorded: Recorded
    differences: dict[str, str]
    log: str | None

    @property
    def agrees(self) -> bool:
        return not self.differences


@dataclass(slots=True)
class Answer:
    """The simulator's answer."""

    status: int
    reason: str
    body: Any
    text: str
    ctype: str | None
    task: dict[str, Any] | None = None


def recorded_steps() -> list[Recorded]:
    with gzip.open(SCENARIOS, "rt", encoding="utf-8") as lines:
        return [Recorded(number, json.loads(line)) for number, line in enumerate(lines)]


@dataclass(slots=True)
class Run:
    """One scenario on a cluster of its own."""

    cluster: SimulatedCluster
    clock: ManualClock
    session: aiohttp.ClientSession
    key: Key
    words: Words
    digests: dict[str, str] = field(default_factory=dict)
    upids: dict[str, str] = field(default_factory=dict)
    pid: int = 1
    token: str = ""

    async def play(self, steps: Sequence[Recorded]) -> list[Outcome]:
        return [await self._step(recorded) for recorded in steps]

    async def _step(self, recorded: Recorded) -> Outcome:
        row = recorded.row
        await self._apply_unrecorded(recorded)
        if row["request"].startswith(("GET /cluster/resources", "GET /pools")) and "maxmem" in json.dumps(row["shape"]):
            await self._pass(_STATUS_ROUND)
        method, _, path = row["request"].partition(" ")
        if path == "exec-status":
            path = f"~/qemu/<id0>/agent/exec-status?pid={self.pid}"
        if row["params"].get("digest") == "<string>" and row["status"] == 200 and "task" not in row:
            self._learn(path, await self._ask("GET", path, {}, None))
        answer = await self._ask(method, path, dict(row["params"]), recorded)
        if _is_upid(answer.body) and not str(row.get("values")).startswith("<UPID"):
            answer.task = await self._finish(answer.body["data"])
        if not str(row.get("values")).startswith("<UPID") and self.key[0] != "tasks":
            await self._settle()
        self._learn(path, answer)
        return self._compare(recorded, answer)

    async def _apply_unrecorded(self, recorded: Recorded) -> None:
        for step in BACKGROUNDS.get(self.key, {}).get(recorded.step, ()):
            await self._do(step)
        for step in rights_before(self.key, recorded.row.get("label")):
            await self._do(step)
        await self._clear_the_way(recorded)

    async def _clear_the_way(self, recorded: Recorded) -> None:
        """Remove what a scenario creates repeatedly; the recording did so without a step."""
        row = recorded.row
        match = re.fullmatch(r"POST ~/(qemu|lxc)", row["request"])
        vmid = self.words.spell(str(row["params"].get("vmid", "")))
        if match is None or "already exists" in row["reason"] or not vmid.isdecimal() or "label" not in row:
            return
        guest = self.cluster.world.guests.get(int(vmid))
        if guest is not None and "archive" not in row["params"] and "restore" not in row["params"]:
            await self._do(("DELETE", f"~/{guest.kind}/{vmid}", {}))

    async def _do(self, step: Step) -> None:
        method, path, params = step
        if method == "WAIT":
            await self._pass(float(params["seconds"]))
            return
        answer = await self._ask(method.rstrip("?"), path, dict(params), None)
        if answer.status != 200 and not method.endswith("?"):
            raise AssertionError(f"{self.key}: {step}: {answer.status} {answer.reason} {answer.text}")
        if _is_upid(answer.body):
            ended = await self._finish(answer.body["data"])
            if ended["exit"] != "OK":
                raise AssertionError(f"{self.key}: {step}: {ended}")

    async def _ask(self, method: str, path: str, params: dict[str, Any], recorded: Recorded | None) -> Answer:
        request = asyncio.ensure_future(self._send(method, path, params, recorded))
        while not (await asyncio.wait({request}, timeout=_STUCK_SECONDS))[0]:
            await self.clock.advance(1.0)
        return request.result()

    async def _send(self, method: str, path: str, params: dict[str, Any], recorded: Recorded | None) -> Answer:
        pairs = [(name, text) for name, value in params.items() for text in self._texts(name, value, path, recorded)]
        url = self._url(path, recorded)
        body, headers = None, dict(self._headers(recorded))
        if method in ("POST", "PUT") and pairs:
            body = urlencode(pairs)
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        elif pairs:
            url += ("&" if "?" in url else "?") + urlencode(pairs)
        async with self.session.request(method, URL(url, encoded=True), data=body, headers=headers) as reply:
            text = await reply.text()
            try:
                decoded = json.loads(text) if text else None
            except json.JSONDecodeError:
                decoded = text
            return Answer(reply.status, reply.reason or "", decoded, text, reply.headers.get("Content-Type"))

    def _url(self, path: str, recorded: Recorded | None) -> str:
        if recorded is not None and self.key[1] == "verbs and paths" and recorded.step in _RAW_PATHS:
            return self.cluster.url + path
        fmt = "json" if recorded is None else _FORMATS.get((self.key[1], recorded.step), "json")
        spelled = self._spell_path(path)
        return f"{self.cluster.url}/api2/{fmt}{spelled}"

    def _spell_path(self, path: str) -> str:
        def upid(match: re.Match[str]) -> str:
            return quote(self._upid(match[1]), safe="")

        path = re.sub(r"<UPID ((?:[^<>]|<\w+>)*)>", upid, path)
        return self._spell(path).replace(" ", "%20")

    def _upid(self, words: str) -> str:
        kind, target, user = (self.words.spell(part) for part in words.split(" "))
        return self.upids.get(words) or f"UPID:{NODE}:00000001:00000001:60000000:{kind}:{target}:{user}:"

    def _spell(self, text: str) -> str:
        """Translate a recorded text to this world's names."""
        spelled = self.words.spell(text)
        backup = re.search(r"vzdump-(\w+)-(\d+)-<when>", spelled)
        if backup is not None:
            spelled = spelled.replace("<when>", self._backup_time(backup[1], backup[2]))
        for placeholder, value in _MADE_UP.items():
            spelled = spelled.replace(placeholder, value)
        return spelled

    def _backup_time(self, kind: str, vmid: str) -> str:
        name = re.compile(rf"vzdump-{kind}-{vmid}-([\d_-]+)\.")
        for storage in self.cluster.world.storages.values():
            times = [
                match[1] for space in storage.spaces.values() for match in map(name.search, space.volumes) if match
            ]
            if times:
                return max(times)
        return _MADE_UP["<when>"]

    def _texts(self, name: str, value: Any, path: str, recorded: Recorded | None) -> Iterator[str]:
        if value is None:
            return
        if isinstance(value, list):
            for item in value:
                yield from self._texts(name, item, path, recorded)
            return
        text = str(value)
        if text == "<string>":  # a digest: the last one read if it was accepted, any other if it was refused
            fits = recorded is not None and recorded.row["status"] == 200 and "task" not in recorded.row
            yield self.digests.get(path, "0" * 40) if fits else "f" * 40
        elif text == "<number>":
            yield "1700000000" if name == "starttime" else str(self.pid)
        elif "<time>" in text:
            yield self._mac(text, recorded)
        elif name == "startdate" and text == "<when>":
            yield "2020-02-20T20:20:20"
        elif name == "meta":
            yield "ctime=1"
        else:
            yield self._spell(text)

    def _mac(self, text: str, recorded: Recorded | None) -> str:
        label = "" if recorded is None else str(recorded.row.get("label", ""))
        full = re.search(r"(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}", label)
        address = "02:00:00:00:00:09" if full is None else full[0]
        return self._spell(text.replace("<time>:<time>", address).replace("<time>", "01:00:00"))

    def _headers(self, recorded: Recorded | None) -> Mapping[str, str]:
        if recorded is None:
            return _ROOT
        if self.key[1] == "credentials":
            return _CREDENTIALS[recorded.step]
        if self.token and not recorded.row["request"].startswith("GET /pools"):
            return {"Authorization": f"PVEAPIToken={_USERS[self.key[1]]}={self.token}"}
        return _ROOT

    def _learn(self, path: str, answer: Answer) -> None:
        data = answer.body.get("data") if isinstance(answer.body, dict) else None
        if isinstance(data, dict):
            if "digest" in data:
                self.digests[path] = data["digest"]
            if "full-tokenid" in data and self.key[1] in _USERS:
                self.token = data["value"]
            if "pid" in data and path.endswith("/agent/exec"):
                self.pid = data["pid"]
        if isinstance(data, str) and data.startswith("UPID:"):
            self.upids[self.words.upid(data)] = data

    async def _settle(self) -> None:
        """Finish background work, such as the start after a creation."""
        waited = 0.0
        while self.cluster.world.tasks.active() and waited < _LONGEST_TASK:
            await self.clock.advance(0.25)
            waited += 0.25
        await self._pass(_PAUSE)

    async def _pass(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def _finish(self, upid: str) -> dict[str, Any]:
        task = self.cluster.world.tasks.find(upid)
        assert task is not None, upid
        waited = 0.0
        while task.running and waited < _LONGEST_TASK:
            await self.clock.advance(0.25)
            waited += 0.25
        await self.clock.advance(_PAUSE)
        log = [line["t"] for line in (await self._log(upid))]
        return {"words": self.words.upid(upid), "exit": task.exitstatus, "log": log}

    async def _log(self, upid: str) -> list[dict[str, Any]]:
        answer = await self._ask("GET", f"/nodes/{NODE}/tasks/{quote(upid, safe='')}/log?limit=0", {}, None)
        lines: list[dict[str, Any]] = answer.body["data"]
        return lines

    def _compare(self, recorded: Recorded, answer: Answer) -> Outcome:
        row, differing = recorded.row, dict[str, str]()
        if row["status"] != answer.status:
            differing["status"] = (
                f"{row['status']} -> {answer.status} ({row['reason']!r} -> {self._words(answer.reason)!r})"
            )
        elif not texts_agree(row["reason"], self._words(answer.reason)):
            differing["reason"] = f"{row['reason']!r} -> {self._words(answer.reason)!r}"
        body = answer.body if isinstance(answer.body, dict) else {}
        errors = self.words.read(body.get("errors", {}))
        if not errors_agree(row.get("errors", {}), errors):
            differing["errors"] = f"{row.get('errors')} -> {errors}"
        elif not texts_agree(row.get("message", ""), self._words(body.get("message", ""))):
            differing["errors"] = f"message {row.get('message')!r} -> {self._words(body.get('message', ''))!r}"
        difference = self._shape_difference(row, answer)
        if difference:
            differing["shape"] = difference
        data = self.words.read(body.get("data"))
        if (
            "values" in row
            and answer.status == row["status"]
            and (difference := values_differ(row["values"], data, row.get("label"), narrow=_is_narrow(row)))
        ):
            differing["values"] = difference
        if "text" in row and row["text"][:15] != answer.text[:15]:
            differing["values"] = f"{row['text'][:60]!r} -> {answer.text[:60]!r}"
        if "task" in row and (difference := self._task_difference(row["task"], answer)):
            differing["task"] = difference
        return Outcome(recorded, differing, self._log_difference(row, answer))

    def _shape_difference(self, row: Mapping[str, Any], answer: Answer) -> str:
        kind = "empty" if not answer.text else "json" if isinstance(answer.body, dict) else "text"
        if row["body"] != kind:
            return f"body {row['body']} -> {kind}"
        if row["status"] == answer.status and "top" in row and row.get("ctype") != answer.ctype:
            return f"type {row.get('ctype')} -> {answer.ctype}"
        if kind != "json" or "top" not in row:
            return ""
        top = sorted(set(answer.body) - ({"changes"} if "changes" not in row["top"] else set()))
        if row["top"] != top:
            return f"keys {row['top']} -> {top}"
        return shapes_differ(
            row["shape"], self.words.read(answer.body["data"]), row.get("values"), narrow=_is_narrow(row)
        )

    def _task_difference(self, expected: Mapping[str, Any], answer: Answer) -> str:
        if answer.task is None:
            return f"no task; {expected['exit']!r}"
        kind = f"{expected['type']} {expected['id']} {expected['user']}"
        if kind != answer.task["words"]:
            return f"{kind!r} -> {answer.task['words']!r}"
        ended = self._words(str(answer.task["exit"]))
        return "" if texts_agree(expected["exit"], ended) else f"{expected['exit']!r} -> {ended!r}"

    def _log_difference(self, row: Mapping[str, Any], answer: Answer) -> str | None:
        if "task" not in row or answer.task is None:
            return None
        own = [self._words(line) for line in answer.task["log"]]
        then = row["task"]["log"]
        return None if logs_agree(then, own) else f"{then} -> {own}"

    def _words(self, text: str) -> str:
        return str(self.words.read(text))


def _is_narrow(row: Mapping[str, Any]) -> bool:
    """Whether the request only covers objects of the scenario."""
    return "<id" in row["request"] or "vmid" in row["params"] or "firewall/groups/" in row["request"]


def _is_upid(body: Any) -> bool:
    return isinstance(body, dict) and str(body.get("data")).startswith("UPID:")


async def _play(key: Key, steps: Sequence[Recorded]) -> list[Outcome]:
    clock = scenario_clock()
    async with scenario_cluster(clock) as cluster:
        trusted = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=cluster.ca_file))
        async with aiohttp.ClientSession(connector=trusted, cookie_jar=aiohttp.DummyCookieJar()) as session:
            return await Run(cluster, clock, session, key, Words(BASE_ID, NAMES)).play(steps)


def play(only: str = "") -> list[Outcome]:
    """Play every scenario, or those of one area (`AREA`) or one of them (`AREA/SCENARIO`)."""
    by_key: dict[Key, list[Recorded]] = {}
    for recorded in recorded_steps():
        if "/".join(recorded.key).startswith(only):
            by_key.setdefault(recorded.key, []).append(recorded)
    return [outcome for key, steps in by_key.items() for outcome in asyncio.run(_play(key, steps))]


def agreement(outcomes: Sequence[Outcome]) -> dict[str, tuple[int, int]]:
    """By aspect: the number of steps that agree, and of all that have it."""
    counts = {}
    for aspect in ASPECTS:
        having = [outcome for outcome in outcomes if _has(outcome.recorded.row, aspect)]
        counts[aspect] = (sum(aspect not in outcome.differences for outcome in having), len(having))
    tasks = [outcome for outcome in outcomes if "task" in outcome.recorded.row]
    counts["task log"] = (
        sum(outcome.log is None and "task" not in outcome.differences for outcome in tasks),
        len(tasks),
    )
    counts["all"] = (sum(outcome.agrees for outcome in outcomes), len(outcomes))
    return counts


def _has(row: Mapping[str, Any], aspect: str) -> bool:
    if aspect == "reason":
        return bool(row["status"] != 200)
    return aspect in ("status", "shape") or aspect in row


def report(outcomes: Sequence[Outcome], *, verbose: bool, log: bool) -> Iterator[str]:
    for outcome in outcomes:
        row = outcome.recorded.row
        if not outcome.agrees:
            sent = json.dumps(row["params"], ensure_ascii=False)
            yield f"#{outcome.recorded.number} {outcome.recorded.title} {sent[:200]}"
            for aspect, difference in outcome.differences.items():
                yield f"    {aspect}: {difference if verbose else difference[:500]}"
        if log and outcome.log is not None:
            yield f"#{outcome.recorded.number} {outcome.recorded.title} log: {outcome.log}"
    classes = Counter(aspect for outcome in outcomes for aspect in outcome.differences)
    yield f"differences: {dict(classes)}"
    for aspect, (agreed, count) in agreement(outcomes).items():
        yield f"{aspect:10} {agreed:5} of {count:5} {agreed / count if count else 1:7.1%}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("only", nargs="?", default="")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--log", action="store_true")
    options = parser.parse_args()
    for line in report(play(options.only), verbose=options.verbose, log=options.log):
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
