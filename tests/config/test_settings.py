"""Settings are found in every spelling, and mistakes are one clear sentence without a secret in it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.config import Access, ClusterSettings, ConfigError, Settings, load
from quorate.config.clusters import CLUSTER
from quorate.config.dotenv import dotenv_value, parse_dotenv
from quorate.config.http import HTTP
from quorate.config.settings import GENERAL
from quorate.config.ssh import GUEST, INSIDE, NODES
from quorate.pve.connection import Limits, Password, Secret, Token, Trust
from tests import paths

SECRET = "c0ffee00-canary-4e1f-9d2b-000000000000"
TOKEN = Token("root@pam!mcp", Secret(SECRET))
HEX = "9a2b4107c8551ef063bd7c2894e60fd13a8b52c719e470ad065fb823dc914e67"
COLONS = ":".join(re.findall("..", HEX.upper()))
DOCUMENT = paths.DOCS / "configuration.md"
URL_STYLE = {
    "PROXMOX_URL": "https://pve1:8006",
    "PROXMOX_TOKEN_ID": "root@pam!mcp",
    "PROXMOX_TOKEN_SECRET": SECRET,
}
HOST_STYLE = {
    "PROXMOX_HOST": "pve1",
    "PROXMOX_USER": "root@pam",
    "PROXMOX_TOKEN_NAME": "mcp",
    "PROXMOX_TOKEN_VALUE": SECRET,
}
PASSWORD_STYLE = {"PROXMOX_HOST": "pve1", "PROXMOX_USER": "root@pam", "PROXMOX_PASSWORD": SECRET}


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Neither the developer's own settings nor a `.env` of this directory may decide a test."""
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def one_cluster(environ: dict[str, str], **options: object) -> ClusterSettings:
    settings = load(environ=environ, **options)  # type: ignore[arg-type]
    assert settings.problem is None
    (cluster,) = settings.clusters
    return cluster


def endpoints(**environ: str) -> tuple[str, ...]:
    token = {"PROXMOX_TOKEN_ID": "root@pam!mcp", "PROXMOX_TOKEN_SECRET": SECRET}
    return one_cluster(token | environ).connection.endpoints


def trust(**environ: str) -> Trust:
    return one_cluster(URL_STYLE | environ).connection.trust


def refusal(environ: dict[str, str] | None = None, **options: object) -> str:
    """The sentence that refuses these settings; it is one sentence and holds no secret."""
    with pytest.raises(ConfigError) as caught:
        load(environ=environ or {}, **options)  # type: ignore[arg-type]
    sentence = str(caught.value)
    assert caught.value.__cause__ is None
    assert "\n" not in sentence
    assert sentence.endswith((".", "?"))
    assert SECRET not in sentence + repr(caught.value)
    return sentence


def toml(text: str, mode: int = 0o600) -> Path:
    file = Path.cwd() / "quorate.toml"
    file.write_text(text)
    file.chmod(mode)
    return file


def dotenv(text: str, mode: int = 0o600) -> Path:
    file = Path.cwd() / ".env"
    file.write_text(text)
    file.chmod(mode)
    return file


CLUSTER_TOML = f'[clusters.home]\nurl = "pve1"\ntoken_id = "root@pam!mcp"\ntoken_secret = "{SECRET}"\n'


# --- nothing, and defaults


def test_nothing_configured_is_a_problem_and_not_an_error() -> None:
    settings = load(environ={})
    assert settings.clusters == ()
    assert settings.problem is not None
    for word in ("PROXMOX_URL", "PROXMOX_TOKEN_ID", "PROXMOX_TOKEN_SECRET", "quorate serve --demo"):
        assert word in settings.problem


def test_the_defaults_are_read_access_the_default_toolsets_and_a_file_under_the_state_directory() -> None:
    settings = load(environ={"HOME": "/home/ada"})
    assert settings.access is Access.READ
    assert settings.toolsets is None
    assert settings.audit_file == Path("/home/ada/.local/state/quorate/audit.jsonl")
    assert settings.wait_seconds == 45.0
    assert settings.warnings == ()


def test_settings_can_be_made_without_loading(empty_home: Path) -> None:
    assert Settings().audit_file == empty_home / ".local/state/quorate/audit.jsonl"


def test_the_audit_file_follows_xdg_state_home_if_that_is_absolute() -> None:
    assert load(environ={"XDG_STATE_HOME": "/state"}).audit_file == Path("/state/quorate/audit.jsonl")
    relative = load(environ={"XDG_STATE_HOME": "state", "HOME": "/home/ada"})
    assert relative.audit_file == Path("/home/ada/.local/state/quorate/audit.jsonl")


