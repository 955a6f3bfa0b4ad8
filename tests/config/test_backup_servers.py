"""`[pbs.NAME]`: a backup server is read from the TOML file, and mistakes are one sentence without a secret in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.config import ConfigError, Settings, load
from quorate.config.pbs import BACKUP_SERVER
from quorate.operations.registry import DEFAULT
from quorate.pipeline.sites import chosen_toolsets
from quorate.pve.connection import PBS, Secret, Token
from tests import paths

SECRET = "c0ffee00-canary-4e1f-9d2b-000000000000"
HEX = "9a2b4107c8551ef063bd7c2894e60fd13a8b52c719e470ad065fb823dc914e67"
VAULT = f'[pbs.vault]\nurl = "pbs1"\ntoken_id = "quorate@pbs!mcp"\ntoken_secret = "{SECRET}"\n'
CLUSTER = '[clusters.home]\nurl = "pve1"\ntoken_id = "root@pam!mcp"\ntoken_secret = "x"\n'


def load_text(folder: Path, text: str, **environ: str) -> Settings:
    file = folder / "config.toml"
    file.write_text(text)
    return load(file=file, environ={"HOME": str(folder), **environ})


def test_a_server_is_reached_at_its_usual_port(tmp_path: Path) -> None:
    (server,) = load_text(tmp_path, VAULT + f'fingerprint = "{HEX}"\n').backup_servers
    assert server.name == "vault"
    assert server.connection.endpoints == ("https://pbs1:8007",)
    assert server.connection.credentials == Token("quorate@pbs!mcp", Secret(SECRET))
    assert server.connection.trust.fingerprint == HEX
    assert server.connection.product is PBS


def test_the_secret_may_be_in_a_file_or_a_variable(tmp_path: Path) -> None:
    (tmp_path / "vault.secret").write_text(f"{SECRET}\n")
    (tmp_path / "vault.secret").chmod(0o600)
    in_file = VAULT.replace(f'"{SECRET}"', '{ file = "vault.secret" }')
    in_variable = VAULT.replace(f'"{SECRET}"', '{ env = "PBS_SECRET" }')
    for settings in (load_text(tmp_path, in_file), load_text(tmp_path, in_variable, PBS_SECRET=SECRET)):
        (server,) = settings.backup_servers
        assert server.connection.credentials == Token("quorate@pbs!mcp", Secret(SECRET))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pbs = 1\n", r"write \[pbs.NAME\] above"),
        ("[pbs.vault]\n", r"\[pbs.vault\] is empty"),
        ('[pbs."a b"]\nurl = "pbs1"\n', "must be letters"),
        ('[pbs.homelab]\nurl = "pbs1"\n', "cannot be called"),
        (CLUSTER + VAULT.replace("vault", "home"), "a cluster has that name"),
        (VAULT + "colour = 1\n", 'Unknown setting "colour"'),
        (VAULT.replace("pbs1", "http://pbs1"), "PBS speaks https only"),
        (VAULT.replace('"pbs1"', '["pbs1", "pbs2"]'), "must be one address"),
        (VAULT.replace("quorate@pbs!mcp", "quorate"), "must look like user@realm!name"),
        ('[pbs.vault]\nurl = "pbs1"\n', "lacks token_id and token_secret"),
        ('[pbs.vault]\ntoken_id = "a@pbs!b"\ntoken_secret = "x"\n', "address of the Proxmox Backup Server"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        load_text(tmp_path, text)
    assert "canary" not in str(error.value)


def test_without_certificate_checks_there_is_a_warning(tmp_path: Path) -> None:
    settings = load_text(tmp_path, VAULT + "verify = false\n")
    assert any('off for backup server "vault"' in warning for warning in settings.warnings)


def test_its_tools_are_on_only_where_a_server_is_configured(tmp_path: Path) -> None:
    assert "pbs" in chosen_toolsets(load_text(tmp_path, CLUSTER + VAULT))
    assert chosen_toolsets(load_text(tmp_path, CLUSTER)) == {DEFAULT}


def test_every_key_is_documented() -> None:
    text = (paths.DOCS / "pbs.md").read_text()
    for declared in BACKUP_SERVER.values():
        for key in declared.keys or ():
            assert f"`{key}`" in text
