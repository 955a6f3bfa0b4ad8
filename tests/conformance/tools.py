"""The MCP project's own tools, from npm: fetched once, in the versions that package.json names."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PACKAGES = Path(__file__).with_name("package.json")
CACHE = Path(__file__).parents[2] / ".venv"
NEEDED = (22, 19)
NODE = "22.23.3"
"""Fetched where the machine's own is older than the tools need."""
ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Tools:
    node: str
    folder: Path

    def command(self, name: str) -> list[str]:
        return [self.node, str(self.folder / "node_modules" / ".bin" / name)]


def fetched() -> Tools:
    own = shutil.which("node")
    enough = own is not None and _version(own) >= NEEDED
    package = "" if enough else f"node-linux-{ARCHITECTURES[platform.machine()]}"
    name = hashlib.sha256(PACKAGES.read_bytes() + package.encode() + NODE.encode()).hexdigest()[:12]
    folder = CACHE / f"conformance-{name}"
    if not (folder / "ready").exists():
        _fetch(folder, [f"{package}@{NODE}"] if package else [])
    return Tools(str(folder / "node_modules" / package / "bin" / "node") if package else str(own), folder)


def _fetch(folder: Path, more: list[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(PACKAGES, folder)
    # No script of a package runs, and no lock file is written: it would name the host that packages came from.
    install = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error"]
    subprocess.run([*install, *more], cwd=folder, check=True, timeout=600, env={**os.environ, "CI": "1"})
    (folder / "ready").touch()


def _version(node: str) -> tuple[int, ...]:
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    match = re.match(r"v(\d+)\.(\d+)", told)
    return tuple(int(part) for part in match.groups()) if match else (0,)