def test_each_access_level_allows_itself_and_the_lower_ones() -> None:
    allowed = {(level, other) for level in Access for other in Access if level.allows(other)}
    assert allowed == {
        (Access.READ, Access.READ),
        (Access.OPERATE, Access.READ),
        (Access.OPERATE, Access.OPERATE),
        (Access.ADMIN, Access.READ),
        (Access.ADMIN, Access.OPERATE),
        (Access.ADMIN, Access.ADMIN),
    }


def test_the_server_settings_are_read_from_variables() -> None:
    settings = load(
        environ={
            "QUORATE_ACCESS": "Operate",
            "QUORATE_TOOLSETS": "guests, storage,guests",
            "QUORATE_AUDIT_FILE": "~/audit.jsonl",
            "QUORATE_WAIT_SECONDS": "0",
            "HOME": "/home/ada",
        }
    )
    assert settings.access is Access.OPERATE
    assert settings.toolsets == ("guests", "storage")
    assert settings.audit_file == Path("/home/ada/audit.jsonl")
    assert settings.wait_seconds == 0


def test_all_toolsets_swallow_the_named_ones() -> None:
    assert load(environ={}, toolsets="guests,ALL").toolsets == ("guests", "all")


@pytest.mark.parametrize("seconds", ["soon", "-1", "nan", "inf", "1e9"])
def test_a_waiting_time_that_makes_no_sense_is_refused(seconds: str) -> None:
    assert "QUORATE_WAIT_SECONDS must be a number" in refusal({"QUORATE_WAIT_SECONDS": seconds})


def test_a_misspelt_access_level_gets_a_hint() -> None:
    assert refusal(access="opperate") == "--access must be read, operate or admin. Did you mean 'operate'?"
    assert refusal({"QUORATE_ACCESS": "zzz"}) == "QUORATE_ACCESS must be read, operate or admin."


# --- login spellings


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param(URL_STYLE, id="url, token id, token secret"),
        pytest.param(HOST_STYLE, id="host, user, token name, token value"),
        pytest.param({**HOST_STYLE, "PROXMOX_PORT": "8006"}, id="host and port"),
        pytest.param({**HOST_STYLE, "PROXMOX_USER": "root"}, id="user without realm is a pam user"),
        pytest.param({**HOST_STYLE, "PROXMOX_TOKEN_NAME": "root@pam!mcp"}, id="token name in full"),
        pytest.param({**HOST_STYLE, "PROXMOX_TOKEN_NAME": "root!mcp", "PROXMOX_USER": ""}, id="no user at all"),
        pytest.param({**URL_STYLE, "PROXMOX_TOKEN_ID": "mcp", "PROXMOX_USER": "root@pam"}, id="short token id"),
        pytest.param({**URL_STYLE, "PROXMOX_USER": "root"}, id="user that agrees with the token"),
        pytest.param({**URL_STYLE, **HOST_STYLE}, id="every alias at once, all agreeing"),
        pytest.param({**URL_STYLE, "PROXMOX_PASSWORD": "  "}, id="a blank variable is not set"),
    ],
)
def test_a_token_is_understood_in_every_spelling(environ: dict[str, str]) -> None:
    cluster = one_cluster(environ)
    assert cluster.name == "default"
    assert cluster.connection.endpoints == ("https://pve1:8006",)
    assert cluster.connection.credentials == TOKEN
    assert cluster.connection.trust == Trust()


def test_a_user_with_a_password_logs_in_by_ticket() -> None:
    assert one_cluster(PASSWORD_STYLE).connection.credentials == Password("root@pam", Secret(SECRET))


def test_a_password_keeps_its_blanks() -> None:
    credentials = one_cluster({**PASSWORD_STYLE, "PROXMOX_PASSWORD": " a b "}).connection.credentials
    assert credentials == Password("root@pam", Secret(" a b "))


def test_a_user_name_may_hold_an_at_sign_as_directory_users_do() -> None:
    credentials = one_cluster({**PASSWORD_STYLE, "PROXMOX_USER": "ada@example.com@ldap"}).connection.credentials
    assert isinstance(credentials, Password)
    assert credentials.user == "ada@example.com@ldap"


@pytest.mark.parametrize(
    ("style", "variable"),
    [
        (URL_STYLE, "PROXMOX_TOKEN_SECRET"),
        (HOST_STYLE, "PROXMOX_TOKEN_VALUE"),
        (PASSWORD_STYLE, "PROXMOX_PASSWORD"),
    ],
)
def test_a_secret_is_read_from_the_file_a_variable_names(style: dict[str, str], variable: str) -> None:
    Path("secret").write_text(f"{SECRET}\r\n")
    by_file = {**style, variable: "", f"{variable}_FILE": "secret"}
    assert one_cluster(by_file).connection == one_cluster(style).connection


