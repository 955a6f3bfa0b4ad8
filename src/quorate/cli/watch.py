"""quorate watch: watch clusters and hosts without a server, and manage findings and channels."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import logging
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from quorate import log
from quorate.cli.options import (
    FAILED,
    OK,
    actions_of,
    add_command,
    cluster_options,
    log_options,
    toolsets_option,
    with_app,
)
from quorate.config.watch import WatchSettings
from quorate.hints import Hint, tools
from quorate.pipeline.redaction import clean, one_line
from quorate.units import iso_times, moment, parse_span

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from quorate.app import App
    from quorate.config import Settings
    from quorate.watch.finding_store import Finding
    from quorate.watch.watch import Watch


_LOG = logging.getLogger(__name__)


def add(commands: Any) -> None:
    watch = add_command(commands, "watch", _watch)
    watch.epilog = "With [watch] in the configuration, `quorate serve` watches too; only one process watches at a time."
    watch.add_argument("--once", action="store_true", help="run one cycle, print the findings and exit")
    log_options(watch)
    add_action = actions_of(watch, toolsets_option, cluster_options)
    listed = add_action("list", _list, "list the open findings")
    listed.add_argument("--json", action="store_true", help="print JSON")
    for name, run, summary in (
        ("acknowledge", _acknowledge, "stop messages about a finding unless it gets worse"),
        ("silence", _silence, "stop messages about a finding for a while"),
    ):
        action = add_action(name, run, summary)
        action.add_argument("id", metavar="ID", help="id of the finding, as listed")
        if name == "silence":
            action.add_argument("span", metavar="TIME", help="how long: 30m, 8h, 7d")
        action.add_argument("--note", metavar="TEXT", default="", help="shown with the finding")
    test = add_action("test", _test, "send a test message on every channel, or on one")
    test.add_argument("channel", metavar="CHANNEL", nargs="?", help="name of the channel")
    log = add_action("log", _log, "list messages: sent, waiting and failed")
    log.add_argument("--channel", metavar="NAME", help="only this channel")
    log.add_argument("--limit", metavar="N", type=int, default=30, help="how many (default: 30)")


def _run(options: argparse.Namespace, work: Callable[[App, Watch], Awaitable[int]]) -> int:
    async def run(app: App) -> int:
        assert app.watch is not None
        return await work(app, app.watch)

    def enable_watch(settings: Settings) -> Settings:
        return settings if settings.watch is not None else replace(settings, watch=WatchSettings())

    for name in ("access", "approval"):
        setattr(options, name, None)
    return with_app(options, run, adapt=enable_watch, name=_name_command)


def _name_command(hint: Hint) -> str:
    return "`quorate watch list`" if hint == tools.finding_list else str(hint)


def _watch(options: argparse.Namespace) -> int:
    async def work(app: App, watch: Watch) -> int:
        if options.once:
            await _look(watch)
            await _print(watch)
            return OK
        log.set_up(app.settings.log_format, app.settings.log_level)
        log.sanitize_lines(app.pipeline.sanitize)
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        channels = ", ".join(channel.name for channel in watch.channels) or "none; findings are only stored"
        _LOG.info("watching every %g s; channels: %s", watch.settings.every, channels)
        async with watch.running():
            await ended.wait()
        return OK

    return _run(options, work)


def _list(options: argparse.Namespace) -> int:
    async def work(_: App, watch: Watch) -> int:
        if options.demo:  # its cluster is as new as this process
            await _look(watch)
        if options.json:
            print(json.dumps([_as_dict(finding) for finding in await watch.findings()], ensure_ascii=False))
            await _warn(watch)
        else:
            await _print(watch)
        return OK

    return _run(options, work)


def _acknowledge(options: argparse.Namespace) -> int:
    async def work(_: App, watch: Watch) -> int:
        done = await watch.acknowledge(options.id, f"{getpass.getuser()} at a terminal", options.note)
        print(f"{done.id}: acknowledged. {_line(done.seen_as.what)}")
        return OK

    return _run(options, work)


def _silence(options: argparse.Namespace) -> int:
    async def work(app: App, watch: Watch) -> int:
        until = app.store.clock.time() + parse_span(options.span)
        done = await watch.silence(options.id, until, f"{getpass.getuser()} at a terminal", options.note)
        print(f"{done.id}: silenced until {moment(until)}. {_line(done.seen_as.what)}")
        return OK

    return _run(options, work)


def _test(options: argparse.Namespace) -> int:
    async def work(_: App, watch: Watch) -> int:
        channels = [channel for channel in watch.channels if options.channel in (None, channel.name)]
        if not channels:
            known = ", ".join(channel.name for channel in watch.channels)
            none = "No channel is configured: add [watch.channels.NAME] (docs/watch.md)."
            objection = f"There is no channel {options.channel!r}. Configured: {known}." if known else none
            print(f"quorate: {objection}", file=sys.stderr)
            return FAILED
        failed = False
        for channel in channels:
            why = await watch.test(channel)
            failed = failed or bool(why)
            print(f"{channel.name}: {f'failed: {_line(why)}' if why else 'sent'}")
        return FAILED if failed else OK

    return _run(options, work)


def _log(options: argparse.Namespace) -> int:
    async def work(_: App, watch: Watch) -> int:
        listed = await watch.deliveries(options.limit, options.channel)
        if not listed:
            print("No messages.", file=sys.stderr)
        for delivery in listed:
            error = f"  ({_line(delivery.error)})" if delivery.error else ""
            notice = delivery.notice
            print(
                f"{moment(delivery.created)}  {delivery.state:<8} {delivery.channel}  {delivery.event} "
                f"{notice.severity} {notice.cluster}  {_line(notice.what)}{error}"
            )
        return OK

    return _run(options, work)


async def _look(watch: Watch) -> None:
    """Look twice, because some observations count only when they repeat."""
    await watch.cycle()
    await watch.cycle()


async def _print(watch: Watch) -> None:
    findings = await watch.findings()
    for finding in findings:
        state = "" if finding.state == "open" else f" ({finding.state})"
        print(f"{finding.id}  {finding.severity:<9} {finding.cluster}  {_line(finding.seen_as.what)}{state}")
        print(f"{'':10}since {moment(finding.opened)}; next: {_line(str(finding.seen_as.next.advice))}")
    if await _warn(watch) and not findings:
        print("No open findings in what the watch has checked.")


async def _warn(watch: Watch) -> bool:
    """Say what nobody has looked at, because an empty list would look healthy; whether anything is watched at all."""
    watched = await watch.describe_status()
    for name in ("watch", "not_watched", "not_read_yet"):
        if name in watched:
            print(f"quorate: {_line(str(watched[name]))}", file=sys.stderr)
    return "watch" not in watched


def _as_dict(finding: Finding) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(finding)
    facts["finding"] = facts.pop("seen_as")
    times = ("opened", "last_seen", "acknowledged_at", "silenced_until", "resolved")
    cleaned: dict[str, Any] = clean(iso_times(facts, times))
    return cleaned


def _line(text: str) -> str:
    return one_line(text)
