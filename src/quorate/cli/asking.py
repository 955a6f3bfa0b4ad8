"""Asking the person at the terminal; where nobody sits there, the answers have to come as options."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from quorate.config import ConfigError

TRIES = 3


def somebody_is_there() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def ask(question: str, option: str, *, default: str = "") -> str:
    if not somebody_is_there():
        if default:
            return default
        raise ConfigError(f"{option} is missing: give it, or run this at a terminal, where it is asked for.")
    shown = f"{question} [{default}]: " if default else f"{question}: "
    for _ in range(TRIES):
        try:
            answer = input(shown).strip() or default
        except EOFError:
            break
        if answer:
            return answer
    raise ConfigError(f"{option} was not answered, so nothing was done.")


def choose(question: str, option: str, choices: Sequence[str], *, default: str) -> str:
    for _ in range(TRIES):
        answer = ask(f"{question} ({', '.join(choices)})", option, default=default).lower()
        if answer in choices:
            return answer
        print(f"{answer!r} is none of them.")
    raise ConfigError(f"{option} was not answered, so nothing was done.")


def agrees(question: str) -> bool:
    """Only the whole word counts; without a terminal nobody agrees."""
    if not somebody_is_there():
        return False
    try:
        return input(f"{question} Type yes to go on: ").strip().lower() == "yes"
    except EOFError:
        return False


def secret(question: str, option: str) -> str:
    """Typed at the terminal, unseen."""
    if not somebody_is_there():
        raise ConfigError(f"{option} is missing: give it, or run this at a terminal, where it is asked for.")
    import getpass

    return getpass.getpass(f"{question}: ").strip()
