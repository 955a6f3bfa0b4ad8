"""Turns findings into messages: each event enters the outbox once, and each channel delivers what is due."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from quorate.config.watch import SEVERITIES, ChannelSettings
from quorate.problems import Problem
from quorate.tools.health_findings import KINDS
from quorate.watch.channels import Channel, DeliveryFailure, DeliveryUnknown, PartialDelivery, compose
from quorate.watch.finding_store import Finding, Findings
from quorate.watch.outbox import Notice, Outbox, Parcel

STORM = 5
"""More news than this at once goes out as one message."""
MOST_AT_ONCE = 20
"""Messages of one channel in a row, so that one channel does not hold up everything."""
_STEP = 15 * 60.0
_LOOK_AHEAD = 8 * 86400.0
_LOG = logging.getLogger(__name__)


class Notifier:
    def __init__(
        self,
        channels: Sequence[Channel],
        findings: Findings,
        outbox: Outbox,
        *,
        page: Callable[[str], str],
        sanitize: Callable[[Any], Any],
    ) -> None:
        self._page = page
        """The address of the page that shows a finding, by its id."""
        self._channels = channels
        self._findings = findings
        self._outbox = outbox
        self._sanitize = sanitize

    async def enqueue(self, now: float, concerns: Callable[[Finding], bool] = lambda _: True) -> None:
        """Make messages of the news that concern this process. Done again after a crash, it changes nothing."""
        news = [finding for finding in await self._findings.to_notify() if concerns(finding)]
        spoken = [finding for finding in news if not _is_old_news(finding, now)]
        quiet = [finding for finding in news if _is_old_news(finding, now)]
        for channel in self._channels:
            concerned = [finding for finding in spoken if await self._concerns(channel, finding)]
            storm = len(concerned) > STORM
            for finding in concerned:
                await self._put(channel, finding, now, storm=storm)
        for finding in spoken:
            if finding.event == "resolved":
                await self._outbox.drop(finding.id)
        for finding in (*spoken, *quiet):
            await self._findings.mark_notified(finding)

    async def _concerns(self, channel: Channel, finding: Finding) -> bool:
        """Whether the channel reports the finding. One that reported it also reports its end, however severe."""
        if takes(channel.settings, finding):
            return True
        ended = finding.event == "resolved" and channel.settings.resolved
        return ended and await self._outbox.has_heard(channel.name, finding.id)

    async def _put(self, channel: Channel, finding: Finding, now: float, *, storm: bool) -> None:
        if finding.event == "resolved" and channel.name in await self._outbox.unheard(finding.id):
            return  # its opening was never reported
        when, together = due(channel.settings, now)
        notice = self._notice(finding)
        await self._outbox.put(channel.name, finding.id, finding.revision, notice, due=when, together=together or storm)

    def _notice(self, finding: Finding) -> Notice:
        seen = finding.seen_as
        return Notice(
            event=finding.event,
            severity=seen.severity,
            cluster=finding.cluster,
            kind=seen.kind,
            what=str(self._sanitize(seen.what)),
            means=KINDS.get(seen.kind, ""),
            next=str(self._sanitize(str(seen.next.advice))) if finding.event != "resolved" else "",
            link=seen.link or self._page(finding.id),
            finding=finding.id,
            opened=finding.opened,
        )

    async def deliver(self) -> int:
        """Send what is due on every channel; returns how many messages arrived."""
        await self._outbox.recover()
        ended = await asyncio.gather(*(self._deliver(channel) for channel in self._channels), return_exceptions=True)
        if failed := [result for result in ended if isinstance(result, BaseException)]:
            raise failed[0]  # only now: a channel that is still sending must not meet the next round
        return sum(result for result in ended if isinstance(result, int))

    async def _deliver(self, channel: Channel) -> int:
        sent = 0
        for _ in range(MOST_AT_ONCE):
            parcel = await self._outbox.claim(channel.name)
            if parcel is None or await self.send(channel, parcel):
                break
            sent += 1
        return sent

    async def send(self, channel: Channel, parcel: Parcel, *, once: bool = False) -> str:
        """Send it and write down how that went; returns why it failed, or nothing. With `once`, it is not retried."""
        message = compose(parcel, mark_repeat=not channel.recognizes_repeats)
        try:
            await channel.send(message, unsure=parcel.unsure, since=parcel.since)
        except (DeliveryFailure, DeliveryUnknown) as error:
            why = str(self._sanitize(str(error)))
            final = once or isinstance(error, PartialDelivery)
            await self._outbox.mark_failed(parcel, why, unsure=isinstance(error, DeliveryUnknown), for_good=final)
        except Problem as problem:  # a secret that cannot be found
            why = problem.what
            await self._outbox.mark_failed(parcel, why, for_good=once)
        else:
            await self._outbox.mark_sent(parcel)
            return ""
        _LOG.warning("A message on channel %s was not delivered: %s", channel.name, why)
        return why


def _is_old_news(finding: Finding, now: float) -> bool:
    """Silenced, or over before anyone was notified."""
    return finding.is_silenced(now) or (finding.event == "resolved" and finding.notified == 0)


# -- which channels report a finding, and when -------------------------------------------------------------------------


def takes(channel: ChannelSettings, finding: Finding) -> bool:
    """Whether a channel takes a finding of this severity, kind and cluster. None reports its own failure."""
    seen = finding.seen_as
    if seen.kind == "channel-failing" and seen.target == f"channel {channel.name}":
        return False
    if finding.event == "resolved" and not channel.resolved:
        return False
    if SEVERITIES.index(seen.severity) > SEVERITIES.index(channel.severity):
        return False
    if channel.clusters and finding.cluster not in channel.clusters:
        return False
    unwanted = [pattern[1:] for pattern in channel.kinds if pattern.startswith("!")]
    requested = [pattern for pattern in channel.kinds if not pattern.startswith("!")]
    if any(fnmatchcase(seen.kind, pattern) for pattern in unwanted):
        return False
    return not requested or any(fnmatchcase(seen.kind, pattern) for pattern in requested)


def due(channel: ChannelSettings, now: float) -> tuple[float, bool]:
    """When it is sent, and whether it is collected into one message with others until then."""
    if channel.digest is not None:
        return channel.digest.next_after(now), True
    if not channel.hours or any(hours.cover(now) for hours in channel.hours):
        return now, False
    then = now - now % _STEP + _STEP
    while then < now + _LOOK_AHEAD and not any(hours.cover(then) for hours in channel.hours):
        then += _STEP
    return then, True
