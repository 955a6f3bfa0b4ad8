"""Read `[watch]`: how often, by which limits, and the channels on which people hear about findings."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from quorate.config.credentials import read_secret
from quorate.config.names import CHANNEL, WATCH, suggest_setting
from quorate.config.policy import as_zone, parse_hours
from quorate.config.raw import RawSetting, RawSettings, Source
from quorate.config.rules import Hours
from quorate.config.settings import ConfigError
from quorate.config.sources import settings_in_table
from quorate.config.values import as_choice, as_port, as_text, as_texts, number, read, whole_number
from quorate.secret import Secret

SEVERITIES = ("critical", "warning", "unchecked", "info")
"""Worst first; a channel takes its own and everything before it."""
SECRET_KINDS = ("vault", "keyring")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_EVERY = re.compile(r"(?P<count>\d{1,3})(?P<unit>[mhd])")
_AT = re.compile(r"(?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d)")
_UNITS = {"m": 60, "h": 3600, "d": 86400}
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

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
    severity: str = "warning"
    """The least severe that it takes."""
    kinds: tuple[str, ...] = ()
    """Patterns; `!backup-*` leaves kinds out."""
    clusters: tuple[str, ...] = ()
    hours: tuple[Hours, ...] = ()
    """Outside of them, messages wait."""
    digest: Digest | None = None
    resolved: bool = True
    """Whether it also says that a finding is resolved."""


@dataclass(frozen=True, slots=True)
class WatchSettings:
    every: float = 60.0
    """Seconds between two cycles."""
    requests: int = 40
    """Most requests of a cycle to one cluster for facts that change slowly."""
    public_url: str | None = None
    """Where people reach this server, for links in messages."""
    running_tags: tuple[str, ...] = ()
    """Guests with one of these tags should run, besides those that start at boot and those under HA."""
    firewall_tags: tuple[str, ...] = ()
    """Guests with one of these tags should have a firewall; `*` means all."""
    pinned_tags: tuple[str, ...] = ()
    """Guests whose settings should stay as they are."""
    storage_percent: int = 85
    storage_days: int = 7
    """Report a storage that will be full within this many days."""
    backup_days: int = 7
    snapshot_days: int = 30
    ignore: tuple[str, ...] = ()
    """Kinds that are not reported."""
    channels: tuple[ChannelSettings, ...] = ()


def read_watch(by_variables: RawSettings, table: object, toml: Source, warnings: list[str]) -> WatchSettings | None:
    """None unless there is a table `[watch]` or QUORATE_WATCH is set."""
    if not isinstance(table, dict):
        raise ConfigError(f"The setting watch{toml.suffix} must be a table: write [watch] above its settings.")
    source = replace(toml, suffix=" in [watch]")
    found = by_variables | settings_in_table(table, WATCH, source, also=("channels",))
    if not read(found, "watch", as_choice, bool(table)):
        return None
    default = WatchSettings()
    zone = read(found, "watch_timezone", as_zone, None)
    return WatchSettings(
        every=read(found, "watch_every", lambda given: number(given, 10, 3600), default.every),
        requests=read(found, "watch_requests", lambda given: whole_number(given, 5, 500), default.requests),
        public_url=read(found, "watch_public_url", _as_url, None),
        running_tags=_texts(found, "watch_running_tags"),
        firewall_tags=_texts(found, "watch_firewall_tags"),
        pinned_tags=_texts(found, "watch_pinned_tags"),
        storage_percent=read(found, "watch_storage_percent", lambda one: whole_number(one, 1, 100), 85),
        storage_days=read(found, "watch_storage_days", lambda one: whole_number(one, 1, 365), 7),
        backup_days=read(found, "watch_backup_days", lambda one: whole_number(one, 1, 365), 7),
        snapshot_days=read(found, "watch_snapshot_days", lambda one: whole_number(one, 1, 3650), 30),
        ignore=_texts(found, "watch_ignore"),
        channels=_channels(table.get("channels", {}), source, zone, warnings),
    )


def _channels(
    tables: object, source: Source, zone: datetime.tzinfo | None, warnings: list[str]
) -> tuple[ChannelSettings, ...]:
    if not isinstance(tables, dict) or not all(isinstance(one, dict) for one in tables.values()):
        raise ConfigError("Channels are tables with a name of their own: write [watch.channels.NAME].")
    return tuple(_channel(name, table, source, zone, warnings) for name, table in tables.items())


def _channel(
    name: str, table: Mapping[str, object], toml: Source, zone: datetime.tzinfo | None, warnings: list[str]
) -> ChannelSettings:
    if not _NAME.fullmatch(name):
        raise ConfigError(f'The channel "{name}" needs a name of letters, digits, - and _.')
    source = replace(toml, suffix=f" in [watch.channels.{name}]")
    found = settings_in_table(table, CHANNEL, source)
    chosen = read(found, "channel_type", as_text, "").lower()
    if chosen not in TYPES:
        hint = suggest_setting(chosen, TYPES) if chosen else ""
        raise ConfigError(f"The type{source.suffix} must be one of {', '.join(TYPES)}.{hint}")
    options, secrets = _options(chosen, found, source, warnings)
    return ChannelSettings(
        name=name,
        type=chosen,
        options=options,
        secrets=secrets,
        severity=read(found, "channel_severity", _as_severity, "warning"),
        kinds=_texts(found, "channel_kinds"),
        clusters=_texts(found, "channel_clusters"),
        hours=tuple(
            parse_hours(text, zone, found["channel_hours"][0].label)
            for text in read(found, "channel_hours", as_texts, [])
        ),
        digest=read(found, "channel_digest", lambda given: _as_digest(given, zone), None),
        resolved=read(found, "channel_resolved", as_choice, True),
    )


def _options(
    type: str, found: RawSettings, source: Source, warnings: list[str]
) -> tuple[dict[str, str], dict[str, Secret | str]]:
    needed, optional = TYPES[type]
    given = {setting.removeprefix("channel_"): givens for setting, givens in found.items()}
    for name in needed:
        if name not in given:
            raise ConfigError(f"The {name}{source.suffix} is missing: a channel of type {type} needs it.")
    routing = ("type", "severity", "kinds", "clusters", "hours", "digest", "resolved")
    if stray := [name for name in given if name not in (*needed, *optional, *routing)]:
        raise ConfigError(f"A channel of type {type} has no {stray[0]}: remove it{source.suffix}.")
    options: dict[str, str] = {}
    secrets: dict[str, Secret | str] = {}
    for name in (*needed, *optional):
        if name not in given:
            continue
        if name in _SECRET or (name == "url" and type in ("slack", "webhook")):
            secrets[name] = _secret(given[name], warnings)
        elif name == "url":
            options[name] = _as_url(given[name][0])
        elif name == "port":
            options[name] = str(as_port(given[name][0]))
        else:
            options[name] = ",".join(as_texts(given[name][0]))
    if options.get("tls", "starttls") not in ("starttls", "tls", "none"):
        raise ConfigError(f"The tls{source.suffix} must be starttls, tls or none.")
    return options, secrets


_SECRET = ("token", "password", "secret", "client_token")


def _secret(givens: list[RawSetting], warnings: list[str]) -> Secret | str:
    """A reference to the vault or the keyring is resolved when it is used, because opening them takes time."""
    value = givens[0].value
    if isinstance(value, dict) and len(value) == 1:
        kind, name = next(iter(value.items()))
        if kind in SECRET_KINDS and isinstance(name, str) and name:
            return f"{kind}:{name}"
    return read_secret(givens, warnings)


def _as_url(given: RawSetting) -> str:
    text = as_text(given)
    parts = urlsplit(text)
    if not parts.hostname or parts.scheme not in ("https", "http") or parts.username:
        raise ConfigError(f"{given.label} must be an address such as https://ntfy.sh, without a user or password.")
    return text.rstrip("/")


def _as_severity(given: RawSetting) -> str:
    word = as_text(given).lower()
    if word not in SEVERITIES:
        raise ConfigError(f"{given.label} must be one of {', '.join(SEVERITIES)}.{suggest_setting(word, SEVERITIES)}")
    return word


def _as_digest(given: RawSetting, zone: datetime.tzinfo | None) -> Digest:
    texts = as_texts(given)
    every = _EVERY.fullmatch(texts[0])
    if every and len(texts) == 1 and int(every["count"]):
        return Digest(seconds=int(every["count"]) * _UNITS[every["unit"]])
    times = [_AT.fullmatch(text) for text in texts]
    if not all(times):
        raise ConfigError(f"{given.label} must be a time such as 08:00, a list of them, or a span such as 4h.")
    return Digest(at=tuple(int(one["hour"]) * 60 + int(one["minute"]) for one in times if one), zone=zone)


def _texts(found: RawSettings, setting: str) -> tuple[str, ...]:
    return tuple(read(found, setting, as_texts, []))
