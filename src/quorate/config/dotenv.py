"""The connection that a `.env` in the working directory may describe.

The file may come from a repository that was just cloned. So it may describe a whole connection and nothing else: no
access, approval or other setting of the server, and no file names. It never completes a connection that is partly
defined elsewhere: a token in the environment must not be sent to a host that the file names.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from quorate.config.clusters import CLUSTER
from quorate.config.connection import JSON_KEYS, connection_in_variables
from quorate.config.sources import ConfigError, Rank, RawSetting, RawSettings, Source
from quorate.config.values import as_flag

MOST_BYTES = 64 * 1024
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>.*)", re.ASCII)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_OPTIONS = {
    name: replace(declared, secret=False)
    for name, declared in CLUSTER.items()
    if declared.variables and name != "ca_file"
}
"""Options that such a file may set: none that names another file."""
_PREFERENCES = ("default_node", "default_storage", "default_bridge", "request_seconds")
"""These do not decide where a secret is sent, so they may come from another source than the connection."""
_MOST_NAMES = 20


@dataclass(frozen=True, slots=True)
class LocalConnection:
    """The settings found in the file, and notes for the operator: names, never values."""

    raw: RawSettings = field(default_factory=dict)
    taken: str = ""
    ignored: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(note for note in (self.taken, self.ignored) if note)


def read_local_connection(
    file: Path | None,
    environment: RawSettings,
    defined_in: Path | None,
    warnings: list[str],
    *,
    surfaces: Collection[str] = (),
    instance: str | None = None,
) -> LocalConnection:
    """`file` if given, otherwise `.env` here, otherwise the file of the server whose surface is used.

    `defined_in` is the TOML file that defines clusters, if any; `instance` is brynnjocelyn's MCP_SERVER_NAME.
    """
    usual = [Path.cwd() / name for name in (".env", *_files_of_surfaces(surfaces, instance))]
    chosen = file or next((path for path in usual if path.is_symlink() or (path.exists() and not path.is_dir())), None)
    if chosen is None:
        return LocalConnection()
    elsewhere = _defined_elsewhere(environment, defined_in)
    try:
        if chosen.suffix == ".json":
            return _read_json(chosen, elsewhere, warnings)
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
    return _read_variables(Source(Rank.DOTENV, variables, f" in {chosen.name}", chosen, warnings), ours)


def _files_of_surfaces(surfaces: Collection[str], instance: str | None) -> list[str]:
    """gilby125 reads the .env above its folder; brynnjocelyn a JSON file, by its code and by its documentation."""
    names = ["../.env"] if "gilby125" in surfaces else []
    if "brynnjocelyn" in surfaces:
        if instance and instance.replace("-", "").replace("_", "").isalnum():
            names += [f".{instance}.json", f".{instance}-proxmox-mcp.json"]
        names.append(".proxmox-mcp.json")
    return names


def _read_json(file: Path, elsewhere: str | None, warnings: list[str]) -> LocalConnection:
    import json  # most setups have no such file

    try:
        content = json.loads(read_dotenv(file))
    except (ValueError, RecursionError):
        raise ConfigError(f"{file} is not valid JSON: correct it, or remove it.") from None
    if not isinstance(content, dict):
        raise ConfigError(f'{file} must contain an object: {{"host": …, "tokenId": …, "tokenSecret": …}}.')
    values = {key: value for key, value in content.items() if value not in (None, "")}
    if elsewhere is not None:
        return LocalConnection(ignored=f"{file} is ignored ({_join_names(values)}): {elsewhere}." if values else "")
    source = Source(Rank.DOTENV, {}, f" in {file.name}", file, warnings)
    connection = {
        name: [RawSetting(key, values[key], source)]
        for name, key in JSON_KEYS.items()
        if key in values and (name != "verify" or isinstance(values[key], bool))
    }
    taken = [spellings[0].spelling for spellings in connection.values()]
    others = [key for key in values if key not in taken]
    return LocalConnection(
        connection,
        f"The connection is taken from {file}: {_join_names(taken)}." if taken else "",
        f"{file} may only describe a connection to the API, so this is ignored: {_join_names(others)}."
        if others
        else "",
    )


def _defined_elsewhere(environment: RawSettings, defined_in: Path | None) -> str | None:
    if defined_in is not None:
        return f"{defined_in} defines the cluster"
    for name, spellings in environment.items():
        if name not in _PREFERENCES:
            return f"{spellings[0].spelling} is set in the environment, and a connection must come from one source"
    return None


def _read_variables(source: Source, ours: list[str]) -> LocalConnection:
    connection = connection_in_variables(_OPTIONS, source)
    # A path in `verify` names a file.
    verify = [spelling for spelling in connection.pop("verify", []) if as_flag(spelling) is not None]
    if verify:
        connection["verify"] = verify
    taken = [spelling.spelling for spellings in connection.values() for spelling in spellings]
    ignored = [name for name in ours if name not in taken]
    return LocalConnection(
        connection,
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


# -- the format --------------------------------------------------------------------------------------------------------


class Dotenv(NamedTuple):
    variables: dict[str, str]
    unreadable_lines: tuple[int, ...]
    """Lines with our variables that cannot be parsed."""


def read_dotenv(file: Path) -> str:
    """Read the file. It may come from a stranger, so links, devices and endless files are refused."""
    try:
        if file.is_symlink():
            raise ConfigError(f"{file} is a symbolic link: use a plain file.")
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with open(os.open(file, flags), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ConfigError(f"{file} is not a plain file: use one.")
            raw = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): correct its path or its permissions.") from None
    if len(raw) > MOST_BYTES:
        raise ConfigError(f"{file} is larger than {MOST_BYTES // 1024} KiB: keep only the connection there.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text: save it as UTF-8.") from None


def parse_dotenv(text: str) -> Dotenv:
    variables: dict[str, str] = {}
    unreadable = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        assignment = _ASSIGNMENT.match(line)
        value = dotenv_value(assignment["value"].strip()) if assignment else None
        if assignment and value is not None:
            variables[assignment["name"]] = value
        elif "PROXMOX_" in line or "QUORATE_" in line:
            # The file may belong to another program, so only lines with our variables must parse.
            unreadable.append(number)
    return Dotenv(variables, tuple(unreadable))


def dotenv_value(text: str) -> str | None:
    """The value without quotes and trailing comment, or None if a quote is not closed."""
    if text.startswith("'"):
        quoted = re.fullmatch(r"'([^']*)'\s*(?:#.*)?", text)
        return quoted and quoted[1]
    if text.startswith('"'):
        quoted = re.fullmatch(r'"((?:[^"\\]|\\.)*)"\s*(?:#.*)?', text)
        return quoted and re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), quoted[1])
    return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
