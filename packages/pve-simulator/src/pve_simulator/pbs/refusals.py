"""Refusals of a Proxmox Backup Server: a status, and a text that is the whole body."""

from __future__ import annotations

from collections.abc import Mapping


class Refusal(Exception):
    """An answer that is not 200. Nearly everything is 400, in the server's words."""

    def __init__(self, text: str, status: int = 400, *, delay: float = 0.0, errors: Mapping[str, str] = {}) -> None:
        super().__init__(text)
        self.text = text
        self.status = status
        self.delay = delay
        self.errors = dict(errors)


def refuse_login(reason: str) -> Refusal:
    """A login that failed. The server takes three seconds to say so."""
    return Refusal(f"authentication failed - {reason}", 401, delay=3.0)


def forbidden(missing: str = "") -> Refusal:
    """A caller without the privilege; a check in the endpoint's code names what is missing."""
    return Refusal("permission check failed" + (f" - missing {missing}" if missing else ""), 403)


def bad_parameters(errors: Mapping[str, str]) -> Refusal:
    (first, *others) = errors.items()
    if not others:
        return Refusal(f"parameter verification failed - '{first[0]}': {first[1]}", errors=errors)
    lines = "".join(f"- '{name}': {text}\n" for name, text in errors.items())
    return Refusal(f"parameter verification failed:\n{lines}", errors=errors)


def bad_parameter(name: str, text: str) -> Refusal:
    return bad_parameters({name: text})


def no_such_file() -> Refusal:
    return Refusal("ENOENT: No such file or directory")
