"""Names that become part of commands inside guests (users, groups, modes, services), checked by strict patterns."""

from __future__ import annotations

import re

from quorate.hints import GUEST_SERVICE, HOST_SERVICE, see
from quorate.problems import BadArgument

_ACCOUNT = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}\$?"
_USER = re.compile(_ACCOUNT)
_OWNER = re.compile(rf"{_ACCOUNT}(?::{_ACCOUNT})?|:{_ACCOUNT}")
_MODE = re.compile(r"[0-7]{3,4}")
_UNIT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9:_.@\\+-]{0,254}")
_WINDOWS_SERVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ .@$()+&#{}-]{0,254}")
_UNIT_TYPES = ("service", "socket", "timer", "path", "mount", "automount", "swap", "target", "slice", "scope", "device")


def require_user(text: str) -> str:
    if _USER.fullmatch(text) is None:
        raise BadArgument(f"{text!r} is not a user name", why="User names consist of letters, digits and _ . @ + -")
    return text


def require_owner(text: str) -> str:
    """`user`, `user:group` or `:group`, by name or number."""
    if _OWNER.fullmatch(text) is None:
        raise BadArgument(
            f"{text!r} is not an owner",
            why="User and group consist of letters, digits and _ . @ + -",
            next_step="Write user, user:group or :group, by name or number",
        )
    return text


def require_mode(text: str) -> str:
    if _MODE.fullmatch(text) is None:
        raise BadArgument(f"{text!r} is not a file mode", next_step="Write three or four octal digits, such as 0644")
    return text


def require_service(text: str, system: str) -> str:
    """A service name, without wildcards or options."""
    pattern = _WINDOWS_SERVICE if system == "windows" else _UNIT
    if pattern.fullmatch(text) is None:
        raise BadArgument(
            f"{text!r} is not a service name",
            why="A name starts with a letter or digit and contains no spaces, wildcards or quotes"
            if system != "windows"
            else "A name starts with a letter or digit and contains no wildcards or quotes",
            next_step=see("List the services", HOST_SERVICE, GUEST_SERVICE),
        )
    return text


def unit_name(text: str) -> str:
    """The full name of a unit: `ssh` is `ssh.service`."""
    return text if text.rpartition(".")[2] in _UNIT_TYPES else f"{text}.service"
