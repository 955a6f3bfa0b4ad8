"""Bearer tokens of the HTTP transport: `qrt_<id>_<secret>`.

The secret has 256 random bits and cannot be guessed from its hash, so plain SHA-256 is as good as a slow hash; it is
computed for every request. The id finds the row; only the secret authenticates.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import math
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

from quorate.problems import BadArgument, Conflict
from quorate.state.store import Row, StateUnavailable, Store

ACCESS = ("read", "operate", "admin")
CACHE_SECONDS = 3.0
"""How long the table is cached: a token that another process revokes works at most this long."""
AWAY_SECONDS = 15 * 60.0
"""How long the cache is used while the store does not answer: changes stop, but reads continue."""
PATIENCE_SECONDS = 2.0
"""How long a caller with a known token waits for a hanging store."""
NEWCOMER_SECONDS = 0.25
"""How soon a token that another process created works, and how often unknown tokens cause a lookup."""
USE_NOTED_SECONDS = 60.0

_LOG = logging.getLogger(__name__)
_TOKEN = re.compile(r"qrt_(?P<id>[0-9a-f]{12})_(?P<secret>[0-9a-f]{64})")
_NAME = re.compile(r"[\w.@-]{1,64}")


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """What a token allows. For toolsets and clusters, None means all of the server's."""

    id: str
    name: str
    access: str
    toolsets: frozenset[str] | None
    clusters: frozenset[str] | None
    created: float
    expires: float | None
    last_used: float | None
    """To the minute."""
    revoked: float | None


@dataclass(frozen=True, slots=True)
class NewToken:
    plain: str
    """Shown once; it cannot be recovered."""
    grant: TokenGrant


class Tokens:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.clock = store.clock
        self._known: dict[str, Row] = {}
        self._read_at = -math.inf
        self._away_at = -math.inf
        """When the store last did not answer."""
        self._reading = asyncio.Lock()

    async def create(
        self,
        name: str,
        access: str = "read",
        *,
        toolsets: Iterable[str] | None = None,
        clusters: Iterable[str] | None = None,
        expires: float | None = None,
    ) -> NewToken:
        """Create a token. `expires` is in seconds since the epoch."""
        _ensure_named(name)
        _ensure_access(access)
        if expires is not None and expires <= self.clock.time():
            raise BadArgument("The token would already be expired")
        key, secret = secrets.token_hex(6), secrets.token_hex(32)
        row: Row = {
            "id": key,
            "name": name,
            "secret_sha256": _sha256(secret),
            "access": access,
            "toolsets": None if toolsets is None else json.dumps(sorted(set(toolsets))),
            "clusters": None if clusters is None else json.dumps(sorted(set(clusters))),
            "created": self.clock.time(),
            "expires": expires,
            "last_used": None,
            "revoked": None,
        }
        created = await self._store.execute(
            """INSERT INTO quorate_tokens
                (id, name, secret_sha256, access, toolsets, clusters, created, expires, last_used, revoked)
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING""",
            *row.values(),
        )
        if not created:
            raise Conflict(
                f"A token named {name!r} already exists",
                next_step=f"Revoke it first, or choose another name than {name!r}",
            )
        self._read_at = -math.inf
        return NewToken(f"qrt_{key}_{secret}", _grant(row))

    async def list(self) -> list[TokenGrant]:
        """All tokens, including expired and revoked ones, oldest first."""
        return [_grant(row) for row in await self._store.fetch("SELECT * FROM quorate_tokens ORDER BY created, id")]

    async def find(self, id: str) -> TokenGrant | None:
        """The token of that id as it is now, even if it is expired or revoked."""
        rows = await self._store.fetch("SELECT * FROM quorate_tokens WHERE id = $1", id)
        return _grant(rows[0]) if rows else None

    async def revoke(self, id_or_name: str) -> bool:
        """Revoke a token permanently. False if no valid token has that id or name."""
        ended = await self._store.execute(
            "UPDATE quorate_tokens SET revoked = $1 WHERE (id = $2 OR name = $2) AND revoked IS NULL",
            self.clock.time(),
            id_or_name,
        )
        self._read_at = -math.inf
        return ended > 0

    async def verify(self, text: str) -> TokenGrant | None:
        """What this token allows, or None. Takes the same time for an unknown id and a wrong secret."""
        parts = _TOKEN.fullmatch(text)
        if parts is None:
            return None
        row = await self._row(parts["id"])
        expected = row["secret_sha256"] if row else _sha256("")
        right = hmac.compare_digest(_sha256(parts["secret"]), expected)
        now = self.clock.time()
        if row is None or not right or row["revoked"] is not None:
            return None
        if row["expires"] is not None and row["expires"] <= now:
            return None
        await self._note_use(row, now)
        return _grant(row)

    async def _row(self, id: str) -> Row | None:
        """The token's row, from a copy of the table, which is small and read at most every few seconds."""
        if not self._fresh(id):
            async with self._reading:
                if not self._fresh(id):
                    await (self._load_if_available() if self._usable_offline(id) else self._load())
        return self._known.get(id)

    async def _load(self) -> None:
        rows = await self._store.fetch("SELECT * FROM quorate_tokens WHERE revoked IS NULL")
        self._known = {row["id"]: row for row in rows}
        self._read_at = self.clock.monotonic()

    async def _load_if_available(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._load()
        except (StateUnavailable, TimeoutError) as problem:
            self._away_at = self.clock.monotonic()
            _LOG.error("using tokens as last read: %s", str(problem) or "the store does not answer")

    def _fresh(self, id: str) -> bool:
        now = self.clock.monotonic()
        if now - self._away_at < CACHE_SECONDS and self._usable_offline(id):
            return True
        return now - self._read_at < (CACHE_SECONDS if id in self._known else NEWCOMER_SECONDS)

    def _usable_offline(self, id: str) -> bool:
        return id in self._known and self.clock.monotonic() - self._read_at < AWAY_SECONDS

    async def _note_use(self, row: Row, now: float) -> None:
        if row["last_used"] is not None and now - row["last_used"] < USE_NOTED_SECONDS:
            return
        row["last_used"] = now
        try:
            await self._store.execute("UPDATE quorate_tokens SET last_used = $1 WHERE id = $2", now, row["id"])
        except StateUnavailable:
            return  # a full disk must not stop reads


def _grant(row: Row) -> TokenGrant:
    sets = {name: None if row[name] is None else frozenset(json.loads(row[name])) for name in ("toolsets", "clusters")}
    return TokenGrant(**{name: value for name, value in {**row, **sets}.items() if name != "secret_sha256"})


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _ensure_named(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise BadArgument(
            f"{name!r} is not a valid name for a token",
            next_step="Use up to 64 letters, digits, dots, dashes, underscores and @",
        )


def _ensure_access(access: str) -> None:
    if access not in ACCESS:
        raise BadArgument(f"There is no access level {access!r}", next_step=f"Choose from {', '.join(ACCESS)}")
