"""Which channels report a finding, and when."""

from __future__ import annotations

from fnmatch import fnmatchcase

from quorate.config.watch import SEVERITIES, ChannelSettings
from quorate.state.findings import Finding

_STEP = 15 * 60.0
_LOOK_AHEAD = 8 * 86400.0


def takes(channel: ChannelSettings, finding: Finding) -> bool:
    """By severity, kind and cluster. A channel is not asked to report its own failure."""
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
    wanted = [pattern for pattern in channel.kinds if not pattern.startswith("!")]
    if any(fnmatchcase(seen.kind, pattern) for pattern in unwanted):
        return False
    return not wanted or any(fnmatchcase(seen.kind, pattern) for pattern in wanted)


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
