"""`make browser`: run what needs a browser. `python -m tests.browser packages` names Debian's packages for it."""

from __future__ import annotations

import sys

import pytest

PACKAGES = ("chromium", "fonts-dejavu-core")


def main() -> int:
    if sys.argv[1:] == ["packages"]:
        sys.stdout.write(" ".join(PACKAGES) + "\n")
        return 0
    return int(pytest.main(["-q", "-n", "0", "-m", "", "tests/browser", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
