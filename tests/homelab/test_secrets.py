"""Secrets by reference: where they are found, what is refused, and the encrypted file that keeps them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import keyring
import keyring.backends.fail
import keyring.backends.null
import keyring.core
import msgspec
import pytest
from keyring.backend import KeyringBackend
from keyring.backends.chainer import ChainerBackend

from quorate.config.homelab import HomelabSettings
from quorate.homelab import vault as vaults
from quorate.homelab.machines import Login
from quorate.homelab.secrets import Secrets
from quorate.homelab.vault import Vault, VaultContent
from quorate.pipeline.caller import Exchange
from quorate.problems import Problem
from quorate.secret import Secret
from quorate.state import passphrase as key_derivation
from tests.rigs.homelab import house
from tests.rigs.processes import completed
from tests.rigs.terminal import terminal

PASSPHRASE = Secret("correct horse battery")
COST, LEAST_COST = key_derivation.COST, vaults.LEAST_COST
"""What it costs outside of tests."""


@pytest.fixture
def _real_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_derivation, "COST", COST)
    monkeypatch.setattr(vaults, "LEAST_COST", LEAST_COST)


@pytest.fixture
def settings(tmp_path: Path) -> HomelabSettings:
    return HomelabSettings(secrets_folder=tmp_path, secrets_file=tmp_path / "vault", passphrase=PASSPHRASE)


def refusal(settings: HomelabSettings, reference: str) -> str:
    with pytest.raises(Problem) as caught:
        Secrets(settings).find(reference)
    return str(caught.value)


def private(file: Path, text: str, mode: int = 0o600) -> Path:
    file.write_text(text)
    file.chmod(mode)
    return file


# -- references --------------------------------------------------------------------------------------------------------


def test_a_variable_that_is_meant_for_hosts_is_read(settings, monkeypatch):
    monkeypatch.setenv("SSH_NAS_PASSWORD", "from the environment")
    secrets = Secrets(settings)
    assert secrets.find("env:SSH_NAS_PASSWORD") == Secret("from the environment")
    assert "from the environment" in secrets.revealed


def test_a_variable_of_the_env_file_is_read_as_well(settings):
    ssh = replace(settings.ssh, variables=lambda: {"HOMELAB_PI": "from the file"})
    assert Secrets(replace(settings, ssh=ssh)).find("env:HOMELAB_PI") == Secret("from the file")


@pytest.mark.parametrize(
    "name", ["PROXMOX_TOKEN_SECRET", "QUORATE_SECRETS_PASSPHRASE", "QUORATE_STATE", "PATH", "ssh_nas", "SSH_A\nB"]
)
def test_no_other_variable_of_the_server_can_be_sent_to_a_host(settings, monkeypatch, name):
    monkeypatch.setenv(name, "canary-of-the-server")
    text = refusal(settings, f"env:{name}")
    assert "is not a variable for host secrets" in text
    assert "canary" not in text


def test_a_variable_that_is_not_set_is_named(settings):
    assert "The variable SSH_NOBODY is not set" in refusal(settings, "env:SSH_NOBODY")


def test_a_private_file_is_read_without_its_line_end(settings, tmp_path):
    private(tmp_path / "nas", "s3cret line\n")
    assert Secrets(settings).find("file:nas") == Secret("s3cret line")
    assert Secrets(settings).find(f"file:{tmp_path}/nas") == Secret("s3cret line")


@pytest.mark.parametrize(("mode", "word"), [(0o640, "chmod 600"), (0o604, "chmod 600"), (0o602, "chmod 600")])
def test_a_file_that_others_may_open_is_refused(settings, tmp_path, mode, word):
    private(tmp_path / "nas", "s3cret line\n", mode)
    assert word in refusal(settings, "file:nas")


def test_no_other_file_of_the_server_can_be_sent_to_a_host(settings, tmp_path):
    inner = tmp_path / "secrets"
    inner.mkdir()
    outside = private(tmp_path / "pve-token", "canary-of-the-server")
    (inner / "link").symlink_to(outside)
    narrow = replace(settings, secrets_folder=inner)
    for name in (str(outside), "../pve-token", "link"):
        text = refusal(narrow, f"file:{name}")
        assert "is not a file for host secrets" in text
        assert "canary" not in text


def test_each_reason_why_a_file_is_not_a_secret_has_its_own_words(settings, tmp_path):
    private(tmp_path / "long", "x" * 5000)
    private(tmp_path / "empty", "\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "binary").chmod(0o600)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "longer than 4096 bytes" in refusal(settings, "file:long")
    assert "is empty" in refusal(settings, "file:empty")
    assert "is not UTF-8 text" in refusal(settings, "file:binary")
    assert "cannot be used" in refusal(settings, "file:folder")
    assert "not a regular file" in refusal(settings, "file:pipe")
    assert "No such file" in refusal(settings, "file:missing")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(settings, tmp_path):
    os.chown(private(tmp_path / "nas", "s3cret"), 65534, 65534)
    assert "another user" in refusal(settings, "file:nas")


@pytest.mark.parametrize("value", ["hunter2-canary", "plain:hunter2-canary", "env:", "vault:", ""])
def test_a_secret_in_the_place_of_a_reference_is_refused_and_not_repeated(settings, value):
    text = refusal(settings, value)
    assert "must be a reference" in text
    assert "hunter2" not in text


# -- the keyring -------------------------------------------------------------------------------------------------------


class SystemKeyring(KeyringBackend):
    """Stands for the operating system's own, as far as the package `keyring` shows it."""

    priority = 5.0

    def __init__(self) -> None:
        self.kept = {("quorate", "nas"): "from the keyring"}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password


