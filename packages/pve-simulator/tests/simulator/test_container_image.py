"""The container image: its file names what exists, and its command starts a cluster."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from simulator.test_command import get, running

PACKAGE = Path(__file__).parents[2]
LINES = (PACKAGE / "Dockerfile").read_text().replace("\\\n", "")
ROOT = PACKAGE.parents[1]


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.*)$", LINES, re.MULTILINE)


def test_everything_it_copies_exists() -> None:
    copied = [shlex.split(line)[:-1] for line in instructions("COPY") if "--from" not in line]
    assert copied
    assert [path for paths in copied for path in paths if not (ROOT / path).exists()] == []
    assert {path for path in re.findall(r"\./(\S+)", LINES) if not (ROOT / path / "pyproject.toml").exists()} == set()


def test_it_runs_as_a_user_without_privileges_who_owns_the_volume() -> None:
    (user,) = instructions("USER")
    assert f"--uid {user.partition(':')[0]} " in LINES
    assert int(user.partition(":")[0]) > 999
    (volume,) = instructions("VOLUME")
    assert f"--home-dir {volume} " in LINES


def test_its_command_serves_the_stock_world_with_the_token_of_the_recipe(tmp_path: Path) -> None:
    (entry,), (command,) = instructions("ENTRYPOINT"), instructions("CMD")
    assert json.loads(entry) == ["pve-simulator"]
    arguments: list[str] = json.loads(command)
    (port,) = instructions("EXPOSE")
    assert f"0.0.0.0:{port}" in arguments
    here = [each.replace(f":{port}", ":0").replace("/data", str(tmp_path)) for each in arguments]
    with running(*here) as ready:
        url = ready["url"].replace("0.0.0.0", "127.0.0.1")
        ca_file = str(tmp_path / "cert" / "ca.pem")
        token = "PVEAPIToken=root@pam!ci=11111111-2222-4333-8444-555555555555"
        assert {row["node"] for row in get(f"{url}/api2/json/nodes", ca_file, token)} == {"pve1", "pve2"}
        assert "root@pam!ci=11111111-2222-4333-8444-555555555555" in (PACKAGE / "docs/recipes.md").read_text()
