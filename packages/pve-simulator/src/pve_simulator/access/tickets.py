"""Authentication of callers: API tokens, tickets with their CSRF tokens, and passwords."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from urllib.parse import unquote

from pve_simulator.access.directory import Access
from pve_simulator.clock import Clock
from pve_simulator.http.refusals import existing

TICKET_SECONDS = 7200
CLOCK_SKEW_SECONDS = 300

_TOKEN_HEADER = re.compile(r"PVEAPIToken(?:=|\s+)([^;]*)")
_TICKET_HEADER = re.compile(r"PVEAuthCookie(?:=|\s+)([^;]*)")
_TOKEN = re.compile(r"(?P<authid>[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+![A-Za-z][A-Za-z0-9.\-_]+)=(?P<secret>.+)")
_TICKET = re.compile(r"PVE:(?P<user>\S+):(?P<time>[0-9A-F]{8})::(?P<signature>[A-Za-z0-9+/=]+)")
_CSRF = re.compile(r"(?P<time>[0-9A-F]{8}):(?P<signature>\S+)")


class Unauthorized(Exception):
    """The credentials are not valid: HTTP 401 with this reason."""


class Authentication:
    """Checks credentials against the access configuration and issues tickets."""

    def __init__(self, access: Access, clock: Clock, *, detailed_reasons: bool) -> None:
        self._access = access
        self._clock = clock
        self._detailed = detailed_reasons
        self._key = secrets.token_bytes(32)

    def identify(self, headers: Mapping[str, str]) -> tuple[str, bool]:
        """The caller, and whether a ticket was used (changes then need a CSRF token)."""
        ticket = _ticket_of(headers)
        if ticket is not None:
            return self.check_ticket(ticket), True
        token = existing(has_token(headers), Unauthorized("No ticket"))
        return self._check_token(token), False

    def check_csrf(self, userid: str, token: str | None) -> None:
        """Refuse a change without the CSRF token of its user's ticket."""
        match = _CSRF.fullmatch(token or "")
        if match is None or not self._fresh(match["time"]):
            raise Unauthorized("Permission denied - invalid csrf token")
        if not hmac.compare_digest(match["signature"], self._csrf_signature(match["time"], userid)):
            raise Unauthorized("Permission denied - invalid csrf token")

    def check_ticket(self, ticket: str) -> str:
        match = _TICKET.fullmatch(ticket)
        if match is None or not self._fresh(match["time"]):
            raise self._failure("permission denied - invalid PVE ticket")
        if not hmac.compare_digest(match["signature"], self._ticket_signature(match["user"], match["time"])):
            raise self._failure("permission denied - invalid PVE ticket")
        self._check_user(match["user"])
        return match["user"]

    def log_in(self, userid: str, password: str) -> None:
        """Refuse unless the password, or a ticket sent as one, is the user's."""
        user = self._access.users.get(userid)
        if user is None or not user.usable(self._clock.now()):
            raise Unauthorized("authentication failure")
        if password.startswith("PVE:"):
            try:
                if self.check_ticket(password) == userid:
                    return
            except Unauthorized:
                pass
            raise Unauthorized("authentication failure")
        if user.password is None or not hmac.compare_digest(user.password.encode(), password.encode()):
            raise Unauthorized("authentication failure")

    def check_challenge(self, ticket: str, userid: str) -> None:
        """Refuse unless this is the challenge ticket from the first step of this user's login."""
        match = _TICKET.fullmatch(ticket)
        if match is None or not self._fresh(match["time"]) or not match["user"].startswith("!tfa!"):
            raise Unauthorized("authentication failure")
        expected = self._ticket_signature(f"{userid}:{match['user']}", match["time"])
        if not hmac.compare_digest(match["signature"], expected):
            raise Unauthorized("authentication failure")

    def new_ticket(self, userid: str, challenge: str = "") -> str:
        """A ticket; with a challenge, one that only proves the password."""
        stamp = self._stamp()
        signed = f"{userid}:{challenge}" if challenge else userid
        return f"PVE:{challenge or userid}:{stamp}::{self._ticket_signature(signed, stamp)}"

    def new_csrf_token(self, userid: str) -> str:
        stamp = self._stamp()
        return f"{stamp}:{self._csrf_signature(stamp, userid)}"

    def _check_token(self, text: str) -> str:
        match = _TOKEN.fullmatch(text)
        if match is None:
            raise self._failure("no tokenid specified")
        authid = match["authid"]
        userid, _, name = authid.partition("!")
        self._check_user(userid)
        token = self._access.token(authid)
        if token is None:
            raise self._failure(f"no such token '{name}' for user '{userid}'")
        if token.expire and token.expire <= self._clock.now():
            raise self._failure(f"token '{name}' access expired")
        if not hmac.compare_digest(token.secret.encode(), match["secret"].encode()):
            raise self._failure("invalid token value!")
        return authid

    def _check_user(self, userid: str) -> None:
        user = self._access.users.get(userid)
        if user is None:
            raise self._failure(f"no such user ('{userid}')")
        if not user.enable:
            raise self._failure(f"user '{userid}' is disabled")
        if not user.usable(self._clock.now()):
            raise self._failure(f"user '{userid}' access expired")

    def _failure(self, detail: str) -> Unauthorized:
        """Since 9.1.5 PVE no longer reports what was wrong."""
        return Unauthorized(detail if self._detailed else "Authentication failed!")

    def _stamp(self) -> str:
        return f"{int(self._clock.now()):08X}"

    def _fresh(self, stamp: str) -> bool:
        age = self._clock.now() - int(stamp, 16)
        return -CLOCK_SKEW_SECONDS < age < TICKET_SECONDS

    def _ticket_signature(self, userid: str, stamp: str) -> str:
        return _sign(self._key, f"ticket:{userid}:{stamp}")

    def _csrf_signature(self, stamp: str, userid: str) -> str:
        return _sign(self._key, f"csrf:{stamp}:{userid}").rstrip("=")


def has_token(headers: Mapping[str, str]) -> str | None:
    """The value of the API token header, if present."""
    match = _TOKEN_HEADER.match(headers.get("Authorization", ""))
    return None if match is None else match[1].strip()


def _ticket_of(headers: Mapping[str, str]) -> str | None:
    for part in headers.get("Cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == "PVEAuthCookie":
            return unquote(value.strip('"'))
    match = _TICKET_HEADER.match(headers.get("Authorization", ""))
    return None if match is None else unquote(match[1].strip())


def _sign(key: bytes, text: str) -> str:
    return base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
