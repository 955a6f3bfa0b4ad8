"""Other people's clients as processes, and the simulator that they are pointed at."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

TOKEN = "root@pam!ci=11111111-2222-4333-8444-555555555555"
FLOWING = ("--world", "stock", "--speed", "20", "--token", TOKEN)


@contextmanager
def simulator(folder: Path, *arguments: str) -> Iterator[dict[str, Any]]:
    """A running simulator, whose line is also in ready.json."""
    command = [sys.executable, "-m", "pve_simulator", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            (folder / "ready.json").write_text(line)
            yield json.loads(line)
        finally:
            process.terminate()


def run(folder: Path, *command: str, **environment: str) -> str:
    tried = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False
    )
    assert tried.returncode == 0, tried.stdout + tried.stderr
    return tried.stdout


def collection_is_installed() -> bool:
    folders = [Path(each) for each in os.environ.get("ANSIBLE_COLLECTIONS_PATH", "").split(":") if each]
    folders += [Path.home() / ".ansible/collections", Path("/usr/share/ansible/collections")]
    folders += [Path(each) for each in sys.path]
    return any((folder / "ansible_collections/community/proxmox").is_dir() for folder in folders)


NEEDS_ANSIBLE = pytest.mark.skipif(
    importlib.util.find_spec("ansible") is None or not collection_is_installed(),
    reason="Ansible or the collection community.proxmox is not installed: unpack the collection from the package "
    "`ansible`, and set ANSIBLE_COLLECTIONS_PATH",
)


def play(folder: Path, ready: dict[str, Any], playbook: str) -> str:
    """Run a playbook that expects the simulator at port 8006."""
    port = ready["url"].rpartition(":")[2]
    (folder / "playbook.yaml").write_text(playbook.replace("api_port: 8006", f"api_port: {port}"))
    return run(
        folder, sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", "-c", "local",
        "-e", f"ansible_python_interpreter={sys.executable}", "playbook.yaml",
        REQUESTS_CA_BUNDLE=ready["ca_file"], ANSIBLE_HOME=str(folder / "ansible"), LC_ALL="C.UTF-8",
    )  # fmt: skip