def test_defaults_for_node_storage_and_bridge_are_kept() -> None:
    cluster = one_cluster(
        {
            **URL_STYLE,
            "PROXMOX_DEFAULT_NODE": "pve",
            "PROXMOX_DEFAULT_STORAGE": "local-lvm",
            "PROXMOX_DEFAULT_BRIDGE": "vmbr0",
        }
    )
    assert (cluster.default_node, cluster.default_storage, cluster.default_bridge) == (
        "pve",
        "local-lvm",
        "vmbr0",
    )


# --- address spellings


@pytest.mark.parametrize("variable", ["PROXMOX_HOST", "PROXMOX_URL", "PROXMOX_API_URL"])
@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("pve1", "https://pve1:8006"),
        ("PVE1.Example.com", "https://pve1.example.com:8006"),
        ("pve1:443", "https://pve1:443"),
        ("192.0.2.7", "https://192.0.2.7:8006"),
        ("2001:db8::7", "https://[2001:db8::7]:8006"),
        ("[2001:db8::7]", "https://[2001:db8::7]:8006"),
        ("[2001:DB8::7]:443", "https://[2001:db8::7]:443"),
        ("https://pve1", "https://pve1:8006"),
        ("HTTPS://pve1:8006/", "https://pve1:8006"),
        ("https://pve1:8006//", "https://pve1:8006"),
        ("https://pve1:8006/api2/json", "https://pve1:8006"),
        ("https://pve1:8006/api2/json/", "https://pve1:8006"),
        ("https://[2001:db8::7]:8006/api2/json", "https://[2001:db8::7]:8006"),
        ("https://pve1:8006/#v1:0:18:4:::::::", "https://pve1:8006"),
        (" pve1 ", "https://pve1:8006"),
    ],
)
def test_an_address_is_understood_in_every_spelling(variable: str, address: str, endpoint: str) -> None:
    assert endpoints(**{variable: address}) == (endpoint,)


def test_several_addresses_are_endpoints_of_one_cluster_in_their_order() -> None:
    several = endpoints(PROXMOX_HOST="pve2, pve1:8007,,https://pve2:8006/api2/json", PROXMOX_TOKEN_ID="root@pam!mcp")
    assert several == ("https://pve2:8006", "https://pve1:8007")


def test_the_port_counts_for_every_address_without_one() -> None:
    assert endpoints(PROXMOX_HOST="pve1,pve2:443", PROXMOX_PORT="443") == (
        "https://pve1:443",
        "https://pve2:443",
    )
    assert endpoints(PROXMOX_URL="https://pve1", PROXMOX_HOST="pve1", PROXMOX_PORT="443") == ("https://pve1:443",)


@pytest.mark.parametrize("url", ["http://pve1:8006", "HTTP://pve1"])
def test_plain_http_is_refused_with_the_reason(url: str) -> None:
    sentence = refusal({**URL_STYLE, "PROXMOX_URL": url})
    assert "PROXMOX_URL starts with http://" in sentence
    assert "https" in sentence


@pytest.mark.parametrize(
    "address",
    [
        "ftp://pve1",
        "pve1:port",
        "pve1:99999",
        "pve1:0",
        "https://",
        "pve 1",
        "[2001:db8::7",
        "2001:db8::zz",
        ",",
    ],
)
def test_an_address_that_cannot_be_one_is_refused(address: str) -> None:
    assert "PROXMOX_HOST" in refusal({**HOST_STYLE, "PROXMOX_HOST": address})


def test_an_address_with_a_foreign_path_is_refused() -> None:
    assert "path" in refusal({**URL_STYLE, "PROXMOX_URL": "https://pve1:8006/proxy"})


def test_a_login_inside_the_address_is_refused_and_not_repeated() -> None:
    for host in ("pve1", "pve1:8006", "pve1/api2/json"):
        assert "login" in refusal({**URL_STYLE, "PROXMOX_URL": f"https://root:{SECRET}@{host}"})


@pytest.mark.parametrize("port", ["0", "65536", "80.5", "https"])
def test_a_port_that_cannot_be_one_is_refused(port: str) -> None:
    assert "PROXMOX_PORT must be a" in refusal({**HOST_STYLE, "PROXMOX_PORT": port})


# --- trust spellings


@pytest.mark.parametrize("variable", ["PROXMOX_VERIFY", "PROXMOX_VERIFY_SSL"])
@pytest.mark.parametrize(
    ("word", "verify"),
    [(word, True) for word in ("true", "1", "yes", "on", "TRUE")]
    + [(word, False) for word in ("false", "0", "no", "off", "False")],
)
def test_verification_is_switched_by_any_usual_word(variable: str, word: str, verify: bool) -> None:
    assert trust(**{variable: word}) == Trust(verify=verify)


