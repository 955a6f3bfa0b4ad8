"""The operator at a terminal: proves who they are, answers what a call asks."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
import sys
from typing import TYPE_CHECKING

from quorate.config import ConfigError

if TYPE_CHECKING:
    from quorate.pipeline.caller import Ask, Question
    from quorate.state.store import Store

TRIES = 3


def at_terminal(store: Store) -> Ask | None:
    """How the person who typed the command is asked; None where nobody sits at a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None

    async def ask(question: Question) -> str | None:
        from quorate.state.passphrase import Passphrase

        print(f"\n{question.text}", file=sys.stderr)
        answer = await asyncio.to_thread(_line)
        if answer == question.wanted and await Passphrase(store).is_set():
            await prove_operator(store)
        return answer

    return ask


async def nobody_is_there(_: Question) -> str | None:
    """For a call that nobody can approve later either: it does not wait for anybody."""
    raise TimeoutError


def _line() -> str | None:
    import termios

    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # what was typed before the question is no answer to it
    sys.stderr.write("> ")
    sys.stderr.flush()
    return sys.stdin.readline().strip() or None


async def prove_operator(store: Store) -> None:
    from quorate.state.passphrase import Passphrase, PassphraseWrong

    passphrase = Passphrase(store)
    await passphrase.ensure_set()
    for left in reversed(range(TRIES)):
        if await passphrase.verify(typed("Operator's passphrase: ")):
            return
        if left:
            print("quorate: that is not the passphrase", file=sys.stderr)
    raise PassphraseWrong("That is not the passphrase", next_step="Nothing was answered")


def typed(prompt: str) -> str:
    """Typed at the terminal itself: neither a pipe nor a variable can stand in for the operator."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        raise ConfigError("The passphrase is typed at a terminal, and there is none here.") from None
    # Under asyncio the first Ctrl-C only cancels the task, which cannot notice it while somebody types.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return getpass.getpass(prompt)
    finally:
        signal.signal(signal.SIGINT, before)
