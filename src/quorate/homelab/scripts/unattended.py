"""Running a community script without anybody to answer its questions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from quorate.problems import BadArgument

# The script comes over standard input and is run from a file of its own, as its authors do, with nothing to read from.
# What arrived is compared with what was agreed to once more, on the node itself.
RUNNER = """
set -eu; umask 077;
file=$(mktemp); trap "rm -f $file" EXIT; trap "exit 143" TERM HUP INT;
cat > "$file";
set -- "$1" $(sha256sum < "$file");
[ "$1" = "$2" ] || { echo "the script has changed on its way: $2" >&2; exit 120; };
bash "$file" < /dev/null
""".replace("\n", " ").strip()

# What the project's own functions look at so that they ask nothing: the default way of installation, no menus, no offer
# to update the node first, no question about telemetry.
QUIET = {"TERM": "xterm", "mode": "default", "PHS_SILENT": "1", "DISABLE_UPDATE": "yes", "DIAGNOSTICS": "no"}

_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
_VALUE = re.compile(r"(?!-)[A-Za-z0-9_.,:/@+=%~-]{0,1000}")
_MORE = {"tags": ";", "ssh_authorized_key": " "}
"""What some are written with besides. Elsewhere, a blank would make two arguments of one, the second an option."""
SECRET = frozenset({"pw", "password"})


def environment(settings: Mapping[str, object], given: Mapping[str, str]) -> dict[str, str]:
    """Variables for the script: `cpu` becomes `var_cpu`, so that no other variable of the shell can be set."""
    return {**QUIET, **given, **{f"var_{name.removeprefix('var_')}": _text(name, settings[name]) for name in settings}}


def _text(name: str, value: object) -> str:
    plain = name.removeprefix("var_")
    if not _NAME.fullmatch(plain) or plain == "ctid":
        raise BadArgument(
            f"{name!r} is no setting of a script",
            why="ctid is an argument of its own" if plain == "ctid" else "Names are like cpu, ram, disk, hostname",
        )
    if plain in SECRET:
        raise BadArgument(
            "Passwords are not given to scripts",
            why="They would stand in the environment of everything that the script starts",
            next_step="Leave it out; the container is entered from its node, and a key is set with ssh_authorized_key",
        )
    text = str(int(value)) if isinstance(value, bool) else str(value)
    if not _VALUE.fullmatch(text.replace(_MORE[plain], "") if plain in _MORE else text):
        raise BadArgument(
            f"The setting {name}={text[:60]!r} cannot be used",
            why="Scripts put such values into commands: only letters, digits and _.,:/@+=%~- are passed on, "
            "with no - at the beginning",
        )
    return text
