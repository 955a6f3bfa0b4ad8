"""Durable runs: multi-step work that survives the process, with the bounds that a person approved.

A run is one document with a version. Every change to it is one conditional statement that fails if someone else was
faster, so that a worker, a person who pauses it and another replica never overwrite each other. `owner` is the name of
a lock that the worker's process holds while it lives; a run whose owner is gone may be claimed by any process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from quorate.hints import see, tools
from quorate.problems import Conflict, NotFound, Problem
from quorate.state.store import Store, new_id, new_owner, normalize_id, placeholders

NOBODY = ""
KEPT_SECONDS = 90 * 24 * 3600.0
MOST_LINES = 1000


class RunState(StrEnum):
    WAITING = "waiting"
    """Waits for its start time or its window."""
    RUNNING = "running"
    PAUSED = "paused"
    ABORTING = "aborting"
    """Starts nothing new, only cleans up."""
    DONE = "done"
    FAILED = "failed"
    ABORTED = "aborted"

    @property
    def has_ended(self) -> bool:
        return self in (RunState.DONE, RunState.FAILED, RunState.ABORTED)


ENDED = tuple(state for state in RunState if state.has_ended)
ACTIVE = tuple(state for state in RunState if not state.has_ended)
WORKABLE = (RunState.WAITING, RunState.RUNNING, RunState.ABORTING)


class Line(msgspec.Struct, frozen=True):
    """One line of a run's log."""

    time: float
    text: str


class Bound(msgspec.Struct, frozen=True, omit_defaults=True):
    """Calls that a run may make without asking again. A call with any parameter not in `params` is out of bounds."""

    method: str
    """An HTTP method, or RUN for a command."""
    path: str
    """A glob: of the API path, or of the command as it was approved."""
    params: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """The values that each parameter may have; "*" stands for any value, or for any parameter."""
    target: str = "*"
    """A glob of the target's name, so that a run may change only the guests that it created itself."""
    cluster: str = ""
    risk: str = "change"
    """The highest risk that the approval covers; by the time of the call, its risk may be higher."""

    def __str__(self) -> str:
        return " ".join(
            [self.method, self.path, *(f"{name}={'|'.join(values)}" for name, values in self.params.items())]
        )

    def permits(self, method: str, path: str, params: dict[str, str], target: str, cluster: str) -> bool:
        return (
            method == self.method
            and self.cluster in ("", cluster)
            and fnmatchcase(path, self.path)
            and fnmatchcase(target, self.target)
            and all(self._allows(name, value) for name, value in params.items())
        )

    def _allows(self, name: str, value: str) -> bool:
        values = self.params.get(name, ["*"] if "*" in self.params else [])
        return "*" in values or value in values


def literal(text: str) -> str:
    """A glob that matches only this text."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


class Pending(msgspec.Struct, frozen=True):
    """A step that was started. It is stored before it begins, so that its outcome can be looked up after a crash."""

    change: str
    """Its id in the journal."""
    tool: str
    arguments: dict[str, Any]
    begun: float
    says: str = ""


class Run(msgspec.Struct, kw_only=True):
    id: str
    kind: str
    cluster: str
    endpoints: list[str] = []
    """The addresses of the cluster: several clusters configured by environment variables have the same name."""
    tool: str
    title: str
    created: float
    caller: dict[str, Any]
    """Who started it; its steps have the caller's scope."""
    approval: str = ""
    """Who approved it, and how."""
    arguments: dict[str, Any] = {}
    scope: dict[str, Any] = {}
    """What the run is about, as approved: targets, order, options."""
    bounds: list[Bound] = []
    memory: dict[str, Any] = {}
    """What its kind has to remember because PVE does not show it."""
    current: dict[str, Pending] = {}
    log: list[Line] = []
    report: dict[str, Any] = {}
    """Results for the reader."""
    reason: str = ""
    """Why it is paused, or how it ended."""
    request: list[Bound] = []
    """Calls beyond its bounds that it needs; resuming it allows them, so resuming needs an approval for them."""
    starts: float = 0.0
    window: str = ""
    ended: float | None = None
    changed: float = 0.0
    state: RunState = RunState.RUNNING
    aborting: bool = False
    """Whether someone aborted it. If it is paused while it cleans up, resuming it continues only the cleaning."""
    orphaned: bool = False
    """True if it is paused because its caller lost access. It will act for the person who resumes or aborts it."""
    owner: str = NOBODY

    def is_of(self, cluster: str, endpoints: Collection[str]) -> bool:
        """Whether the run belongs to the cluster of that name at one of these addresses."""
        return self.cluster == cluster and (not self.endpoints or not set(self.endpoints).isdisjoint(endpoints))

    def say(self, time: float, text: str) -> None:
        """Add a line to the log; the oldest lines of an endless run are dropped."""
        self.log = [*self.log, Line(time, text)][-MOST_LINES:]


