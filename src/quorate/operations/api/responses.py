"""Answers of the raw API made small enough to read, and without the secrets that PVE shows to privileged callers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from quorate.command_secrets import HIDDEN
from quorate.operations.registry import Table

CELL_CHARACTERS = 300
TEXT_CHARACTERS = 4000
NESTED_ITEMS = 50
PAGE_CHARACTERS = 20_000

# PVE returns these in plain text; their names alone do not distinguish them from harmless ones.
_SECRETS = {
    "/cluster/acme/plugins": ("data",),
    "/cluster/metrics/server": ("token", "otel-headers"),
    "/cluster/notifications/endpoints": ("header",),
    "/cluster/sdn/dns": ("key",),
    "/cluster/sdn/ipams": ("token",),
    "/access/domains": ("client-key",),
    "/nodes/{node}/subscription": ("key",),
    "/nodes/{node}/lxc": ("env",),
    "/nodes/{node}/vzdump/extractconfig": ("env", "lxc.environment"),
    "/access/users": ("keys",),
}
_RAW_VARIABLES = "lxc.environment"
"""Among the raw options of a container, which are pairs: what `env` is in newer versions."""
_PASSWORD_LINE = re.compile(r"(?im)^(?P<name>\s*-?\s*(?:hashed_)?passw(?:or)?d\s*:).*$")


def hide_secrets(template: str, value: Any) -> Any:
    """The answer of an endpoint without what must not be seen."""
    names = {name for prefix, names in _SECRETS.items() if template.startswith(prefix) for name in names}
    if isinstance(value, str) and names:  # a configuration file
        value = re.sub(rf"(?m)^(?P<name>{'|'.join(map(re.escape, names))}): .*$", rf"\g<name>: {HIDDEN}", value)
    return _hide(value, names)


def _hide(value: Any, names: set[str]) -> Any:
    if isinstance(value, Mapping):
        hidden = names | {"value", "pending"} if value.get("key") in names else names  # a row of pending changes
        return {key: HIDDEN if key in hidden and one else _hide(one, names) for key, one in value.items()}
    if isinstance(value, list):
        if len(value) == 2 and str(value[0]).startswith(_RAW_VARIABLES):
            return [value[0], HIDDEN]
        return [_hide(one, names) for one in value]
    return _PASSWORD_LINE.sub(rf"\g<name> {HIDDEN}", value) if isinstance(value, str) else value


def bound_response(value: Any, *, limit: int, offset: int) -> Table | dict[str, Any]:
    """A list of objects as a table, a long text by its lines, anything else with its big parts cut."""
    if isinstance(value, str) and "\n" in value.strip():
        return _page(("line",), [[line[:TEXT_CHARACTERS]] for line in value.splitlines()], limit, offset)
    if isinstance(value, list):
        if value and all(isinstance(one, Mapping) for one in value):
            return _table(value, limit, offset)
        return _page(("value",), [[_cell(one)] for one in value], limit, offset)
    return {"data": "PVE returned an empty answer" if value is None else cut(value)}


def _table(rows: list[Mapping[str, Any]], limit: int, offset: int) -> Table:
    shown = rows[offset : offset + limit]
    columns = tuple(dict.fromkeys(key for row in shown for key in row if key != "digest"))
    table = _page(columns, [[_cell(row.get(key)) for key in columns] for row in rows], limit, offset)
    digests = {row["digest"] for row in rows if row.get("digest")}
    if len(digests) == 1:
        table.facts["digest"] = digests.pop()
    return table


def _page(columns: tuple[str, ...], rows: list[list[Any]], limit: int, offset: int) -> Table:
    """As many rows as requested and as fit; at least one, so that paging ends."""
    shown: list[list[Any]] = []
    characters = 0
    for row in rows[offset : offset + limit]:
        characters += sum(len(str(cell)) + 1 for cell in row)
        if shown and characters > PAGE_CHARACTERS:
            break
        shown.append(row)
    table = Table(columns, shown, len(rows), offset)
    if len(shown) < min(limit, len(rows) - offset):
        table.note = "the page is full; continue with offset"
    return table


def _cell(value: Any) -> Any:
    if isinstance(value, (Mapping, list)):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, str) and len(value) > CELL_CHARACTERS:
        return f"{value[:CELL_CHARACTERS]}… ({len(value)} characters)"
    return value


def cut(value: Any, items: int = NESTED_ITEMS) -> Any:
    """The same structure with long texts and lists cut and the cuts marked; if that is not enough, cut further."""
    smaller = _cut(value, items, TEXT_CHARACTERS)
    if len(json.dumps(smaller, default=str)) <= PAGE_CHARACTERS:
        return smaller
    return _cut(value, max(5, items // 5), CELL_CHARACTERS)


def _cut(value: Any, items: int, characters: int) -> Any:
    if isinstance(value, str) and len(value) > characters:
        return f"{value[:characters]}… ({len(value)} characters)"
    if isinstance(value, Mapping):
        kept = {key: _cut(one, items, characters) for key, one in list(value.items())[: items * 4]}
        return kept | ({"…": f"{len(value) - len(kept)} more"} if len(kept) < len(value) else {})
    if isinstance(value, list):
        kept_items = [_cut(one, items, characters) for one in value[:items]]
        return kept_items + ([f"… {len(value) - items} more"] if len(value) > items else [])
    return value
