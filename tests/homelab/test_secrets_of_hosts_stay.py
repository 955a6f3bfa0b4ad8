"""Every kind of secret is in use here, things go well and badly, and none of them turns up where it should not."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import keyring.core
import pytest

from quorate.homelab.vault import Vault
from quorate.secret import Secret
from tests.homelab.test_secrets import SystemKeyring
from tests.rigs.homelab import house
from tests.rigs.mcp_session import text_of

pytestmark = pytest.mark.anyio

KEPT = {
    "env": "canary'env\"1%+é",
    "file": "canary'file\"2%+é",
    "keyring": "canary'keyring\"3%+é",
    "vault": "canary'vault\"4%+é",
}
GIVEN = "canary-given-5"
PASSPHRASE = "canary passphrase six"
CANARIES = (*KEPT.values(), GIVEN, PASSPHRASE)
REFERENCES = {"env": "env:SSH_CANARY", "file": "file:canary", "keyring": "keyring:canary", "vault": "vault:canary"}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CANARY", KEPT["env"])
    (tmp_path / "canary").write_text(KEPT["file"])
    (tmp_path / "canary").chmod(0o600)
    backend = SystemKeyring()
    backend.kept["quorate", "canary"] = KEPT["keyring"]
    monkeypatch.setattr(keyring.core, "_keyring_backend", backend)
    Vault(tmp_path / "secrets", Secret(PASSPHRASE)).put("canary", Secret(KEPT["vault"]))


async def test_no_secret_of_a_host_is_kept_or_shown(tmp_path, kept, caplog):
    caplog.set_level(logging.DEBUG, "quorate")
    caplog.set_level(logging.DEBUG, "asyncssh")
    hosts = {kind: {"password": secret} for kind, secret in KEPT.items()}
    outputs: list[str] = []
    async with house(tmp_path, hosts, register=False, homelab={"passphrase": Secret(PASSPHRASE)}) as built:

        async def call(tool: str, **arguments: Any) -> Any:
            answer = await built.quorate.call(tool, **arguments)
            outputs.append(text_of(answer) + str(answer.structured_content))
            return answer

        for kind, reference in REFERENCES.items():
            at = {"address": "127.0.0.1", "port": built.hosts[kind].port}
            facts = await call("host_register", host=kind, user="tester", password=reference, **at)
            assert facts.structured_content["verified"] is True, text_of(facts)
            echoed = await call("host_exec", host=kind, command=["echo", KEPT[kind]])
            assert not echoed.is_error
            await call("host_exec", host=kind, command=["sh", "-c", f"echo {GIVEN} >&2; exit 3"], password=GIVEN)
            other = REFERENCES["file" if kind == "env" else "env"]
            await call("host_update", host=kind, password=other, sudo_password=reference)
            assert (await call("host_verify", host=kind)).structured_content["verified"] is False
            await call("host_list", host=kind)
            await call("host_update", host=kind, password=KEPT[kind])
            await call("host_update", host=kind, sudo_password=GIVEN)
            await call("host_register", host="plain", password=GIVEN, sudo_password=KEPT[kind], **at)
        await call("host_list")
        await call("host_remove", host="env")
        (tmp_path / "secrets").write_bytes((tmp_path / "secrets").read_bytes().replace(b"canary", b"kanary"))
        await call("host_verify", host="vault")
    outputs += [caplog.text, *(str(entry) for entry in built.quorate.audit())]
    for place in ("state.sqlite", "state.sqlite-wal", "audit.jsonl", "secrets"):
        if (tmp_path / place).exists():
            outputs.append((tmp_path / place).read_bytes().decode("utf-8", "replace"))
    assert any("vault:canary" in text for text in outputs)
    for canary in CANARIES:
        leaks = [text[:300] for text in outputs if canary in text]
        assert not leaks, (canary, leaks)
