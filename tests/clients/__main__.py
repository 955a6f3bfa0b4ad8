"""Fetch other people's clients of PVE, as far as they can be had, and run the tests that use them.

python -m tests.clients [pytest options]

What is fetched stays in .venv: the packages of package.json from npm, and the collection community.proxmox, which is
part of the package `ansible`. Of Terraform, the machine's own is used; the folder of its providers, with bpg/proxmox,
is named by TERRAFORM_PROVIDERS.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGES = Path(__file__).with_name("package.json")
ANSIBLE = "ansible==12.3.0"
COLLECTION = "ansible_collections/community/proxmox/"
CACHE = Path(__file__).parents[2] / ".venv"


def main(options: list[str]) -> int:
    name = hashlib.sha256(PACKAGES.read_bytes() + ANSIBLE.encode()).hexdigest()[:12]
    folder = CACHE / f"clients-{name}"
    if not (folder / "ready").exists():
        fetch(folder)
    environment = {"NODE_CLIENTS": str(folder), "ANSIBLE_COLLECTIONS_PATH": str(folder), **os.environ}
    command = [sys.executable, "-m", "pytest", "tests/clients", "-m", "", "-rs", *options]
    return subprocess.run(command, env=environment, check=False).returncode


def fetch(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(PACKAGES, folder)
    if shutil.which("npm"):
        # No script of a package runs, and no lock file is written: it would name the host that packages came from.
        quiet = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error"]
        subprocess.run(["npm", "install", *quiet], cwd=folder, check=True, timeout=600)
    with tempfile.TemporaryDirectory() as wheels:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", wheels, ANSIBLE]
        subprocess.run(pip, check=True, timeout=600)
        (wheel,) = Path(wheels).glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder, [entry for entry in packed.namelist() if entry.startswith(COLLECTION)])
    (folder / "ready").touch()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