class NotOurs(Problem):
    """Another process works on the run now."""


FindChange = Callable[[str], Awaitable[dict[str, Any] | None]]


async def _no_change(_: str) -> dict[str, Any] | None:
    return None


class RunStore:
    def __init__(self, store: Store, find_change: FindChange = _no_change) -> None:
        self.clock = store.clock
        self._store = store
        self.owner = new_owner()
        self.on_change: Callable[[], None] = lambda: None
        """Called when a run of this process may have something to do."""
        self.find_change = find_change
        """The journal's entry of a change, by its id."""

    @property
    def exists(self) -> bool:
        """Whether there may be runs; reading them does not create a store."""
        return self._store.exists

    # -- reading ---------------------------------------------------------------------------------------------------

    async def list(
        self,
        states: Collection[RunState] = tuple(RunState),
        *,
        cluster: str | None = None,
        kind: str | None = None,
        limit: int = 50,
        shows: Callable[[Run], bool] = lambda _: True,
    ) -> Sequence[Run]:
        """Newest first; up to `limit` of those that `shows` accepts."""
        if not states or not self.exists:
            return []
        names = [state.value for state in states]
        runs: list[Run] = []
        last, last_id = math.inf, ""
        while True:
            rows = await self._store.fetch(
                f"""SELECT * FROM quorate_runs WHERE ($1 = '' OR cluster = $1) AND ($2 = '' OR kind = $2)
                    AND (created < $4 OR created = $4 AND id > $5) AND state IN ({placeholders(names, 6)})
                    ORDER BY created DESC, id LIMIT $3""",  # noqa: S608 - numbers of placeholders
                cluster or "",
                kind or "",
                limit,
                last,
                last_id,
                *names,
            )
            runs += [run for row in rows if shows(run := decode_run(row["entry"]))]
            if len(rows) < limit or len(runs) >= limit:
                return runs[:limit]
            last, last_id = rows[-1]["created"], rows[-1]["id"]

    async def stamp(self, cluster: str, kind: str) -> tuple[int, int]:
        """Differs after every change to these runs, so that readers know when to read them again."""
        if not self.exists:
            return 0, 0
        [row] = await self._store.fetch(
            "SELECT count(*) AS runs, coalesce(sum(version), 0) AS versions FROM quorate_runs"
            " WHERE cluster = $1 AND kind = $2",
            cluster,
            kind,
        )
        return int(row["runs"]), int(row["versions"])

    async def find(self, id: str) -> Run | None:
        rows = await self._store.fetch("SELECT * FROM quorate_runs WHERE id = $1", normalize_id(id))
        return decode_run(rows[0]["entry"]) if rows else None

    async def get(self, id: str) -> Run:
        run = await self.find(id) if self.exists else None
        if run is None:
            raise no_run(id)
        return run

    async def cluster_of(self, id: str) -> str:
        return (await self.get(id)).cluster

    # -- changing --------------------------------------------------------------------------------------------------

    def new_id(self) -> str:
        return new_id(6)

    async def add(self, run: Run) -> Run:
        await self._tidy()
        run.changed = self.clock.time()
        await self._store.execute(
            """INSERT INTO quorate_runs (id, kind, cluster, state, owner, created, version, entry)
                VALUES ($1, $2, $3, $4, $5, $6, 1, $7)""",
            run.id,
            run.kind,
            run.cluster,
            run.state.value,
            run.owner,
            run.created,
            encode_run(run),
        )
        self.on_change()
        return run

    async def change(self, id: str, edit: Callable[[Run], None]) -> Run:
        """Edit the newest version. `edit` may run again if another process was faster, and may raise to refuse."""
        run = await self._change(id, edit)
        self.on_change()
        return run

    async def _change(self, id: str, edit: Callable[[Run], None]) -> Run:
        while True:
            rows = await self._store.fetch("SELECT * FROM quorate_runs WHERE id = $1", normalize_id(id))
            if not rows:
                raise no_run(id)
            run = decode_run(rows[0]["entry"])
            edit(run)
            run.changed = self.clock.time()
            changed = await self._store.execute(
                """UPDATE quorate_runs SET state = $1, owner = $2, version = version + 1, entry = $3
                    WHERE id = $4 AND version = $5""",
                run.state.value,
                run.owner,
                encode_run(run),
                run.id,
                rows[0]["version"],
            )
            if changed:
                return run

    async def change_ours(self, id: str, edit: Callable[[Run], None]) -> Run:
        """Like `change`, as its worker. Raises NotOurs if another process has taken it over, or might have."""
        await self._store.hold(self.owner)

        def edit_ours(run: Run) -> None:
            if run.owner != self.owner:
                raise NotOurs(f"The run {run.id} is continued by another process")
            edit(run)

        return await self._change(id, edit_ours)

    async def claim(self, run: Run) -> Run | None:
        """Become its worker; None if another living process is."""
        if run.owner not in (NOBODY, self.owner) and await self._store.is_held(run.owner):
            return None
        await self._store.hold(self.owner)

        def take(newest: Run) -> None:
            if newest.owner != run.owner or newest.state.has_ended:
                raise NotOurs("It was claimed")
            newest.owner = self.owner

        try:
            return await self.change(run.id, take)
        except NotOurs:
            return None

    async def release(self, id: str) -> None:
        """Let any process continue it."""

        def leave(run: Run) -> None:
            run.owner = NOBODY

        with suppress(NotOurs, NotFound):
            await self.change_ours(id, leave)
            self.on_change()

    async def is_worked_on(self, run: Run) -> bool:
        return run.owner != NOBODY and (run.owner == self.owner or await self._store.is_held(run.owner))

    async def lacks_worker(self, run: Run) -> bool:
        """Whether the run could continue now but no process works on it."""
        return run.state in (RunState.RUNNING, RunState.ABORTING) and not await self.is_worked_on(run)

    # -- control ---------------------------------------------------------------------------------------------------

    async def pause(self, id: str, by: str, why: str = "") -> Run:
        """Pause it after its current step."""

        def edit(run: Run) -> None:
            _refuse_ended(run)
            if run.state is RunState.PAUSED:
                raise Conflict(f"The run {run.id} is already paused")
            if run.state is RunState.ABORTING:
                raise Conflict(f"The run {run.id} is being aborted")
            run.state, run.reason, run.request = RunState.PAUSED, why or f"paused by {by}", []
            run.say(self.clock.time(), f"Paused by {by}")

        return await self.change(id, edit)

    async def resume(
        self,
        id: str,
        by: str,
        allowed: Collection[Bound] = (),
        risk: str = "change",
        *,
        origin: Mapping[str, Any] | None = None,
    ) -> Run:
        """Resume it. `allowed` was approved at this risk and is added to the bounds. `origin` is the caller."""

        def edit(run: Run) -> None:
            _refuse_ended(run)
            if run.state is not RunState.PAUSED:
                raise Conflict(f"The run {run.id} is not paused")
            if any(bound not in allowed for bound in run.request):
                raise Conflict(f"The run {run.id} asks for something else now", next_step="Look at it again")
            run.bounds = [*run.bounds, *(msgspec.structs.replace(bound, risk=risk) for bound in allowed)]
            run.state = RunState.ABORTING if run.aborting else RunState.RUNNING
            run.reason, run.request = "", []
            run.memory.pop("attempts", None)
            self._adopt(run, by, origin)
            run.say(self.clock.time(), f"Resumed by {by}")

        return await self.change(id, edit)

    async def abort(self, id: str, by: str, *, origin: Mapping[str, Any] | None = None) -> Run:
        """Abort it after its current step; the worker then cleans up and reports what is left."""

        def edit(run: Run) -> None:
            _refuse_ended(run)
            run.state, run.reason, run.request = RunState.ABORTING, f"aborted by {by}", []
            run.aborting = True
            run.memory.pop("attempts", None)
            self._adopt(run, by, origin)
            run.say(self.clock.time(), f"Aborted by {by}")

        return await self.change(id, edit)

    def _adopt(self, run: Run, by: str, origin: Mapping[str, Any] | None) -> None:
        """Let an orphaned run act for the person who resumes or aborts it."""
        if run.orphaned and origin is not None:
            run.caller, run.orphaned = dict(origin), False
            run.say(self.clock.time(), f"From here on it acts for {by}")

    async def _tidy(self) -> None:
        await self._store.execute(
            "DELETE FROM quorate_runs WHERE created < $1 AND state IN ('done', 'failed', 'aborted')",
            self.clock.time() - KEPT_SECONDS,
        )


def no_run(id: str) -> NotFound:
    """The same error for a run that does not exist and one that the caller must not see."""
    advice = see("List the runs", tools.run_list)
    return NotFound(f"There is no run {normalize_id(id)!r}", next_step=advice)


def _refuse_ended(run: Run) -> None:
    if run.state.has_ended:
        raise Conflict(f"The run {run.id} has ended ({run.state.value})")


_DECODER = msgspec.json.Decoder(Run)


def decode_run(entry: str) -> Run:
    return _DECODER.decode(entry)


def encode_run(run: Run) -> str:
    """Encode as JSON; texts with a type of their own, such as sizes, become plain texts."""
    try:
        return msgspec.json.encode(run, enc_hook=str).decode()
    except UnicodeEncodeError:  # a lone surrogate, from a command line
        plain = json.dumps(msgspec.to_builtins(run, enc_hook=str), ensure_ascii=False)
        return plain.encode(errors="replace").decode()
