"""Work for several concurrent processes: all of them run each function."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from pathlib import Path

from quorate.state.approvals import Approvals
from quorate.state.passphrase import Passphrase, PassphraseLocked
from quorate.state.store import open_store
from quorate.state.trail import AuditUnwritable, open_trail
from tests.rigs.manual_clock import HandClock


def start(location: str, times: int) -> list[int]:
    """Open the state, which may not exist yet; return the version that each found."""

    async def open_once() -> int:
        async with open_store(location, clock=HandClock()) as store:
            rows = await store.fetch("SELECT count(*) AS versions FROM quorate_schema")
            versions: int = rows[0]["versions"]
            return versions

    async def all_of_them() -> list[int]:
        return list(await asyncio.gather(*(open_once() for _ in range(times))))

    return asyncio.run(all_of_them())


def use(location: str, id: str, caller: str, digest: str, identity: str, times: int) -> dict[str, int]:
    """Try to use one approval, several times at once."""

    async def all_of_them() -> Counter[str]:
        async with open_store(location, clock=HandClock()) as store:
            approvals = Approvals(store)
            return Counter(await asyncio.gather(*(approvals.use(id, caller, digest, identity) for _ in range(times))))

    return {str(outcome.name): count for outcome, count in asyncio.run(all_of_them()).items()}  # type: ignore[attr-defined]


def guess(location: str, words: list[str]) -> dict[str, int]:
    """Try passphrases, all at once."""

    async def try_word(passphrase: Passphrase, word: str) -> str:
        try:
            return "right" if await passphrase.verify(word) else "wrong"
        except PassphraseLocked:
            return "locked"

    async def all_of_them() -> Counter[str]:
        async with open_store(location, clock=HandClock()) as store:
            passphrase = Passphrase(store)
            return Counter(await asyncio.gather(*(try_word(passphrase, word) for word in words)))

    return dict(asyncio.run(all_of_them()))


def record(location: str, file: Path, who: str, times: int) -> None:
    """Append audit entries, several at once."""

    async def all_of_them() -> None:
        async with open_store(location, clock=HandClock()) as store:
            trail = open_trail(store, file)
            await asyncio.gather(*(trail.record({"tool": "guest_power", "who": who, "n": n}) for n in range(times)))

    asyncio.run(all_of_them())


def record_with_little_room(location: str, file: Path, room: int) -> str:
    """Append an entry that does not fit on the disk; return the error."""

    async def append() -> str:
        async with open_store(location, clock=HandClock()) as store:
            await store.ready()
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
            try:
                await open_trail(store, file).record({"tool": "guest_power", "outcome": "done", "plan": "x" * 500})
            except AuditUnwritable as told:
                return str(told)
            return "written"

    return asyncio.run(append())
