"""A `.env` in the working directory may have come with a cloned repository: it describes a connection or nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quorate.config import Access, ConfigError, Settings, load
from quorate.config.clusters import CLUSTER, GuestDefaults
from quorate.config.homelab import HOMELAB_OPTIONS
from quorate.config.http import HTTP
from quorate.config.images import IMAGES
from quorate.config.settings import GENERAL, OPT_INS
from quorate.config.sources import options_of
from quorate.config.ssh import GUESTS, NODES
from quorate.problems import NotConfigured
from quorate.pve.connection import Secret, Token, Trust
from quorate.ssh.settings import SshAccess
from tests.rigs.cli import quorate

SECRET = "c0ffee00-canary-4e1f-9d2b-000000000000"
THEIRS = {
    "PROXMOX_URL": "https://evil.example:8006",
    "PROXMOX_TOKEN_ID": "root@pam!theirs",
    "PROXMOX_TOKEN_SECRET": "their-secret",
}
MINE = {"PROXMOX_URL": "https://pve1:8006", "PROXMOX_TOKEN_ID": "root@pam!mine", "PROXMOX_TOKEN_SECRET": SECRET}
MINE_TOML = f'[clusters.home]\nurl = "pve1"\ntoken_id = "root@pam!mine"\ntoken_secret = "{SECRET}"\n'
EVERY_OTHER = sorted(
    {
        name
        for options in (GENERAL, HTTP, NODES, GUESTS, HOMELAB_OPTIONS, IMAGES, options_of(GuestDefaults))
        for declared in options.values()
        for name in declared.variables
    }
    | {*OPT_INS, "PROXMOX_VM_101_SSH_HOST", "PROXMOX_CA_FILE"}
    | {"PROXMOX_TOKEN_SECRET_FILE", "PROXMOX_PASSWORD_FILE", "HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "PATH"}
    | {"HTTPS_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "SSH_AUTH_SOCK", "HOMELAB_PASSWORD", "LD_PRELOAD"}
)
VALUES = ("admin", "none", "1", "true", "all", "washyu", "/tmp", "127.0.0.1:1", "/etc/passwd", "postgresql://evil/x")


@pytest.fixture(autouse=True)
def cloned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def write_dotenv(variables: dict[str, str]) -> Path:
    file = Path(".env")
    file.write_text("".join(f"{name}='{text}'\n" for name, text in variables.items()))
    file.chmod(0o600)
    return file


def toml(text: str) -> Path:
    file = Path("quorate.toml").absolute()
    file.write_text(text)
    file.chmod(0o600)
    return file


def without_report(read: Settings) -> Settings:
    return replace(read, notes=(), clusters=(), problem=None)


# -- what it may say


def test_a_complete_connection_is_used_and_its_names_are_shown() -> None:
    write_dotenv({**THEIRS, "PROXMOX_DEFAULT_NODE": "pve7", "PROXMOX_TLS_INSECURE": "true"})
    read = load(environ={})
    (cluster,) = read.clusters
    assert cluster.connection.endpoints == ("https://evil.example:8006",)
    assert cluster.connection.credentials == Token("root@pam!theirs", Secret("their-secret"))
    assert cluster.default_node == "pve7"
    assert cluster.connection.trust == Trust(verify=False), "it risks nothing but its own secret"
    (note,) = read.notes
    for name in ("PROXMOX_URL", "PROXMOX_TOKEN_ID", "PROXMOX_TOKEN_SECRET", "PROXMOX_DEFAULT_NODE"):
        assert name in note
    assert "their-secret" not in note
    assert "evil" not in note


@pytest.mark.parametrize("name", EVERY_OTHER)
@pytest.mark.parametrize("connection", [{}, THEIRS], ids=["alone", "with a connection"])
def test_no_other_variable_has_any_effect(name: str, connection: dict[str, str]) -> None:
    plain = without_report(load(environ={}))
    for value in VALUES:
        write_dotenv({**connection, name: value})
        read = load(environ={})
        assert without_report(read) == plain, value
        assert read.homelab.ssh.variables() == {}
        assert len(read.clusters) == bool(connection)
        if name.startswith(("PROXMOX_", "QUORATE_")):
            assert name in read.notes[-1]
            assert "ignored" in read.notes[-1]
            assert value == "1" or value not in read.notes[-1].replace(str(Path.cwd()), "")


@pytest.mark.thorough
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(EVERY_OTHER) | st.from_regex(r"(PROXMOX|QUORATE)_[A-Z_]{1,12}", fullmatch=True),
        st.sampled_from(VALUES)
        | st.text(st.characters(codec="ascii", min_codepoint=32, exclude_characters="'"), max_size=20),
        max_size=8,
    )
)
def test_whatever_it_holds_only_the_connection_changes(variables: dict[str, str]) -> None:
    Path(".env").unlink(missing_ok=True)
    plain = without_report(load(environ={}))
    connection = {name for names in CLUSTER.values() for name in names.variables}
    write_dotenv({**{name: text for name, text in variables.items() if name not in connection}, **THEIRS})
    read = load(environ={})
    assert without_report(read) == plain
    (cluster,) = read.clusters
    assert cluster.connection.credentials == Token("root@pam!theirs", Secret("their-secret"))


def test_it_names_no_files() -> None:
    secret = Path("secret").absolute()
    secret.write_text(SECRET)
    for name in ("PROXMOX_TOKEN_SECRET_FILE", "PROXMOX_TOKEN_VALUE_FILE"):
        write_dotenv({"PROXMOX_URL": "evil.example", "PROXMOX_TOKEN_ID": "a@pam!theirs", name: str(secret)})
        with pytest.raises(ConfigError, match=rf"PROXMOX_TOKEN_SECRET in \.env is missing.*{name}"):
            load(environ={})
    for name in ("PROXMOX_CA_FILE", "PROXMOX_VERIFY", "PROXMOX_VERIFY_SSL"):
        write_dotenv({**THEIRS, name: str(secret)})
        read = load(environ={})
        assert read.clusters[0].connection.trust == Trust()
        assert name in read.notes[1]


# -- whole or not at all


@pytest.mark.parametrize("name", [*MINE, "PROXMOX_FINGERPRINT", "PROXMOX_PORT", "PROXMOX_PASSWORD", "PROXMOX_VERIFY"])
def test_a_connection_is_never_put_together_from_two_places(name: str) -> None:
    """Least of all the environment's token with the file's host."""
    write_dotenv(THEIRS)
    read = load(environ={name: MINE.get(name, "1")}, tolerate=True)
    assert read.clusters == ()
    (note,) = read.notes
    assert f"{name} is set in the environment" in note


def test_a_token_of_the_environment_never_goes_to_a_host_of_the_file() -> None:
    write_dotenv({"PROXMOX_URL": "https://evil.example", "PROXMOX_VERIFY": "false", "PROXMOX_PORT": "443"})
    (cluster,) = load(environ=MINE).clusters
    assert cluster.connection.endpoints == ("https://pve1:8006",)
    assert cluster.connection.trust == Trust()


def test_a_default_of_the_environment_goes_with_a_connection_of_the_file() -> None:
    write_dotenv({**THEIRS, "PROXMOX_DEFAULT_NODE": "pve7"})
    (cluster,) = load(environ={"PROXMOX_DEFAULT_NODE": "pve1"}).clusters
    assert cluster.default_node == "pve1"


def test_it_is_ignored_where_a_toml_file_defines_the_cluster() -> None:
    write_dotenv({**THEIRS, "QUORATE_ACCESS": "admin"})
    file = toml(MINE_TOML)
    for read in (load(file=file, environ={}), load(environ={"QUORATE_CONFIG": str(file)})):
        assert [cluster.name for cluster in read.clusters] == ["home"]
        assert read.access is Access.READ
        (note,) = read.notes
        assert ".env is ignored (PROXMOX_URL, PROXMOX_TOKEN_ID, PROXMOX_TOKEN_SECRET, QUORATE_ACCESS)" in note
        assert note.endswith(f"{file} defines the cluster.")


def test_a_reference_in_the_toml_file_does_not_lead_to_it() -> None:
    write_dotenv({"PVE_TOKEN": "their-secret"})
    with pytest.raises(ConfigError, match="refers to the variable PVE_TOKEN, which is not set"):
        load(file=toml(MINE_TOML.replace(f'"{SECRET}"', '{ env = "PVE_TOKEN" }')), environ={})


def test_its_cluster_cannot_tell_where_the_operators_ssh_keys_are_used() -> None:
    write_dotenv({**THEIRS, "PROXMOX_SSH_NETWORKS": "0.0.0.0/0"})
    (cluster,) = load(environ={}).clusters
    with pytest.raises(NotConfigured, match=r"\.env file in the working directory describes"):
        SshAccess(cluster.ssh).require_allowed("10.0.0.5")
    (cluster,) = load(environ={"PROXMOX_SSH_NETWORKS": "10.0.0.0/24"}).clusters
    SshAccess(cluster.ssh).require_allowed("10.0.0.5")
    with pytest.raises(NotConfigured):
        SshAccess(cluster.ssh).require_allowed("10.9.0.5")


# -- the file itself


def refused_file() -> str:
    read = load(environ={})
    assert read.clusters == ()
    (note,) = read.notes
    return note


def test_a_link_is_not_followed() -> None:
    write_dotenv(THEIRS).rename("elsewhere")
    Path(".env").symlink_to("elsewhere")
    assert "is a symbolic link" in refused_file()


def test_a_link_that_leads_nowhere_is_ignored() -> None:
    Path(".env").symlink_to("nowhere")
    assert "is a symbolic link" in refused_file()


def test_a_pipe_that_nobody_fills_does_not_keep_the_server_from_starting() -> None:
    os.mkfifo(".env")
    assert "is not a plain file" in refused_file()


def test_an_endless_file_is_ignored() -> None:
    Path(".env").write_text("PROXMOX_URL=x\n" + "#" * 70_000)
    assert "is larger than 64 KiB" in refused_file()


def test_a_folder_of_that_name_is_none_of_our_business() -> None:
    Path(".env").mkdir()
    assert load(environ={}).notes == ()


def test_a_broken_file_harms_nobody_who_does_not_need_it() -> None:
    Path(".env").write_bytes(b"PROXMOX_URL=\xff\n")
    assert load(file=toml(MINE_TOML), environ={}).clusters
    Path(".env").write_text("PROXMOX_URL='\n")
    assert load(file=toml(MINE_TOML), environ={}).clusters


def test_the_names_that_are_shown_are_bounded() -> None:
    write_dotenv({f"PROXMOX_{'X' * 500}{number}": "1" for number in range(50)})
    assert len(refused_file()) < 4096


# -- every command


@pytest.mark.parametrize(
    "arguments", [["serve"], ["call", "guest_list"], ["doctor"]], ids=lambda arguments: arguments[0]
)
def test_each_command_says_at_its_start_what_was_ignored(cloned: Path, arguments: list[str]) -> None:
    write_dotenv({"QUORATE_ACCESS": "admin", "QUORATE_APPROVAL": "none", "QUORATE_AUDIT_FILE": "/dev/null"})
    environ = {"HOME": str(cloned), "PATH": os.environ["PATH"]}
    done = quorate(*arguments, environ=environ, cwd=cloned)
    said = done.stdout + done.stderr
    assert done.returncode in (1, 2)
    assert "QUORATE_ACCESS, QUORATE_APPROVAL, QUORATE_AUDIT_FILE" in said
    assert "No Proxmox VE cluster is configured" in said
