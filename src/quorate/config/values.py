"""Convert raw values, and check that all spellings of a setting agree."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from quorate.config.sources import ConfigError, RawSetting, RawSettings, Table, suggest_setting, text_of
from quorate.secret import Secret

T = TypeVar("T")
Default = TypeVar("Default")
Word = TypeVar("Word", bound=str)


def read_options(options: Table, raw: RawSettings) -> dict[str, Any]:
    """The values of the options that are set and have a reader of their own."""
    return {
        name: require_agreement(raw[name], declared.reader)
        for name, declared in options.items()
        if declared.reader is not None and name in raw
    }


def read(raw: RawSettings, name: str, reader: Callable[[RawSetting], T], default: Default) -> T | Default:
    return require_agreement(raw[name], reader) if name in raw else default


def require_agreement(values: list[RawSetting], reader: Callable[[RawSetting], T]) -> T:
    """The value of a setting; if it is given in several spellings, they must agree."""
    first, *others = values
    value = reader(first)
    for other in others:
        if reader(other) != value:
            contradiction(first, other)
    return value


def contradiction(first: RawSetting, second: RawSetting, remedy: str = "keep only one of them") -> NoReturn:
    raise ConfigError(f"{first.label} and {second.label} contradict each other: {remedy}.")


# -- texts -------------------------------------------------------------------------------------------------------------


def as_text(raw: RawSetting) -> str:
    if not isinstance(raw.value, str) or not raw.value.strip():
        raise ConfigError(f"{raw.label} must be a non-empty string.")
    return raw.value.strip()


def as_texts(raw: RawSetting) -> tuple[str, ...]:
    """A list in TOML, or comma-separated words."""
    parts = raw.value if isinstance(raw.value, list) else as_text(raw).split(",")
    if not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"{raw.label} must be a string or a list of strings.")
    texts = tuple(part.strip() for part in parts if part.strip())
    if not texts:
        raise ConfigError(f"{raw.label} must not be empty.")
    return texts


LOOPBACK = ("127.0.0.1", "::1", "localhost")


def as_https_url(raw: RawSetting) -> str:
    """HTTPS only: what is there runs on nodes or in guests."""
    from urllib.parse import urlsplit

    address = as_text(raw)
    parts = urlsplit(address)
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)):
        raise ConfigError(f"{raw.label} must be an https:// address.")
    return address


def as_lower_texts(raw: RawSetting) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.lower() for name in as_texts(raw)))


def as_toolsets(raw: RawSetting) -> tuple[str, ...]:
    return toolset_names(as_texts(raw))


def toolset_names(texts: Iterable[str]) -> tuple[str, ...]:
    """`+backups` adds to the default tools; `backups` alone replaces them."""
    names = [name.lower() for name in texts]
    default = ("default",) if names and all(name.startswith("+") for name in names) else ()
    return tuple(dict.fromkeys([*default, *(name.removeprefix("+") for name in names)]))


class Choice(Generic[Word]):
    """Reads one of several words, or a member of an enumeration of words."""

    def __init__(self, words: Iterable[Word]) -> None:
        self.words = tuple(words)

    def __call__(self, raw: RawSetting) -> Word:
        text = as_text(raw).lower()
        for word in self.words:
            if word == text:
                return word
        raise ConfigError(f"{raw.label} must be {self}.{suggest_setting(text, self.words)}")

    def __str__(self) -> str:
        few = len(self.words) <= 3
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}" if few else f"one of {', '.join(self.words)}"


# -- switches and numbers ----------------------------------------------------------------------------------------------


def as_flag(raw: RawSetting) -> bool | None:
    """None if it is neither true nor false."""
    if isinstance(raw.value, bool):
        return raw.value
    word = as_text(raw).lower()
    if word in ("true", "1", "yes", "on"):
        return True
    return False if word in ("false", "0", "no", "off") else None


def as_switch(raw: RawSetting) -> bool:
    flag = as_flag(raw)
    if flag is None:
        raise ConfigError(f"{raw.label} must be true or false.")
    return flag


@dataclass(frozen=True, slots=True)
class Number:
    """Reads a number within bounds."""

    lowest: float
    highest: float

    def __call__(self, raw: RawSetting) -> float:
        number = math.nan
        if isinstance(raw.value, int | float | str) and not isinstance(raw.value, bool):
            with contextlib.suppress(ValueError, OverflowError):
                number = float(raw.value)
        if not self.lowest <= number <= self.highest:
            raise ConfigError(f"{raw.label} must be a number from {self.lowest:g} to {self.highest:g}.")
        return number


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """Reads a whole number within bounds."""

    lowest: int
    highest: int

    def __call__(self, raw: RawSetting) -> int:
        number = Number(self.lowest, self.highest)(raw)
        if number != int(number):
            raise ConfigError(f"{raw.label} must be a whole number from {self.lowest} to {self.highest}.")
        return int(number)


as_count = WholeNumber(0, 1_000_000)
as_port = WholeNumber(1, 65535)
as_time_limit = Number(1, 3600)
as_waiting_time = Number(0, 3600)

# -- files and secrets -------------------------------------------------------------------------------------------------


def as_path(raw: RawSetting) -> Path:
    return raw.source.path(as_text(raw))


def as_folders(raw: RawSetting) -> tuple[Path, ...]:
    """Absolute, because callers name files in them by their whole path."""
    folders = tuple(Path(os.path.normpath(raw.source.path(text))) for text in as_texts(raw))
    for folder in folders:
        if folder == folder.parent:
            raise ConfigError(f"{raw.label} must not contain {folder}: every file is below it.")
    return folders


def as_secret(raw: RawSetting) -> Secret:
    """A secret, or a reference to one; a secret in a file that others can read is warned about."""
    match raw.value:
        case str(text):
            file = raw.source.file
            if file and _is_open_to_others(file):
                raw.source.warnings.append(
                    f"{file} contains a secret and other users can read it: run `chmod 600 {file}`."
                )
        case {"file": str(name), **rest} if not rest:
            text = text_of(raw.source.path(name), f"file of {raw.label},").strip("\r\n")
        case {"env": str(name), **rest} if not rest:
            if name not in raw.source.variables:
                raise ConfigError(f"{raw.label} refers to the variable {name}, which is not set: set it.")
            text = raw.source.variables[name]
        case _:
            raise ConfigError(f'{raw.label} must be a string, {{ file = "PATH" }} or {{ env = "NAME" }}.')
    if not text.strip():
        raise ConfigError(f"{raw.label} is empty: set it to the secret.")
    return Secret(text)


def _is_open_to_others(file: Path) -> bool:
    # Windows stores permissions elsewhere and always reports these bits.
    return os.name == "posix" and bool(file.stat().st_mode & 0o044)
