"""Terminals for people. A tool creates an invitation; a page of the HTTP server redeems it once. Input and output pass
between the page and the machine only."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorate.problems import Conflict, NotConfigured
from quorate.pve.connection import Clock

if TYPE_CHECKING:
    from quorate.ssh.process import ExecutionTarget

PATH = "/shell"
IDLE_SECONDS = 30 * 60.0
INVITED_SECONDS = 5 * 60.0
MAX_INVITATIONS = 20
MAX_OPEN = 10


@dataclass(frozen=True, slots=True)
class Invitation:
    id: str
    """Identifies the terminal in the audit trail; the token itself is not stored."""
    machine: str
    cluster: str
    target: ExecutionTarget
    argv: tuple[str, ...]
    expires: float


class Shells:
    def __init__(self, clock: Clock, needs_passphrase: Callable[[], bool] = lambda: True) -> None:
        self._clock = clock
        self.needs_passphrase = needs_passphrase
        """Returns True if anyone who opens a page has to enter the operator's passphrase."""
        self._invited: dict[str, Invitation] = {}
        self._open = 0
        self.url: str | None = None
        """The public address of the page, set by the HTTP server when it listens."""
        self.idle_seconds = IDLE_SECONDS

    def require_page(self) -> str:
        if self.url is None:
            raise NotConfigured(
                "There is no page to show a terminal on",
                why="The HTTP server shows terminals, at an address that people can reach",
                next_step="Start Quorate with `quorate serve --http 127.0.0.1:8806`; if it listens on all addresses, "
                "set public_url as well. Or use ssh in a terminal",
            )
        return self.url

    def invite(self, machine: str, cluster: str, target: ExecutionTarget, argv: tuple[str, ...]) -> tuple[str, str]:
        """The address to open, and the terminal's id. Browsers do not send the token after the #."""
        url = self.require_page()
        self._drop_expired()
        if len(self._invited) >= MAX_INVITATIONS:
            raise Conflict(f"{MAX_INVITATIONS} terminals already wait to be opened", next_step="Open one, or wait")
        token = secrets.token_urlsafe(24)
        expires = self._clock.monotonic() + INVITED_SECONDS
        invitation = Invitation(secrets.token_hex(4), machine, cluster, target, argv, expires)
        self._invited[_digest(token)] = invitation
        return f"{url}{PATH}#{token}", invitation.id

    def find(self, token: str) -> Invitation | None:
        self._drop_expired()
        return self._invited.get(_digest(token))

    def redeem(self, token: str) -> Invitation | None:
        """Redeem an invitation, which works once. Call `ended` afterwards."""
        if self._open >= MAX_OPEN:
            raise Conflict(f"{MAX_OPEN} terminals are already open", next_step="Close one of them")
        self._drop_expired()
        invitation = self._invited.pop(_digest(token), None)
        self._open += invitation is not None
        return invitation

    def release(self) -> None:
        self._open -= 1

    def _drop_expired(self) -> None:
        now = self._clock.monotonic()
        self._invited = {digest: invitation for digest, invitation in self._invited.items() if invitation.expires > now}


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()
