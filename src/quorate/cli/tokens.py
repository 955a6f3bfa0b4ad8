"""quorate tokens: who may use the HTTP server, and how far they may go."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.cli.options import FAILED, OK, command
from quorate.cli.state import with_store
from quorate.config import ConfigError

if TYPE_CHECKING:
    from quorate.state.store import Store
    from quorate.state.tokens import TokenGrant

NOTHING = "none"
DAY_SECONDS = 86400


def add(commands: Any) -> None:
    tokens = command(commands, "tokens", _list, "make, list and revoke bearer tokens of the HTTP server")
    tokens.add_argument("--config", metavar="FILE", type=Path, help="TOML configuration")
    tokens.set_defaults(all=False, json=False)
    actions = tokens.add_subparsers(title="actions", metavar="ACTION")
    create = command(actions, "create", _create, "make a token and print it, once")
    create.add_argument("name", metavar="NAME", help="whose it is; shown in the audit trail")
    create.add_argument(
        "--access", choices=("read", "operate", "admin"), default="read", help="at most (default: read)"
    )
    create.add_argument("--toolsets", metavar="A,B", help="only these groups of tools, or none")
    create.add_argument("--clusters", metavar="A,B", help="only these clusters")
    create.add_argument("--days", metavar="N", type=float, help="how long it lives (default: until it is revoked)")
    create.add_argument(
        "--approver", action="store_true", help="for a person who answers approvals over HTTP; it can call no tool"
    )
    listed = command(actions, "list", _list, "show them, without their secrets")
    listed.add_argument("--all", action="store_true", help="revoked and expired ones as well")
    listed.add_argument("--json", action="store_true", help="print JSON")
    revoke = command(actions, "revoke", _revoke, "end a token for good")
    revoke.add_argument("name", metavar="NAME", help="its name or id")


def _create(options: argparse.Namespace) -> int:
    toolsets, clusters = _names(options.toolsets), _names(options.clusters)
    _ensure_known(toolsets)
    if options.approver and (options.toolsets or options.access != "read"):
        raise ConfigError("--approver decides access and toolsets by itself: leave --access and --toolsets out.")
    if options.approver:
        options.access, toolsets = "admin", []
    expires = None if options.days is None else time.time() + options.days * DAY_SECONDS

    async def run(store: Store) -> int:
        from quorate.state.tokens import Tokens

        made = await Tokens(store).create(
            options.name, options.access, toolsets=toolsets, clusters=clusters, expires=expires
        )
        print(f"quorate: the token of {_described(made.grant)}. It is shown this once:", file=sys.stderr)
        print(made.plain)
        return OK

    return with_store(options, run)


def _list(options: argparse.Namespace) -> int:
    async def run(store: Store) -> int:
        from quorate.state.tokens import Tokens

        now = time.time()
        grants = [grant for grant in await Tokens(store).list() if options.all or _state(grant, now) == "valid"]
        if options.json:
            print(json.dumps([_facts(grant) for grant in grants], ensure_ascii=False))
        elif not grants:
            print("There are no tokens; `quorate tokens create NAME` makes one.")
        for grant in grants if not options.json else ():
            print(f"{grant.id}  {_state(grant, now):<8}{_described(grant)}{_used(grant)}")
        return OK

    return with_store(options, run)


def _revoke(options: argparse.Namespace) -> int:
    async def run(store: Store) -> int:
        from quorate.state.tokens import Tokens

        if await Tokens(store).revoke(options.name):
            print(f"{options.name} is revoked; servers refuse it within a few seconds.")
            return OK
        print(f"quorate: there is no valid token {options.name!r}; `quorate tokens` lists them", file=sys.stderr)
        return FAILED

    return with_store(options, run)


def _names(text: str | None) -> list[str] | None:
    """None is no limit; the word none is an empty list."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    return [] if names == [NOTHING] else names


def _ensure_known(toolsets: list[str] | None) -> None:
    from quorate.operations.registry import EVERY

    for name in toolsets or ():
        if name not in EVERY:
            raise ConfigError(f"There is no toolset {name!r}: choose from {', '.join(EVERY)} or none.")


def _described(grant: TokenGrant) -> str:
    from quorate.operations.units import moment

    limits = [
        f"{what} {', '.join(sorted(names)) or NOTHING}"
        for what, names in (("toolsets", grant.toolsets), ("clusters", grant.clusters))
        if names is not None
    ]
    until = f"until {moment(grant.expires)}" if grant.expires else ""
    return ", ".join(part for part in (f"{grant.name}: {grant.access}", *limits, until) if part)


def _used(grant: TokenGrant) -> str:
    from quorate.operations.units import moment

    return f"  (last used {moment(grant.last_used)})" if grant.last_used else "  (never used)"


def _state(grant: TokenGrant, now: float) -> str:
    if grant.revoked is not None:
        return "revoked"
    return "expired" if grant.expires is not None and grant.expires <= now else "valid"


def _facts(grant: TokenGrant) -> dict[str, Any]:
    return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in asdict(grant).items()}
