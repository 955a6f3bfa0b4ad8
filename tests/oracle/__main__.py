"""`python -m tests.oracle operate-17 …`: run episodes again, and say what is wrong with them."""

from __future__ import annotations

import logging
import sys

from tests.oracle.episode import Seed, run


def main(seeds: list[str]) -> int:
    logging.disable(logging.CRITICAL)
    findings = [finding for seed in seeds if (finding := run(Seed.parse(seed))[0])]
    sys.stdout.write("\n\n".join(map(str, findings)) + "\n" if findings else "nothing to object to\n")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
