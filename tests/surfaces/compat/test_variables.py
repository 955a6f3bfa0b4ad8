"""The variables and files that other servers read, as they are: nothing has to be renamed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quorate.config import ClusterSettings, ConfigError, load
from quorate.pve.connection import Password, Secret, Token
from quorate.secret import Secret as Kept
from tests.rigs.compat_session import surface

SECRET = "c0ffee00-canary-4e1f-9d2b-000000000000"
BRYNNJOCELYN = {"PROXMOX_HOST": "pve1", "PROXMOX_USERNAME": "automation", "PROXMOX_REALM": "pve"}
TOKEN = {"PROXMOX_TOKEN_ID": "mcp", "PROXMOX_TOKEN_SECRET": SECRET}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path))
    return here


def cluster(surface: str = "native", **environ: str) -> ClusterSettings:
    (settings,) = load(environ=environ, surface=surface).clusters
    return settings


def refusal(surface: str = "native", **environ: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load(environ=environ, surface=surface)
    assert SECRET not in str(refused.value)
    return str(refused.value)


# -- variables ---------------------------------------------------------------------------------------------------------


def test_brynnjocelyn_has_a_variable_each_for_user_realm_and_token() -> None:
    home = cluster(**BRYNNJOCELYN, **TOKEN, PROXMOX_VERIFY_SSL="false", PROXMOX_TIMEOUT="90000")
    assert home.connection.credentials == Token("automation@pve!mcp", Secret(SECRET))
    assert home.connection.endpoints == ("https://pve1:8006",)
    assert not home.connection.trust.verify
    assert home.connection.limits.request_seconds == 90
    assert home.connection.limits.total_seconds >= 90


def test_brynnjocelyn_uses_the_realm_pam_by_default() -> None:
    home = cluster(PROXMOX_HOST="pve1", PROXMOX_USERNAME="root", PROXMOX_PASSWORD=SECRET)
    assert home.connection.credentials == Password("root@pam", Secret(SECRET))
    home = cluster(**BRYNNJOCELYN, PROXMOX_PASSWORD=SECRET)
    assert home.connection.credentials == Password("automation@pve", Secret(SECRET))


@pytest.mark.parametrize("prefix", ["", "PVEAPIToken="])
def test_washyu_has_token_and_secret_in_one(prefix: str) -> None:
    home = cluster(PROXMOX_HOST="pve1", PROXMOX_API_TOKEN=f"{prefix}root@pam!lab={SECRET}", PROXMOX_VERIFY_SSL="false")
    assert home.connection.credentials == Token("root@pam!lab", Secret(SECRET))
    assert not home.connection.trust.verify


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        (
            {"PROXMOX_HOST": "pve1", "PROXMOX_API_TOKEN": "root@pam!lab"},
            ["PROXMOX_API_TOKEN", "user@realm!name=secret"],
        ),
        (
            {"PROXMOX_HOST": "pve1", "PROXMOX_API_TOKEN": f"root@pam!lab={SECRET}", "PROXMOX_TOKEN_SECRET": "other"},
            ["PROXMOX_TOKEN_SECRET and PROXMOX_API_TOKEN contradict"],
        ),
        (
            {"PROXMOX_HOST": "pve1", "PROXMOX_API_TOKEN": f"root@pam!lab={SECRET}", "PROXMOX_PASSWORD": "x"},
            ["PROXMOX_API_TOKEN and PROXMOX_PASSWORD contradict"],
        ),
        (
            {**BRYNNJOCELYN, **TOKEN, "PROXMOX_USERNAME": "automation@pam"},
            ["PROXMOX_USERNAME and PROXMOX_REALM contradict"],
        ),
        ({**BRYNNJOCELYN, **TOKEN, "PROXMOX_USER": "root@pve"}, ["PROXMOX_USER", "PROXMOX_USERNAME"]),
        ({**BRYNNJOCELYN, **TOKEN, "PROXMOX_TIMEOUT": "soon"}, ["PROXMOX_TIMEOUT must be a number"]),
        ({"PROXMOX_HOST": "pve1", "PROXMOX_USERNAME": "root"}, ["PROXMOX_PASSWORD is missing"]),
        ({"PROXMOX_USERNAME": "root", "PROXMOX_PASSWORD": "x"}, ["PROXMOX_HOST is missing"]),
        ({"PROXMOX_API_TOKEN": f"root@pam!lab={SECRET}"}, ["PROXMOX_HOST is missing"]),
        ({"PROXMOX_HOST": "pve1", "PROXMOX_TOKEN_VALUE": SECRET}, ["PROXMOX_TOKEN_NAME is missing"]),
    ],
)
def test_contradictions_are_reported_with_the_names_that_were_used(environ: dict[str, str], words: list[str]) -> None:
    sentence = refusal(**environ)
    for word in words:
        assert word in sentence


@pytest.mark.anyio
async def test_bsahane_reads_the_password_of_new_containers_from_its_environment(tmp_path: Path) -> None:
    environ = {"PROXMOX_DEFAULT_LXC_PASSWORD": SECRET}
    assert load(environ=environ, tolerate=True).container_password == Kept(SECRET)
    async with surface(tmp_path, "bsahane", settings={"container_password": Kept(SECRET)}) as quorate:
        template = "debian-13-standard_13.1-2_amd64.tar.zst"
        arguments = {"vmid": 411, "hostname": "ct01", "ostemplate": template, "confirm": True}
        answer = await quorate.facts("proxmox-create-lxc", **arguments)
        assert "password" not in json.dumps(answer.get("warnings", [])), "somebody can log in"
        (entry,) = [line for line in quorate.audit() if line["tool"] == "container_create"]
        assert "password" in entry["arguments"]
        assert SECRET not in json.dumps(answer) + quorate.audit_file.read_text()
    (tmp_path / "without").mkdir()
    async with surface(tmp_path / "without", "bsahane") as quorate:
        assert "password" in json.dumps((await quorate.facts("proxmox-create-lxc", **arguments))["warnings"])


# -- files -------------------------------------------------------------------------------------------------------------


CONFIG = {
    "host": "pve1", "port": 443, "username": "automation", "realm": "pve", "tokenId": "mcp", "tokenSecret": SECRET,
    "verifySsl": False, "timeout": 120000,
}  # fmt: skip


def test_brynnjocelyns_own_file_is_read_as_it_is(folder: Path) -> None:
    (folder / ".proxmox-mcp.json").write_text(json.dumps(CONFIG))
    home = cluster("brynnjocelyn")
    assert home.connection.credentials == Token("automation@pve!mcp", Secret(SECRET))
    assert home.connection.endpoints == ("https://pve1:443",)
    assert home.connection.limits.request_seconds == 120
    notes = load(environ={}, surface="brynnjocelyn").notes
    assert any(".proxmox-mcp.json" in note and "tokenId" in note for note in notes)
    assert load(environ={}, tolerate=True).clusters == (), "only where its tools are served"


@pytest.mark.parametrize("name", [".prod.json", ".prod-proxmox-mcp.json"])
def test_its_instances_have_files_of_their_own_by_code_and_by_documentation(folder: Path, name: str) -> None:
    (folder / ".proxmox-mcp.json").write_text(json.dumps({**CONFIG, "host": "other"}))
    (folder / name).write_text(json.dumps(CONFIG))
    assert cluster("brynnjocelyn", MCP_SERVER_NAME="prod").connection.endpoints == ("https://pve1:443",)
    assert cluster("brynnjocelyn").connection.endpoints == ("https://other:443",)
    assert cluster("brynnjocelyn", MCP_SERVER_NAME="../../etc/x").connection.endpoints == ("https://other:443",)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tokenSecret": None}, "tokenSecret in .proxmox-mcp.json is missing"),
        ({"host": ""}, "host in .proxmox-mcp.json is missing"),
        ({"password": "x"}, "tokenId in .proxmox-mcp.json and password in .proxmox-mcp.json contradict"),
        ({"username": "root@pam"}, "username in .proxmox-mcp.json and realm in .proxmox-mcp.json contradict"),
    ],
)
def test_mistakes_in_its_file_name_its_own_keys(folder: Path, changed: dict[str, object], words: str) -> None:
    (folder / ".proxmox-mcp.json").write_text(json.dumps({**CONFIG, **changed}))
    assert words in refusal("brynnjocelyn")


def test_its_file_never_completes_a_connection_of_the_environment(folder: Path) -> None:
    (folder / ".proxmox-mcp.json").write_text(json.dumps({"host": "evil.example"}))
    home = cluster("brynnjocelyn", **BRYNNJOCELYN, **TOKEN)
    assert home.connection.endpoints == ("https://pve1:8006",)
    told = load(environ={**BRYNNJOCELYN, **TOKEN}, surface="brynnjocelyn").notes
    assert any("is ignored" in note for note in told)


@pytest.mark.parametrize("text", ["{", "[]", '"x"', "[" * 5000])
def test_a_file_without_a_json_object_is_ignored_with_a_note(folder: Path, text: str) -> None:
    (folder / ".proxmox-mcp.json").write_text(text)
    loaded = load(environ={}, surface="brynnjocelyn")
    assert loaded.clusters == ()
    assert any(".proxmox-mcp.json is ignored" in note for note in loaded.notes)


def test_gilby125_has_its_file_above_its_folder(folder: Path) -> None:
    (folder.parent / ".env").write_text(
        f"PROXMOX_HOST=pve1\nPROXMOX_USER=root@pam\nPROXMOX_TOKEN_NAME=mcp-server\nPROXMOX_TOKEN_VALUE={SECRET}\n"
    )
    assert cluster("gilby125").connection.credentials == Token("root@pam!mcp-server", Secret(SECRET))
    assert load(environ={}, tolerate=True).clusters == ()
