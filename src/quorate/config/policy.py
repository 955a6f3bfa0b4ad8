"""Read rules and limits: `[policy]` and `[[rules]]`, for all clusters or for one."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from quorate.config.names import POLICY, RULE, suggest_setting
from quorate.config.raw import RawSetting, RawSettings, Source
from quorate.config.rules import DAYS, LEVELS, Hours, Limits, Policy, Rule
from quorate.config.settings import ConfigError
from quorate.config.sources import settings_in_table
from quorate.config.values import as_count, as_text, as_texts, read

HIGHEST_VMID = 999_999_999
_SPAN = re.compile(r"(?P<first>\d{1,9})(?:\s*-\s*(?P<last>\d{1,9}))?", re.ASCII)
_HOURS = re.compile(
    r"(?:(?P<days>[a-z,\s-]+?)\s+)?(?P<begin>\d{1,2}:\d{2})\s*-\s*(?P<end>\d{1,2}:\d{2})", re.ASCII | re.I
)


def read_policy(table: Mapping[str, object], toml: Source, cluster: str | None = None) -> Policy:
    """Read the policy at the top level of the file, or in the table of one cluster."""
    prefix = "" if cluster is None else f"clusters.{cluster}."
    general = _general(table.get("policy", {}), replace(toml, suffix=f" in [{prefix}policy]"))
    zone = read(general, "timezone", as_zone, None)
    rows = table.get("rules", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"Rules{toml.suffix} must be tables: write [[{prefix}rules]] above each of them.")
    rules = [_rule(row, number, zone, toml, cluster) for number, row in enumerate(rows, start=1)]
    return Policy(
        tuple(rules),
        Limits(
            destroys_per_hour=read(general, "destroys_per_hour", as_count, None),
            concurrent_changes=read(general, "concurrent_changes", as_count, None),
            guests_per_call=read(general, "guests_per_call", as_count, None),
        ),
    )


def refuse_ambiguous_rules(rules: Sequence[Rule], clusters: Sequence[str]) -> None:
    """Names must be unique, and a rule for a cluster that does not exist would silently do nothing."""
    names: set[str] = set()
    for rule in rules:
        if rule.name in names:
            raise ConfigError(f'Two rules are called "{rule.name}": give each its own name.')
        names.add(rule.name)
        for cluster in rule.clusters:
            if cluster not in clusters:
                hint = suggest_setting(cluster, clusters, f"Known clusters are {', '.join(clusters)}.")
                raise ConfigError(
                    f'The rule "{rule.name}" is about the cluster "{cluster}", which does not exist.{hint}'
                )


def _general(table: object, source: Source) -> RawSettings:
    if not isinstance(table, dict):
        raise ConfigError(f"The policy{source.suffix} must be a table.")
    return settings_in_table(table, POLICY, source)


def _rule(
    row: Mapping[str, object], number: int, zone: datetime.tzinfo | None, toml: Source, cluster: str | None
) -> Rule:
    named = row.get("name", f"rule {number}" if cluster is None else f"rule {number} of {cluster}")
    source = replace(toml, suffix=f' in the rule "{named}"')
    found = settings_in_table(row, RULE, source)
    if ("allow" in found) == ("deny" in found):
        raise ConfigError(f'The rule "{named}" needs either allow or deny: one of {", ".join(LEVELS)}.')
    if cluster is not None and "clusters" in found:
        raise ConfigError(f'The rule "{named}" is already under a cluster: remove clusters.')
    hours = read(found, "hours", as_texts, [])
    return Rule(
        name=read(found, "name", as_text, str(named)),
        allows="allow" in found,
        level=_as_level(found.get("allow") or found["deny"]),
        because=read(found, "because", as_text, ""),
        tools=_texts(found, "tools"),
        toolsets=_texts(found, "toolsets"),
        clusters=_texts(found, "clusters") if cluster is None else (cluster,),
        nodes=_texts(found, "nodes"),
        storages=_texts(found, "storages"),
        pools=_texts(found, "pools"),
        tags=_texts(found, "tags"),
        names=_texts(found, "names"),
        vmids=read(found, "vmids", _as_vmids, ()),
        hosts=_texts(found, "hosts"),
        hours=tuple(parse_hours(text, zone, found["hours"][0].label) for text in hours),
    )


def _texts(found: RawSettings, setting: str) -> tuple[str, ...]:
    return tuple(read(found, setting, as_texts, []))


def _as_level(givens: Sequence[RawSetting]) -> str:
    word = as_text(givens[0]).lower()
    if word not in LEVELS:
        hint = suggest_setting(word, LEVELS)
        raise ConfigError(f"{givens[0].label} must be one of {', '.join(LEVELS)}.{hint}")
    return word


def _as_vmids(given: RawSetting) -> tuple[range, ...]:
    """Ids and spans of ids: `100`, `"200-299"`, or a list of both."""
    parts = given.value if isinstance(given.value, list) else [given.value]
    texts = [text.strip() for part in parts for text in str(part).split(",")]
    found = [_SPAN.fullmatch(text) for text in texts]
    spans = [range(int(one["first"]), int(one["last"] or one["first"]) + 1) for one in found if one]
    if not spans or len(spans) < len(texts) or not all(spans):
        raise ConfigError(f"{given.label} must be vmids or spans of them, such as 100 or 200-299.")
    return tuple(spans)


def as_zone(given: RawSetting) -> datetime.tzinfo:
    import zoneinfo  # rarely needed

    try:
        return zoneinfo.ZoneInfo(as_text(given))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(f"{given.label} must be a time zone that this system knows, such as Europe/Vienna.") from None


def parse_hours(text: str, zone: datetime.tzinfo | None, label: str) -> Hours:
    found = _HOURS.fullmatch(text.strip())
    begin, end = (_minutes(found["begin"]), _minutes(found["end"])) if found else (None, None)
    days = _days(found["days"] or "") if found else None
    if begin is None or end is None or days is None or begin == end or begin == 24 * 60:
        raise ConfigError(f"{label} must be hours such as 22:00-06:00 or Sat,Sun 00:00-24:00, not {text!r}.")
    return Hours(text, days, begin, end, zone)


def _minutes(text: str) -> int | None:
    hour, minute = map(int, text.split(":"))
    whole = hour * 60 + minute
    return whole if minute < 60 and whole <= 24 * 60 else None


def _days(text: str) -> frozenset[int] | None:
    """`Sat,Sun` or `Mon-Fri`; all if none is named. None if a word is not a day."""
    if not text.strip():
        return frozenset(range(len(DAYS)))
    days: set[int] = set()
    for part in text.lower().split(","):
        first, dash, last = (word.strip()[:3] for word in part.partition("-"))
        if first not in DAYS or (dash and last not in DAYS):
            return None
        begin, end = DAYS.index(first), DAYS.index(last) if dash else DAYS.index(first)
        days |= {day % 7 for day in range(begin, end + 1 if end >= begin else end + 8)}
    return frozenset(days)
