"""Options and where their values come from: arguments, environment and files, each read into the same raw shape."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from quorate.config.files import home
from quorate.suggestions import suggest


class ConfigError(Exception):
    """A setting is wrong. The text is for the operator and never contains a secret."""


class Rank(enum.IntEnum):
    """Precedence: the higher rank wins."""

    DOTENV = 1
    TOML = 2
    ENVIRONMENT = 3
    ARGUMENTS = 4


@dataclass(frozen=True, slots=True)
class Source:
    """One source of settings."""

    rank: Rank
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    suffix: str = ""
    """Names the source in messages, as in `PROXMOX_PORT in .env`."""
    file: Path | None = None
    warnings: list[str] = field(default_factory=list, repr=False, compare=False)
    """Collects what the operator should know about accepted values."""

    def path(self, text: str) -> Path:
        """A relative path starts from the file it is written in, otherwise from the current directory."""
        if text == "~" or text.startswith("~/"):
            return home(self.variables) / text[2:]
        return (self.file.parent if self.file else Path.cwd()) / text


@dataclass(frozen=True, slots=True)
class RawSetting:
    """One spelling of a setting with its value. The value may be a secret, so it is not in the repr."""

    spelling: str
    value: object = field(repr=False)
    source: Source

    @property
    def label(self) -> str:
        return self.spelling + self.source.suffix

    @property
    def rank(self) -> Rank:
        return self.source.rank


RawSettings = dict[str, list[RawSetting]]

# -- options -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """Declares one setting: its names, how it is read, and what the documentation says about it."""

    help: str
    reader: Callable[[RawSetting], Any] | None = None
    """None if it is read together with others, by the code of its table."""
    variables: tuple[str, ...] = ()
    keys: tuple[str, ...] | None = None
    """Its names in TOML, unless that is its name in the table."""
    flag: str = ""
    default: Any = None
    usual: str = ""
    """The default in words, where the value alone does not say it."""
    secret: bool = False
    """A variable with `_FILE` appended may name a file that contains it."""


Table = Mapping[str, Option]
"""The options of a TOML table, by the name of the field they fill."""
_OPTION = "option"


def option(
    help: str,
    reader: Callable[[RawSetting], Any] | None = None,
    *variables: str,
    default: Any = None,
    default_factory: Callable[[], Any] | None = None,
    repr: bool = True,
    **declared: Any,
) -> Any:
    """A field of a settings class that an operator can set."""
    about = Option(help, reader, variables, default=default, **declared)
    if default_factory is not None:
        return field(default_factory=default_factory, metadata={_OPTION: about}, repr=repr)
    return field(default=default, metadata={_OPTION: about})


def table(**options: Option) -> Table:
    return {
        name: option if option.keys is not None else replace(option, keys=(name,)) for name, option in options.items()
    }


@cache
def options_of(settings: type) -> Table:
    """The options that the fields of a settings class declare."""
    return table(**{field.name: field.metadata[_OPTION] for field in fields(settings) if _OPTION in field.metadata})


# -- sources -----------------------------------------------------------------------------------------------------------


def environment(variables: Mapping[str, str], warnings: list[str] | None = None) -> Source:
    """Clients often pass empty variables; they count as not set."""
    set_variables = {name: text for name, text in variables.items() if text.strip()}
    return Source(Rank.ENVIRONMENT, set_variables, warnings=[] if warnings is None else warnings)


def toml_file(file: Path | None, process: Source) -> tuple[dict[str, object], Source]:
    if file is None:
        return {}, Source(Rank.TOML, warnings=process.warnings)
    import tomllib  # most setups have no file

    try:
        content = tomllib.loads(text_of(file, "config file"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"The config file {file} is not valid TOML: {error}.") from None
    return content, Source(Rank.TOML, process.variables, f" in {file}", file, process.warnings)


def in_arguments(options: Table, flags: Mapping[str, str | None]) -> RawSettings:
    source = Source(Rank.ARGUMENTS)
    return {name: [RawSetting(options[name].flag, text, source)] for name, text in flags.items() if text}


def in_variables(options: Table, source: Source) -> RawSettings:
    raw: RawSettings = {}
    variables = source.variables
    for name, declared in options.items():
        values = [
            RawSetting(variable, variables[variable], source)
            for variable in declared.variables
            if variable in variables
        ]
        if declared.secret:
            files = [f"{variable}_FILE" for variable in declared.variables]
            values += [RawSetting(file, {"file": variables[file]}, source) for file in files if file in variables]
        if values:
            raw[name] = values
    return raw


def in_table(content: Mapping[str, object], options: Table, source: Source, also: tuple[str, ...] = ()) -> RawSettings:
    known = [*(key for declared in options.values() for key in declared.keys or ()), *also]
    for key in content:
        if key not in known:
            hint = suggest_setting(key, known, f"Known settings are {', '.join(known)}.")
            raise ConfigError(f'Unknown setting "{key}"{source.suffix}.{hint}')
    raw: RawSettings = {}
    for name, declared in options.items():
        if values := [RawSetting(key, content[key], source) for key in declared.keys or () if key in content]:
            raw[name] = values
    return raw


def in_named_table(
    name: str, document: Mapping[str, object], options: Table, toml: Source, also: tuple[str, ...] = ()
) -> RawSettings:
    """The settings of the table `[name]`, if the file has it."""
    content = document.get(name, {})
    if not isinstance(content, dict):
        raise ConfigError(f"The setting {name}{toml.suffix} must be a table: write [{name}] above its settings.")
    return in_table(content, options, replace(toml, suffix=f" in [{name}]"), also)


def merge(*strongest_first: RawSettings) -> RawSettings:
    """Take each setting from the first source that has it, in any spelling."""
    together: RawSettings = {}
    for raw in strongest_first:
        for name, values in raw.items():
            together.setdefault(name, values)
    return together


def highest_rank(values: Iterable[RawSetting]) -> int:
    return max((value.rank for value in values), default=0)


def strongest(values: list[RawSetting]) -> list[RawSetting]:
    return [value for value in values if value.rank == highest_rank(values)]


def text_of(file: Path, what: str) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"The {what} {file} cannot be read ({error.strerror}): correct the path or its permissions."
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"The {what} {file} is not UTF-8 text: save it as UTF-8.") from None


def suggest_setting(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """A sentence to append: the known word that is near, or `otherwise`."""
    hint = suggest(word.lower(), map(str, known), otherwise, cutoff=0.6)
    return f" {hint}" if hint else ""
