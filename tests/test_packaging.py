"""What is installed is whole and clean: the wheel without its source tree, the bundle, the manifests."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml

from quorate import __version__
from quorate.cli import build_parser
from quorate.config.http import HttpSettings
from quorate.surfaces.web.listener import HANDOVER_SECONDS
from tests import paths
from tools import bundle, manifests

ROOT = paths.ROOT
MISSING = "The simulated cluster is not installed; install it with `pip install 'quorate[demo]'`."


PROJECTS = {"quorate": ROOT, **{name: ROOT / "packages" / name for name in ("pve-schema", "pve-simulator")}}


def built(kind: str, folder: Path, project: str = "quorate") -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=PROJECTS[project], check=True, capture_output=True)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: built("wheel", tmp_path_factory.mktemp(name), name) for name in PROJECTS}


@pytest.fixture(scope="module")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheels.values(), tmp_path_factory.mktemp("empty"))


def install(wheels: Iterable[Path], place: Path) -> Path:
    """The `quorate` of an environment that holds the wheels; only other dependencies are lent from the environment of
    the tests, whose own Quorate cannot be seen from there."""
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, *map(str, wheels)], check=True, capture_output=True)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    where = subprocess.run(
        [python, "-I", "-c", "import quorate; print(quorate.__file__)"], check=True, capture_output=True, text=True
    ).stdout
    assert Path(where.strip()).is_relative_to(place), "the tests would try something else than the wheel"
    return place / "bin" / "quorate"


def read(path: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / path).read_text())
    return content


def run(program: Path, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(home)}
    return subprocess.run(
        [program, *arguments], cwd=home, env=environ, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.thorough
def test_the_wheels_alone_run_the_demo(installed: Path, tmp_path: Path) -> None:
    done = run(installed, "demo", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "homeassistant" in done.stdout


@pytest.mark.thorough
def test_without_the_simulator_only_the_demo_is_missing(wheels: dict[str, Path], tmp_path: Path) -> None:
    quorate = install((wheels["quorate"], wheels["pve-schema"]), tmp_path / "environment")
    for arguments in (["demo"], ["sim", "--ssh"], ["serve", "--demo"], ["call", "guest_list", "--demo"]):
        refused = run(quorate, *arguments, home=tmp_path)
        assert refused.returncode == 2, refused.stderr
        assert refused.stderr == f"quorate: {MISSING}\n"
    assert "guest_list" in run(quorate, "tools", home=tmp_path).stdout


@pytest.mark.thorough
def test_the_wheel_of_the_simulator_brings_its_command_and_its_fixture(installed: Path, tmp_path: Path) -> None:
    test = tmp_path / "test_client.py"
    test.write_text("def test_it(pve):\n    assert pve.url.startswith('https://127.0.0.1:')\n")
    tried = run(installed.with_name("python"), "-m", "pytest", "-q", str(test), home=tmp_path)
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert run(installed.with_name("pve-simulator"), "--version", home=tmp_path).stdout.startswith("pve-simulator ")


@pytest.mark.thorough
def test_the_wheel_alone_lists_every_tool(installed: Path, tmp_path: Path) -> None:
    from quorate.operations.registry import chosen_operations, expand

    done = run(installed, "tools", "--toolsets", "all", "--access", "admin", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")} == {
        operation.name for operation in chosen_operations(expand(["all"]))
    }


@pytest.mark.parametrize("project", PROJECTS)
def test_a_wheel_holds_the_package_and_nothing_else(wheels: dict[str, Path], project: str) -> None:
    names, package = zipfile.ZipFile(wheels[project]).namelist(), project.replace("-", "_")
    assert all(re.match(rf"{package}(/|-[\d.]+\.dist-info/)", name) for name in names)
    assert not any("__pycache__" in name for name in names)
    assert f"{package}/py.typed" in names
    (source,) = PROJECTS[project].glob(f"src/{package}")
    files = {str(file.relative_to(source.parent)) for file in source.rglob("*") if file.is_file()}
    assert {file for file in files if "__pycache__" not in file} <= set(names)


@pytest.mark.thorough
def test_the_sdist_holds_what_it_takes_to_build_and_nothing_else(tmp_path: Path) -> None:
    with tarfile.open(built("sdist", tmp_path)) as archive:
        tops = {name.split("/")[1] for name in archive.getnames()}
    pages = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"}
    assert tops == {".gitignore", "PKG-INFO", "docs", "pyproject.toml", "src", *pages}


@pytest.mark.thorough
def test_the_bundle_is_the_same_every_time_and_can_be_run(tmp_path: Path) -> None:
    first, other = bundle.pack(tmp_path / "one"), bundle.pack(tmp_path / "other")
    assert first.read_bytes() == other.read_bytes()
    with zipfile.ZipFile(first) as archive:
        archive.extractall(tmp_path / "unpacked")
    for name, source in PROJECTS.items():  # which uv finds as members of the workspace
        folder = tmp_path / "unpacked" / source.relative_to(ROOT)
        assert tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"] == name
        assert (folder / "src" / name.replace("-", "_") / "__init__.py").is_file()
    manifest = json.loads((tmp_path / "unpacked" / "manifest.json").read_text())
    assert (tmp_path / "unpacked" / manifest["server"]["entry_point"]).is_file()
    project = tomllib.loads((tmp_path / "unpacked" / "pyproject.toml").read_text())
    assert manifest["server"]["mcp_config"]["args"][-2] in project["project"]["scripts"]


def test_every_package_that_is_imported_is_declared() -> None:
    """What only another package brings along may be gone with its next version."""
    project = manifests.PROJECT
    requirements = [
        *project["dependencies"],
        *(requirement for extra in project["optional-dependencies"].values() for requirement in extra),
    ]
    declared = {re.split(r"[\[<>=~! ;]", requirement, maxsplit=1)[0].lower() for requirement in requirements}
    providers = packages_distributions()
    undeclared = {
        f"{name} in {file.relative_to(ROOT)}"
        for file in (ROOT / "src").rglob("*.py")
        for name in imported_packages(file)
        if not declared.intersection(provider.lower().replace("_", "-") for provider in providers.get(name, [name]))
    }
    assert not undeclared


def imported_packages(file: Path) -> set[str]:
    """The packages of others that it imports anywhere, also inside functions."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
    return {module.partition(".")[0] for module in modules} - sys.stdlib_module_names - {"quorate"}


