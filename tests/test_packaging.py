"""What is installed is whole and clean: the wheel without its source tree, the bundle, the manifests."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from tools import bundle, manifests

from quorate import __version__

ROOT = Path(__file__).parent.parent


def built(kind: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `quorate` of an environment that holds the wheel; only its dependencies are lent from the environment of the
    tests, whose own Quorate cannot be seen from there."""
    place = tmp_path_factory.mktemp("empty")
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, str(wheel)], check=True, capture_output=True)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    where = subprocess.run(
        [python, "-I", "-c", "import quorate; print(quorate.__file__)"], check=True, capture_output=True, text=True
    ).stdout
    assert Path(where.strip()).is_relative_to(place), "the tests would try something else than the wheel"
    return place / "bin" / "quorate"


def run(program: Path, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(home)}
    return subprocess.run(
        [program, *arguments], cwd=home, env=environ, capture_output=True, text=True, check=False, timeout=120
    )


def test_the_wheel_alone_runs_the_demo(installed: Path, tmp_path: Path) -> None:
    done = run(installed, "demo", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "homeassistant" in done.stdout


def test_the_wheel_alone_lists_every_tool(installed: Path, tmp_path: Path) -> None:
    from quorate.operations.registry import operations

    done = run(installed, "tools", "--toolsets", "all", "--access", "admin", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")} == set(operations())


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert all(name.startswith(("quorate/", f"quorate-{__version__}.dist-info/")) for name in names)
    assert not any("__pycache__" in name for name in names)
    assert "quorate/py.typed" in names


def test_the_sdist_holds_what_it_takes_to_build_and_nothing_else(tmp_path: Path) -> None:
    with tarfile.open(built("sdist", tmp_path)) as archive:
        tops = {name.split("/")[1] for name in archive.getnames()}
    assert tops == {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "docs", "pyproject.toml", "src"}


def test_the_bundle_is_the_same_every_time_and_can_be_run(tmp_path: Path) -> None:
    one, other = bundle.pack(tmp_path / "one"), bundle.pack(tmp_path / "other")
    assert one.read_bytes() == other.read_bytes()
    with zipfile.ZipFile(one) as archive:
        archive.extractall(tmp_path / "unpacked")
    manifest = json.loads((tmp_path / "unpacked" / "manifest.json").read_text())
    assert (tmp_path / "unpacked" / manifest["server"]["entry_point"]).is_file()
    project = tomllib.loads((tmp_path / "unpacked" / "pyproject.toml").read_text())
    assert manifest["server"]["mcp_config"]["args"][-2] in project["project"]["scripts"]


def test_every_manifest_tells_the_one_version() -> None:
    for path in ("packaging/mcpb/manifest.json", "server.json", ".claude-plugin/plugin.json"):
        assert json.loads((ROOT / path).read_text())["version"] == __version__, f"{path}: run `make docs`"
    assert json.loads((ROOT / "server.json").read_text())["packages"][0]["version"] == __version__


def test_manifests_that_are_out_of_date_are_seen_by_the_check() -> None:
    from tools.docs import generated

    wanted = generated()
    assert manifests.manifests().keys() <= wanted.keys()


def test_secrets_are_marked_and_every_variable_is_one_that_is_read() -> None:
    from quorate.config.spellings import CLUSTER, GENERAL

    known = {name for names in (*CLUSTER.values(), *GENERAL.values()) for name in names.variables}
    options = json.loads((ROOT / "packaging/mcpb/manifest.json").read_text())["user_config"]
    assert {name for name, one in options.items() if one["sensitive"]} == {"token_secret"}
    listed = json.loads((ROOT / "server.json").read_text())["packages"][0]["environmentVariables"]
    assert {one["name"] for one in listed} <= known
    assert [one["name"] for one in listed if one["isSecret"]] == ["PROXMOX_TOKEN_SECRET"]


def test_the_image_is_slim_small_in_rights_and_watched() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert len(re.findall(r"^FROM \S+-slim\b", text, re.M)) == 2
    assert re.search(r"^USER (?!root)", text, re.M)
    assert "HEALTHCHECK" in text
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.M):
        for source in line.split():
            assert (ROOT / source).exists()
