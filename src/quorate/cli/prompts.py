"""Questions at the terminal: settings, approvals, the operator's passphrase. Without a terminal, use options."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from quorate.config import ConfigError
from quorate.problems import BadArgument

if TYPE_CHECKING:
    from quorate.pipeline.caller import Ask, Question, Reply
    from quorate.state.store import Store

TRIES = 3
T = TypeVar("T")


def is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def ask(question: str, option: str, *, default: str = "") -> str:
    if not is_interactive():
        if default:
            return default
        raise ConfigError(f"{option} is missing: pass it, or run this at a terminal.")
    shown = f"{question} [{default}]: " if default else f"{question}: "
    for _ in range(TRIES):
        try:
            answer = input(shown).strip() or default
        except EOFError:
            break
        if answer:
            return answer
    raise ConfigError(f"{option} was not answered. Nothing was changed.")


def ask_until(question: str, option: str, convert: Callable[[str], T], *, default: str = "") -> T:
    """Ask again where the answer cannot be used; `convert` raises ConfigError and says why."""
    for left in reversed(range(TRIES if is_interactive() else 1)):
        try:
            return convert(ask(question, option, default=default))
        except ConfigError as error:
            if not left:
                raise
            print(error)
    raise AssertionError("the last try ends it")


def choose(question: str, option: str, choices: Sequence[str], *, default: str) -> str:
    for _ in range(TRIES):
        answer = ask(f"{question} ({', '.join(choices)})", option, default=default).lower()
        if answer in choices:
            return answer
        print(f"{answer!r} is not one of them.")
    raise ConfigError(f"{option} was not answered. Nothing was changed.")


def confirm(question: str) -> bool:
    """Ask for confirmation: only the whole word counts, and without a terminal nothing is confirmed."""
    if not is_interactive():
        return False
    for _ in range(TRIES):
        try:
            answer = input(f"{question} Type yes to continue: ").strip().lower()
        except EOFError:
            return False
        if answer in ("yes", "no", "n", ""):
            return answer == "yes"
        print("Type the whole word, yes or no.")
    return False


def ask_secret(question: str, option: str) -> str:
    """Read a secret typed at the terminal, without echo."""
    if not is_interactive():
        raise ConfigError(f"{option} is missing: pass it, or run this at a terminal.")
    return _ask_hidden(f"{question}: ").strip()


# -- the operator ------------------------------------------------------------------------------------------------------


def ask_operator(store: Store) -> Ask | None:
    """Asks the person who typed the command; None without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None

    async def ask(question: Question) -> Reply:
        from quorate.pipeline.caller import Reply, ReplyKind
        from quorate.state.passphrase import Passphrase

        print(f"\n{question.text}", file=sys.stderr)
        answer = await asyncio.to_thread(_line)
        if answer == question.word and await Passphrase(store).is_set():
            await prove_operator(store)
        return Reply(ReplyKind.DECLINED if answer is None else ReplyKind.TYPED, answer or "", at_terminal=True)

    return ask


async def decline_to_wait(_: Question) -> Reply:
    """An asker for a call that nobody can approve later either."""
    raise TimeoutError


def report_wait(question: Question) -> None:
    from quorate.pipeline.redaction import one_line

    print(
        f"quorate: waiting for approval {question.id}: {one_line(question.text)}\n"
        f"quorate: to answer, {question.ways}; Ctrl-C stops waiting",
        file=sys.stderr,
        flush=True,
    )


def _line() -> str | None:
    import termios

    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)  # input typed before the question does not answer it
    sys.stderr.write("> ")
    sys.stderr.flush()
    return sys.stdin.readline().strip() or None


async def prove_operator(store: Store) -> None:
    from quorate.state.passphrase import Passphrase, PassphraseWrong

    passphrase = Passphrase(store)
    await passphrase.ensure_set()
    for left in reversed(range(TRIES)):
        if await passphrase.verify(read_hidden("Operator's passphrase: ")):
            return
        if left:
            print("quorate: wrong passphrase", file=sys.stderr)
    raise PassphraseWrong("Wrong passphrase", next_step="Nothing was changed; run the command again")


async def choose_passphrase(store: Store, *, optional: bool = False) -> bool:
    """Whether a new one was typed twice and stored; an empty one skips it if that is optional."""
    from quorate.state.passphrase import SHORTEST, Passphrase, ensure_long

    passphrase = Passphrase(store)
    old = read_hidden("Current passphrase: ") if await passphrase.is_set() else None
    new = read_hidden(f"New passphrase (at least {SHORTEST} characters): ")
    if optional and not new:
        return False
    ensure_long(new)
    if read_hidden("Repeat it: ") != new:
        raise BadArgument("The two differ", next_step="Nothing was changed; type it again")
    await passphrase.set(new, old)
    print("The passphrase is set. Only its hash is stored.")
    return True


def read_hidden(prompt: str) -> str:
    """Read from the terminal itself, without echo: neither a pipe nor a variable can replace the operator."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        raise ConfigError(
            "This must be typed at a terminal, and there is none. Nothing was changed; run the command again in an "
            "interactive session."
        ) from None
    # Under asyncio the first Ctrl-C only cancels the task, which cannot notice while it reads input.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return _ask_hidden(prompt)
    finally:
        signal.signal(signal.SIGINT, before)


def _ask_hidden(prompt: str) -> str:
    try:
        return getpass.getpass(prompt)
    except EOFError:
        raise ConfigError("Nothing was entered, so nothing was changed.") from None
