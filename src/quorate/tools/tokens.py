"""API tokens. A new secret goes to the caller once and is stored nowhere."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from quorate.hints import Advice, either, tools
from quorate.operations.plan import Call, Plan, Target
from quorate.operations.registry import Risk, operation
from quorate.problems import BadArgument, Conflict
from quorate.pve.cluster import Cluster
from quorate.tools.directory import TOKEN_ID, Expire, parse_expiry, tokens_in, unknown, users

_ONE = "/access/users/{userid}/token/{tokenid}"


@operation(
    toolset="access",
    risk=Risk.DESTROY,
    search_words="api token key secret script monitoring automation rotate renew",
    example="token=dave@pve!phone",
)
async def token_create(
    pve: Cluster,
    token: Annotated[str, Meta(description="user@realm!name")],
    privsep: Annotated[bool, Meta(description="false: all privileges of its user")] = True,
    expire: Expire | None = None,
    comment: str | None = None,
    regenerate: Annotated[bool, Meta(description="New secret for an existing token (PVE 9.2+)")] = False,
) -> Plan:
    """Create an API token. The answer shows its secret once."""
    parts = TOKEN_ID.fullmatch(token)
    if parts is None:
        raise BadArgument(
            f"{token!r} is not a token id",
            why="The realm and the name start with a letter and have at least two letters, digits, '.', '-' or '_'",
            next_step="Write user@realm!name, such as alice@pve!backup",
        )
    known = await users(pve)
    if parts["user"] not in known:
        raise unknown("user", parts["user"], known)
    path = f"/access/users/{parts['user']}/token/{parts['name']}"
    exists = token in tokens_in(known)
    if regenerate:
        return await _renewal(pve, token, path, exists)
    if exists:
        raise Conflict(
            f"Token {token} already exists",
            why="PVE never shows its secret again",
            next_step=either(Advice("Give {regenerate} for a new secret", regenerate=True), "choose another name"),
        )
    return _creation(pve, token, path, privsep=privsep, expire=expire, comment=comment)


def _creation(
    pve: Cluster, token: str, path: str, *, privsep: bool, expire: str | int | None, comment: str | None
) -> Plan:
    params: dict[str, Any] = {"privsep": int(privsep)}
    params |= {} if expire is None else {"expire": parse_expiry(pve, expire)}
    params |= {"comment": comment} if comment else {}
    call = Call(f"Create token {token}", "POST", path, params, Target("token", token))
    warnings = [] if privsep else [f"It can do everything that {token.partition('!')[0]} can do"]
    if not params.get("expire"):
        warnings.append("It never expires")
    return Plan(
        call.summary,
        (call,),
        warnings=tuple(warnings),
        next_step=Advice("It has no privileges yet; grant it roles", tools.acl_set(action="grant", holders=token))
        if privsep
        else None,
        from_answers=lambda answers: _secret_facts(token, answers),
    )


async def _renewal(pve: Cluster, token: str, path: str, exists: bool) -> Plan:
    if not exists:
        raise unknown("token", token, tokens_in(await users(pve)))
    if token == pve.client.identity:
        raise Conflict(
            f"Quorate itself works with {token} and would be locked out",
            next_step="Renew it on a node, and update Quorate's configuration",
        )
    facts = await pve.facts()
    if "regenerate" not in facts.endpoint("PUT", _ONE).parameters:
        raise BadArgument(
            f"PVE {facts.version} cannot renew a secret",
            next_step=Advice("Delete the token and create it again", tools.access_delete(kind="token", name=token)),
        )
    call = Call(f"Give token {token} a new secret", "PUT", path, {"regenerate": 1}, Target("token", token))
    return Plan(
        call.summary,
        (call,),
        warnings=("Anything that still uses the old secret will be refused",),
        from_answers=lambda answers: _secret_facts(token, answers),
    )


def _secret_facts(token: str, answers: list[Any]) -> dict[str, Any]:
    answer = answers[0]
    if not isinstance(answer, dict) or "value" not in answer:
        return {
            "token": token,
            "secret_lost": "PVE's answer with the secret was lost; delete the token and create it again",
        }
    return {"token": token, "secret": answer["value"], "note": "Store it now: neither PVE nor Quorate shows it again"}