def test_tls_insecure_is_the_opposite_of_verify() -> None:
    assert trust(PROXMOX_TLS_INSECURE="true") == Trust(verify=False)
    assert trust(PROXMOX_TLS_INSECURE="0") == Trust()
    assert trust(PROXMOX_TLS_INSECURE="1", PROXMOX_VERIFY="no", PROXMOX_VERIFY_SSL="off") == Trust(verify=False)
    assert "PROXMOX_TLS_INSECURE must be true or false" in refusal({**URL_STYLE, "PROXMOX_TLS_INSECURE": "maybe"})


@pytest.mark.parametrize("variable", ["PROXMOX_CA_FILE", "PROXMOX_VERIFY", "PROXMOX_VERIFY_SSL"])
def test_a_ca_file_may_stand_in_its_own_variable_or_in_verify(variable: str, empty_home: Path) -> None:
    Path("ca.pem").write_text("certificate")
    assert trust(**{variable: "ca.pem"}) == Trust(ca_file=str(empty_home / "ca.pem"))
    assert trust(**{variable: "~/ca.pem", "HOME": str(empty_home)}) == Trust(ca_file=str(empty_home / "ca.pem"))
    assert trust(**{variable: "ca.pem", "PROXMOX_TLS_INSECURE": "false"}).verify


def test_a_ca_file_that_is_not_there_is_refused() -> None:
    assert "PROXMOX_CA_FILE must be the path of a CA file" in refusal({**URL_STYLE, "PROXMOX_CA_FILE": "no.pem"})
    assert "PROXMOX_VERIFY must be true, false or" in refusal({**URL_STYLE, "PROXMOX_VERIFY": "ture"})


@pytest.mark.parametrize("text", [HEX, HEX.upper(), COLONS, COLONS.lower(), f"sha256 Fingerprint={COLONS}"])
def test_a_fingerprint_is_understood_with_and_without_colons(text: str) -> None:
    assert trust(PROXMOX_FINGERPRINT=text) == Trust(fingerprint=HEX)


@pytest.mark.parametrize("text", [HEX[:-1], HEX + "0", HEX[:40], "x" * 64])
def test_a_fingerprint_of_another_shape_is_refused(text: str) -> None:
    sentence = refusal({**URL_STYLE, "PROXMOX_FINGERPRINT": text})
    assert "PROXMOX_FINGERPRINT must be a SHA-256 fingerprint" in sentence


def test_switching_verification_off_is_warned_about() -> None:
    (warning,) = load(environ={**URL_STYLE, "PROXMOX_TLS_INSECURE": "1"}).warnings
    assert "PROXMOX_TLS_INSECURE" in warning
    assert "fingerprint or CA file" in warning
    assert load(environ=URL_STYLE).warnings == ()


def test_one_fingerprint_for_several_nodes_is_warned_about() -> None:
    (warning,) = load(environ={**URL_STYLE, "PROXMOX_URL": "pve1,pve2", "PROXMOX_FINGERPRINT": HEX}).warnings
    assert "several addresses but one fingerprint" in warning


# --- contradictions


@pytest.mark.parametrize(
    ("base", "changed", "named"),
    [
        (URL_STYLE, {"PROXMOX_HOST": "pve2"}, ("PROXMOX_URL", "PROXMOX_HOST")),
        (URL_STYLE, {"PROXMOX_API_URL": "https://pve1:443"}, ("PROXMOX_URL", "PROXMOX_API_URL")),
        (URL_STYLE, {"PROXMOX_PORT": "443"}, ("PROXMOX_URL", "PROXMOX_PORT")),
        (HOST_STYLE, {"PROXMOX_HOST": "pve1:8007", "PROXMOX_PORT": "8006"}, ("PROXMOX_HOST", "PROXMOX_PORT")),
        (URL_STYLE, {"PROXMOX_TOKEN_VALUE": "other"}, ("PROXMOX_TOKEN_SECRET", "PROXMOX_TOKEN_VALUE")),
        (URL_STYLE, {"PROXMOX_TOKEN_NAME": "root@pam!x1"}, ("PROXMOX_TOKEN_ID", "PROXMOX_TOKEN_NAME")),
        (URL_STYLE, {"PROXMOX_USER": "ada@pve"}, ("PROXMOX_USER", "PROXMOX_TOKEN_ID")),
        (URL_STYLE, {"PROXMOX_PASSWORD": SECRET}, ("PROXMOX_TOKEN_ID", "PROXMOX_PASSWORD")),
        (PASSWORD_STYLE, {"PROXMOX_TOKEN_VALUE": SECRET}, ("PROXMOX_TOKEN_VALUE", "PROXMOX_PASSWORD")),
        (
            URL_STYLE,
            {"PROXMOX_VERIFY": "1", "PROXMOX_VERIFY_SSL": "0"},
            ("PROXMOX_VERIFY", "PROXMOX_VERIFY_SSL"),
        ),
        (URL_STYLE, {"PROXMOX_VERIFY": "1", "PROXMOX_TLS_INSECURE": "1"}, ("PROXMOX_TLS_INSECURE",)),
        (
            URL_STYLE,
            {"PROXMOX_VERIFY": "0", "PROXMOX_FINGERPRINT": HEX},
            ("PROXMOX_VERIFY", "PROXMOX_FINGERPRINT"),
        ),
        (URL_STYLE, {"PROXMOX_TLS_INSECURE": "1", "PROXMOX_CA_FILE": "ca.pem"}, ("PROXMOX_CA_FILE",)),
    ],
)
def test_contradictory_variables_are_named_both(
    base: dict[str, str], changed: dict[str, str], named: tuple[str, ...]
) -> None:
    Path("ca.pem").write_text("certificate")
    sentence = refusal(base | changed)
    assert "contradict each other" in sentence or "keep only one" in sentence
    for name in named:
        assert re.search(rf"\b{name}\b", sentence)


