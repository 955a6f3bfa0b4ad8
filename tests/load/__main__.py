"""`python -m tests.load [pytest's options]`: the tests under load, with numbers.

LOAD_SECONDS is how long the clients run: 30 in CI, 15 elsewhere. `python -m tests.load packages` prints the
Debian packages that all of it needs; what is missing is skipped with the reason, and a failure in CI.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.load.conftest import IN_CI, SECONDS

PACKAGES = ("postgresql",)


def main(arguments: list[str]) -> int:
    if arguments == ["packages"]:
        sys.stdout.write(" ".join(PACKAGES) + "\n")
        return 0
    os.environ.setdefault(SECONDS, "30" if IN_CI else "15")
    os.environ.setdefault("TMPDIR", tempfile.gettempdir())  # numbers with a disk, not with memory
    chosen = any(Path(each.partition("::")[0]).exists() for each in arguments)
    folder = [] if chosen else [str(Path(__file__).parent)]
    return subprocess.run([sys.executable, "-m", "pytest", "-rs", *folder, *arguments]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
