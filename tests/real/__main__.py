"""`python -m tests.real [pytest's options]`: the tests that need real machines, in a laboratory of their own.

The laboratory is a set of fresh namespaces: network, processes, mounts, host name, control groups. Its first process
starts pytest, waits for it and goes; whatever is left in there goes with it, also after a crash or a kill. Nothing
outside changes but for the cache of the guests' and hosts' systems (images.py, homelab_images.py).

`python -m tests.real guests` and `python -m tests.real hosts` are the two halves, which can run side by side, each in a
laboratory of its own. `python -m tests.real packages` prints the Debian packages that it needs.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.real import homelab_images, images, needs
from tests.real.polling import wait_until

IMAGES = "REAL_LAB_IMAGES"
"""Set inside the laboratory, to the folder with the guests' systems."""
HOSTS = "REAL_LAB_HOSTS"
"""And this to the folder with the systems of the homelab's hosts."""

STARTING_SECONDS = 60.0
"""How long a laboratory may take to move into its control group."""
_HERE = Path(__file__).parent
_GUESTS = ("agent", "commands", "connections", "facts", "files", "guest_update", "hostile", "lab", "refusals",
           "restore_drill", "services")  # fmt: skip
"""The tests of guests; all others are of hosts."""
_GROUPS = Path("/run/control-groups")
_PREFIX = "quorate-real-"
# Into the control group that was made for it, then into all the other namespaces; and not without its keeper.
_ENTER = """
echo $$ > "$1/cgroup.procs" || exit
shift
exec setpriv --pdeathsig KILL unshare --cgroup --mount --net --pid --uts --ipc --fork --kill-child --mount-proc "$@"
"""


def main(arguments: list[str]) -> int:
    match arguments:
        case ["packages"]:
            sys.stdout.write(" ".join({**needs.PACKAGES, **needs.ENGINES, **needs.SCANS}) + "\n")
            return 0
        case ["keep", *options]:
            return _keep(options)
        case ["inside", *options]:
            return _first_process(options)
    problem = needs.problem()
    if problem is not None and os.environ.get("CI"):
        sys.stderr.write(f"The tests with real machines cannot run: {problem}.\n")
        return 1
    if problem is None:
        os.environ.setdefault("TMPDIR", tempfile.gettempdir())
        os.execvp("unshare", ["unshare", "--mount", "--", *_this("keep"), *arguments])
    return subprocess.run(_pytest(arguments)).returncode  # all skipped, with the reason


def _this(part: str) -> list[str]:
    return [sys.executable, "-m", "tests.real", part]


def _pytest(arguments: list[str]) -> list[str]:
    half = arguments[0] if arguments[:1] in (["guests"], ["hosts"]) else ""
    arguments = arguments[1:] if half else arguments
    chosen = any(Path(each.partition("::")[0]).exists() for each in arguments)
    files = [] if chosen else _files(half)
    cache = ["-o", f"cache_dir=.pytest_cache/real/{half or 'all'}"]  # its own, as .ci/run runs other tests in parallel
    every_case = ["-m", ""]  # of long tables, too
    return [sys.executable, "-m", "pytest", "-rs", *cache, *every_case, *files, *arguments]


def _files(half: str) -> list[str]:
    def belongs(file: Path) -> bool:
        return not half or (file.stem.removeprefix("test_") in _GUESTS) == (half == "guests")

    return [str(file) for file in sorted(_HERE.glob("test_*.py")) if belongs(file)]


def _keep(options: list[str]) -> int:
    """Make the guests' systems and the control group, wait until the laboratory is gone, and remove the group."""
    signal.signal(signal.SIGINT, _leave_to_pytest)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and the laboratory ends with us
    _run("mount -t tmpfs none /run")
    _reserve_ids()
    os.environ[IMAGES] = str(images.build())
    os.environ[HOSTS] = str(homelab_images.build())
    _GROUPS.mkdir()
    _run(f"mount -t cgroup2 none {_GROUPS}")
    for old in _GROUPS.glob(f"{_PREFIX}*"):
        if _is_empty(old) and time.time() - old.stat().st_mtime > STARTING_SECONDS:  # others belong to open ones
            _remove(old)
    own = _GROUPS / f"{_PREFIX}{secrets.token_hex(4)}"
    own.mkdir()
    try:
        return subprocess.run(["sh", "-c", _ENTER, "sh", str(own), *_this("inside"), *options]).returncode
    finally:
        (own / "cgroup.kill").write_text("1")
        wait_until(lambda: _is_empty(own), "the laboratory to end")
        _remove(own)


def _first_process(options: list[str]) -> int:
    """Prepare the laboratory and let pytest run in it. Orphans come to the first process, and are buried by it."""
    signal.signal(signal.SIGINT, _leave_to_pytest)
    _run("ip link set lo up")
    _run("mkdir -p /run/lab /run/lock /run/sshd")
    _run("mount -t cgroup2 none /sys/fs/cgroup")
    tests = os.spawnvp(os.P_NOWAIT, sys.executable, _pytest(options))
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == tests:
            return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1


def _reserve_ids() -> None:
    """Where newuidmap is installed, LXC asks it, and it grants even root only what these files list."""
    for file in ("subuid", "subgid"):
        Path("/run", file).write_text(f"root:{images.FIRST_ID}:{images.IDS}\n")
        _run(f"mount --bind /run/{file} /etc/{file}")


def _leave_to_pytest(*_: object) -> None:
    """An interrupt also reaches pytest; it winds up and ends, and that is what we wait for."""


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)


def _is_empty(group: Path) -> bool:
    return "populated 0" in (group / "cgroup.events").read_text()


def _remove(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        os.rmdir(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
