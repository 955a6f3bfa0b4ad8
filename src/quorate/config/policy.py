"""The operator's rules and limits: `[policy]` and `[[rules]]`, for all clusters or for one."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from quorate.config.sources import (
    ConfigError,
    Option,
    RawSetting,
    Source,
    Table,
    in_table,
    option,
    options_of,
    suggest_setting,
    table,
)
from quorate.config.values import Choice, as_count, as_text, as_texts, read, read_options

LEVELS = ("read", "look_inside", "change", "destroy")
"""In order of severity. Denying one denies everything more severe; allowing one allows everything less severe."""
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SPAN = re.compile(r"(?P<first>\d{1,9})(?:\s*-\s*(?P<last>\d{1,9}))?", re.ASCII)
_HOURS = re.compile(
    r"(?:(?P<days>[a-z,\s-]+?)\s+)?(?P<begin>\d{1,2}:\d{2})\s*-\s*(?P<end>\d{1,2}:\d{2})", re.ASCII | re.I
)


@dataclass(frozen=True, slots=True)
class Hours:
    """Hours of certain days. A span across midnight belongs to the day it starts on."""

    text: str
    days: frozenset[int]
    begin: int
    """Minutes since midnight, like `end`."""
    end: int
    zone: datetime.tzinfo | None = None
    """None means the server's."""

    def cover(self, seconds: float) -> bool:
        now = datetime.datetime.fromtimestamp(seconds, self.zone)
        minute, today, yesterday = now.hour * 60 + now.minute, now.weekday(), (now.weekday() - 1) % 7
        if self.begin < self.end:
            return today in self.days and self.begin <= minute < self.end
        return (today in self.days and minute >= self.begin) or (yesterday in self.days and minute < self.end)

    def __str__(self) -> str:
        return f"{self.text} {self.zone}" if self.zone else self.text


def _as_vmids(raw: RawSetting) -> tuple[range, ...]:
    """Ids and spans of ids: `100`, `"200-299"`, or a list of both."""
    parts = raw.value if isinstance(raw.value, list) else [raw.value]
    texts = [text.strip() for part in parts for text in str(part).split(",")]
    matches = [_SPAN.fullmatch(text) for text in texts]
    spans = [range(int(span["first"]), int(span["last"] or span["first"]) + 1) for span in matches if span]
    if not spans or len(spans) < len(texts) or not all(spans):
        raise ConfigError(f"{raw.label} must be vmids or spans of them, such as 100 or 200-299.")
    return tuple(spans)


def as_zone(raw: RawSetting) -> datetime.tzinfo:
    import zoneinfo  # rarely needed

    try:
        return zoneinfo.ZoneInfo(as_text(raw))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(f"{raw.label} must be a time zone that this system knows, such as Europe/Vienna.") from None


@dataclass(frozen=True, slots=True)
class Rule:
    """All given conditions must match; of a list, one entry."""

    name: str
    allows: bool
    level: str
    because: str = option("shown to the caller who is refused", as_text, default="")
    tools: tuple[str, ...] = option(
        "names or patterns such as `*_delete`; one that matches nothing is an error", as_texts, default=()
    )
    toolsets: tuple[str, ...] = option("like `tools`, by toolset", as_texts, default=())
    clusters: tuple[str, ...] = option(
        "cluster names, or `homelab` for everything outside them; not allowed under a cluster", as_texts, default=()
    )
    nodes: tuple[str, ...] = option("names or patterns; a guest belongs to the node it is on", as_texts, default=())
    storages: tuple[str, ...] = option("names or patterns", as_texts, default=())
    pools: tuple[str, ...] = option("names or patterns; a nested pool belongs to its parents", as_texts, default=())
    tags: tuple[str, ...] = option("of guests; exact or patterns", as_texts, default=())
    names: tuple[str, ...] = option("of guests; exact or patterns such as `db*`", as_texts, default=())
    vmids: tuple[range, ...] = option('`100`, `"200-299"`, or a list of them', _as_vmids, default=())
    hosts: tuple[str, ...] = option(
        "registered hosts by name or address, or by label as `label:prod`; patterns such as `nas*`",
        as_texts,
        default=(),
    )
    datastores: tuple[str, ...] = option(
        "datastores of backup servers as `STORE`, `STORE/NAMESPACE` or with `SERVER/` in front; names or patterns",
        as_texts,
        default=(),
    )
    hours: tuple[Hours, ...] = option(
        "`22:00-06:00`, `Mon-Fri 08:00-18:00`, or a list; a span across midnight belongs to the day it starts on",
        default=(),
    )

    @property
    def about_guests(self) -> bool:
        """True if one of its conditions can match only guests."""
        return bool(self.tags or self.names or self.vmids)

    @property
    def about_targets(self) -> bool:
        elsewhere = self.hosts or self.datastores
        return bool(self.about_guests or self.pools or self.nodes or self.storages or elsewhere)

    def __str__(self) -> str:
        """`deny destroy: tags prod; vmids 100-199; hours 22:00-06:00`"""
        conditions = [
            f"{field.name} {_join(getattr(self, field.name))}"
            for field in fields(self)
            if field.name not in ("name", "allows", "level", "because") and getattr(self, field.name)
        ]
        verdict = f"{'allow' if self.allows else 'deny'} {self.level}"
        return f"{verdict}: {'; '.join(conditions) or 'everything'}"


