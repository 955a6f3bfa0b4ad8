"""Names that go into commands inside guests: users, groups, modes, services; what fits no strict pattern is refused."""

from __future__ import annotations

import re

from quorate.problems import BadArgument

_ACCOUNT = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}\$?"
_USER = re.compile(_ACCOUNT)
_OWNER = re.compile(rf"{_ACCOUNT}(?::{_ACCOUNT})?|:{_ACCOUNT}")
_MODE = re.compile(r"[0-7]{3,4}")
_UNIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9:_.@\\+-]{0,254}")
_WINDOWS_SERVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ .@$()+&#{}-]{0,254}")
_UNIT_TYPES = ("service", "socket", "timer", "path", "mount", "automount", "swap", "target", "slice", "scope", "device")


def user(text: str) -> str:
    if _USER.fullmatch(text) is None:
        raise BadArgument(f"{text!r} is no name of a user", why="It has letters, digits and _ . @ + -")
    return text


def owner(text: str) -> str:
    """`user`, `user:group` or `:group`, by name or number."""
    if _OWNER.fullmatch(text) is None:
        raise BadArgument(
            f"{text!r} is no owner",
            why="User and group have letters, digits and _ . @ + -",
            next_step="Write user, user:group or :group, by name or number",
        )
    return text


def mode(text: str) -> str:
    if _MODE.fullmatch(text) is None:
        raise BadArgument(f"{text!r} is no mode of a file", next_step="Write it as three or four octal digits: 0644")
    return text


def service(text: str, system: str) -> str:
    """A service by its name; wildcards and options are none."""
    pattern = _WINDOWS_SERVICE if system == "windows" else _UNIT
    if pattern.fullmatch(text) is None:
        raise BadArgument(
            f"{text!r} is no name of a service",
            why="A name begins with a letter or digit and holds no spaces, wildcards or quotes"
            if system != "windows"
            else "A name begins with a letter or digit and holds no wildcards or quotes",
            next_step="guest_service without a service lists the names",
        )
    return text


def unit(text: str) -> str:
    """The full name that systemd knows: `ssh` is `ssh.service`."""
    return text if text.rpartition(".")[2] in _UNIT_TYPES else f"{text}.service"
