"""Writing settings down: private files, nothing written over by accident."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path


def toml_text(tables: Mapping[str, Mapping[str, object]]) -> str:
    """Simple TOML: texts and tables of texts; the table "" stands at the top."""
    parts = []
    for name, values in tables.items():
        lines = [f"{key} = {toml_value(value)}" for key, value in values.items() if value is not None]
        parts.append("\n".join([f"[{name}]", *lines] if name else lines))
    return "\n\n".join(parts) + "\n"


def with_table(old: str, path: Sequence[str], values: Mapping[str, object]) -> str:
    """The text with one more table at its end; all else stays, comments too. Raises ValueError if it cannot."""
    import tomllib

    before = tomllib.loads(old)
    new = (old.rstrip("\n") + "\n\n" if old.strip() else "") + toml_text({".".join(path): values})
    after = tomllib.loads(new)  # a table that is there already, or that cannot be added to, ends here
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
        return "{ " + ", ".join(f"{key} = {toml_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(one if one.isprintable() else f"\\U{ord(one):08x}" for one in escaped) + '"'


def write_private(file: Path, text: str) -> None:
    """For our eyes only, in a folder of the same kind if it is new; whole or not at all."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(file, text, 0o600)


def write_whole(file: Path, text: str, mode: int) -> None:
    """Put the new text in the place of the old in one step, so that no reader ever sees half of it."""
    import tempfile  # hardly any command writes

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
    """A copy beside the file, under a name that is free, with the same rights; where it is."""
    names = (file.with_name(f"{file.name}.backup{number or ''}") for number in range(10_000))
    copy = next(name for name in names if not name.exists())
    handle = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.stat().st_mode & 0o777)
    with os.fdopen(handle, "wb") as stream:
        stream.write(file.read_bytes())
    return copy
