"""What is made once from Debian's packages and kept for the next run."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.real.needs import release


def suite() -> str:
    return release()["VERSION_CODENAME"]


def kept(name: str, recipe: str, what: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` fills in its `done`, from an earlier run if the recipe's file has not changed since."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / name
    ready = home / hashlib.sha256(Path(recipe).read_bytes() + suite().encode()).hexdigest()[:12]
    if ready.is_dir():
        return ready
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    sys.stdout.write(f"Making {what} from Debian's packages (once) ...\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(dir=home) as folder:
        work = Path(folder)
        (work / "done").mkdir()
        make(work)
        (work / "done").rename(ready)
    return ready
