"""What a given text, number or list means, and that all spellings of a setting mean the same."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from quorate.config.given import Found, Given
from quorate.config.settings import Access, Approval, ConfigError
from quorate.config.spellings import did_you_mean

T = TypeVar("T")
Default = TypeVar("Default")


def read(found: Found, setting: str, reader: Callable[[Given], T], default: Default) -> T | Default:
    return agreed(found[setting], reader) if setting in found else default


def agreed(givens: list[Given], reader: Callable[[Given], T]) -> T:
    """The value of a setting that may be given in several spellings, which then have to say the same."""
    first, *others = givens
    value = reader(first)
    for other in others:
        if reader(other) != value:
            contradiction(first, other)
    return value


def contradiction(one: Given, other: Given, remedy: str = "keep only one of them") -> NoReturn:
    raise ConfigError(f"{one.label} and {other.label} contradict each other: {remedy}.")


def as_text(given: Given) -> str:
    if not isinstance(given.value, str) or not given.value.strip():
        raise ConfigError(f"{given.label} must be a text that is not empty.")
    return given.value.strip()


def as_texts(given: Given) -> list[str]:
    """A list in TOML, or words with commas between them."""
    parts = given.value if isinstance(given.value, list) else as_text(given).split(",")
    if not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"{given.label} must be a text or a list of texts.")
    texts = [part.strip() for part in parts if part.strip()]
    if not texts:
        raise ConfigError(f"{given.label} must name at least one.")
    return texts


def as_path(given: Given) -> Path:
    return given.source.path(as_text(given))


def as_flag(given: Given) -> bool | None:
    """None where it is neither yes nor no."""
    if isinstance(given.value, bool):
        return given.value
    word = as_text(given).lower()
    if word in ("true", "1", "yes", "on"):
        return True
    return False if word in ("false", "0", "no", "off") else None


def as_choice(given: Given) -> bool:
    flag = as_flag(given)
    if flag is None:
        raise ConfigError(f"{given.label} must be true or false.")
    return flag


def as_port(given: Given) -> int:
    return whole_number(given, 1, 65535)


def as_connections(given: Given) -> int:
    return whole_number(given, 1, 1000)


def as_count(given: Given) -> int:
    return whole_number(given, 0, 1_000_000)


def as_time_limit(given: Given) -> float:
    return _number(given, 1, 3600)


def as_waiting_time(given: Given) -> float:
    return _number(given, 0, 3600)


def as_access(given: Given) -> Access:
    word = as_text(given).lower()
    try:
        return Access(word)
    except ValueError:
        hint = did_you_mean(word, Access)
        raise ConfigError(f"{given.label} must be read, operate or admin{';' + hint if hint else '.'}") from None


def as_approval(given: Given) -> Approval:
    word = as_text(given).lower()
    try:
        return Approval(word)
    except ValueError:
        hint = did_you_mean(word, Approval)
        raise ConfigError(f"{given.label} must be ask, token or none{';' + hint if hint else '.'}") from None


def as_state(given: Given) -> str:
    """A path, or the address of a database."""
    text = as_text(given)
    return text if "://" in text else str(as_path(given))


def as_surfaces(given: Given) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.lower() for name in as_texts(given)))


def as_toolsets(given: Given) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.lower() for name in as_texts(given)))


def whole_number(given: Given, lowest: int, highest: int) -> int:
    number = _number(given, lowest, highest)
    if number != int(number):
        raise ConfigError(f"{given.label} must be a whole number from {lowest} to {highest}.")
    return int(number)


def _number(given: Given, lowest: float, highest: float) -> float:
    number = math.nan
    if isinstance(given.value, int | float | str) and not isinstance(given.value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            number = float(given.value)
    if not lowest <= number <= highest:
        raise ConfigError(f"{given.label} must be a number from {lowest:g} to {highest:g}.")
    return number
