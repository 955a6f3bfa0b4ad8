"""What was made on which machine, so that exactly that can be taken away again."""

from __future__ import annotations

import msgspec

from quorate.homelab.machines import Machine
from quorate.state.records import Records
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
        self._records = Records(store, _KIND, Made)
        cluster = f"{machine.where.name}/" if machine.where else ""
        self._id = f"{machine.kind} {cluster}{machine.name} {account}"

    async def read(self) -> Made:
        return await self._records.find(self._id) or Made()

    async def note(self, **changes: object) -> None:
        await self._records.keep(self._id, msgspec.structs.replace(await self.read(), **changes))

    async def forget(self) -> None:
        await self._records.forget(self._id)
