"""What was made on which machine, so that exactly that can be taken away again."""

from __future__ import annotations

import msgspec

from quorate.homelab.machines import Machine
from quorate.state.store import Store

_KIND = "admin account"


class FormerLogin(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a registered host was logged in to before; secrets are references, as they are in the registry."""

    user: str | None = None
    key: str | None = None
    password: str | None = None
    sudo_password: str | None = None


class Made(msgspec.Struct, frozen=True, omit_defaults=True):
    user: bool = False
    uid: int | None = None
    """Of the user that was made: another one of the same name is not ours."""
    sudo: bool = False
    groups: tuple[str, ...] = ()
    former: FormerLogin | None = None
    """If the registry was changed."""


class Ledger:
    """Noted before each step: what was begun and broke off is known, too."""

    def __init__(self, store: Store, machine: Machine, account: str) -> None:
        self._store = store
        cluster = f"{machine.where.name}/" if machine.where else ""
        self._id = f"{machine.kind} {cluster}{machine.name} {account}"

    async def read(self) -> Made:
        rows = await self._store.fetch("SELECT entry FROM quorate_records WHERE kind = $1 AND id = $2", _KIND, self._id)
        return msgspec.json.decode(rows[0]["entry"], type=Made) if rows else Made()

    async def note(self, **changes: object) -> None:
        made = msgspec.structs.replace(await self.read(), **changes)
        await self._store.execute(
            "INSERT INTO quorate_records (kind, id, entry, created, changed) VALUES ($1, $2, $3, $4, $4) "
            "ON CONFLICT (kind, id) DO UPDATE SET entry = excluded.entry, changed = excluded.changed",
            _KIND, self._id, msgspec.json.encode(made).decode(), self._store.clock.time(),
        )  # fmt: skip

    async def forget(self) -> None:
        await self._store.execute("DELETE FROM quorate_records WHERE kind = $1 AND id = $2", _KIND, self._id)
