"""The command: what stays the same between starts, and what it can run in addition."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pve_simulator.command import main

TOKEN = "root@pam!ci=11111111-2222-4333-8444-555555555555"


@contextmanager
def running(*arguments: str) -> Iterator[dict[str, Any]]:
    """What the command prints when it is ready."""
    command = [sys.executable, "-m", "pve_simulator", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
        assert process.wait(30) == 0


def get(url: str, ca_file: str, authorization: str) -> Any:
    request = urllib.request.Request(url, headers={"Authorization": authorization})
    trust = ssl.create_default_context(cafile=ca_file)
    with urllib.request.urlopen(request, context=trust, timeout=30) as answer:
        return json.load(answer)["data"]


def test_token_certificate_and_address_are_the_same_at_every_start(tmp_path: Path) -> None:
    folder, address = tmp_path / "cert", ""
    fingerprints = set()
    for _ in range(2):
        listen = ["--listen", address] if address else []
        with running("--token", TOKEN, "--cert", str(folder), "--world", "stock", *listen) as ready:
            address = ready["url"].removeprefix("https://")
            fingerprints.add(ready["fingerprint"])
            rows = get(f"{ready['url']}/api2/json/nodes", str(folder / "ca.pem"), f"PVEAPIToken={TOKEN}")
            assert {row["node"] for row in rows} == {"pve1", "pve2"}
            assert "control_url" not in ready
    assert len(fingerprints) == 1


def test_a_backup_server_runs_next_to_the_cluster() -> None:
    with running("--pbs") as ready:
        pbs = ready["pbs"]
        authorization = f"PBSAPIToken={pbs['token_id']}:{pbs['token_secret']}"
        stores = get(f"{pbs['url']}/api2/json/admin/datastore", pbs["ca_file"], authorization)
        assert {store["store"] for store in stores} == {pbs["datastore"], "homelab"}
        assert len(pbs["fingerprint"].split(":")) == 32


def test_the_clock_of_a_command_is_turned_by_the_control_api() -> None:
    with running("--speed", "0", "--control") as ready:
        assert ready["control_url"].startswith("http://127.0.0.1:")
        body = json.dumps({"seconds": 3600}).encode()
        with urllib.request.urlopen(f"{ready['control_url']}/advance", data=body, timeout=30) as answer:
            assert json.load(answer)["time"] == "2026-01-15 09:00:00"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--token", "root@pam!x1=secret"], "'root@pam!x1' is not a token of the form USER@REALM!NAME=SECRET"),
        (
            ["--token", f"nobody@pve!x1={TOKEN.partition('=')[2]}"],
            "nobody@pve, who is not a user of this cluster",
        ),
        (["--world", "nowhere.yaml"], "neither a file nowhere.yaml"),
        (["--world", "stock", "--nodes", "3"], "--world cannot be combined with --nodes"),
        (["--speed", "-1"], "must be positive"),
    ],
)
def test_an_invalid_option_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], error: str) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert error in shown
    assert TOKEN.partition("=")[2] not in shown
    assert "=secret" not in shown


def test_half_a_certificate_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    assert main(["--cert", str(tmp_path)]) == 2
    assert "lacks server.pem, server.key" in capsys.readouterr().err


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schema"]) == 0
    assert "WorldFile" in json.loads(capsys.readouterr().out)["$defs"]
