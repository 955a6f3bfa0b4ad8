"""Runs a community script unattended."""

from __future__ import annotations

import re
from collections.abc import Mapping

from quorate.problems import BadArgument

# The script arrives on standard input and runs from a file, as its authors intend, without input. Its hash is checked
# again on the node.
RUNNER = """
set -eu; umask 077;
file=$(mktemp); trap "rm -f $file" EXIT; trap "exit 143" TERM HUP INT;
cat > "$file";
set -- "$1" $(sha256sum < "$file");
[ "$1" = "$2" ] || { echo "the script has changed on its way: $2" >&2; exit 120; };
bash "$file" < /dev/null
""".replace("\n", " ").strip()

# Variables that keep the project's functions from asking: default installation, no menus, no update of the node first,
# no telemetry question.
QUIET = {"TERM": "xterm", "mode": "default", "PHS_SILENT": "1", "DISABLE_UPDATE": "yes", "DIAGNOSTICS": "no"}

_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
_VALUE = re.compile(r"(?!-)[A-Za-z0-9_.,:/@+=%~-]{0,1000}")
_MORE = {"tags": ";", "ssh_authorized_key": " "}
"""Additional characters of some settings. Elsewhere, a blank would split an argument, and the rest be an option."""
SECRET = frozenset({"pw", "password"})


def environment(settings: Mapping[str, object], given: Mapping[str, str]) -> dict[str, str]:
    """Variables for the script: `cpu` becomes `var_cpu`, so that no other shell variable can be set."""
    return {**QUIET, **given, **{f"var_{name.removeprefix('var_')}": _text(name, settings[name]) for name in settings}}


def _text(name: str, value: object) -> str:
    plain = name.removeprefix("var_")
    if not _NAME.fullmatch(plain) or plain == "ctid":
        raise BadArgument(
            f"{name!r} is not a script setting",
            why="ctid is a separate argument"
            if plain == "ctid"
            else "Settings have names like cpu, ram, disk, hostname",
        )
    if plain in SECRET:
        raise BadArgument(
            "Passwords cannot be passed to scripts",
            why="They would be in the environment of everything that the script starts",
            next_step="Omit it; enter the container from its node, or set a key with ssh_authorized_key",
        )
    text = str(int(value)) if isinstance(value, bool) else str(value)
    if not _VALUE.fullmatch(text.replace(_MORE[plain], "") if plain in _MORE else text):
        raise BadArgument(
            f"The setting {name}={text[:60]!r} cannot be used",
            why="Scripts put values into commands: only letters, digits and _.,:/@+=%~- are allowed, "
            "without a leading -",
        )
    return text
