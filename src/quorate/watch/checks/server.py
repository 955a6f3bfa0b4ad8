"""This server itself: approvals that wait, runs that stopped, the freeze, and channels that fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from quorate.config.watch import WatchSettings
from quorate.hints import RUN_GET
from quorate.operations.units import moment
from quorate.state.approvals import Approval
from quorate.state.findings import NextCall, Observation
from quorate.state.freeze import FreezeState
from quorate.state.runs import Run, RunState

CONSOLE = "/console"
CHANNEL_FAILURES = 3
FAILED_SECONDS = 86400.0


def approvals(waiting: list[Approval], settings: WatchSettings) -> Iterator[Observation]:
    """The link leads to the page where the operator logs in and decides; following it decides nothing."""
    for one in waiting:
        yield Observation(
            kind="approval-waiting",
            target=f"approval {one.id}",
            severity="warning",
            what=f"{one.caller} asks on {one.cluster}: {one.summary}",
            evidence={"cluster": one.cluster, "tool": one.tool, "risk": one.risk, "expires": moment(one.expires).value},
            next=NextCall("", text=f"Decide on the page, or with `quorate approvals show {one.id}` at a terminal"),
            link=page(settings, f"/approvals/{one.id}"),
        )


def runs(stopped: Sequence[Run], now: float, settings: WatchSettings) -> Iterator[Observation]:
    """A run that failed is news for a day, one that is paused until a person continues or aborts it."""
    for one in stopped:
        if one.state is RunState.FAILED and now - (one.ended or one.changed) > FAILED_SECONDS:
            continue
        yield Observation(
            kind="run-paused",
            target=f"run {one.id}",
            severity="warning",
            what=f"Run {one.id} on {one.cluster} {'is paused' if one.state is RunState.PAUSED else 'failed'}: "
            f"{one.title}" + (f" ({one.reason})" if one.reason else ""),
            evidence={"cluster": one.cluster, "state": one.state.value},
            next=NextCall(RUN_GET.tool, {"run": one.id}),
            link=page(settings),
        )


def freeze(frozen: FreezeState | None, settings: WatchSettings) -> Iterator[Observation]:
    if frozen is not None:
        yield Observation(
            kind="changes-frozen",
            target="",
            severity="warning",
            what=f"All changes are frozen {frozen}",
            next=NextCall("", text="The operator lifts it with `quorate unfreeze`"),
            link=page(settings),
        )


def channels(failing: Mapping[str, tuple[int, str]]) -> Iterator[Observation]:
    """Of channel -> how often it failed in a row, and why."""
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
