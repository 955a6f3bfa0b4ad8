"""Systems built once from Debian packages and cached for the next run."""

from __future__ import annotations

import fcntl
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


def cached_build(name: str, recipe: str, what: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` fills in its `done`, from an earlier run if the recipe's file has not changed since."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / name
    ready = home / hashlib.sha256(Path(recipe).read_bytes() + suite().encode()).hexdigest()[:12]
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:  # a second laboratory waits for the first one's systems
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.is_dir():
            _build(home, ready, what, make)
    return ready


def _build(home: Path, ready: Path, what: str, make: Callable[[Path], None]) -> None:
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    sys.stdout.write(f"Making {what} from Debian's packages (once) ...\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(dir=home) as folder:
        work = Path(folder)
        (work / "done").mkdir()
        make(work)
        (work / "done").rename(ready)
