"""Convert raw values, and check that all spellings of a setting agree."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from quorate.config.names import suggest_setting
from quorate.config.raw import RawSetting, RawSettings
from quorate.config.settings import Access, Approval, ConfigError

T = TypeVar("T")
Default = TypeVar("Default")


def read(found: RawSettings, setting: str, reader: Callable[[RawSetting], T], default: Default) -> T | Default:
    return require_agreement(found[setting], reader) if setting in found else default


def require_agreement(givens: list[RawSetting], reader: Callable[[RawSetting], T]) -> T:
    """The value of a setting; if it is given in several spellings, they must agree."""
    first, *others = givens
    value = reader(first)
    for other in others:
        if reader(other) != value:
            contradiction(first, other)
    return value


def contradiction(one: RawSetting, other: RawSetting, remedy: str = "keep only one of them") -> NoReturn:
    raise ConfigError(f"{one.label} and {other.label} contradict each other: {remedy}.")


def as_text(given: RawSetting) -> str:
    if not isinstance(given.value, str) or not given.value.strip():
        raise ConfigError(f"{given.label} must be a non-empty string.")
    return given.value.strip()


def as_texts(given: RawSetting) -> list[str]:
    """A list in TOML, or comma-separated words."""
    parts = given.value if isinstance(given.value, list) else as_text(given).split(",")
    if not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"{given.label} must be a string or a list of strings.")
    texts = [part.strip() for part in parts if part.strip()]
    if not texts:
        raise ConfigError(f"{given.label} must not be empty.")
    return texts


def as_path(given: RawSetting) -> Path:
    return given.source.path(as_text(given))


def as_folders(given: RawSetting) -> tuple[Path, ...]:
    """Absolute, because callers name files in them by their whole path."""
    folders = tuple(Path(os.path.normpath(given.source.path(text))) for text in as_texts(given))
    for folder in folders:
        if folder == folder.parent:
            raise ConfigError(f"{given.label} must not contain {folder}: every file is below it.")
    return folders


def as_flag(given: RawSetting) -> bool | None:
    """None if it is neither true nor false."""
    if isinstance(given.value, bool):
        return given.value
    word = as_text(given).lower()
    if word in ("true", "1", "yes", "on"):
        return True
    return False if word in ("false", "0", "no", "off") else None


def as_choice(given: RawSetting) -> bool:
    flag = as_flag(given)
    if flag is None:
        raise ConfigError(f"{given.label} must be true or false.")
    return flag


def as_port(given: RawSetting) -> int:
    return whole_number(given, 1, 65535)


def as_connections(given: RawSetting) -> int:
    return whole_number(given, 1, 1000)


def as_answer_size(given: RawSetting) -> int:
    return whole_number(given, 1_000_000, 1_000_000_000)


def as_count(given: RawSetting) -> int:
    return whole_number(given, 0, 1_000_000)


def as_time_limit(given: RawSetting) -> float:
    return number(given, 1, 3600)


def as_waiting_time(given: RawSetting) -> float:
    return number(given, 0, 3600)


def as_access(given: RawSetting) -> Access:
    word = as_text(given).lower()
    try:
        return Access(word)
    except ValueError:
        hint = suggest_setting(word, Access)
        raise ConfigError(f"{given.label} must be read, operate or admin.{hint}") from None


def as_approval(given: RawSetting) -> Approval:
    word = as_text(given).lower()
    try:
        return Approval(word)
    except ValueError:
        hint = suggest_setting(word, Approval)
        raise ConfigError(f"{given.label} must be ask, token or none.{hint}") from None


def as_state(given: RawSetting) -> str:
    """A path, or a database URL."""
    text = as_text(given)
    return text if "://" in text else str(as_path(given))


def as_surfaces(given: RawSetting) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.lower() for name in as_texts(given)))


def as_toolsets(given: RawSetting) -> tuple[str, ...]:
    return toolset_names(as_texts(given))


def toolset_names(texts: list[str]) -> tuple[str, ...]:
    """`+backups` adds to the default tools; `backups` alone replaces them."""
    names = [name.lower() for name in texts]
    default = ("default",) if names and all(name.startswith("+") for name in names) else ()
    return tuple(dict.fromkeys([*default, *(name.removeprefix("+") for name in names)]))


def whole_number(given: RawSetting, lowest: int, highest: int) -> int:
    found = number(given, lowest, highest)
    if found != int(found):
        raise ConfigError(f"{given.label} must be a whole number from {lowest} to {highest}.")
    return int(found)


def number(given: RawSetting, lowest: float, highest: float) -> float:
    found = math.nan
    if isinstance(given.value, int | float | str) and not isinstance(given.value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            found = float(given.value)
    if not lowest <= found <= highest:
        raise ConfigError(f"{given.label} must be a number from {lowest:g} to {highest:g}.")
    return found
