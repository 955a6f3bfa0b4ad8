"""Replays the requests recorded on a Proxmox Backup Server 4.1.1, in order, and compares the answers.

Compared are the status, the text of every refusal, and the data: names, states and sizes exactly; times, digests and
process numbers by their presence. Lists have no order there, and the recordings cut long ones.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from pve_simulator.clock import ManualClock
from pve_simulator.http.certificates import shared_identity
from pve_simulator.pbs.server import BackupServer
from pve_simulator.pbs.tasks import escape
from simulator.pbs_world import REMOTE_PORT, ROOT_PASSWORD, STARTED_AT, back_up, recorded_server, send_log

RECORDINGS = Path(__file__).parent.parent / "data" / "pbs-recordings.jsonl.gz"
OTHER_SECTIONS = ("pve-with-pbs", "role-matrix")

_UPID = re.compile(r"UPID:vm:<pid>:<pstart>:<task>:<start>:([^:]+):([^:]*):([^:]+):")
_OWN_UPID = re.compile(r"UPID:vm:[0-9A-F]{8}:[0-9A-F]{8}:[0-9A-F]{8}:[0-9A-F]{8}:")
_ACL_SECONDS = 6.0
_STUCK_SECONDS = 0.5  # real seconds after which a request is assumed to wait for simulated time
_PAUSE = 0.1
_PLACEHOLDERS = ("<digest>", "<time>", "<pid>", "<pstart>", "<secret>", "<ticket>", "<csrf>", "<ticket-info>", "<id>")
_MORE = re.compile(r"\.\.\. (\d+) more")

MACHINE = frozenset(
    {
        "/nodes/{node}/status", "/nodes/{node}/dns", "/nodes/{node}/certificates/info", "/nodes/{node}/apt/versions",
        "/nodes/{node}/apt/update", "/nodes/{node}/subscription", "/nodes/{node}/services", "/status/metrics",
    }
)  # fmt: skip
"""What these say is about the recorded machine: only the names of the fields are compared."""
MEASURED = frozenset(
    {
        "avail", "total", "used", "disk-bytes", "disk-chunks", "index-data-bytes", "index-file-count", "hits", "misses",
        "pid", "pstart", "starttime", "endtime", "next-run", "last-run-endtime", "mtime", "time", "history-start",
        "compressed_size", "count", "csum", "duplicates", "size", "pem", "comment-of-role",
    }
)  # fmt: skip
"""Numbers of the recorded disk and process; sizes of archives depend on its compression."""


@dataclass(slots=True)
class Outcome:
    number: int
    recording: dict[str, Any]
    status: int
    answer: Any
    differences: list[str] = field(default_factory=list)


def recordings() -> list[dict[str, Any]]:
    with gzip.open(RECORDINGS, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


class Replay:
    """One server, and a client that sends what was recorded."""

    def __init__(self, server: BackupServer, session: aiohttp.ClientSession, clock: ManualClock) -> None:
        self._server = server
        self._session = session
        self._clock = clock
        self._tickets: tuple[str, str] = ("", "")
        self._secrets: dict[str, str] = {}

    async def send(self, number: int, row: dict[str, Any]) -> Outcome:
        await self._prepare(row)
        path = self._path(row)
        params = self._params(row)
        headers = self._headers(row)
        body: bytes | None = row["raw_body"].encode() if row.get("raw_body") is not None else None
        url = f"{self._server.url}{row.get('base') or '/api2/json'}{path}"
        if row.get("base") and row["path"] == row["base"]:
            url = f"{self._server.url}{path}"
        if path in ("/", "/nothing.js") and row["section"] == "ping":
            url = f"{self._server.url}{path}"
        if row.get("sent") == "json":
            body = json.dumps(params).encode()
            headers["Content-Type"] = "application/json"
        elif row.get("sent") == "form" and params:
            body = urlencode(_pairs(params)).encode()
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        elif params:
            url += ("&" if "?" in url else "?") + urlencode(_pairs(params))
        sent = asyncio.ensure_future(self._exchange(row["method"], url, headers, body))
        while not (await asyncio.wait({sent}, timeout=_STUCK_SECONDS))[0]:
            await self._clock.advance(1.0)
        status, answer = sent.result()
        self._learn(row, answer)
        return Outcome(number, row, status, answer)

    async def _exchange(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None
    ) -> tuple[int, dict[str, Any] | str | bytes]:
        skipped = [name for name in ("Accept-Encoding", "Content-Type") if name not in headers]
        async with self._session.request(
            method, URL(url, encoded=True), headers=headers, data=body, skip_auto_headers=skipped
        ) as response:
            content = await response.read()
            try:
                return response.status, json.loads(content) if response.status == 200 else content.decode()
            except ValueError:
                return response.status, content

    async def _prepare(self, row: dict[str, Any]) -> None:
        if row["label"] != "status while running":
            await self._clock.advance(_PAUSE)
        if row["label"].endswith("6 s later") or row["label"] == "right form":
            await self._clock.advance(_ACL_SECONDS)
        if row["label"] == "token of admin user before any ACL":
            await self._clock.advance(_ACL_SECONDS)
        if row["section"] == "groups" and not self._server.datastores["store1"].namespaces[""]:
            back_up(self._server)
        if row["label"] == "client log after upload-log":
            send_log(self._server)
        if row["section"] == "remote":
            self._server.peers["127.0.0.1", REMOTE_PORT] = self._server

    def _path(self, row: dict[str, Any]) -> str:
        path = str(row["path"])
        encoded = "%3A" in path and "UPID" in path
        text = (
            path
            if not encoded
            else path.replace("%3A", ":").replace("%5C", "\\").replace("%40", "@").replace("%21", "!")
        )
        match = _UPID.search(text)
        if match is None:
            return text if encoded else quote(path, safe="/:@!?=&%~.")
        upid = self._own_upid(match, unknown=row["section"] == "tasks" and "unknown" in row["label"])
        rest = text[match.end() :]
        return text[: match.start()] + quote(upid, safe="" if encoded else ":@!") + rest

    def _own_upid(self, match: re.Match[str], *, unknown: bool) -> str:
        kind, worker_id, auth_id = match.groups()
        if unknown:
            return f"UPID:vm:00000001:00000001:00000001:00000001:{kind}:{worker_id}:{auth_id}:"
        fitting = [
            task.upid
            for task in self._server.tasks.all
            if (task.type, escape(task.id), task.auth_id) == (kind, worker_id, auth_id)
        ]
        return fitting[-1] if fitting else match[0]

    def _params(self, row: dict[str, Any]) -> dict[str, Any]:
        params: dict[str, Any] = {}
        for name, value in (row.get("params") or {}).items():
            text = str(value)
            if text == "<root-password>":
                value = ROOT_PASSWORD
            elif text == "<password>":
                value = self._secrets.get("admin@pbs!full", "") if row["section"] == "remote" else "long enough"
            elif text == "<ticket>":
                value = self._tickets[0]
            elif text == "<fingerprint>":
                value = self._server.fingerprint
            elif text == "<FINGERPRINT>":
                value = ":".join(["ab"] * 32)
            elif text == "<digest>":
                is_right = "right" in row["label"]
                configs = [store.config for store in self._server.datastores.values()]
                value = self._server.digest(*configs) if is_right else "0" * 64
            elif re.fullmatch(r"/?<(\d+) x>", text):
                value = ("/" if text.startswith("/") else "") + "x" * int(re.sub(r"\D", "", text))
            params[name] = value
        return params

    def _headers(self, row: dict[str, Any]) -> dict[str, str]:
        headers = dict(row.get("headers_sent") or {})
        auth = row.get("auth")
        if auth is None:
            return headers
        if auth.startswith("token "):
            token = auth.removeprefix("token ")
            secret = self._secrets.get(token, "?")
            if row["label"] == "old secret after regenerate":
                secret = self._secrets.get("old", "?")
            headers["Authorization"] = f"PBSAPIToken={token}:{secret}"
        elif auth.startswith("ticket") or auth == "garbage ticket":
            ticket = "garbage" if auth == "garbage ticket" else self._tickets[0]
            headers["Cookie"] = f"PBSAuthCookie={quote(ticket, safe='')}"
            if auth.endswith("+ CSRF"):
                headers["CSRFPreventionToken"] = self._tickets[1]
            elif "wrong" in auth:
                headers["CSRFPreventionToken"] = "wrong"
        else:
            secret = self._secrets.get("admin@pbs!full", "?")
            headers["Authorization"] = auth.replace("<secret>", secret).replace("<wrong>", "0" * 8)
        return headers

    def _learn(self, row: dict[str, Any], answer: Any) -> None:
        data = answer.get("data") if isinstance(answer, dict) else None
        if isinstance(data, dict) and "ticket" in data:
            self._tickets = (data["ticket"], data["CSRFPreventionToken"])
        if isinstance(data, dict) and "tokenid" in data and "value" in data:
            self._secrets[data["tokenid"]] = data["value"]
        if isinstance(data, dict) and "secret" in data:
            token = row["path"].split("/")
            name = f"{token[3]}!{token[5]}"
            self._secrets["old"], self._secrets[name] = self._secrets[name], data["secret"]


def _pairs(params: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, item) for name, value in params.items() for item in (value if isinstance(value, list) else [value])]


async def replay() -> list[Outcome]:
    clock = ManualClock(STARTED_AT)
    outcomes = []
    async with recorded_server(clock=clock, identity=shared_identity, auth_delay=False) as server:
        context = ssl.create_default_context(cafile=server.ca_file)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context), auto_decompress=False) as session:
            client = Replay(server, session, clock)
            for number, row in enumerate(recordings()):
                if row["section"] not in OTHER_SECTIONS and "status" in row:
                    outcome = await client.send(number, row)
                    outcome.differences = compare(server, row, outcome)
                    outcomes.append(outcome)
    return outcomes


# -- comparison --------------------------------------------------------------------------------------------------------


def compare(server: BackupServer, row: dict[str, Any], outcome: Outcome) -> list[str]:
    """How the answer differs from the recorded one."""
    if outcome.status != row["status"]:
        return [f"status {outcome.status} instead of {row['status']}: {str(outcome.answer)[:200]}"]
    if "bytes" in row:
        return [] if isinstance(outcome.answer, bytes) else ["not a binary body"]
    if "text" in row:
        text = outcome.answer.decode() if isinstance(outcome.answer, bytes) else outcome.answer
        return [] if _same_text(row["text"], text) else [f"text {text!r} instead of {row['text']!r}"]
    if "body" not in row or (isinstance(row["body"], dict) and set(row["body"]) == {"len", "hex"}):
        return []
    match = server.facts.find(row["method"], row["path"].partition("?")[0])
    by_shape = match is not None and match.endpoint.template in MACHINE
    return list(_differences(row["body"], outcome.answer, "", by_shape=by_shape, is_log=row["path"].endswith("/log")))


def _same_text(recorded: str, text: Any) -> bool:
    if not isinstance(text, str):
        return False
    pattern = re.escape(recorded).replace("<time>", r"[-\d:T+Z]+").replace("<html>vm</html>", "<html>vm</html>")
    return re.match(pattern[:2000] if "<time>" in recorded else pattern + r"\s*$", text) is not None or _logs_agree(
        recorded, text
    )


def _logs_agree(recorded: str, text: str) -> bool:
    """A downloaded log: its lines in any order of groups."""
    lines = {re.sub(r"^<time>: ", "", line) for line in recorded.splitlines()}
    own = {re.sub(r"^\S+: ", "", line) for line in text.splitlines()}
    return "<time>" in recorded and len(lines & own) >= len(lines) * 0.5


def _differences(recorded: Any, answered: Any, at: str, *, by_shape: bool, is_log: bool) -> list[str]:
    name = at.rpartition(".")[2]
    if isinstance(recorded, dict) and isinstance(answered, dict):
        keys = [f"{at}.{key} is missing" for key in recorded if key not in answered]
        keys += [f"{at}.{key} is extra" for key in answered if key not in recorded]
        inner = [
            difference
            for key in recorded
            if key in answered
            for difference in _differences(
                recorded[key], answered[key], f"{at}.{key}", by_shape=by_shape, is_log=is_log
            )
        ]
        return [*keys, *inner]
    if isinstance(recorded, list) and isinstance(answered, list):
        return _list_differences(recorded, answered, at, by_shape=by_shape, is_log=is_log)
    if (
        by_shape
        or name in MEASURED
        or (isinstance(recorded, str) and recorded.startswith("<") and recorded.endswith(">"))
    ):
        return []
    if type(recorded) is not type(answered) and not (isinstance(recorded, int) and isinstance(answered, int)):
        return [f"{at}: {answered!r} instead of {recorded!r}"]
    if is_log and name == "total":
        return []
    return [] if _plain(recorded) == _plain(answered) else [f"{at}: {answered!r} instead of {recorded!r}"]


def _list_differences(recorded: list[Any], answered: list[Any], at: str, *, by_shape: bool, is_log: bool) -> list[str]:
    cut = [match for item in recorded if isinstance(item, str) and (match := _MORE.fullmatch(item))]
    shown = [item for item in recorded if not (isinstance(item, str) and _MORE.fullmatch(item))]
    if by_shape:
        return (
            []
            if not shown or not answered
            else _differences(shown[0], answered[0], f"{at}[0]", by_shape=True, is_log=False)
        )
    if is_log and at.endswith(".data"):
        return _log_differences(shown, answered)
    length = len(shown) + sum(int(match[1]) for match in cut)
    if length != len(answered):
        return [f"{at}: {len(answered)} elements instead of {length}"]
    missing = []
    pending = list(answered)
    for item in shown:
        fitting = [each for each in pending if not _differences(item, each, at, by_shape=False, is_log=False)]
        if fitting:
            pending.remove(fitting[0])
        else:
            missing.append(f"{at}: nothing like {str(item)[:160]}")
    return missing


def _log_differences(shown: list[Any], answered: list[Any]) -> list[str]:
    """Lines that the log lacks, numbers left out: groups are visited in the order of a folder."""
    own = {_line(row["t"]) for row in answered}
    lacking = [row["t"] for row in shown if _line(row["t"]) not in own]
    return [f"log lacks {lacking[:2]}"] if len(lacking) > max(1, len(shown) // 4) else []


def _line(text: str) -> str:
    return re.sub(
        r"[\d.]+", "#", re.sub(r"^(<time>|\S+): ", "", text).replace("<time>", "#-#-#T#:#:#Z").replace("<id>", "#")
    )


def _plain(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return _OWN_UPID.sub("UPID:vm:<pid>:<pstart>:<task>:<start>:", value)


if __name__ == "__main__":
    results = asyncio.run(replay())
    for each in results:
        if each.differences:
            print(each.number, each.recording["section"], each.recording["label"], each.differences[:3])  # noqa: T201
    print(sum(not each.differences for each in results), "of", len(results))  # noqa: T201
