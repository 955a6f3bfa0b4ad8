"""This server itself: approvals that wait, runs that stopped, the freeze, and channels that fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from quorate.config.watch import WatchSettings
from quorate.hints import tools
from quorate.runs.store import Run, RunState
from quorate.state.approvals import Approval
from quorate.state.limits import FreezeState
from quorate.units import moment
from quorate.watch.finding_store import NextCall, Observation

CONSOLE = "/console"
CHANNEL_FAILURES = 3
FAILED_SECONDS = 86400.0


def approvals(waiting: list[Approval], settings: WatchSettings) -> Iterator[Observation]:
    """The link leads to the page where the operator logs in and decides; following it decides nothing."""
    for approval in waiting:
        yield Observation(
            kind="approval-waiting",
            target=f"approval {approval.id}",
            severity="warning",
            what=f"{approval.caller} asks on {approval.cluster}: {approval.summary}",
            evidence={
                "cluster": approval.cluster,
                "tool": approval.tool,
                "risk": approval.risk,
                "expires": moment(approval.expires).value,
            },
            next=NextCall("", text=f"Decide on the page, or with `quorate approvals show {approval.id}` at a terminal"),
            link=page(settings, f"/approvals/{approval.id}"),
        )


def runs(stopped: Sequence[Run], now: float, settings: WatchSettings) -> Iterator[Observation]:
    """A run that failed is news for a day, one that is paused until a person continues or aborts it."""
    for run in stopped:
        if run.state is RunState.FAILED and now - (run.ended or run.changed) > FAILED_SECONDS:
            continue
        yield Observation(
            kind="run-paused",
            target=f"run {run.id}",
            severity="warning",
            what=f"Run {run.id} on {run.cluster} {'is paused' if run.state is RunState.PAUSED else 'failed'}: "
            f"{run.title}" + (f" ({run.reason})" if run.reason else ""),
            evidence={"cluster": run.cluster, "state": run.state.value},
            next=NextCall(tools.run_get.tool, {"run": run.id}),
            link=page(settings, f"/runs/{run.id}"),
        )


def freeze(frozen: FreezeState | None, settings: WatchSettings) -> Iterator[Observation]:
    if frozen is not None:
        yield Observation(
            kind="changes-frozen",
            target="",
            severity="warning",
            what=f"All changes are frozen {frozen}",
            next=NextCall("", text="The operator lifts it with `quorate unfreeze`"),
            link=page(settings, "/freeze"),
        )


def channels(failing: Mapping[str, tuple[int, str]]) -> Iterator[Observation]:
    """`failing` maps channels to how often they failed in a row, and why."""
    for name, (times, why) in sorted(failing.items()):
        if times >= CHANNEL_FAILURES:
            yield Observation(
                kind="channel-failing",
                target=f"channel {name}",
                severity="critical",
                what=f"Messages on channel {name} failed {times} times in a row: {why}",
                next=NextCall("", text=f"Check it with `quorate watch test {name}`"),
            )


def page(settings: WatchSettings, path: str = "") -> str:
    """A page of the console, behind its login; empty without a public address."""
    return f"{settings.public_url}{CONSOLE}{path}" if settings.public_url else ""
