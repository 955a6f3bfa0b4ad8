"""The settings of a service: what the caller gives, what is there already, defaults, and secrets that are made up."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quorate.homelab.secrets import Secrets
from quorate.homelab.services.template import VERSION, Parameter, Template
from quorate.problems import BadArgument

LONGEST = 1000
_PLAIN = re.compile(r"[^\x00-\x1f\x7f'\\\u2028\u2029]*")
"""What can stand between single quotes in a file of environment variables, for every program that reads those."""
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class Chosen:
    values: Mapping[str, str]
    """Every parameter as text; secrets, too."""
    secret: frozenset[str]
    made_up: tuple[str, ...] = ()

    @property
    def shown(self) -> dict[str, str]:
        """What may be kept and told."""
        return {name: value for name, value in self.values.items() if name not in self.secret}

    @property
    def version(self) -> str:
        return self.values.get(VERSION, "")


async def choose(template: Template, given: Mapping[str, Any], former: Mapping[str, str], vault: Secrets) -> Chosen:
    """Given before former before default. Of `former` only what is still a parameter counts."""
    known = require_known(template, given)
    values: dict[str, str] = {}
    made_up = []
    for name, parameter in known.items():
        if name in given:
            values[name] = await _given(name, parameter, given[name], vault)
        elif name in former and (former[name] or parameter.default is not None):
            values[name] = _plain(name, former[name])
        elif parameter.generate:
            values[name] = "".join(secrets.choice(_ALPHABET) for _ in range(parameter.generate))
            made_up.append(name)
        elif parameter.required:
            raise BadArgument(f"The setting {name!r} is missing", why=parameter.about, next_step="Give it in settings")
        else:
            values[name] = _text(parameter.default)
    hidden = frozenset(name for name, parameter in known.items() if parameter.type == "secret")
    vault.revealed.update(values[name] for name in hidden)
    return Chosen(values, hidden, tuple(made_up))


def require_known(template: Template, given: Mapping[str, Any]) -> dict[str, Parameter]:
    """All that can be set, if what is given is among it."""
    known = dict(template.parameters)
    if template.version:
        known[VERSION] = Parameter("Version", default=template.version)
    if unknown := [name for name in given if name not in known]:
        raise BadArgument(
            f"{template.title} has no setting {unknown[0]!r}",
            next_step=f"There are {', '.join(known)}" if known else "It takes no settings",
        )
    return known


async def _given(name: str, parameter: Parameter, value: Any, vault: Secrets) -> str:
    if parameter.type == "secret":
        if not isinstance(value, str):
            raise BadArgument(f"{name} is a secret", next_step="Give a reference such as env:NAME or vault:NAME")
        return _plain(name, (await vault.fetch(value)).reveal())
    text = _text(value)
    fits = {
        "text": True,
        "number": re.fullmatch(r"-?[0-9]{1,15}", text),
        "port": text.isascii() and text.isdecimal() and 0 < int(text) < 65536,
        "flag": text in ("true", "false"),
        "choice": text in parameter.choices,
    }[parameter.type]
    if not fits or (name == VERSION and not _VERSION.fullmatch(text)):
        wanted = f"one of {', '.join(parameter.choices)}" if parameter.choices else f"a {parameter.type}"
        raise BadArgument(f"{text!r} does not fit the setting {name!r}", next_step=f"It is {wanted}")
    return _plain(name, text)


def _plain(name: str, text: str) -> str:
    if len(text) > LONGEST or not _PLAIN.fullmatch(text):
        raise BadArgument(
            f"The setting {name!r} cannot be written down",
            why=f"It has a line end, a quote ' or a backslash, or more than {LONGEST} characters",
        )
    return text


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
