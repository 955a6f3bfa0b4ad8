"""The catalogue: what the package brings, and what the operator has put into a folder of their own."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quorate.homelab.services.template import Template, read
from quorate.problems import NotFound

PACKAGE = "package"
LONGEST = 256 * 1024


@dataclass(frozen=True, slots=True)
class Catalogue:
    services: Mapping[str, Template]
    broken: Mapping[str, str]
    """File -> what is wrong with it. The others are not held up by it."""

    def find(self, name: str) -> Template:
        if found := self.services.get(name.strip().lower()):
            return found
        if fault := next((why for file, why in self.broken.items() if Path(file).stem == name), None):
            raise NotFound(f"The service {name!r} cannot be used", why=fault, next_step="The operator mends its file")
        near = difflib.get_close_matches(name.lower(), self.services, 3)
        hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "service_list shows all of them"
        raise NotFound(f"There is no service {name!r} in the catalogue", next_step=hint)


def catalogue(folder: Path) -> Catalogue:
    """Read anew each time: a file that was just mended counts. The operator's stand before those of the package."""
    own: dict[str, Template] = {}
    broken: dict[str, str] = {}
    for file in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        try:
            own[file.stem] = read(_text(file), file.stem, str(file))
        except (ValueError, OSError) as error:
            broken[str(file)] = str(error)
    return Catalogue(dict(sorted({**packaged(), **own}.items())), broken)


@cache
def packaged() -> Mapping[str, Template]:
    files = sorted((Path(__file__).parent / "catalogue").glob("*.yaml"))
    return {file.stem: read(file.read_text("utf-8"), file.stem, PACKAGE) for file in files}


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        content = opened.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST} bytes")
    return content.decode()
