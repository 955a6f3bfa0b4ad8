"""The connection that a `.env` in the working directory may describe.

The file may come from a repository that was just cloned. So it may describe a whole connection and nothing else: no
access, approval or other setting of the server, and no file names. It never completes a connection that is partly
defined elsewhere: a token in the environment must not be sent to a host that the file names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from quorate.config.dotenv import parse_dotenv, read_dotenv
from quorate.config.names import CLUSTER, JSON_KEYS
from quorate.config.raw import Rank, RawSetting, RawSettings, Source
from quorate.config.settings import ConfigError
from quorate.config.sources import split_api_token
from quorate.config.values import as_flag

CONNECTION = {setting: names for setting, names in CLUSTER.items() if names.variables and setting != "ca_file"}
_PREFERENCES = ("default_node", "default_storage", "default_bridge", "request_seconds")
"""These do not decide where a secret is sent, so they may come from another source than the connection."""
_MOST_NAMES = 20


@dataclass(frozen=True, slots=True)
class LocalConnection:
    """The settings found in the file, and notes for the operator: names, never values."""

    found: RawSettings = field(default_factory=dict)
    taken: str = ""
    ignored: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(note for note in (self.taken, self.ignored) if note)


def read_local_connection(
    file: Path | None,
    environment: RawSettings,
    defined_in: Path | None,
    *,
    surfaces: Collection[str] = (),
    instance: str | None = None,
) -> LocalConnection:
    """`file` if given, otherwise `.env` here, otherwise the file of the server whose surface is used.

    `defined_in` is the TOML file that defines clusters, if any; `instance` is brynnjocelyn's MCP_SERVER_NAME.
    """
    usual = [Path.cwd() / name for name in (".env", *_files_of_surfaces(surfaces, instance))]
    chosen = file or next((one for one in usual if one.is_symlink() or (one.exists() and not one.is_dir())), None)
    if chosen is None:
        return LocalConnection()
    elsewhere = _defined_elsewhere(environment, defined_in)
    try:
        if chosen.suffix == ".json":
            return _read_json(chosen, elsewhere)
        variables, unreadable = parse_dotenv(read_dotenv(chosen))
    except ConfigError as error:
        if file is not None and elsewhere is None:
            raise
        return LocalConnection(ignored=f"{chosen} is ignored: {error}")
    variables = {name: text for name, text in variables.items() if text.strip()}
    ours = [name for name in variables if name.startswith(("PROXMOX_", "QUORATE_"))]
    if elsewhere is not None:
        return LocalConnection(ignored=f"{chosen} is ignored ({_join_names(ours)}): {elsewhere}." if ours else "")
    if unreadable:
        raise ConfigError(f"Line {unreadable[0]} of {chosen} is not understood: write NAME=value or NAME='value'.")
    return _read_variables(Source(Rank.DOTENV, variables, f" in {chosen.name}", chosen), ours)


def _files_of_surfaces(surfaces: Collection[str], instance: str | None) -> list[str]:
    """gilby125 reads the .env above its folder; brynnjocelyn a JSON file, by its code and by its documentation."""
    found = ["../.env"] if "gilby125" in surfaces else []
    if "brynnjocelyn" in surfaces:
        if instance and instance.replace("-", "").replace("_", "").isalnum():
            found += [f".{instance}.json", f".{instance}-proxmox-mcp.json"]
        found.append(".proxmox-mcp.json")
    return found


def _read_json(file: Path, elsewhere: str | None) -> LocalConnection:
    import json  # most setups have no such file

    try:
        content = json.loads(read_dotenv(file))
    except (ValueError, RecursionError):
        raise ConfigError(f"{file} is not valid JSON: correct it, or remove it.") from None
    if not isinstance(content, dict):
        raise ConfigError(f'{file} must contain an object: {{"host": …, "tokenId": …, "tokenSecret": …}}.')
    given = {key: value for key, value in content.items() if value not in (None, "")}
    if elsewhere is not None:
        return LocalConnection(ignored=f"{file} is ignored ({_join_names(given)}): {elsewhere}." if given else "")
    source = Source(Rank.DOTENV, {}, f" in {file.name}", file)
    found = {
        setting: [RawSetting(key, given[key], source)]
        for setting, key in JSON_KEYS.items()
        if key in given and (setting != "verify" or isinstance(given[key], bool))
    }
    taken = [one[0].spelling for one in found.values()]
    others = [key for key in given if key not in taken]
    return LocalConnection(
        found,
        f"The connection is taken from {file}: {_join_names(taken)}." if taken else "",
        f"{file} may only describe a connection to the API, so this is ignored: {_join_names(others)}."
        if others
        else "",
    )


def _defined_elsewhere(environment: RawSettings, defined_in: Path | None) -> str | None:
    if defined_in is not None:
        return f"{defined_in} defines the cluster"
    for setting, givens in environment.items():
        if setting in CLUSTER and setting not in _PREFERENCES:
            return f"{givens[0].spelling} is set in the environment, and a connection must come from one source"
    return None


def _read_variables(source: Source, ours: list[str]) -> LocalConnection:
    found: RawSettings = {}
    for setting, names in CONNECTION.items():
        givens = [
            RawSetting(name, source.variables[name], source) for name in names.variables if name in source.variables
        ]
        givens += split_api_token(setting, source)
        if givens := [given for given in givens if setting != "verify" or as_flag(given) is not None]:
            found[setting] = givens
    taken = [given.spelling for givens in found.values() for given in givens]
    ignored = [name for name in ours if name not in taken]
    return LocalConnection(
        found,
        f"The connection is taken from {source.file}: {_join_names(taken)}." if taken else "",
        f"{source.file} may only describe a connection to the API, without naming files, so this is ignored: "
        f"{_join_names(ignored)}; set it in the environment or in the TOML file."
        if ignored
        else "",
    )


def _join_names(names: Iterable[str]) -> str:
    """Limited in number and length, because the names are untrusted."""
    short = [name[:64] for name in names]
    more = len(short) - _MOST_NAMES
    return ", ".join(short[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