def test_a_secret_and_a_file_with_another_secret_contradict_each_other() -> None:
    Path("secret").write_text("something else")
    sentence = refusal({**URL_STYLE, "PROXMOX_TOKEN_SECRET_FILE": "secret"})
    assert "PROXMOX_TOKEN_SECRET and PROXMOX_TOKEN_SECRET_FILE contradict" in sentence
    assert "something else" not in sentence
    Path("secret").write_text(SECRET)
    assert one_cluster({**URL_STYLE, "PROXMOX_TOKEN_SECRET_FILE": "secret"}).connection.credentials == TOKEN


# --- what is missing


@pytest.mark.parametrize(
    ("style", "without", "missing"),
    [
        (URL_STYLE, ("PROXMOX_URL",), "PROXMOX_URL is missing"),
        (URL_STYLE, ("PROXMOX_TOKEN_ID",), "PROXMOX_TOKEN_ID is missing"),
        (URL_STYLE, ("PROXMOX_TOKEN_SECRET",), "PROXMOX_TOKEN_SECRET is missing"),
        (
            URL_STYLE,
            ("PROXMOX_TOKEN_ID", "PROXMOX_TOKEN_SECRET"),
            "PROXMOX_TOKEN_ID and PROXMOX_TOKEN_SECRET are missing",
        ),
        (HOST_STYLE, ("PROXMOX_TOKEN_NAME",), "PROXMOX_TOKEN_NAME is missing"),
        (HOST_STYLE, ("PROXMOX_TOKEN_VALUE",), "PROXMOX_TOKEN_VALUE is missing"),
        (HOST_STYLE, ("PROXMOX_USER",), "PROXMOX_USER is missing"),
        (PASSWORD_STYLE, ("PROXMOX_PASSWORD",), "PROXMOX_PASSWORD is missing"),
        (PASSWORD_STYLE, ("PROXMOX_USER",), "PROXMOX_USER is missing"),
    ],
)
def test_the_missing_variable_is_named(style: dict[str, str], without: tuple[str, ...], missing: str) -> None:
    assert missing in refusal({name: text for name, text in style.items() if name not in without})


def test_a_lone_setting_of_a_cluster_counts_as_half_a_cluster() -> None:
    assert "are missing" in refusal({"PROXMOX_DEFAULT_NODE": "pve"})


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("PROXMOX_TOKEN_ID", "root@pam"),
        ("PROXMOX_TOKEN_ID", "root@pam!"),
        ("PROXMOX_TOKEN_ID", "!mcp"),
        ("PROXMOX_TOKEN_ID", f"root@pam!mcp={SECRET}"),
        ("PROXMOX_USER", f"root@pam!{SECRET}"),
    ],
)
def test_a_user_or_token_of_the_wrong_shape_is_refused(variable: str, text: str) -> None:
    assert variable in refusal({**URL_STYLE, variable: text})


def test_a_token_name_of_one_letter_is_refused_with_the_rule_of_proxmox_ve() -> None:
    assert "two or more characters" in refusal({**URL_STYLE, "PROXMOX_TOKEN_ID": "root@pam!m"})


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_a_secret_file_that_is_absent_or_empty_is_refused(content: str | None) -> None:
    if content is not None:
        Path("secret").write_text(content)
    by_file = {**URL_STYLE, "PROXMOX_TOKEN_SECRET": "", "PROXMOX_TOKEN_SECRET_FILE": "secret"}
    assert "PROXMOX_TOKEN_SECRET_FILE" in refusal(by_file)


# --- precedence


def test_arguments_beat_the_environment_which_beats_toml() -> None:
    file = toml('access = "operate"\n')
    assert load(file=file, environ={}).access is Access.OPERATE
    assert load(file=file, environ={"QUORATE_ACCESS": "admin"}).access is Access.ADMIN
    assert load(file=file, environ={"QUORATE_ACCESS": "admin"}, access="read").access is Access.READ