def test_every_manifest_has_the_same_version() -> None:
    for path in ("packaging/mcpb/manifest.json", "server.json", ".claude-plugin/plugin.json"):
        assert read(path)["version"] == __version__, f"{path}: run `make docs`"
    assert read("server.json")["packages"][0]["version"] == __version__


def test_manifests_that_are_out_of_date_are_seen_by_the_check() -> None:
    from tools.docs import generated

    expected = generated()
    assert manifests.manifests().keys() <= expected.keys()


def test_secrets_are_marked_and_every_variable_is_one_that_is_read() -> None:
    from quorate.config.clusters import CLUSTER
    from quorate.config.settings import GENERAL

    known = {name for names in (*CLUSTER.values(), *GENERAL.values()) for name in names.variables}
    options = read("packaging/mcpb/manifest.json")["user_config"]
    assert {name for name, option in options.items() if option["sensitive"]} == {"token_secret"}
    listed = read("server.json")["packages"][0]["environmentVariables"]
    assert {variable["name"] for variable in listed} <= known
    assert [variable["name"] for variable in listed if variable["isSecret"]] == ["PROXMOX_TOKEN_SECRET"]


def test_the_registry_gets_what_it_takes() -> None:
    """The limits of its schema, and the mark in the README by which it knows whose the package is."""
    listed = read("server.json")
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", listed["name"])
    assert 1 <= len(listed["description"]) <= 100
    assert 1 <= len(listed["title"]) <= 100
    assert f"mcp-name: {listed['name']} " in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    ("repository", "name"),
    [
        ("https://github.com/someone/quorate", "io.github.someone/quorate"),
        ("https://git.example.org/team/quorate.git", "org.example.git/quorate"),
        ("", "com.example/quorate"),
    ],
)
def test_the_name_in_the_registry_follows_from_the_repository(repository: str, name: str) -> None:
    assert manifests.registered_name(repository) == name


def test_the_plugin_can_be_found_and_is_started_from_its_own_folder() -> None:
    (offered,) = read(".claude-plugin/marketplace.json")["plugins"]
    folder = (ROOT / offered["source"]).resolve()
    plugin = json.loads((folder / ".claude-plugin" / "plugin.json").read_text())
    assert plugin["name"] == offered["name"]
    program, *arguments = plugin["mcpServers"]["quorate"]["args"][2:]
    assert program in tomllib.loads((folder / "pyproject.toml").read_text())["project"]["scripts"]
    assert plugin["mcpServers"]["quorate"]["args"][:2] == ["--from", "${CLAUDE_PLUGIN_ROOT}"]
    build_parser().parse_args(arguments)


# -- the image ---------------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M).replace("\\\n", "")
    return [(line.split(None, 1)[0], line.split(None, 1)[1].strip()) for line in text.splitlines() if line.strip()]


def last(name: str) -> str:
    return [argument for instruction, argument in instructions() if instruction == name][-1]


def test_the_image_is_slim_and_of_a_python_that_is_tried() -> None:
    bases = [argument.split()[0] for instruction, argument in instructions() if instruction == "FROM"]
    assert len(bases) == 2
    (version,) = {re.fullmatch(r"python:(\d\.\d+)-slim", base)[1] for base in bases}  # type: ignore[index]
    assert f"Programming Language :: Python :: {version}" in manifests.PROJECT["classifiers"]


