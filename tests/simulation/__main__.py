"""python -m tests.simulation SEED [COUNT]: play seeds, and print the trace of the first that fails."""

from __future__ import annotations

import sys
import time

from tests.simulation.episode import first_failure, run


def main() -> int:
    first, count = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    begun = time.perf_counter()
    if count == 1:
        objections, trace = run(first)
        sys.stdout.write("\n".join([*trace, *objections, ""]))
        return bool(objections)
    failure = first_failure(range(first, first + count))
    sys.stdout.write(failure or f"{count} seeds in {time.perf_counter() - begun:.1f} s")
    sys.stdout.write("\n")
    return bool(failure)


if __name__ == "__main__":
    sys.exit(main())