def test_an_empty_variable_does_not_hide_the_one_in_dotenv() -> None:
    dotenv("".join(f"{name}={text}\n" for name, text in URL_STYLE.items()))
    assert one_cluster({"PROXMOX_HOST": "", "PROXMOX_TOKEN_SECRET": " "}).connection.credentials == TOKEN


@pytest.mark.parametrize("name", [name for names in {**GENERAL, **CLUSTER}.values() for name in names.variables])
def test_an_empty_variable_counts_as_not_set(name: str) -> None:
    assert load(environ={name: ""}) == load(environ={})


def test_the_config_file_is_the_given_one_else_the_named_one_else_the_usual_one(empty_home: Path) -> None:
    usual = empty_home / ".config" / "quorate" / "config.toml"
    usual.parent.mkdir(parents=True)
    usual.write_text('access = "operate"')
    assert load(environ={"HOME": str(empty_home)}).access is Access.OPERATE
    assert load(environ={"XDG_CONFIG_HOME": "/nowhere", "HOME": str(empty_home)}).access is Access.READ
    named = toml('access = "admin"')
    assert load(environ={"HOME": str(empty_home), "QUORATE_CONFIG": "quorate.toml"}).access is Access.ADMIN
    assert load(environ={"QUORATE_CONFIG": str(named)}, file=usual).access is Access.OPERATE


def test_a_named_file_that_is_not_there_is_refused() -> None:
    assert "no.toml cannot be read" in refusal(file=Path("no.toml"))
    assert "no.toml cannot be read" in refusal({"QUORATE_CONFIG": "no.toml"})
    assert "no.env cannot be read" in refusal(dotenv=Path("no.env"))


# --- .env


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("NAME=plain", "plain"),
        ("  export   NAME = spaced out  ", "spaced out"),
        ("NAME=a#b", "a#b"),
        ("NAME=a # comment", "a"),
        ("NAME=# comment", ""),
        ("NAME=", ""),
        ("NAME='a # b' # comment", "a # b"),
        (r"NAME='a\n$X'", r"a\n$X"),
        (r'NAME="a\nb \"c\" \\ \$X" # comment', 'a\nb "c" \\ $X'),
        ('NAME="it\'s"', "it's"),
        ("NAME=it's", "it's"),
        ("NAME=user@pam!name=x", "user@pam!name=x"),
    ],
)
def test_a_dotenv_line_is_read_as_a_shell_would(line: str, value: str) -> None:
    assert parse_dotenv(f"# comment\n\n{line}\r\n") == ({"NAME": value}, ())


@given(st.text(st.characters(blacklist_characters="'", blacklist_categories=["Cc", "Cs", "Zl", "Zp"])))
def test_single_quotes_keep_any_text(text: str) -> None:
    assert dotenv_value(f"'{text}' # comment") == text


@pytest.mark.parametrize("line", [f"PROXMOX_PASSWORD='{SECRET}", f'PROXMOX_PASSWORD="{SECRET}" x', "QUORATE_ACCESS"])
def test_a_broken_dotenv_line_is_named_by_its_number(line: str) -> None:
    dotenv(f"# first\n{line}\n")
    assert "Line 2 of" in refusal()


def test_broken_lines_for_other_programs_are_not_our_business() -> None:
    lines = "".join(f"{name}={text}\n" for name, text in HOST_STYLE.items())
    dotenv(f"THEIR_KEY='-----BEGIN\nabc\n-----END'\n{lines}")
    assert one_cluster({}).connection.credentials == TOKEN


def test_a_mistake_in_dotenv_names_the_file() -> None:
    dotenv("".join(f"{name}={text}\n" for name, text in {**HOST_STYLE, "PROXMOX_PORT": "many"}.items()))
    assert "PROXMOX_PORT in .env must be" in refusal()


def test_a_file_that_is_not_text_is_refused() -> None:
    Path("quorate.toml").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in refusal(file=Path("quorate.toml"))


# --- TOML


def documented_toml(about: str = "[clusters.home]") -> str:
    (block,) = (block for block in re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL) if about in block)
    return str(block)


