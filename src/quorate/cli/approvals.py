"""quorate approvals: what callers wait for, and the operator's answers."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.cli.operator import prove_operator, typed
from quorate.cli.options import FAILED, OK, command
from quorate.cli.state import with_store

if TYPE_CHECKING:
    from quorate.state.approvals import Approval
    from quorate.state.store import Store


def add(commands: Any) -> None:
    approvals = command(commands, "approvals", _list, "see and answer what waits for your approval")
    approvals.add_argument("--config", metavar="FILE", type=Path, help="TOML configuration")
    approvals.add_argument("--all", action="store_true", help="answered, used and expired ones as well")
    approvals.add_argument("--json", action="store_true", help="print JSON")
    actions = approvals.add_subparsers(title="actions", metavar="ACTION")
    for name, run, summary in (
        ("show", _show, "the whole plan of one"),
        ("approve", _approve, "let it be done, once; asks for the operator's passphrase"),
        ("deny", _deny, "refuse it; asks for the operator's passphrase"),
    ):
        action = command(actions, name, run, summary)
        action.add_argument("id", metavar="ID", help="as the list shows it")
        if name == "deny":
            action.add_argument("--reason", metavar="TEXT", help="is told to the caller")
    command(actions, "passphrase", _passphrase, "set or change the operator's passphrase")


def _list(options: argparse.Namespace) -> int:
    from quorate.state.approvals import State

    states = tuple(State) if options.all else (State.PENDING,)

    async def run(store: Store) -> int:
        from quorate.state.approvals import Approvals

        rows = await Approvals(store).list(states)
        if options.json:
            from quorate.pipeline.sanitise import clean

            print(json.dumps(clean([asdict(row) | {"standing": row.standing} for row in rows]), ensure_ascii=False))
        elif not rows:
            print("Nothing was asked for yet." if options.all else "Nothing waits for approval.")
        else:
            _print_rows(rows)
        if rows and not (options.all or options.json):
            await _say_if_unprovable(store)
        return OK

    return with_store(options, run)


def _print_rows(rows: list[Approval]) -> None:
    from quorate.operations.units import moment

    width = max(len(row.standing) for row in rows)
    for row in rows:
        asked = f"asked by {_line(row.caller)}, {moment(row.created)}"
        print(f"{row.id}  {row.standing:<{width}}  {row.cluster}  {_line(row.summary)}  ({asked})")


async def _say_if_unprovable(store: Store) -> None:
    from quorate.state.passphrase import Passphrase, PassphraseNotSet

    try:
        await Passphrase(store).ensure_set()
    except PassphraseNotSet as problem:
        print(f"quorate: {problem}", file=sys.stderr)


def _show(options: argparse.Namespace) -> int:
    async def run(store: Store) -> int:
        print(_described(await _wanted(store, options.id)))
        return OK

    return with_store(options, run)


def _approve(options: argparse.Namespace) -> int:
    return with_store(options, lambda store: _answer(store, options.id, approve=True, reason=None))


def _deny(options: argparse.Namespace) -> int:
    return with_store(options, lambda store: _answer(store, options.id, approve=False, reason=options.reason))


async def _answer(store: Store, id: str, *, approve: bool, reason: str | None) -> int:
    from quorate.state.approvals import Approvals

    print(_described(await _wanted(store, id)))
    await prove_operator(store)
    row = await Approvals(store).answer(id, approve, f"{getpass.getuser()} at a terminal", reason)
    print(f"{row.id}: {row.standing}." + (" The caller now has to make the same call again." if approve else ""))
    return OK


def _passphrase(options: argparse.Namespace) -> int:
    async def run(store: Store) -> int:
        from quorate.state.passphrase import SHORTEST, Passphrase

        passphrase = Passphrase(store)
        old = typed("Present passphrase: ") if await passphrase.is_set() else None
        new = typed(f"New passphrase (at least {SHORTEST} characters): ")
        if typed("Once more: ") != new:
            print("quorate: they differ; nothing is changed", file=sys.stderr)
            return FAILED
        await passphrase.set(new, old)
        print("The passphrase is set. Only its hash is kept.")
        return OK

    return with_store(options, run)


async def _wanted(store: Store, id: str) -> Approval:
    from quorate.pve.errors import NotFound
    from quorate.state.approvals import Approvals

    row = await Approvals(store).get(id)
    if row is None:
        raise NotFound(f"There is no approval {id}", next_step="`quorate approvals` lists those that are pending")
    return row


def _described(row: Approval) -> str:
    from quorate.operations.units import moment

    lines = [
        f"approval   {row.id}: {row.standing}",
        f"wanted     {_line(row.summary)}",
        f"tool       {row.tool} ({row.risk}) on cluster {row.cluster}",
        f"asked by   {_line(row.caller)}, {moment(row.created)}",
        f"expires    {moment(row.expires)}",
        f"target     {_line(row.identity)}",
        *(f"to know    {_line(remark)}" for remark in row.remarks),
        *(f"step       {_line(step)}" for step in row.plan),
    ]
    if row.answered_by:
        lines.append(f"answered   by {_line(row.answered_by)}" + (f": {_line(row.reason)}" if row.reason else ""))
    return "\n".join(lines)


def _line(text: str) -> str:
    """Names and arguments are a stranger's words: they must not draw on the operator's terminal."""
    from quorate.pipeline.sanitise import one_line

    return one_line(text)
