"""The settings of a service: from the caller, from an existing installation, defaults, and generated secrets."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quorate.homelab.secret_scope import secrets_in
from quorate.homelab.secrets import Secrets
from quorate.homelab.services.template import VERSION, Parameter, Template
from quorate.problems import BadArgument

LONGEST = 1000
_PLAIN = re.compile(r"[^\x00-\x1f\x7f'\\\u2028\u2029]*")
"""Safe between single quotes in an environment file, for every program that reads it."""
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class ChosenSettings:
    values: Mapping[str, str]
    """Every parameter as text, including secrets."""
    secret: frozenset[str]
    generated: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    """Of the stored secrets among them."""

    @property
    def without_secrets(self) -> dict[str, str]:
        """Without secrets."""
        return {name: value for name, value in self.values.items() if name not in self.secret}

    @property
    def version(self) -> str:
        return self.values.get(VERSION, "")


async def choose(
    template: Template, given: Mapping[str, Any], former: Mapping[str, str], vault: Secrets
) -> ChosenSettings:
    """Given values win over former ones, which win over defaults. Former values of unknown parameters are ignored."""
    known = require_known(template, given)
    values: dict[str, str] = {}
    generated = []
    for name, parameter in known.items():
        if name in given:
            values[name] = await _resolve(name, parameter, given[name], vault)
        elif name in former and (former[name] or parameter.default is not None):
            values[name] = _plain(name, former[name])
        elif parameter.generate:
            values[name] = "".join(secrets.choice(_ALPHABET) for _ in range(parameter.generate))
            generated.append(name)
        elif parameter.required:
            raise BadArgument(f"The setting {name!r} is missing", why=parameter.about, next_step="Give it in settings")
        else:
            values[name] = _text(parameter.default)
    hidden = frozenset(name for name, parameter in known.items() if parameter.type == "secret")
    vault.revealed.update(values[name] for name in hidden)
    references = secrets_in({name: given[name] for name in sorted(hidden & given.keys())})
    return ChosenSettings(values, hidden, tuple(generated), tuple(references))


def require_known(template: Template, given: Mapping[str, Any]) -> dict[str, Parameter]:
    """All parameters. Raises BadArgument if an unknown one is given."""
    known = dict(template.parameters)
    if template.version:
        known[VERSION] = Parameter("Version", default=template.version)
    if unknown := [name for name in given if name not in known]:
        raise BadArgument(
            f"{template.title} has no setting {unknown[0]!r}",
            next_step=f"Use {', '.join(known)}" if known else "It has no settings",
        )
    return known


async def _resolve(name: str, parameter: Parameter, value: Any, vault: Secrets) -> str:
    if parameter.type == "secret":
        if not isinstance(value, str):
            raise BadArgument(f"{name} is a secret", next_step="Use a reference such as env:NAME or vault:NAME")
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
        raise BadArgument(f"{text!r} is not valid for the setting {name!r}", next_step=f"Use {wanted}")
    return _plain(name, text)


def _plain(name: str, text: str) -> str:
    if len(text) > LONGEST or not _PLAIN.fullmatch(text):
        raise BadArgument(
            f"The setting {name!r} cannot be stored",
            why=f"It contains a line break, a quote ' or a backslash, or more than {LONGEST} characters",
        )
    return text


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