def test_the_documented_toml_example_loads(empty_home: Path) -> None:
    Path("pve-root-ca.pem").write_text("certificate")
    Path("lab-password").write_text(f"{SECRET}\n")
    settings = load(file=toml(documented_toml()), environ={"HOME_TOKEN_SECRET": SECRET, "HOME": str(empty_home)})
    home, lab = settings.clusters
    assert (home.name, lab.name) == ("home", "lab")
    assert home.connection.endpoints == ("https://pve1.example.com:8006", "https://pve2.example.com:8006")
    assert home.connection.credentials == Token("quorate@pve!assistant", Secret(SECRET))
    assert home.connection.trust == Trust(ca_file=str(empty_home / "pve-root-ca.pem"))
    assert home.default_bridge == "vmbr0"
    assert home.ssh.node_hosts == {"pve1": "10.0.0.5", "pve2": "10.0.0.6"}
    assert home.ssh.nodes.key == empty_home / ".ssh/quorate"
    assert home.ssh.single_guests[101].user == "ubuntu"
    assert settings.command_rules.deny == ("*mkfs*", "*rm -rf /*")
    assert lab.connection.credentials == Password("root@pam", Secret(SECRET))
    assert lab.connection.trust.fingerprint == HEX
    assert lab.connection.limits == Limits(request_seconds=20)
    assert settings.access is Access.OPERATE
    assert settings.toolsets == ("guests", "storage")
    assert settings.audit_file == empty_home / "quorate/audit.jsonl"
    assert settings.warnings == ()
    assert settings.problem is None


def test_the_documented_dotenv_example_loads() -> None:
    blocks = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    dotenv(next(block for block in blocks if "export" in block))
    cluster = one_cluster({})
    assert cluster.connection.credentials == Token("quorate@pve!assistant", Secret("the-secret-shown-once"))
    assert cluster.default_node == "pve1"


def test_every_variable_and_key_is_documented() -> None:
    text = DOCUMENT.read_text()
    for options in (GENERAL, HTTP, CLUSTER, NODES, GUEST, INSIDE):
        for declared in options.values():
            for name in (*declared.variables, *(declared.keys or ())):
                assert f"`{name}`" in text


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("acces = 'read'", "Did you mean 'access'?"),
        ("[cluster.x]\nurl = 'a'", "Did you mean 'clusters'?"),
        ("[clusters.x]\nurl = 'a'\ntoken_secrt = 'b'", "Did you mean 'token_secret'?"),
        ("[clusters.x]\nzzzzz = 1", "Known settings are url, host"),
    ],
)
def test_an_unknown_key_gets_a_hint(text: str, hint: str) -> None:
    sentence = refusal(file=toml(text))
    assert sentence.startswith("Unknown setting")
    assert hint in sentence


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("access = ", "is not valid TOML"),
        ("access = 3", "must be a non-empty string"),
        ("toolsets = [1]", "list of strings"),
        ("toolsets = []", "must not be empty"),
        ("wait_seconds = true", "must be a number"),
        ("clusters = 3", r"[clusters.NAME]"),
        ("[clusters]\nurl = 'pve1'", r"[clusters.NAME]"),
        ("[clusters.'a/b']\nurl = 'pve1'", "letters, digits"),
        ("[clusters.a]", "[clusters.a] is empty"),
        (
            "[clusters.a]\nurl = 'pve1'",
            "token_id in [clusters.a] and token_secret in [clusters.a] are missing",
        ),
        (
            "[clusters.a]\nhost = 'pve1'",
            "token_name in [clusters.a] and token_value in [clusters.a] are missing",
        ),
        ("[clusters.a]\ntoken_id = 'r@pam!ab'\ntoken_secret = 'x'", "url in [clusters.a] is missing"),
        (
            CLUSTER_TOML + "password = 'x'",
            "token_id in [clusters.home] and password in [clusters.home] contradict",
        ),
        (CLUSTER_TOML + "host = 'pve2'", "url in [clusters.home] and host in [clusters.home] contradict"),
        (CLUSTER_TOML + "connections = 0.5", "connections in [clusters.home] must be a"),
        (CLUSTER_TOML + "total_seconds = 0", "total_seconds in [clusters.home] must be a"),
    ],
)
def test_a_mistake_in_the_config_file_names_its_place(text: str, words: str) -> None:
    assert words in refusal(file=toml(text))


@pytest.mark.parametrize("value", ["3", "{ file = 3 }", "{ keyring = 'x' }", "{ file = 'a', env = 'B' }", "['x']"])
def test_a_secret_in_toml_is_a_text_or_one_reference(value: str) -> None:
    text = f"[clusters.a]\nurl = 'pve1'\nuser = 'root'\npassword = {value}"
    assert 'must be a string, { file = "PATH" } or { env = "NAME" }' in refusal(file=toml(text))


def test_a_switch_in_toml_may_be_a_real_boolean() -> None:
    settings = load(file=toml(CLUSTER_TOML + "verify = false"), environ={})
    assert settings.clusters[0].connection.trust == Trust(verify=False)
    assert 'cluster "home" (verify in [clusters.home])' in settings.warnings[0]


def test_variables_and_toml_may_not_both_describe_a_cluster() -> None:
    sentence = refusal(URL_STYLE, file=toml(CLUSTER_TOML))
    assert "PROXMOX_URL describes a cluster and so does" in sentence
    assert "remove either" in sentence


def test_a_toml_file_without_clusters_goes_along_with_variables() -> None:
    settings = load(file=toml('access = "operate"'), environ=URL_STYLE)
    assert settings.access is Access.OPERATE
    assert settings.clusters[0].name == "default"


