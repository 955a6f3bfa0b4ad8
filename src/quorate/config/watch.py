"""Read `[watch]`: how often, by which limits, and the channels on which people hear about findings."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from quorate.config.policy import Hours, as_zone, parse_hours
from quorate.config.sources import (
    ConfigError,
    Option,
    RawSetting,
    RawSettings,
    Source,
    Table,
    in_named_table,
    in_table,
    in_variables,
    merge,
    option,
    options_of,
    suggest_setting,
    table,
)
from quorate.config.values import (
    Choice,
    Number,
    WholeNumber,
    as_port,
    as_secret,
    as_switch,
    as_text,
    as_texts,
    read,
    read_options,
)
from quorate.secret import Secret

SEVERITIES = ("critical", "warning", "unchecked", "info")
"""Worst first; a channel takes its own and everything before it."""
SECRET_KINDS = ("vault", "keyring")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_EVERY = re.compile(r"(?P<count>\d{1,3})(?P<unit>[mhd])")
_AT = re.compile(r"(?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d)")
_UNITS = {"m": 60, "h": 3600, "d": 86400}
_SECRET = ("token", "password", "secret", "client_token")

# What each type needs, and what it may have besides.
TYPES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ntfy": (("url", "topic"), ("token", "user", "password")),
    "gotify": (("url", "token"), ("client_token",)),
    "webhook": (("url", "secret"), ()),
    "smtp": (("host", "sender", "to"), ("port", "user", "password", "tls")),
    "telegram": (("token", "chat"), ("url",)),
    "matrix": (("url", "token", "room"), ()),
    "slack": (("url",), ()),
}


def _as_url(raw: RawSetting) -> str:
    text = as_text(raw)
    parts = urlsplit(text)
    if not parts.hostname or parts.scheme not in ("https", "http") or parts.username:
        raise ConfigError(f"{raw.label} must be an address such as https://ntfy.sh, without a user or password.")
    return text.rstrip("/")


@dataclass(frozen=True, slots=True)
class Digest:
    """When collected messages are sent: every few seconds or hours, or at times of the day (minutes since midnight)."""

    seconds: int = 0
    at: tuple[int, ...] = ()
    zone: datetime.tzinfo | None = None

    def next_after(self, now: float) -> float:
        if self.seconds:
            return (now // self.seconds + 1) * self.seconds
        local = datetime.datetime.fromtimestamp(now, self.zone)
        for days in (0, 1):
            day = local + datetime.timedelta(days=days)
            for minute in sorted(self.at):
                then = day.replace(hour=minute // 60, minute=minute % 60, second=0, microsecond=0)
                if then.timestamp() > now:
                    return then.timestamp()
        raise AssertionError("a day has no such time")


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    name: str
    type: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Addresses and names, without secrets."""
    secrets: Mapping[str, Secret | str] = field(default_factory=dict)
    """Secrets, or references such as `vault:phone` that are resolved when used."""
    severity: str = option(
        f"the lowest severity to report: {', '.join(f'`{severity}`' for severity in SEVERITIES)}",
        Choice(SEVERITIES),
        default="warning",
    )
    kinds: tuple[str, ...] = option(
        'patterns: `["backup-*"]`; `!` excludes: `["!snapshot-*"]`', as_texts, default=(), usual="all"
    )
    clusters: tuple[str, ...] = option(
        "names; `homelab` for hosts, `quorate` for this server", as_texts, default=(), usual="all"
    )
    hours: tuple[Hours, ...] = option(
        '`"07:00-22:00"`, `"Mon-Fri 08:00-18:00"`; outside these hours, messages wait', default=(), usual="always"
    )
    digest: Digest | None = option(
        'collect messages until `"08:00"`, `["08:00", "18:00"]`, or every `"4h"`', usual="send at once"
    )
    resolved: bool = option("also report when a finding is resolved", as_switch, default=True)


@dataclass(frozen=True, slots=True)
class WatchSettings:
    every: float = option("seconds between cycles", Number(10, 3600), default=60.0)
    requests: int = option(
        "maximum requests for slow facts in a cycle, for each cluster", WholeNumber(5, 500), default=40
    )
    public_url: str | None = option("URL of this server, for links in messages", _as_url, usual="that of `[http]`")
    running_tags: tuple[str, ...] = option(
        "guests with one of these tags should run, in addition to those that start at boot and those under HA",
        as_texts,
        default=(),
    )
    firewall_tags: tuple[str, ...] = option(
        "guests with one of these tags should have a firewall; `*` means all", as_texts, default=()
    )
    pinned_tags: tuple[str, ...] = option("guests whose settings should not change", as_texts, default=())
    storage_percent: int = option("when a storage counts as full", WholeNumber(1, 100), default=85)
    storage_days: int = option(
        "report a storage that will be full within this many days", WholeNumber(1, 365), default=7
    )
    backup_days: int = option("days after which a backup is old", WholeNumber(1, 365), default=7)
    snapshot_days: int = option("days after which a snapshot is old", WholeNumber(1, 3650), default=30)
    ignore: tuple[str, ...] = option('kinds that are not reported, such as `["agent-*"]`', as_texts, default=())
    channels: tuple[ChannelSettings, ...] = ()


