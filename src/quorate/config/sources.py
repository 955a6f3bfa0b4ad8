"""Sources of settings, each read into the same shape."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from quorate.config.names import (
    API_TOKEN,
    CLUSTER,
    GENERAL,
    HOMELAB,
    HTTP,
    IMAGES,
    OPT_INS,
    SECRETS,
    SSH,
    SSH_GUESTS,
    WATCH,
    Names,
    suggest_setting,
)
from quorate.config.raw import Rank, RawSetting, RawSettings, Source
from quorate.config.settings import ConfigError


def environment(variables: Mapping[str, str]) -> Source:
    return Source(Rank.ENVIRONMENT, _without_blanks(variables))


def toml_file(file: Path | None, variables: Mapping[str, str]) -> tuple[dict[str, object], Source]:
    if file is None:
        return {}, Source(Rank.TOML)
    import tomllib  # most setups have no file

    try:
        table = tomllib.loads(text_of(file, "config file"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"The config file {file} is not valid TOML: {error}.") from None
    return table, Source(Rank.TOML, variables, f" in {file}", file)


def settings_in_arguments(**flags: str | None) -> RawSettings:
    source = Source(Rank.ARGUMENTS)
    return {
        setting: [RawSetting(f"--{setting.replace('_', '-')}", text, source)] for setting, text in flags.items() if text
    }


def settings_in_variables(source: Source) -> RawSettings:
    found: RawSettings = {}
    variables = source.variables
    for setting, names in {**GENERAL, **HTTP, **CLUSTER, **SSH, **SSH_GUESTS, **HOMELAB, **IMAGES, **WATCH}.items():
        givens = [RawSetting(name, variables[name], source) for name in names.variables if name in variables]
        if setting in SECRETS:
            files = [f"{name}_FILE" for name in names.variables]
            givens += [RawSetting(name, {"file": variables[name]}, source) for name in files if name in variables]
        givens += split_api_token(setting, source)
        if givens:
            found[setting] = givens
    return found


def split_api_token(setting: str, source: Source) -> list[RawSetting]:
    """This setting's part of user@realm!name=secret."""
    if setting not in ("token", "token_secret") or API_TOKEN not in source.variables:
        return []
    token, equals, secret = source.variables[API_TOKEN].strip().removeprefix("PVEAPIToken=").partition("=")
    if not equals or "!" not in token or not secret:
        raise ConfigError(f"{API_TOKEN}{source.suffix} must look like user@realm!name=secret.")
    return [RawSetting(API_TOKEN, token if setting == "token" else secret, source)]


def opt_ins_in(variables: Mapping[str, str]) -> frozenset[str]:
    return frozenset(name for name in OPT_INS if variables.get(name, "").strip().lower() in ("1", "true", "yes", "on"))


def settings_in_table(
    table: Mapping[str, object], settings: Mapping[str, Names], source: Source, also: tuple[str, ...] = ()
) -> RawSettings:
    known = [*(key for names in settings.values() for key in names.keys), *also]
    for key in table:
        if key not in known:
            hint = suggest_setting(key, known, f"Known settings are {', '.join(known)}.")
            raise ConfigError(f'Unknown setting "{key}"{source.suffix}.{hint}')
    found: RawSettings = {}
    for setting, names in settings.items():
        if givens := [RawSetting(key, table[key], source) for key in names.keys if key in table]:
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
    """Clients often pass empty variables; they count as not set."""
    return {name: text for name, text in variables.items() if text.strip()}