def test_a_variable_that_toml_reads_its_secret_from_describes_no_cluster() -> None:
    reference = CLUSTER_TOML.replace(f'"{SECRET}"', '{ env = "PROXMOX_TOKEN_SECRET" }')
    cluster = one_cluster({"PROXMOX_TOKEN_SECRET": SECRET}, file=toml(reference))
    assert cluster.name == "home"
    assert cluster.connection.credentials == TOKEN


# --- tolerance


def test_a_broken_cluster_can_be_tolerated_so_that_tools_are_still_listed() -> None:
    settings = load(environ={"PROXMOX_URL": "http://pve1", "QUORATE_ACCESS": "admin"}, tolerate=True)
    assert settings.clusters == ()
    assert settings.access is Access.ADMIN
    assert settings.problem is not None
    assert settings.problem in refusal({"PROXMOX_URL": "http://pve1"})


def test_a_wrong_access_level_is_never_tolerated() -> None:
    assert "QUORATE_ACCESS" in refusal({"QUORATE_ACCESS": "root"}, tolerate=True)


# --- secrets


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_plain_secret_in_a_file_that_others_can_read_is_warned_about(mode: int) -> None:
    (warning,) = load(file=toml(CLUSTER_TOML, mode), environ={}).warnings
    assert "quorate.toml contains a secret" in warning
    assert "chmod 600" in warning
    dotenv("".join(f"{name}={text}\n" for name, text in URL_STYLE.items()), mode)
    (warning,) = load(environ={}).warnings
    assert ".env contains a secret" in warning


def test_a_private_file_or_one_without_secrets_is_not_warned_about() -> None:
    assert load(file=toml(CLUSTER_TOML, 0o600), environ={}).warnings == ()
    reference = CLUSTER_TOML.replace(f'"{SECRET}"', '{ env = "MINE" }')
    assert load(file=toml(reference, 0o644), environ={"MINE": SECRET}).warnings == ()


@pytest.mark.parametrize("environ", [URL_STYLE, HOST_STYLE, PASSWORD_STYLE])
def test_no_secret_shows_in_the_text_of_any_settings(environ: dict[str, str]) -> None:
    settings = load(environ={**environ, "PROXMOX_VERIFY": "false"})
    for text in (repr(settings), str(settings), f"{settings.clusters}", *settings.warnings):
        assert SECRET not in text


@pytest.mark.parametrize("variable", ["PROXMOX_URL", "PROXMOX_PORT", "PROXMOX_USER", "PROXMOX_TOKEN_ID"])
@pytest.mark.parametrize("disguise", ["{}", "http://{}", "https://{}@pve1", "{}@pam!{}", "a b {}"])
def test_a_secret_in_the_wrong_variable_is_not_repeated(variable: str, disguise: str) -> None:
    settings = load(environ={**URL_STYLE, variable: disguise.replace("{}", SECRET)}, tolerate=True)
    assert SECRET not in (settings.problem or "")


def test_the_settings_found_on_the_way_show_no_secret_in_a_traceback() -> None:
    with pytest.raises(ConfigError) as caught:
        load(file=toml(CLUSTER_TOML + "fingerprint = 'x'"), environ={})
    shown = [repr(frame.locals["raw"]) for frame in caught.traceback if "raw" in frame.locals]
    assert any("token_secret" in text for text in shown)
    assert not any(SECRET in text for text in shown)


# --- cost


def test_importing_the_module_pulls_in_nothing_heavy() -> None:
    code = "import sys, quorate.config; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"aiohttp", "mcp", "pydantic", "tomllib", "difflib"} & set(modules)


def test_folders_for_uploads_are_read_from_both_sources_and_never_contain_everything(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('[images]\nupload_dirs = ["isos", "/srv/./templates/"]\n')
    assert load(file=file, environ={}, tolerate=True).upload_dirs == (tmp_path / "isos", Path("/srv/templates"))
    environ = {"QUORATE_IMAGES_UPLOAD_DIRS": "/srv/isos, /srv/images"}
    assert load(file=file, environ=environ, tolerate=True).upload_dirs == (Path("/srv/isos"), Path("/srv/images"))
    assert load(environ={}, tolerate=True).upload_dirs == ()
    for table in (
        'upload_dirs = ["/srv", "/"]',
        'upload_dirs = ["/srv/.."]',
        "upload_dirs = [1]",
        "upload_dir = '/srv'",
    ):
        file.write_text(f"[images]\n{table}\n")
        with pytest.raises(ConfigError, match="upload_dir"):
            load(file=file, environ={}, tolerate=True)
    file.write_text('images = "/srv"\n')
    with pytest.raises(ConfigError, match=r"\[images\]"):
        load(file=file, environ={}, tolerate=True)
