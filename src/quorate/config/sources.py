"""The places that settings come from, each read into the same shape."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from quorate.config.dotenv import parse_dotenv
from quorate.config.given import Found, Given, Rank, Source
from quorate.config.settings import ConfigError
from quorate.config.spellings import (
    CLUSTER,
    GENERAL,
    HOMELAB,
    HTTP,
    OPT_INS,
    SECRETS,
    SSH,
    SSH_GUESTS,
    Names,
    did_you_mean,
)


def environment(variables: Mapping[str, str]) -> Source:
    return Source(Rank.ENVIRONMENT, _without_blanks(variables))


def dotenv_file(file: Path | None) -> Source:
    chosen = file or Path.cwd() / ".env"
    if file is None and not chosen.is_file():
        return Source(Rank.DOTENV)
    variables = parse_dotenv(text_of(chosen, "file"), chosen)
    return Source(Rank.DOTENV, _without_blanks(variables), f" in {chosen.name}", chosen)


def toml_file(file: Path | None, variables: Mapping[str, str]) -> tuple[dict[str, object], Source]:
    if file is None:
        return {}, Source(Rank.TOML)
    import tomllib  # most set-ups have no file

    try:
        table = tomllib.loads(text_of(file, "config file"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The config file {file} is not valid TOML: {error}.") from None
    return table, Source(Rank.TOML, variables, f" in {file}", file)


def found_in_arguments(**flags: str | None) -> Found:
    source = Source(Rank.ARGUMENTS)
    return {setting: [Given(f"--{setting.replace('_', '-')}", text, source)] for setting, text in flags.items() if text}


def found_in_variables(source: Source) -> Found:
    found: Found = {}
    variables = source.variables
    for setting, names in {**GENERAL, **HTTP, **CLUSTER, **SSH, **SSH_GUESTS, **HOMELAB}.items():
        givens = [Given(name, variables[name], source) for name in names.variables if name in variables]
        if setting in SECRETS:
            files = [f"{name}_FILE" for name in names.variables]
            givens += [Given(name, {"file": variables[name]}, source) for name in files if name in variables]
        if givens:
            found[setting] = givens
    return found


def found_opt_ins(*strongest_first: Source) -> frozenset[str]:
    found = {name: source.variables[name] for name in OPT_INS for source in reversed(strongest_first)
             if name in source.variables}  # fmt: skip
    return frozenset(name for name, text in found.items() if text.strip().lower() in ("1", "true", "yes", "on"))


def found_in_table(
    table: Mapping[str, object], settings: Mapping[str, Names], source: Source, also: tuple[str, ...] = ()
) -> Found:
    known = [*(key for names in settings.values() for key in names.keys), *also]
    for key in table:
        if key not in known:
            hint = did_you_mean(key, known) or f" the known ones are {', '.join(known)}."
            raise ConfigError(f'Unknown setting "{key}"{source.suffix}:{hint}')
    found: Found = {}
    for setting, names in settings.items():
        if givens := [Given(key, table[key], source) for key in names.keys if key in table]:
            found[setting] = givens
    return found


def text_of(file: Path, what: str) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"The {what} {file} cannot be read ({error.strerror}): correct the path or its permissions."
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"The {what} {file} is not UTF-8 text: save it as UTF-8.") from None


def _without_blanks(variables: Mapping[str, str]) -> dict[str, str]:
    """Clients often pass variables on as empty texts; those count as not set."""
    return {name: text for name, text in variables.items() if text.strip()}
