"""The handler of an API path is in the file that a newcomer opens first."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from pve_simulator import routes
from pve_simulator.http.routing import Route, all_routes
from simulator.fidelity import DOCUMENT

FOLDER = Path(str(routes.__file__)).parent
ALIASES = {"guest": {"qemu", "lxc"}, "node": {"nodes", "version"}}
"""The files of folders, with the parts of paths that they are named after."""


def file_of(route: Route) -> str:
    """The file of a handler below `routes`."""
    owner = getattr(route.handler, "__self__", route.handler)
    source = inspect.getsourcefile(owner if inspect.isfunction(owner) else type(owner))
    return str(Path(str(source)).relative_to(FOLDER))


def documented() -> dict[str, set[str]]:
    """The paths that the document lists in addition to the names of files."""
    rows = re.findall(r"^\| `([\w/]+\.py)` \| (.+) \|$", DOCUMENT.read_text(), re.MULTILINE)
    return {file: set(re.findall(r"`([^`]+)`", paths)) for file, paths in rows}


def test_every_handler_is_in_a_file_named_after_its_path():
    also = documented()
    misplaced = []
    for (method, path), route in all_routes().items():
        file = file_of(route)
        names = {Path(file).stem.replace("_", "-")} | ALIASES.get(Path(file).stem, set()) | also.get(file, set())
        if file != "index.py" and not names & set(path.split("/")):
            misplaced.append(f"{method} {path} in {file}")
    assert misplaced == []


def test_a_handler_is_not_in_the_file_of_its_folder_if_its_path_has_a_file():
    shared = {"cluster/cluster.py", "nodes/node.py", "guest/guest.py", "storage/storage.py"}
    misplaced = []
    for (method, path), route in all_routes().items():
        file = Path(file_of(route))
        if str(file) in shared:
            parts = [part.replace("-", "_") for part in path.split("/")[3 if file.parts[0] != "storage" else 2 :]]
            closer = [part for part in parts if (FOLDER / file.parent / f"{part}.py").exists() and part != file.stem]
            misplaced += [f"{method} {path} in {file}, not in {name}.py" for name in closer]
    assert misplaced == []


def test_the_documented_files_exist_and_handle_what_is_listed():
    handled = {(file_of(route), part) for (_, path), route in all_routes().items() for part in path.split("/")}
    assert [(file, path) for file, paths in documented().items() for path in paths if (file, path) not in handled] == []
