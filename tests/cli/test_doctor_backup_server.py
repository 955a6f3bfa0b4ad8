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


# -- quorate trust and quorate init ------------------------------------------------------------------------------------


def run(environ: dict[str, str], *arguments: str) -> tuple[int, str]:
    ended = quorate(*arguments, environ=environ, cwd=Path(environ["HOME"]))
    return ended.returncode, ended.stdout + ended.stderr


def test_trust_shows_the_certificate_and_what_to_set(environ: dict[str, str]) -> None:
    with running_backup_server() as server:
        configure(environ, server)
        code, text = run(environ, "trust", "vault")
        assert (code, "It is trusted." in text) == (0, True)
        configure(environ, server, fingerprint="ab" * 32)
        code, text = run(environ, "trust", "vault")
    assert code == 1
    assert f'fingerprint = "{server.fingerprint.upper()}"' in text
    assert "proxmox-backup-manager cert info" in text


def init_arguments(environ: dict[str, str], server: BackupServer, *more: str) -> list[str]:
    secret = Path(environ["HOME"]) / "secret"
    secret.write_text(f"{server.token_secret}\n")
    secret.chmod(0o600)
    return ["init", "--pbs", server.url, "--name", "vault", "--fingerprint", server.fingerprint,
            "--token-id", server.token_id, "--token-secret-file", str(secret),
            "--config", environ["QUORATE_CONFIG"], *more]  # fmt: skip


def test_init_adds_a_server_that_works_and_preserves_the_rest(environ: dict[str, str]) -> None:
    Path(environ["QUORATE_CONFIG"]).write_text('access = "read"  # as agreed\n')
    with running_backup_server() as server:
        code, text = run(environ, *init_arguments(environ, server))
        assert code == 0, text
        assert "the server runs PBS 4.1" in text
        assert "Its datastores are archive, store1." in text
        assert Path(environ["QUORATE_CONFIG"]).read_text().startswith('access = "read"  # as agreed\n')
        code, text = run(environ, "call", "pbs_status")
        assert (code, "store1" in text) == (0, True)
        code, text = run(environ, *init_arguments(environ, server))
    assert "The name vault is taken" in text
    assert server.token_secret not in text


def test_init_stops_at_another_certificate_or_a_wrong_secret_and_writes_nothing(environ: dict[str, str]) -> None:
    with running_backup_server() as server:
        arguments = init_arguments(environ, server)
        pinned = ["ab" * 32 if word == server.fingerprint else word for word in arguments]
        code, text = run(environ, *pinned)
        assert (code, "has another fingerprint" in text) == (1, True)
        (Path(environ["HOME"]) / "secret").write_text("wrong\n")
        code, text = run(environ, *arguments)
        assert (code, "Nothing was written" in text) == (1, True)
    assert not Path(environ["QUORATE_CONFIG"]).exists()


def test_init_shows_the_commands_that_create_the_token(environ: dict[str, str]) -> None:
    with running_backup_server() as server:
        code, text = run(
            environ, "init", "--pbs", server.url, "--fingerprint", server.fingerprint, "--yes",
            "--config", environ["QUORATE_CONFIG"],
        )  # fmt: skip
    assert code != 0  # there is no terminal to type the secret at
    assert "proxmox-backup-manager user generate-token quorate@pbs mcp" in text
    assert "proxmox-backup-manager acl update / Audit --auth-id 'quorate@pbs!mcp'" in text
