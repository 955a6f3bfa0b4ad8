"""The operator's approvals over HTTP: list what is pending, and answer it with the passphrase.

A token alone answers nothing: a person types the passphrase for every answer, and it is never stored. Pending requests
are visible to tokens with access admin, such as one made with `quorate tokens create --approver`, which can do nothing
else. The page holds no data: its script reads the API with the token typed in.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from quorate.config.http import HttpSettings
from quorate.documents import Unreadable, read_json
from quorate.operations.units import moment
from quorate.pipeline.sanitization import clean
from quorate.problems import BadArgument, NotFound
from quorate.state.approvals import Approval, Approvals, State
from quorate.state.store import Store
from quorate.surfaces.web.auth import Authenticator
from quorate.surfaces.web.credentials import Credentials
from quorate.surfaces.web.operator_api import OperatorApi
from quorate.surfaces.web.replies import NO_STORE, reply

PATH = "/approvals"
LONGEST_REASON = 500


class ApprovalAnswer(msgspec.Struct, forbid_unknown_fields=True):
    decision: Literal["approve", "deny"]
    passphrase: str
    reason: str = ""


class ApprovalsApi(OperatorApi):
    def __init__(
        self, settings: HttpSettings, store: Store, authenticator: Authenticator, credentials: Credentials
    ) -> None:
        super().__init__(settings, store, authenticator, credentials)
        self._approvals = Approvals(store)
        self._api = self.protect(
            Route(PATH, self.with_problems(self._list), methods=["GET"]),
            Route(f"{PATH}/{{id}}", self.with_problems(self._show), methods=["GET"]),
            Route(f"{PATH}/{{id}}", self.with_problems(self._answer), methods=["POST"]),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        wants_page = scope["path"] == PATH and "text/html" in request.headers.get("accept", "")
        await (page() if wants_page and scope["method"] == "GET" else self._api)(scope, receive, send)

    async def _list(self, request: Request) -> Response:
        clusters = self.require_admin("Approvals are")
        states = tuple(State) if request.query_params.get("all") else (State.PENDING,)
        rows = await self._approvals.list(states)
        return reply(200, {"approvals": [_as_dict(row) for row in _visible(rows, clusters)]})

    async def _show(self, request: Request) -> Response:
        return reply(200, _as_dict(await self._find(request)))

    async def _answer(self, request: Request) -> Response:
        if refused := self.refuse_foreign(request):
            return refused
        try:
            answer: ApprovalAnswer = read_json(await request.body(), ApprovalAnswer)
        except Unreadable:
            raise BadArgument(
                "The body must be JSON with decision (approve or deny), passphrase and perhaps reason"
            ) from None
        row = await self._find(request)
        await self.prove(request, answer.passphrase)
        reason = answer.reason.strip()[:LONGEST_REASON] or None
        answered = await self._approvals.answer(row.id, answer.decision == "approve", self.who(), reason)
        return reply(200, _as_dict(answered))

    async def _find(self, request: Request) -> Approval:
        clusters = self.require_admin("Approvals are")
        row = await self._approvals.get(request.path_params["id"])
        if row is None or not list(_visible([row], clusters)):
            raise NotFound("There is no such approval")
        return row


def _visible(rows: Iterable[Approval], clusters: frozenset[str] | None) -> Iterable[Approval]:
    return (row for row in rows if clusters is None or row.cluster in clusters)


def _as_dict(row: Approval) -> dict[str, Any]:
    """An approval as JSON, without the digest, which means nothing to people."""
    facts = asdict(row) | {"standing": row.standing, "history": row.history, "reminder": row.reminder}
    del facts["digest"]
    facts["remarks"] = [str(one) for one in row.remarks]
    facts["target"] = facts.pop("identity")
    for name in ("created", "expires", "answered_at", "ended"):
        facts[name] = None if facts[name] is None else moment(facts[name])
    cleaned: dict[str, Any] = clean(facts, lines=None)  # what is approved is read to its end
    return cleaned


def page() -> Response:
    text, policy = _page()
    return HTMLResponse(text, headers=NO_STORE | {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"})


@cache
def _page() -> tuple[str, str]:
    """The text, and a policy that runs its own script and style and nothing else."""
    text = files(__package__).joinpath("approvals.html").read_text(encoding="utf-8")
    script, style = (_hash(text, tag) for tag in ("script", "style"))
    return text, (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hash(text: str, tag: str) -> str:
    found = re.search(f"<{tag}>(.*?)</{tag}>", text, re.S)
    assert found is not None
    return f"'sha256-{base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()}'"
