"""Quorate's own files: where they are by default, and writing them privately and atomically."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path


def usual_config_file(variables: Mapping[str, str]) -> Path:
    return config_folder(variables) / "config.toml"


def usual_audit_file(variables: Mapping[str, str] = os.environ) -> Path:
    return state_folder(variables) / "audit.jsonl"


def usual_state(variables: Mapping[str, str] = os.environ) -> str:
    return str(state_folder(variables) / "state.sqlite")


def usual_pins(variables: Mapping[str, str] = os.environ) -> Path:
    """Trusted SSH host keys."""
    return state_folder(variables) / "known_hosts"


def config_folder(variables: Mapping[str, str]) -> Path:
    return _standard_folder(variables, "XDG_CONFIG_HOME", ".config")


def state_folder(variables: Mapping[str, str]) -> Path:
    return _standard_folder(variables, "XDG_STATE_HOME", ".local/state")


def cache_folder(variables: Mapping[str, str] = os.environ) -> Path:
    """Caches, which may be deleted."""
    return _standard_folder(variables, "XDG_CACHE_HOME", ".cache")


def home(variables: Mapping[str, str]) -> Path:
    return Path(variables["HOME"]) if variables.get("HOME") else Path.home()


def _standard_folder(variables: Mapping[str, str], variable: str, fallback: str) -> Path:
    """Our folder by the XDG rules, which ignore relative paths."""
    base = Path(variables.get(variable, ""))
    return (base if base.is_absolute() else home(variables) / fallback) / "quorate"


def toml_text(tables: Mapping[str, Mapping[str, object]]) -> str:
    """Simple TOML: strings and tables of strings; the table "" comes first, without a header."""
    parts = []
    for name, values in tables.items():
        lines = [f"{key} = {toml_value(value)}" for key, value in values.items() if value is not None]
        parts.append("\n".join([f"[{name}]", *lines] if name else lines))
    return "\n\n".join(parts) + "\n"


def with_table(old: str, path: Sequence[str], values: Mapping[str, object]) -> str:
    """Append a table and preserve the rest, including comments. Raises ValueError if that is impossible."""
    import tomllib

    before = tomllib.loads(old)
    new = (old.rstrip("\n") + "\n\n" if old.strip() else "") + toml_text({".".join(path): values})
    after = tomllib.loads(new)  # fails if the table exists or cannot be added
    *above, last = path
    holder = after
    for key in above:
        holder = holder[key]
    del holder[last]
    if after not in (before, {**before, path[0]: {}}):
        raise ValueError("something else would change")
    return new


def toml_value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return (
        '"'
        + "".join(character if character.isprintable() else f"\\U{ord(character):08x}" for character in escaped)
        + '"'
    )


def write_private(file: Path, text: str) -> None:
    """Write a file readable only by its owner, atomically; a new folder gets mode 0700."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(file, text, 0o600)


def write_atomically(file: Path, text: str, mode: int) -> None:
    """Replace the file atomically, so that no reader sees half of it."""
    import tempfile  # few commands write

    target = file.resolve()  # a link stays a link
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def backup_of(file: Path) -> Path:
    """Copy the file to a free name next to it, with the same mode; returns the path."""
    names = (file.with_name(f"{file.name}.backup{number or ''}") for number in range(10_000))
    copy = next(name for name in names if not name.exists())
    handle = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.stat().st_mode & 0o777)
    with os.fdopen(handle, "wb") as stream:
        stream.write(file.read_bytes())
    return copy
