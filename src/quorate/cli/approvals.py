"""quorate approvals: list and answer requests for approval."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from quorate.cli.options import FAILED, OK, actions_of, add_command, config_option, with_store
from quorate.cli.prompts import choose_passphrase, prove_operator
from quorate.pipeline.redaction import clean, one_line
from quorate.problems import NotFound
from quorate.state.approvals import Approvals, State
from quorate.state.passphrase import Passphrase, PassphraseNotSet
from quorate.units import iso_times, moment

if TYPE_CHECKING:
    from quorate.state.approvals import Approval
    from quorate.state.store import Store


def add(commands: Any) -> None:
    approvals = add_command(commands, "approvals", _list)
    approvals.add_argument("--all", action="store_true", help="include answered, used and expired ones")
    approvals.add_argument("--json", action="store_true", help="print JSON")
    add_action = actions_of(approvals, config_option)
    for name, run, summary in (
        ("show", _show, "show the whole plan of a request"),
        ("approve", _approve, "approve a request, once; asks for the operator's passphrase"),
        ("deny", _deny, "deny a request; asks for the operator's passphrase"),
    ):
        action = add_action(name, run, summary)
        action.add_argument("id", metavar="ID", help="id of the request, as listed")
        if name == "deny":
            action.add_argument("--reason", metavar="TEXT", help="shown to the caller")
    add_action("passphrase", _passphrase, "set or change the operator's passphrase")


def _list(options: argparse.Namespace) -> int:
    states = tuple(State) if options.all else (State.PENDING,)

    async def run(store: Store) -> int:
        rows = await Approvals(store).list(states)
        if options.json:
            print(json.dumps([_facts(row) for row in rows], ensure_ascii=False))
        elif not rows:
            print("There are no requests." if options.all else "No requests are waiting for approval.")
        else:
            _print_rows(rows)
        if rows and not (options.all or options.json):
            await _warn_without_passphrase(store)
        return OK

    return with_store(options, run)


def _facts(row: Approval) -> dict[str, Any]:
    facts: dict[str, Any] = clean(
        asdict(row) | {"standing": row.standing, "history": row.history, "reminder": row.reminder}, lines=None
    )
    return iso_times(facts, ("created", "expires", "answered_at", "ended"))


def _print_rows(rows: list[Approval]) -> None:
    width = max(len(row.standing) for row in rows)
    for row in rows:
        asked = f"requested by {_line(row.caller)}, {moment(row.created)}"
        print(f"{row.id}  {row.standing:<{width}}  {row.cluster}  {_line(row.summary)}  ({asked})")
        if row.reminder:
            print(f"             {_line(row.reminder)}")


async def _warn_without_passphrase(store: Store) -> None:
    try:
        await Passphrase(store).ensure_set()
    except PassphraseNotSet as problem:
        print(f"quorate: {problem}", file=sys.stderr)


def _show(options: argparse.Namespace) -> int:
    async def run(store: Store) -> int:
        print(_describe(await _find(store, options.id)))
        return OK

    return with_store(options, run)


def _approve(options: argparse.Namespace) -> int:
    return with_store(options, lambda store: _answer(store, options.id, approve=True, reason=None))


def _deny(options: argparse.Namespace) -> int:
    return with_store(options, lambda store: _answer(store, options.id, approve=False, reason=options.reason))


async def _answer(store: Store, id: str, *, approve: bool, reason: str | None) -> int:
    print(_describe(await _find(store, id)))
    await prove_operator(store)
    row = await Approvals(store).answer(id, approve, f"{getpass.getuser()} at a terminal", reason)
    print(f"{row.id}: {row.standing}." + (" The caller must now repeat the same call." if approve else ""))
    return OK


def _passphrase(options: argparse.Namespace) -> int:
    async def run(store: Store) -> int:
        return OK if await choose_passphrase(store) else FAILED

    return with_store(options, run)


async def _find(store: Store, id: str) -> Approval:
    row = await Approvals(store).get(id)
    if row is None:
        raise NotFound(f"There is no approval {id}", next_step="`quorate approvals` lists the pending ones")
    return row


def _describe(row: Approval) -> str:
    lines = [
        *([_line(row.reminder)] if row.reminder else []),
        f"approval   {row.id}: {row.standing}",
        f"request    {_line(row.summary)}",
        f"tool       {row.tool} ({row.risk}) on cluster {row.cluster}",
        f"caller     {_line(row.caller)}, {moment(row.created)}",
        f"expires    {moment(row.expires)}",
        f"target     {_line(row.identity)}",
        *(f"           - {_line(str(remark))}" for remark in row.remarks),
        *(f"step       {_line(step)}" for step in row.plan),
    ]
    if row.answered_by:
        lines.append(f"history    {_line(row.history)}")
    if row.outcome:
        lines.append(f"journal    `quorate audit --approval {row.id}` shows the entry")
    return "\n".join(lines)


def _line(text: str) -> str:
    """Remove control characters: names and arguments are untrusted text."""
    return one_line(text)
