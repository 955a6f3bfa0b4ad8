"""The catalog: packaged services, and those in the operator's own folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quorate.hints import SERVICE_LIST, see
from quorate.homelab.services.template import Template, read
from quorate.problems import NotFound
from quorate.suggestions import suggest

PACKAGE = "package"
LONGEST = 256 * 1024


@dataclass(frozen=True, slots=True)
class Catalogue:
    services: Mapping[str, Template]
    broken: Mapping[str, str]
    """File -> what is wrong with it. The others stay usable."""

    def find(self, name: str) -> Template:
        """By its id or another name: `home_assistant` and `homeassistant` mean the same."""
        wanted = name.strip().lower()
        if found := self.services.get(wanted):
            return found
        for one in self.services.values():
            if plain(wanted) in map(plain, (one.id, *one.also)):
                return one
        if fault := next((why for file, why in self.broken.items() if Path(file).stem == name), None):
            raise NotFound(
                f"The service {name!r} cannot be used", why=fault, next_step="The operator has to fix its file"
            )
        hint = suggest(name.lower(), self.services, see("See all services", SERVICE_LIST), count=3)
        raise NotFound(f"There is no service {name!r} in the catalog", next_step=hint)


def plain(name: str) -> str:
    return name.replace("-", "").replace("_", "")


def load_catalogue(folder: Path) -> Catalogue:
    """Read each time, so that a fixed file counts at once. The operator's services override packaged ones."""
    own: dict[str, Template] = {}
    broken: dict[str, str] = {}
    for file in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        try:
            own[file.stem] = read(_text(file), file.stem, str(file))
        except (ValueError, OSError) as error:
            broken[str(file)] = str(error)
    return Catalogue(dict(sorted({**load_packaged(), **own}.items())), broken)


@cache
def load_packaged() -> Mapping[str, Template]:
    files = sorted((Path(__file__).parent / "catalogue").glob("*.yaml"))
    return {file.stem: read(file.read_text("utf-8"), file.stem, PACKAGE) for file in files}


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        content = opened.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST} bytes")
    return content.decode()