SystemKeyring.__module__ = "keyring.backends.SecretService"


class PlaintextKeyring(SystemKeyring):
    pass


PlaintextKeyring.__module__ = "keyrings.alt.file"


class LockedKeyring(SystemKeyring):
    def get_password(self, service: str, username: str) -> str | None:
        raise keyring.errors.KeyringLocked("the collection is locked")


LockedKeyring.__module__ = "keyring.backends.SecretService"


def use(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    monkeypatch.setattr(keyring.core, "_keyring_backend", backend)


def test_the_keyring_of_the_system_is_read(settings, monkeypatch):
    use(monkeypatch, SystemKeyring())
    assert Secrets(settings).find("keyring:nas") == Secret("from the keyring")
    assert "keyring set quorate pi" in refusal(settings, "keyring:pi")


def test_a_locked_keyring_says_so(settings, monkeypatch):
    use(monkeypatch, LockedKeyring())
    assert "the collection is locked" in refusal(settings, "keyring:nas")


@pytest.mark.parametrize(
    "backend",
    [PlaintextKeyring, keyring.backends.fail.Keyring, keyring.backends.null.Keyring],
    ids=lambda backend: backend.__module__,
)
def test_a_keyring_that_keeps_plain_text_or_nothing_is_refused(settings, monkeypatch, backend):
    use(monkeypatch, backend())
    text = refusal(settings, "keyring:nas")
    assert "no trustworthy keyring" in text
    assert "vault:" in text


def test_of_a_chain_of_keyrings_only_the_systems_own_is_asked(settings, monkeypatch):
    class Chain(ChainerBackend):
        backends = (PlaintextKeyring(), SystemKeyring())

    Chain.backends[0].kept.clear()
    use(monkeypatch, Chain())
    assert Secrets(settings).find("keyring:nas") == Secret("from the keyring")


# -- the encrypted file ------------------------------------------------------------------------------------------------


@pytest.fixture
def vault(settings: HomelabSettings) -> Vault:
    vault = Vault(settings.secrets_file, PASSPHRASE)
    vault.put("nas", Secret("canary-nas-password"))
    vault.put("pi", Secret("canary-pi-password"))
    return vault


def test_what_is_kept_is_found_again_and_nothing_of_it_can_be_read(settings, vault):
    assert Secrets(settings).find("vault:nas") == Secret("canary-nas-password")
    assert vault.names() == ["nas", "pi"]
    assert vault.file.stat().st_mode & 0o777 == 0o600
    content = vault.file.read_text()
    assert "canary" not in content
    assert PASSPHRASE.reveal() not in content


def test_the_same_secret_never_looks_the_same(vault):
    before = vault.file.read_text()
    assert vault.put("nas", Secret("canary-nas-password")) is True
    assert json.loads(before)["secrets"]["nas"] != json.loads(vault.file.read_text())["secrets"]["nas"]


@pytest.mark.usefixtures("_real_cost")
def test_the_key_costs_what_it_should(vault):
    kept = json.loads(vault.file.read_text())
    assert kept["cost"] >= 2**15
    assert kept["version"] == 1


def test_a_wrong_passphrase_is_reported_as_such(settings, vault):
    text = refusal(replace(settings, passphrase=Secret("correct horse batterie")), "vault:nas")
    assert "The passphrase does not open" in text
    with pytest.raises(Problem, match="does not open"):
        Vault(vault.file, Secret("another wrong one")).put("nas", Secret("x"))
    assert Secrets(settings).find("vault:nas") == Secret("canary-nas-password")


def test_without_a_passphrase_the_answer_says_where_to_put_it(settings, vault):
    assert "QUORATE_SECRETS_PASSPHRASE_FILE" in refusal(replace(settings, passphrase=None), "vault:nas")


def test_a_secret_that_is_not_there_is_named_with_the_command_that_sets_it(settings, vault):
    assert "quorate secrets set db" in refusal(settings, "vault:db")
    assert "quorate secrets set" in refusal(replace(settings, secrets_file=vault.file.with_name("none")), "vault:db")


def test_every_flipped_bit_is_noticed_and_reported(settings, vault, monkeypatch):
    """None of them opens anything, and the passphrase is not blamed."""
    monkeypatch.setattr(
        key_derivation, "derive_key", lambda *_: pytest.fail("the passphrase was tried on a damaged file")
    )
    whole = vault.file.read_bytes()
    unnoticed = []
    for at in range(len(whole)):
        bit = 1 << at % 7
        vault.file.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        with pytest.raises(Problem) as caught:
            Vault(vault.file, PASSPHRASE).find("nas")
        if "is damaged" not in str(caught.value) and "newer Quorate" not in str(caught.value):
            unnoticed.append((at, str(caught.value)))
    assert unnoticed == []


def changed(vault: Vault, change: Any) -> None:
    """Changed by someone who knows the format, checksum included."""
    kept = msgspec.json.decode(vault.file.read_bytes(), type=dict)
    change(kept)
    book = msgspec.convert({**kept, "sha256": ""}, VaultContent, strict=False)
    vault.file.write_text(msgspec.structs.replace(book, sha256=book.checksum()).text())


def test_one_secret_cannot_be_put_in_the_place_of_another(settings, vault):
    def swap(kept: Any) -> None:
        kept["secrets"]["nas"], kept["secrets"]["pi"] = kept["secrets"]["pi"], kept["secrets"]["nas"]

    changed(vault, swap)
    text = refusal(settings, "vault:nas")
    assert "the seal of this secret is broken" in text
    assert "quorate secrets set nas" in text


@pytest.mark.usefixtures("_real_cost")
def test_the_cost_of_guessing_cannot_be_lowered(settings, vault):
    changed(vault, lambda kept: kept.update(cost=1024))
    assert "is damaged" in refusal(settings, "vault:nas")


def test_another_passphrase_seals_everything_anew(settings, vault):
    before = json.loads(vault.file.read_text())
    vault.change_passphrase(Secret("a whole new passphrase"))
    after = json.loads(vault.file.read_text())
    assert before["salt"] != after["salt"]
    assert "does not open" in refusal(settings, "vault:nas")
    new = replace(settings, passphrase=Secret("a whole new passphrase"))
    assert Secrets(new).find("vault:pi") == Secret("canary-pi-password")


def test_many_who_write_at_once_lose_nothing(settings, vault):
    def put(number: int) -> None:
        Vault(vault.file, PASSPHRASE).put(f"host{number}", Secret(f"secret {number}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put, range(8)))
    assert vault.names() == sorted(["nas", "pi", *(f"host{number}" for number in range(8))])
    assert Secrets(settings).find("vault:host7") == Secret("secret 7")


@pytest.mark.parametrize("name", ["", "../x", "a b", "x" * 65, "-x", "näs"])
def test_a_name_that_is_none_is_refused(vault, name):
    with pytest.raises(Problem, match="is not a valid name for a secret"):
        vault.put(name, Secret("x"))


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "home").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("QUORATE_", "PROXMOX_", "XDG_"))}
    return kept | {"HOME": str(tmp_path / "home"), "QUORATE_HOMELAB_SECRETS_FILE": str(tmp_path / "vault")}


