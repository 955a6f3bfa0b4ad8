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

from quorate.cli.options import (
    FAILED,
    OK,
    actions_of,
    cluster_options,
    command,
    toolsets_option,
    with_app,
)
from quorate.hints import FINDING_LIST, Hint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from quorate.app import App
    from quorate.config import Settings
    from quorate.state.findings import Finding
    from quorate.watch.watch import Watch


def add(commands: Any) -> None:
    watch = command(commands, "watch", _watch, "watch clusters and hosts, and report what is wrong")
    watch.epilog = "With [watch] in the configuration, `quorate serve` watches too; only one process watches at a time."
    watch.add_argument("--once", action="store_true", help="run one cycle, print the findings and exit")
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
        from quorate.config.watch import WatchSettings

        return settings if settings.watch is not None else replace(settings, watch=WatchSettings())

    for name in ("access", "approval"):
        setattr(options, name, None)
    return with_app(options, run, adapt=enable_watch, name=_name_command)


def _name_command(hint: Hint) -> str:
    return "`quorate watch list`" if hint == FINDING_LIST else str(hint)


def _watch(options: argparse.Namespace) -> int:
    async def work(_: App, watch: Watch) -> int:
        if options.once:
            await _look(watch)
            await _print(watch)
            return OK
        logging.basicConfig(level=logging.WARNING, format="quorate: %(message)s")
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ended.set)
        channels = ", ".join(one.name for one in watch.channels) or "none; findings are only stored"
        print(f"quorate: watching every {watch.settings.every:g} s; channels: {channels}", file=sys.stderr)
        async with watch.running():
            await ended.wait()
        return OK

    return _run(options, work)


def _list(options: argparse.Namespace) -> int:
    async def work(_: App, watch: Watch) -> int:
        if options.demo:  # its cluster is as new as this process
            await _look(watch)
        if options.json:
            print(json.dumps([_as_dict(one) for one in await watch.findings()], ensure_ascii=False))
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
        from quorate.operations.units import moment, parse_span

        until = app.store.clock.time() + parse_span(options.span)
        done = await watch.silence(options.id, until, f"{getpass.getuser()} at a terminal", options.note)
        print(f"{done.id}: silenced until {moment(until)}. {_line(done.seen_as.what)}")
        return OK

    return _run(options, work)


def _test(options: argparse.Namespace) -> int:
    async def work(_: App, watch: Watch) -> int:
        wanted = [one for one in watch.channels if options.channel in (None, one.name)]
        if not wanted:
            known = ", ".join(one.name for one in watch.channels)
            none = "No channel is configured: add [watch.channels.NAME] (docs/watch.md)."
            found = f"There is no channel {options.channel!r}. Configured: {known}." if known else none
            print(f"quorate: {found}", file=sys.stderr)
            return FAILED
        failed = False
        for channel in wanted:
            why = await watch.test(channel)
            failed = failed or bool(why)
            print(f"{channel.name}: {f'failed: {_line(why)}' if why else 'sent'}")
        return FAILED if failed else OK

    return _run(options, work)


def _log(options: argparse.Namespace) -> int:
    async def work(_: App, watch: Watch) -> int:
        from quorate.operations.units import moment

        listed = await watch.deliveries(options.limit, options.channel)
        if not listed:
            print("No messages.", file=sys.stderr)
        for one in listed:
            error = f"  ({_line(one.error)})" if one.error else ""
            notice = one.notice
            print(
                f"{moment(one.created)}  {one.state:<8} {one.channel}  {one.event} {notice.severity} {notice.cluster}  "
                f"{_line(notice.what)}{error}"
            )
        return OK

    return _run(options, work)


async def _look(watch: Watch) -> None:
    """Look twice, because some observations count only when they repeat."""
    await watch.cycle()
    await watch.cycle()


async def _print(watch: Watch) -> None:
    from quorate.operations.units import moment

    found = await watch.findings()
    for one in found:
        state = "" if one.state == "open" else f" ({one.state})"
        print(f"{one.id}  {one.severity:<9} {one.cluster}  {_line(one.seen_as.what)}{state}")
        print(f"{'':10}since {moment(one.opened)}; next: {_line(str(one.seen_as.next.advice))}")
    if await _warn(watch) and not found:
        print("No open findings in what the watch has checked.")


async def _warn(watch: Watch) -> bool:
    """Say what nobody has looked at, because an empty list would look healthy; whether anything is watched at all."""
    watched = await watch.describe_status()
    for name in ("watch", "not_watched", "not_read_yet"):
        if name in watched:
            print(f"quorate: {_line(str(watched[name]))}", file=sys.stderr)
    return "watch" not in watched


def _as_dict(finding: Finding) -> dict[str, Any]:
    import msgspec

    from quorate.operations.units import iso_times
    from quorate.pipeline.sanitization import clean

    facts: dict[str, Any] = msgspec.to_builtins(finding)
    facts["finding"] = facts.pop("seen_as")
    times = ("opened", "last_seen", "acknowledged_at", "silenced_until", "resolved")
    cleaned: dict[str, Any] = clean(iso_times(facts, times))
    return cleaned


def _line(text: str) -> str:
    from quorate.pipeline.sanitization import one_line

    return one_line(text)
