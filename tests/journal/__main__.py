"""`python -m tests.journal [pytest options]`: kill a server at every await and every write of every kind of change.

Runs for hours; `-n 2` uses two processes, `-k guest_delete` picks kinds, `-k replica` the pairs on PostgreSQL.
"""

import os
import sys

import pytest

if __name__ == "__main__":
    os.environ["EVERY_MOMENT"] = "1"
    sys.exit(pytest.main(["-m", "thorough", "tests/journal", *sys.argv[1:]]))
