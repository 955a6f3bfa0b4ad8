"""Sessions of people in a browser.

The cookie has an id and a key; the store has the person's token, encrypted with that key. Neither is useful without the
other, and ending a session in the store ends it everywhere.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from quorate.state.store import Store

IDLE_SECONDS = 2 * 3600.0
LONGEST_SECONDS = 12 * 3600.0
USE_NOTED_SECONDS = 60.0
_COOKIE = re.compile(r"(?P<id>[0-9a-f]{32})\.(?P<key>[0-9a-f]{64})")
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class BrowserSession:
    id: str
    cookie: str
    """Id and key, as the browser keeps them."""
    bearer: str
    """The token that the person logged in with; empty where none is needed."""
    csrf: str
    """The secret in Quorate's own forms; a page of another site cannot know it."""


class BrowserSessions:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._clock = store.clock

    async def create(self, bearer: str) -> BrowserSession:
        """Start a session. Without a token, nothing is stored, so strangers cannot fill the store with sessions."""
        key, name = secrets.token_bytes(32), secrets.token_hex(16)
        if not bearer:
            return _session(name, key, bearer)
        await self._tidy()
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + AESGCM(key).encrypt(nonce, bearer.encode(), name.encode())
        now = self._clock.time()
        await self._store.execute(
            "INSERT INTO quorate_browser_sessions (id, sealed, created, used) VALUES ($1, $2, $3, $3)",
            name,
            sealed.hex(),
            now,
        )
        return _session(name, key, bearer)

    def read_open(self, cookie: str) -> BrowserSession | None:
        """The session of a console that needs no login; the key only protects its forms."""
        parts = _COOKIE.fullmatch(cookie)
        return _session(parts["id"], bytes.fromhex(parts["key"]), "") if parts else None

    async def find(self, cookie: str, *, in_use: bool = True) -> BrowserSession | None:
        """The session of a cookie; None if it is unknown, forged, idle for too long or too old.

        `in_use` says that the person is active, which keeps the session from being idle.
        """
        parts = _COOKIE.fullmatch(cookie)
        if parts is None:
            return None
        now = self._clock.time()
        rows = await self._store.fetch(
            "SELECT sealed, used FROM quorate_browser_sessions WHERE id = $1 AND used > $2 AND created > $3",
            parts["id"],
            now - IDLE_SECONDS,
            now - LONGEST_SECONDS,
        )
        if not rows:
            return None
        sealed, key = bytes.fromhex(rows[0]["sealed"]), bytes.fromhex(parts["key"])
        try:
            bearer = AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], parts["id"].encode())
        except InvalidTag:
            return None
        if in_use and now - rows[0]["used"] > USE_NOTED_SECONDS:
            await self._store.execute(
                "UPDATE quorate_browser_sessions SET used = $1 WHERE id = $2 AND used < $1", now, parts["id"]
            )
        return _session(parts["id"], key, bearer.decode())

    async def end(self, session: BrowserSession) -> None:
        await self._store.execute("DELETE FROM quorate_browser_sessions WHERE id = $1", session.id)

    async def _tidy(self) -> None:
        now = self._clock.time()
        await self._store.execute(
            "DELETE FROM quorate_browser_sessions WHERE used <= $1 OR created <= $2",
            now - IDLE_SECONDS,
            now - LONGEST_SECONDS,
        )


def _session(id: str, key: bytes, bearer: str) -> BrowserSession:
    csrf = hmac.new(key, b"quorate forms", hashlib.sha256).hexdigest()
    return BrowserSession(id, f"{id}.{key.hex()}", bearer, csrf)
