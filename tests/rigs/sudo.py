"""A login that is not root's, with a real sudo whose rules are replaced only for the login's own commands."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PASSWORD = "right horse battery"
UID = 47_110

_RUN = """#!/bin/sh
shift
for file in passwd shadow sudoers; do mount --bind "{folder}/$file" "/etc/$file" || exit 1; done
exec setpriv --reuid={uid} --regid={uid} --clear-groups "$@"
"""


def _missing() -> str | None:
    if os.geteuid() != 0:
        return "only root can make another login"
    lacking = [
        program for program in ("sudo", "unshare", "setpriv", "openssl", "mount") if shutil.which(program) is None
    ]
    if lacking:
        return f"{', '.join(lacking)} is not installed"
    tried = subprocess.run(["unshare", "-m", "mount", "--bind", "/etc/passwd", "/etc/passwd"], capture_output=True)
    return None if tried.returncode == 0 else "no mount namespaces here"


needs_sudo = pytest.mark.skipif(bool(_missing()), reason=_missing() or "")


def plain_login(folder: Path, rules: str = "tester ALL=(ALL:ALL) ALL") -> str:
    """The login shell's first lines, which make its commands run as `tester` with these sudo rules."""
    folder.mkdir(parents=True, exist_ok=True)
    hashed = subprocess.run(["openssl", "passwd", "-6", PASSWORD], capture_output=True, text=True, check=True).stdout
    _write(folder / "passwd", Path("/etc/passwd").read_text() + f"tester:x:{UID}:{UID}::/tmp:/bin/sh\n", 0o644)
    _write(folder / "shadow", Path("/etc/shadow").read_text() + f"tester:{hashed.strip()}:19000:0:99999:7:::\n", 0o600)
    _write(folder / "sudoers", f"Defaults !lecture\n{rules}\n", 0o440)
    _write(folder / "run", _RUN.format(folder=folder, uid=UID), 0o755)
    return f"exec unshare -m {folder}/run "


def _write(path: Path, text: str, mode: int) -> None:
    path.write_text(text)
    path.chmod(mode)