@dataclass(frozen=True, slots=True)
class Limits:
    """None means no limit."""

    destroys_per_hour: int | None = option("destructive steps in any 60 minutes", as_count)
    concurrent_changes: int | None = option("changes at the same time; more are refused, not queued", as_count)
    guests_per_call: int | None = option("guests that one call may affect", as_count)


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Policy:
    rules: tuple[Rule, ...] = ()
    limits: Limits = NO_LIMITS

    def of_cluster(self, name: str) -> tuple[Rule, ...]:
        """The rules that apply there."""
        return tuple(rule for rule in self.rules if not rule.clusters or name in rule.clusters)


NO_POLICY = Policy()


def _join(values: tuple[object, ...]) -> str:
    return ", ".join(_span(value) if isinstance(value, range) else str(value) for value in values)


def _span(ids: range) -> str:
    return str(ids[0]) if len(ids) == 1 else f"{ids[0]}-{ids[-1]}"


# -- reading -----------------------------------------------------------------------------------------------------------

POLICY: Table = {
    **table(timezone=Option("for `hours`", as_zone, usual="the server's")),
    **options_of(Limits),
}
_as_level = Choice(LEVELS)
RULE: Table = {
    **table(
        name=Option("shown in refusals and in the audit trail", as_text, usual="`rule 1`, by position"),
        allow=Option("the highest risk that is allowed", _as_level),
        deny=Option("the lowest risk that is refused", _as_level),
    ),
    **options_of(Rule),
}


def read_policy(document: Mapping[str, object], toml: Source, cluster: str | None = None) -> Policy:
    """Read the policy at the top level of the file, or in the table of one cluster."""
    prefix = "" if cluster is None else f"clusters.{cluster}."
    source = replace(toml, suffix=f" in [{prefix}policy]")
    content = document.get("policy", {})
    if not isinstance(content, dict):
        raise ConfigError(f"The policy{source.suffix} must be a table.")
    values = read_options(POLICY, in_table(content, POLICY, source))
    zone = values.pop("timezone", None)
    rows = document.get("rules", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"Rules{toml.suffix} must be tables: write [[{prefix}rules]] above each of them.")
    rules = [_rule(row, number, zone, toml, cluster) for number, row in enumerate(rows, start=1)]
    return Policy(tuple(rules), Limits(**values))


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


def _rule(
    row: Mapping[str, object], number: int, zone: datetime.tzinfo | None, toml: Source, cluster: str | None
) -> Rule:
    name = row.get("name", f"rule {number}" if cluster is None else f"rule {number} of {cluster}")
    raw = in_table(row, RULE, replace(toml, suffix=f' in the rule "{name}"'))
    if ("allow" in raw) == ("deny" in raw):
        raise ConfigError(f'The rule "{name}" needs either allow or deny: one of {", ".join(LEVELS)}.')
    if cluster is not None and "clusters" in raw:
        raise ConfigError(f'The rule "{name}" is already under a cluster: remove clusters.')
    values = {"name": str(name), **({} if cluster is None else {"clusters": (cluster,)}), **read_options(RULE, raw)}
    allowed, denied = values.pop("allow", None), values.pop("deny", None)
    hours = tuple(parse_hours(text, zone, raw["hours"][0].label) for text in read(raw, "hours", as_texts, ()))
    return Rule(allows=denied is None, level=allowed or denied, hours=hours, **values)


def parse_hours(text: str, zone: datetime.tzinfo | None, label: str) -> Hours:
    parts = _HOURS.fullmatch(text.strip())
    begin, end = (_minutes(parts["begin"]), _minutes(parts["end"])) if parts else (None, None)
    days = _days(parts["days"] or "") if parts else None
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