def test_the_image_runs_as_a_user_without_rights_in_a_folder_of_its_own() -> None:
    user, group = last("USER").split(":")
    made = next(argument for name, argument in instructions() if "useradd" in argument)
    assert int(user) == int(group) > 999
    assert f"--uid {user} --gid {group}" in made
    assert f"--home-dir {last('VOLUME')} " in made
    assert last("WORKDIR") == last("VOLUME")
    for kept in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        assert f"{kept}={last('VOLUME')}/" in last("ENV")


def test_the_image_starts_a_command_that_there_is_at_the_port_that_it_names() -> None:
    (program,) = json.loads(last("ENTRYPOINT"))
    assert program in manifests.PROJECT["scripts"]
    assert build_parser().parse_args(json.loads(last("CMD"))).http == f"0.0.0.0:{last('EXPOSE')}"
    assert f"127.0.0.1:{last('EXPOSE')}/" in last("HEALTHCHECK")


def test_the_image_is_made_of_files_that_are_there_and_not_kept_from_it() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for name, argument in instructions():
        if name == "COPY" and not argument.startswith("--from"):
            for source in argument.split()[:-1]:
                assert (ROOT / source).exists()
                assert source in sent


def test_the_image_holds_every_dependency_and_that_of_a_shared_state() -> None:
    locked = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements/runtime.txt").read_text(), re.M))
    needed = [*manifests.PROJECT["optional-dependencies"]["postgres"]]
    for project in PROJECTS.values():
        needed += tomllib.loads((project / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in needed}  # type: ignore[index]
    assert names - PROJECTS.keys() <= locked
    copied = next(argument for name, argument in instructions() if name == "RUN" and "--no-deps" in argument)
    assert {f"./packages/{name}" for name in names & PROJECTS.keys()} <= set(copied.split())


@pytest.mark.thorough
def test_the_image_asks_for_its_health_in_a_way_that_a_server_answers(tmp_path: Path) -> None:
    program, *arguments = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    assert program == "python"
    with serving(tmp_path) as address:
        code = arguments[-1].replace(f"127.0.0.1:{last('EXPOSE')}", address)
        well = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert well.returncode == 0, well.stderr
    gone = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert gone.returncode == 1


# -- services ----------------------------------------------------------------------------------------------------------

UNIT = ROOT / "packaging" / "systemd" / "quorate.service"
COMPOSE = ROOT / "packaging" / "compose" / "compose.yaml"


def unit() -> list[tuple[str, str]]:
    lines = [line.partition("=") for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return [(name, value) for name, _, value in lines]


def test_systemd_accepts_the_unit_and_finds_it_well_confined(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd here")
    here = tmp_path / "quorate.service"
    here.write_text(UNIT.read_text().replace("/opt/quorate/bin/quorate", sys.executable))
    verified = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True, check=False)
    assert not [line for line in verified.stderr.splitlines() if "quorate" in line]
    exposure = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(here)]
    confined = subprocess.run(exposure, capture_output=True, text=True, check=False)
    assert confined.returncode == 0, confined.stdout[-300:]


def test_the_unit_starts_a_command_that_there_is_with_the_folders_that_systemd_makes() -> None:
    from quorate.config.files import usual_config_file, usual_state

    settings = dict(unit())
    program, *arguments = settings["ExecStart"].split()
    options = build_parser().parse_args(arguments)
    assert (program, options.http) == ("/opt/quorate/bin/quorate", "0.0.0.0:8443")
    environ = dict(assignment.split("=") for assignment in settings["Environment"].split())
    assert usual_config_file(environ).parent == Path("/etc", settings["ConfigurationDirectory"])
    assert Path(usual_state(environ)).parent == Path("/var/lib", settings["StateDirectory"])
    assert Path(options.tls_cert).parent.parent == usual_config_file(environ).parent
    grace = HttpSettings().grace_seconds + HANDOVER_SECONDS
    assert int(settings["TimeoutStopSec"]) > grace


def test_the_compose_file_fits_the_image() -> None:
    from quorate.config.http import HTTP

    (service,) = yaml.safe_load(COMPOSE.read_text())["services"].values()
    assert (COMPOSE.parent / service["build"]).resolve() == ROOT
    assert service["ports"] == [f"8443:{last('EXPOSE')}"]
    assert service["volumes"] == [f"quorate:{last('VOLUME')}"]
    known = {name for names in HTTP.values() for name in names.variables}
    assert service["environment"].keys() <= known
    config = re.search(r"XDG_CONFIG_HOME=(\S+)", last("ENV"))[1]  # type: ignore[index]
    assert service["environment"]["QUORATE_HTTP_TLS_CERT"] == f"{config}/quorate/tls/cert.pem"


@contextmanager
def serving(home: Path) -> Iterator[str]:
    """A server of MCP over HTTP; its host and port."""
    command = [sys.executable, "-m", "quorate", "serve", "--demo", "--http", "127.0.0.1:0"]
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(home)}
    with subprocess.Popen(command, cwd=home, env=environ, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            yield next(
                match[1] for line in server.stderr if (match := re.search(r"listening on http://([^/]+)/", line))
            )
        finally:
            server.terminate()
