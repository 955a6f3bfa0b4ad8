"""Second factors of users."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pve_simulator.access.directory import ROOT
from pve_simulator.http.refusals import Refusal, existing, failure
from pve_simulator.http.routing import Call, route
from pve_simulator.routes.access.users import confirm, existing_user
from pve_simulator.world import World

_RECOVERY_KEYS = 10
_CODE_SECONDS, _CODE_DIGITS = 30, 6
_NOT_CONFIGURED = {
    "u2f": "no u2f configuration available",
    "webauthn": "no webauthn configuration available",
    "yubico": "'yubico' entries are not supported by this realm",
}


@dataclass(slots=True)
class Factor:
    """One second factor; `secret` is the key of a TOTP, `keys` are the unused recovery keys."""

    id: str
    type: str
    created: int
    description: str
    enable: bool = True
    secret: bytes = b""
    keys: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        shown = {"id": self.id, "type": self.type, "description": self.description, "created": self.created}
        return shown | ({} if self.enable else {"enable": 0})

    def accepts(self, answer: str, now: float) -> bool:
        """Whether a response such as `totp:123456` is valid; a recovery key works once."""
        kind, _, value = answer.partition(":")
        if not self.enable or kind != self.type:
            return False
        if kind == "recovery" and value in self.keys:
            self.keys.remove(value)
            return True
        return kind == "totp" and _is_code(self.secret, value, now)


class SecondFactors:
    """The second factors of all users."""

    def __init__(self, _world: World) -> None:
        self.by_user: dict[str, dict[str, Factor]] = {}

    def enabled_factors(self, userid: str) -> list[Factor]:
        return [factor for factor in self.by_user.get(userid, {}).values() if factor.enable]


def _is_code(secret: bytes, value: str, now: float) -> bool:
    """Whether this is the code of the current 30-second window, the previous or the next one."""
    return any(_code(secret, int(now) // _CODE_SECONDS + step) == value for step in (-1, 0, 1))


def _code(secret: bytes, counter: int) -> str:
    digest = hmac.new(secret, counter.to_bytes(8, "big"), hashlib.sha1).digest()
    number = int.from_bytes(digest[digest[-1] & 15 :][:4], "big") & 0x7FFFFFFF
    return f"{number % 10**_CODE_DIGITS:0{_CODE_DIGITS}}"


@route("GET /access/tfa")
def all_factors(call: Call) -> list[dict[str, Any]]:
    """Users without a second factor are not listed."""
    factors = call.world.part(SecondFactors).by_user
    return [
        {"userid": userid, "entries": [factor.as_dict() for factor in entries.values()]}
        for userid, entries in sorted(factors.items())
        if entries and (userid == call.authid or call.allowed("/access/groups", "User.Modify", "Sys.Audit"))
    ]


@route("GET /access/tfa/{userid}")
def factors_of_user(call: Call) -> list[dict[str, Any]]:
    return [factor.as_dict() for factor in _factors(call).values()]


@route("POST /access/tfa/{userid}")
def add_factor(call: Call) -> dict[str, Any]:
    kind, params, own = call.params["type"], call.params, _factors(call)
    _confirm_password(call)
    existing_user(call).keys = "x"  # even if a later check fails
    if kind in _NOT_CONFIGURED:
        raise failure(_NOT_CONFIGURED[kind])
    now = call.world.clock.now()
    if kind == "recovery":
        if "recovery" in own:
            raise failure("user already has recovery keys")
        keys = ["-".join(secrets.token_hex(2) for _ in range(4)) for _ in range(_RECOVERY_KEYS)]
        own["recovery"] = Factor("recovery", kind, int(now), "", keys=keys)
        return {"id": "recovery", "recovery": list(keys)}
    if "description" not in params:
        raise failure("'description' is required for new entries")
    if "totp" not in params or "value" not in params:
        raise failure("both 'totp' and 'value' parameters are required")
    secret = _secret_of(params["totp"])
    if not _is_code(secret, params["value"], now):
        raise failure("failed to verify TOTP challenge")
    factor = Factor(secrets.token_hex(16), kind, int(now), params["description"], secret=secret)
    own[factor.id] = factor
    return {"id": factor.id}


def _secret_of(uri: str) -> bytes:
    text = parse_qs(urlsplit(uri).query).get("secret", [""])[0]
    try:
        return base64.b32decode(text + "=" * (-len(text) % 8), casefold=True)
    except binascii.Error as error:
        raise failure("invalid totp uri: bad secret") from error


@route("GET /access/tfa/{userid}/{id}")
def read_factor(call: Call) -> dict[str, Any]:
    return _factor(call).as_dict()


@route("PUT /access/tfa/{userid}/{id}")
def change_factor(call: Call) -> None:
    _confirm_password(call)
    factor = _factor(call)
    factor.description = call.params.get("description", factor.description)
    factor.enable = bool(call.params.get("enable", factor.enable))


@route("DELETE /access/tfa/{userid}/{id}")
def remove_factor(call: Call) -> None:
    _confirm_password(call)
    del _factors(call)[_factor(call).id]
    if not _factors(call):
        existing_user(call).keys = None


def _factors(call: Call) -> dict[str, Factor]:
    return call.world.part(SecondFactors).by_user.setdefault(call.values["userid"], {})


def _factor(call: Call) -> Factor:
    return existing(_factors(call).get(call.values["id"]), Refusal(404, f"No such tfa entry '{call.values['id']}'\n"))


def _confirm_password(call: Call) -> None:
    """Everyone but root confirms their own password."""
    if call.is_root:
        return
    if call.values["userid"] == ROOT:
        raise Refusal(403, "Permission check failed\n")
    confirm(call, "password", "password is required to modify TFA data")


@route("GET /access/users/{userid}/tfa")
def types_of_user(call: Call) -> dict[str, Any]:
    realm = call.values["userid"].rpartition("@")[2]
    if realm not in call.world.access.realms:
        raise failure(f"auth domain '{realm}' does not exist")
    return {"user": []} if call.params.get("multiple") else {}