def quorate(environ: dict[str, str], *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return completed("secrets", *arguments, environ=environ, cwd=Path(environ["HOME"]), typed=stdin)


def test_a_person_sets_lists_and_removes_secrets_at_a_terminal(tmp_path, environ):
    with terminal("secrets", "set", "nas", environ=environ) as screen:
        screen.expect("New passphrase:")
        screen.type("correct horse battery")
        screen.expect("Repeat it:")
        screen.type("correct horse battery")
        screen.expect("Secret for nas:")
        screen.type("canary-typed")
        screen.expect("vault:nas")
        assert screen.end() == 0
        assert "canary" not in screen.text
        assert "correct horse" not in screen.text
    assert Vault(tmp_path / "vault", PASSPHRASE).find("nas") == Secret("canary-typed")
    assert quorate(environ, "list").stdout == "nas\n"
    with terminal("secrets", "remove", "nas", environ=environ) as screen:
        screen.expect("Passphrase of")
        screen.type("wrong wrong wrong")
        screen.expect("does not open")
        assert screen.end() == 1
    with terminal("secrets", "remove", "nas", environ=environ) as screen:
        screen.expect("Passphrase of")
        screen.type("correct horse battery")
        screen.expect("Deleted nas")
        assert screen.end() == 0
    assert "no secret 'nas'" in quorate(environ, "remove", "nas").stderr


def test_the_passphrase_is_changed_at_a_terminal(tmp_path, environ):
    Vault(tmp_path / "vault", PASSPHRASE).put("nas", Secret("canary"))
    with terminal("secrets", "passphrase", environ=environ) as screen:
        screen.expect("Passphrase of")
        screen.type("correct horse battery")
        screen.expect("New passphrase:")
        screen.type("short")
        screen.expect("too short")
        assert screen.end() == 1
    with terminal("secrets", "passphrase", environ=environ) as screen:
        screen.expect("Passphrase of")
        screen.type("correct horse battery")
        screen.expect("New passphrase:")
        screen.type("a whole new passphrase")
        screen.expect("Repeat it:")
        screen.type("a whole new passphrase")
        assert screen.end() == 0
    assert Vault(tmp_path / "vault", Secret("a whole new passphrase")).find("nas") == Secret("canary")


def test_a_program_sets_a_secret_by_standard_input_with_a_configured_passphrase(tmp_path, environ):
    private(tmp_path / "passphrase", PASSPHRASE.reveal() + "\n")
    environ["QUORATE_SECRETS_PASSPHRASE_FILE"] = str(tmp_path / "passphrase")
    done = quorate(environ, "set", "nas", stdin="canary-piped\n")
    assert done.returncode == 0, done.stderr
    assert "canary" not in done.stdout + done.stderr
    assert Vault(tmp_path / "vault", PASSPHRASE).find("nas") == Secret("canary-piped")
    assert "more than one line" in quorate(environ, "set", "nas", stdin="a\nb\n").stderr
    assert "The secret is empty" in quorate(environ, "set", "nas").stderr


def test_a_secret_is_never_an_argument_and_a_passphrase_never_a_pipe(environ):
    assert "unrecognized arguments" in quorate(environ, "set", "nas", "hunter2").stderr
    assert "there is none" in quorate(environ, "set", "nas", stdin="x\n").stderr


@pytest.mark.anyio
async def test_what_a_caller_lends_for_one_call_is_hidden_in_that_call(tmp_path):
    async with house(tmp_path, {}) as built:
        await built.quorate.facts(
            "host_register", host="nas", address="192.0.2.7", verify=False, labels=["lent-for-once"]
        )
        lends = Exchange(login=Login(password=Secret("lent-for-once")))
        run = built.quorate.app.pipeline.run
        lent, other = await asyncio.gather(run("host_list", {}, lends), run("host_list", {}, Exchange()))
        assert "lent-for-once" not in str(lent.data)
        assert "lent-for-once" in str(other.data)
