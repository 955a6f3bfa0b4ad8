"""quorate doctor and quorate trust, about Proxmox Backup Servers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pve_simulator.pbs.server import BackupServer
from tests.rigs.backup_server import add_token, running_backup_server
from tests.rigs.cli import quorate


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "QUORATE_CONFIG": str(tmp_path / "config.toml"),
        "QUORATE_STATE": str(tmp_path / "state.sqlite"),
        "QUORATE_AUDIT_FILE": str(tmp_path / "audit.jsonl"),
    }


def configure(environ: dict[str, str], server: BackupServer, **changes: str) -> None:
    settings = {
        "url": server.url,
        "token_id": server.token_id,
        "token_secret": server.token_secret,
        "fingerprint": server.fingerprint,
        **changes,
    }
    lines = [f'{name} = "{value}"' for name, value in settings.items()]
    Path(environ["QUORATE_CONFIG"]).write_text("\n".join(["[pbs.vault]", *lines]) + "\n")


def examine(environ: dict[str, str], *arguments: str) -> dict[str, dict[str, Any]]:
    ended = quorate("doctor", "--json", *arguments, environ=environ, cwd=Path(environ["HOME"]))
    findings = json.loads(ended.stdout)["findings"]
    return {finding["check"]: finding for finding in findings if finding["place"] == "backup server vault"}


def test_all_is_well_is_reported_check_by_check(environ: dict[str, str]) -> None:
    with running_backup_server() as server:
        configure(environ, server)
        findings = examine(environ)
    states = {check: finding["state"] for check, finding in findings.items()}
    assert states == dict.fromkeys(
        ("connection", "certificate", "token", "version", "clock", "datastores", "rights"), "ok"
    )
    assert findings["version"]["says"] == "PBS 4.1.1"


def test_missing_rights_come_with_the_commands_that_grant_them(environ: dict[str, str]) -> None:
    with running_backup_server() as server:
        token = add_token(server, "reader", _="Audit")
        configure(environ, server, token_id=token.id, token_secret=token.secret.reveal())
        findings = examine(environ)
    assert findings["rights"]["state"] == "warn"
    assert "Datastore.Read" in findings["rights"]["says"]
    assert (
        "proxmox-backup-manager acl update /datastore/store1 DatastoreReader --auth-id 'reader@pbs!mcp'"
        in findings["rights"]["commands"]
    )


def test_a_token_that_sees_nothing_fails(environ: dict[str, str]) -> None:
    with running_backup_server() as server:
        token = add_token(server, "blind")
        configure(environ, server, token_id=token.id, token_secret=token.secret.reveal())
        findings = examine(environ)
    assert findings["datastores"]["state"] == "fail"
    assert "sees no datastore" in findings["datastores"]["says"]


def test_another_certificate_ends_the_checks(environ: dict[str, str]) -> None:
    with running_backup_server() as server:
        configure(environ, server, fingerprint="ab" * 32)
        findings = examine(environ)
    assert findings["certificate"]["state"] == "fail"
    assert "proxmox-backup-manager cert info" in findings["certificate"]["do"]


def test_a_wrong_secret_is_refused(environ: dict[str, str]) -> None:
    with running_backup_server() as server:
        configure(environ, server, token_secret="wrong")
        findings = examine(environ)
    assert "invalid credentials" in findings["token"]["says"]


def test_without_a_cluster_the_tools_for_backup_servers_work(environ: dict[str, str]) -> None:
    with running_backup_server() as server:
        configure(environ, server)
        ended = quorate("call", "pbs_status", environ=environ, cwd=Path(environ["HOME"]))
    assert ended.returncode == 0, ended.stderr
    assert "store1" in ended.stdout
