"""The freeze over HTTP: show it, set it, lift it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quorate.config.http import HttpSettings
from quorate.documents import Unreadable, read_json
from quorate.operations.units import moment
from quorate.pipeline.sanitization import clean
from quorate.problems import BadArgument
from quorate.state.freeze import LONGEST_REASON, Freeze, FreezeState
from quorate.state.store import Store
from quorate.state.trail import AuditTrail
from quorate.surfaces.web.auth import Authenticator
from quorate.surfaces.web.credentials import Credentials
from quorate.surfaces.web.operator_api import OperatorApi
from quorate.surfaces.web.replies import reply

PATH = "/freeze"


class FreezeRequest(msgspec.Struct, forbid_unknown_fields=True):
    action: Literal["freeze", "unfreeze"]
    passphrase: str
    reason: str = ""


class FreezeApi(OperatorApi):
    def __init__(
        self,
        settings: HttpSettings,
        store: Store,
        trail: AuditTrail,
        authenticator: Authenticator,
        credentials: Credentials,
    ) -> None:
        super().__init__(settings, store, authenticator, credentials)
        self._freeze = Freeze(store)
        self._trail = trail
        self.serve = self.protect(
            Route(PATH, self.with_problems(self._show)), Route(PATH, self.with_problems(self._set), methods=["POST"])
        )

    async def _show(self, request: Request) -> Response:
        del request
        self.require_admin("The freeze is")
        return reply(200, _as_dict(await self._freeze.state()))

    async def _set(self, request: Request) -> Response:
        if refused := self.refuse_foreign(request):
            return refused
        try:
            body: FreezeRequest = read_json(await request.body(), FreezeRequest)
        except Unreadable:
            raise BadArgument(
                "The body must be JSON with action (freeze or unfreeze), passphrase and perhaps reason"
            ) from None
        self.require_admin("The freeze is")
        await self.prove(request, body.passphrase)
        if body.action == "freeze":
            await self._freeze.set(self.who(), body.reason[:LONGEST_REASON], self._trail)
        else:
            await self._freeze.lift(self.who(), self._trail)
        return reply(200, _as_dict(await self._freeze.state()))


def _as_dict(frozen: FreezeState | None) -> dict[str, Any]:
    if frozen is None:
        return {"frozen": False}
    facts: dict[str, Any] = clean(
        {"frozen": True, "by": frozen.by, "since": moment(frozen.at), "reason": frozen.reason}
    )
    return facts
