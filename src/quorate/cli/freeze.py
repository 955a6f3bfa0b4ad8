"""quorate freeze, quorate unfreeze: stop all changes at once, and allow them again."""

from __future__ import annotations

import argparse
import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.cli.options import FAILED, OK, add_command, with_trail
from quorate.cli.prompts import prove_operator, read_hidden
from quorate.pipeline.redaction import one_line
from quorate.state.limits import Freeze
from quorate.state.passphrase import SET_PASSPHRASE, Passphrase
from quorate.state.trail import AuditUnwritable

if TYPE_CHECKING:
    from quorate.state.store import Store
    from quorate.state.trail import AuditTrail


def add(commands: Any) -> None:
    freeze = add_command(commands, "freeze", _freeze)
    freeze.add_argument("--reason", metavar="TEXT", default="", help="shown in every refusal")
    freeze.epilog = "A running plan stops before its next step. No passphrase is needed, so that stopping is easy."
    unfreeze = add_command(commands, "unfreeze", _unfreeze)
    for command in (freeze, unfreeze):
        command.add_argument("--config", metavar="FILE", type=Path, help="TOML configuration")


def _freeze(options: argparse.Namespace) -> int:
    async def run(store: Store, trail: AuditTrail) -> int:
        try:
            frozen, new = await Freeze(store).set(f"{getpass.getuser()} at a shell", options.reason, trail)
        except AuditUnwritable as problem:
            print(f"Changes are frozen. quorate: {problem}", file=sys.stderr)
            return FAILED
        details = _line(str(frozen))
        print(f"Changes are {'' if new else 'already '}frozen {details}.")
        print("`quorate unfreeze` allows them again.")
        return OK

    return with_trail(options, run)


def _unfreeze(options: argparse.Namespace) -> int:
    async def run(store: Store, trail: AuditTrail) -> int:
        freeze = Freeze(store)
        frozen = await freeze.state()
        if frozen is None:
            print("Changes are not frozen.")
            return OK
        print(f"Changes were frozen {_line(str(frozen))}.")
        if await Passphrase(store).is_set():
            await prove_operator(store)
        elif read_hidden("No passphrase is set; type unfreeze: ").strip() != "unfreeze":
            print(f"quorate: changes remain frozen; `{SET_PASSPHRASE}` sets a passphrase", file=sys.stderr)
            return FAILED
        await freeze.lift(f"{getpass.getuser()} at a terminal", trail)
        print("Changes are allowed again.")
        return OK

    return with_trail(options, run)


def _line(text: str) -> str:
    return one_line(text)