_TYPE_OPTIONS = dict.fromkeys(name for names in TYPES.values() for group in names for name in group)
CHANNEL: Table = {
    **table(type=Option(f"one of {', '.join(TYPES)}"), **{name: Option("see the types") for name in _TYPE_OPTIONS}),
    **options_of(ChannelSettings),
}
WATCH: Table = {
    **table(
        enabled=Option(
            "`false` turns the watch off but keeps its settings", as_switch, variables=("QUORATE_WATCH",), default=True
        ),
        timezone=Option("for `hours` and `digest`", as_zone, usual="the server's"),
    ),
    **options_of(WatchSettings),
}


def read_watch(process: Source, document: Mapping[str, object], toml: Source) -> WatchSettings | None:
    """None unless there is a table `[watch]` or QUORATE_WATCH is set."""
    raw = merge(in_variables(WATCH, process), in_named_table("watch", document, WATCH, toml, also=("channels",)))
    content = document.get("watch", {})
    assert isinstance(content, dict)
    if not read(raw, "enabled", as_switch, bool(content)):
        return None
    values = read_options(WATCH, raw)
    values.pop("enabled", None)
    zone = values.pop("timezone", None)
    return WatchSettings(**values, channels=_channels(content.get("channels", {}), toml, zone))


def _channels(tables: object, toml: Source, zone: datetime.tzinfo | None) -> tuple[ChannelSettings, ...]:
    if not isinstance(tables, dict) or not all(isinstance(content, dict) for content in tables.values()):
        raise ConfigError("Channels are tables with a name of their own: write [watch.channels.NAME].")
    return tuple(_channel(name, content, toml, zone) for name, content in tables.items())


def _channel(name: str, content: Mapping[str, object], toml: Source, zone: datetime.tzinfo | None) -> ChannelSettings:
    if not _NAME.fullmatch(name):
        raise ConfigError(f'The channel "{name}" needs a name of letters, digits, - and _.')
    source = replace(toml, suffix=f" in [watch.channels.{name}]")
    raw = in_table(content, CHANNEL, source)
    type_name = read(raw, "type", as_text, "").lower()
    if type_name not in TYPES:
        hint = suggest_setting(type_name, TYPES) if type_name else ""
        raise ConfigError(f"The type{source.suffix} must be one of {', '.join(TYPES)}.{hint}")
    options, secrets = _options(type_name, raw, source)
    hours = tuple(parse_hours(text, zone, raw["hours"][0].label) for text in read(raw, "hours", as_texts, ()))
    return ChannelSettings(
        name=name,
        type=type_name,
        options=options,
        secrets=secrets,
        hours=hours,
        digest=read(raw, "digest", lambda digest: _as_digest(digest, zone), None),
        **read_options(options_of(ChannelSettings), raw),
    )


def _options(type_name: str, raw: RawSettings, source: Source) -> tuple[dict[str, str], dict[str, Secret | str]]:
    needed, optional = TYPES[type_name]
    for name in needed:
        if name not in raw:
            raise ConfigError(f"The {name}{source.suffix} is missing: a channel of type {type_name} needs it.")
    usable = (*needed, *optional, "type", *options_of(ChannelSettings))
    if stray := [name for name in raw if name not in usable]:
        raise ConfigError(f"A channel of type {type_name} has no {stray[0]}: remove it{source.suffix}.")
    options: dict[str, str] = {}
    secrets: dict[str, Secret | str] = {}
    for name in (*needed, *optional):
        if name not in raw:
            continue
        if name in _SECRET or (name == "url" and type_name in ("slack", "webhook")):
            secrets[name] = _as_channel_secret(raw[name][0])
        elif name == "url":
            options[name] = _as_url(raw[name][0])
        elif name == "port":
            options[name] = str(as_port(raw[name][0]))
        else:
            options[name] = ",".join(as_texts(raw[name][0]))
    if options.get("tls", "starttls") not in ("starttls", "tls", "none"):
        raise ConfigError(f"The tls{source.suffix} must be starttls, tls or none.")
    return options, secrets


def _as_channel_secret(raw: RawSetting) -> Secret | str:
    """A reference to the vault or the keyring is resolved when it is used, because opening them takes time."""
    if isinstance(raw.value, dict) and len(raw.value) == 1:
        kind, name = next(iter(raw.value.items()))
        if kind in SECRET_KINDS and isinstance(name, str) and name:
            return f"{kind}:{name}"
    return as_secret(raw)


def _as_digest(raw: RawSetting, zone: datetime.tzinfo | None) -> Digest:
    texts = as_texts(raw)
    every = _EVERY.fullmatch(texts[0])
    if every and len(texts) == 1 and int(every["count"]):
        return Digest(seconds=int(every["count"]) * _UNITS[every["unit"]])
    times = [_AT.fullmatch(text) for text in texts]
    if not all(times):
        raise ConfigError(f"{raw.label} must be a time such as 08:00, a list of them, or a span such as 4h.")
    return Digest(at=tuple(int(time["hour"]) * 60 + int(time["minute"]) for time in times if time), zone=zone)
