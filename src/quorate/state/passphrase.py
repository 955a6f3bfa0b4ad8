"""The operator's passphrase, which turns a requested approval into a granted one.

Only an scrypt hash of it is stored. One-time codes (TOTP) are not supported on purpose: their secret would have to be
stored in a reversible form, and anyone who can read the store could generate codes.

Wrong attempts are counted in the store, so all replicas and command lines share the count. A forgotten passphrase
cannot be replaced from here, because an agent with a shell could do the same. The owner of the store deletes the row.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import unicodedata

from quorate.problems import BadArgument, Conflict, Problem, ProblemCode
from quorate.state.store import Store

SHORTEST = 12
SET_PASSPHRASE = "quorate approvals passphrase"  # noqa: S105
TRIES = 5
LOCK_SECONDS = 15 * 60.0

COST, BLOCK, LANES = 2**15, 8, 3  # 32 MiB and a few tenths of a second
_OPERATOR = "operator"


class PassphraseNotSet(Problem):
    code = ProblemCode.PASSPHRASE


class PassphraseWrong(Problem):
    code = ProblemCode.PASSPHRASE


class PassphraseLocked(Problem):
    code = ProblemCode.PASSPHRASE


class Passphrase:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._clock = store.clock

    async def is_set(self) -> bool:
        return await self._record() is not None

    async def ensure_set(self) -> str:
        """Its hash. Raises PassphraseNotSet if there is none."""
        record = await self._record()
        if record is None:
            raise PassphraseNotSet(
                "No operator passphrase is set, so nothing can be approved",
                next_step=f"Set it at a terminal with `{SET_PASSPHRASE}`",
            )
        return record

    async def set(self, new: str, old: str | None = None) -> None:
        """Set it for the first time, or replace it, which needs the correct `old` one."""
        ensure_long(new)
        known = await self._record()
        if known is not None:
            if old is None or not await self.verify(old):
                raise PassphraseWrong(
                    "The passphrase is unchanged", why="One is already set, and the old one is missing or wrong"
                )
            changed = await self._store.execute(
                "UPDATE quorate_operator SET passphrase = $1 WHERE name = $2 AND passphrase = $3",
                await _hash(new),
                _OPERATOR,
                known,
            )
        else:
            changed = await self._store.execute(
                """INSERT INTO quorate_operator (name, passphrase, tries, last_try) VALUES ($1, $2, 0, 0)
                    ON CONFLICT DO NOTHING""",
                _OPERATOR,
                await _hash(new),
            )
        if not changed:
            raise Conflict("Someone else has set the passphrase at the same time", next_step="Try it, or ask them")

    async def verify(self, text: str) -> bool:
        """Check a passphrase. Raises PassphraseLocked after too many wrong tries."""
        record = await self.ensure_set()
        await self._count_try()
        right = await asyncio.to_thread(_matches, text, record)
        if right:
            await self._store.execute("UPDATE quorate_operator SET tries = 0 WHERE name = $1", _OPERATOR)
        return right

    async def _record(self) -> str | None:
        rows = await self._store.fetch("SELECT passphrase FROM quorate_operator WHERE name = $1", _OPERATOR)
        return rows[0]["passphrase"] if rows else None

    async def _count_try(self) -> None:
        """Counted before it is checked, so parallel attempts cannot exceed the limit."""
        now = self._clock.time()
        counted = await self._store.execute(
            """UPDATE quorate_operator SET tries = CASE WHEN last_try <= $1 THEN 1 ELSE tries + 1 END, last_try = $2
                WHERE name = $3 AND (tries < $4 OR last_try <= $1)""",
            now - LOCK_SECONDS,
            now,
            _OPERATOR,
            TRIES,
        )
        if not counted:
            rows = await self._store.fetch("SELECT last_try FROM quorate_operator WHERE name = $1", _OPERATOR)
            left = max(1, round((rows[0]["last_try"] + LOCK_SECONDS - now) / 60)) if rows else LOCK_SECONDS / 60
            raise PassphraseLocked(
                f"The passphrase was wrong {TRIES} times and is locked",
                next_step=f"Try again in {left:.0f} minute{'' if left == 1 else 's'}",
            )


def ensure_long(text: str) -> None:
    if len(text.strip()) < SHORTEST:
        raise BadArgument(
            f"The passphrase is too short: it needs {SHORTEST} characters or more", next_step="Use a few random words"
        )


async def _hash(text: str) -> str:
    """The record contains its parameters, so the cost can be raised later without a new passphrase."""
    salt = os.urandom(16)
    digest = await asyncio.to_thread(derive_key, text, salt, COST, BLOCK, LANES)
    encoded = (base64.b64encode(part).decode() for part in (salt, digest))
    return "$".join(("scrypt", str(COST), str(BLOCK), str(LANES), *encoded))


def _matches(text: str, record: str) -> bool:
    _, cost, block, lanes, salt, digest = record.split("$")
    derived = derive_key(text, base64.b64decode(salt), int(cost), int(block), int(lanes))
    return hmac.compare_digest(derived, base64.b64decode(digest))


def derive_key(text: str, salt: bytes, cost: int, block: int, lanes: int) -> bytes:
    """32 bytes from a passphrase, at a cost that makes guessing slow."""
    normalized = unicodedata.normalize("NFKC", text)  # keyboards spell the same letter differently
    typed = normalized.encode(errors="surrogatepass")
    room = 128 * block * (cost + lanes + 2)
    return hashlib.scrypt(typed, salt=salt, n=cost, r=block, p=lanes, maxmem=room, dklen=32)
