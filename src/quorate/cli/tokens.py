"""quorate tokens: bearer tokens of the HTTP server."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from quorate.cli.options import FAILED, OK, actions_of, add_command, config_option, with_store
from quorate.config import ConfigError
from quorate.config.values import toolset_names
from quorate.operations.registry import describe_unknown, expand
from quorate.state.tokens import Tokens
from quorate.units import iso_times, moment

if TYPE_CHECKING:
    from quorate.state.store import Store
    from quorate.state.tokens import TokenGrant


NOTHING = "none"
APPROVER_ACCESS = "admin"
DAY_SECONDS = 86400


def add(commands: Any) -> None:
    tokens = add_command(commands, "tokens", _list)
    tokens.set_defaults(all=False, json=False)
    add_action = actions_of(tokens, config_option)
    create = add_action("create", _create, "create a token and print it once")
    create.add_argument("name", metavar="NAME", help="name of the caller, for the audit trail")
    create.add_argument(
        "--access", choices=("read", "operate", "admin"), default="read", help="highest access level (default: read)"
    )
    create.add_argument("--toolsets", metavar="A,B", help="only these toolsets, or none")
    create.add_argument("--clusters", metavar="A,B", help="only these clusters")
    create.add_argument("--days", metavar="N", type=float, help="days until it expires (default: never)")
    create.add_argument(
        "--approver", action="store_true", help="for a person who answers approvals over HTTP; cannot call tools"
    )
    listed = add_action("list", _list, "list tokens without their secrets")
    listed.add_argument("--all", action="store_true", help="include revoked and expired ones")
    listed.add_argument("--json", action="store_true", help="print JSON")
    revoke = add_action("revoke", _revoke, "revoke a token permanently")
    revoke.add_argument("name", metavar="NAME", help="name or id of the token")


def _create(options: argparse.Namespace) -> int:
    toolsets, clusters = _toolsets(options.toolsets), _names(options.clusters)
    if options.approver and (options.toolsets or options.access != "read"):
        raise ConfigError("--approver sets access and toolsets: omit --access and --toolsets.")
    if options.approver:
        options.access, toolsets = APPROVER_ACCESS, []
    expires = None if options.days is None else time.time() + options.days * DAY_SECONDS

    async def run(store: Store) -> int:
        made = await Tokens(store).create(
            options.name, options.access, toolsets=toolsets, clusters=clusters, expires=expires
        )
        print(f"quorate: token of {_describe(made.grant)}. It is shown only once:", file=sys.stderr)
        print(made.plain)
        return OK

    return with_store(options, run)


def _list(options: argparse.Namespace) -> int:
    async def run(store: Store) -> int:
        now = time.time()
        grants = [grant for grant in await Tokens(store).list() if options.all or _state(grant, now) == "valid"]
        if options.json:
            print(json.dumps([_facts(grant) for grant in grants], ensure_ascii=False))
        elif not grants:
            print("There are no tokens; `quorate tokens create NAME` creates one.")
        for grant in grants if not options.json else ():
            print(f"{grant.id}  {_state(grant, now):<8}{_describe(grant)}{_last_use(grant)}")
        return OK

    return with_store(options, run)


def _revoke(options: argparse.Namespace) -> int:
    async def run(store: Store) -> int:
        if await Tokens(store).revoke(options.name):
            print(f"{options.name} is revoked; servers refuse it within a few seconds.")
            return OK
        print(f"quorate: there is no valid token {options.name!r}; `quorate tokens` lists them", file=sys.stderr)
        return FAILED

    return with_store(options, run)


def _names(text: str | None) -> list[str] | None:
    """None means no limit; the word none means an empty list."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    return [] if names == [NOTHING] else names


def _toolsets(text: str | None) -> list[str] | None:
    """Written as for `quorate serve`."""
    names = _names(text)
    if not names:
        return names
    try:
        return sorted(expand(toolset_names(names)))
    except KeyError as unknown:
        raise ConfigError(f"{describe_unknown(unknown.args[0])}, or none.") from None


def _describe(grant: TokenGrant) -> str:
    is_approver = grant.access == APPROVER_ACCESS and grant.toolsets == frozenset()
    what_for = "approver, answers approvals and calls no tools" if is_approver else grant.access
    limits = [
        f"{what} {', '.join(sorted(names)) or NOTHING}"
        for what, names in (("toolsets", None if is_approver else grant.toolsets), ("clusters", grant.clusters))
        if names is not None
    ]
    until = f"until {moment(grant.expires)}" if grant.expires else ""
    return ", ".join(part for part in (f"{grant.name}: {what_for}", *limits, until) if part)


def _last_use(grant: TokenGrant) -> str:
    return f"  (last used {moment(grant.last_used)})" if grant.last_used else "  (never used)"


def _state(grant: TokenGrant, now: float) -> str:
    if grant.revoked is not None:
        return "revoked"
    return "expired" if grant.expires is not None and grant.expires <= now else "valid"


def _facts(grant: TokenGrant) -> dict[str, Any]:
    facts = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in asdict(grant).items()}
    return iso_times(facts, ("created", "expires", "last_used", "revoked"))
