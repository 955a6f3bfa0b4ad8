"""SSH to nodes and guests is configured by variables or in TOML; mistakes are one clear sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.config import ConfigError, load
from quorate.secret import Secret
from quorate.ssh.settings import SshAccess, SshSettings
from quorate.ssh.target import SshTarget, split_port

CLUSTER = {
    "PROXMOX_URL": "https://pve1:8006",
    "PROXMOX_TOKEN_ID": "root@pam!mcp",
    "PROXMOX_TOKEN_SECRET": "c0ffee00-canary-4e1f-9d2b-000000000000",
}
HOME_CLUSTER = '[clusters.home]\nurl = "pve1"\ntoken_id = "root@pam!mcp"\ntoken_secret = { env = "PVE_SECRET" }\n'
ENVIRON = {"PVE_SECRET": "c0ffee00-canary"}


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def by_variables(**environ: str) -> SshSettings:
    return load(environ=CLUSTER | {"HOME": str(Path.cwd())} | environ).clusters[0].ssh


def by_toml(text: str, **environ: str) -> SshSettings:
    file = Path("quorate.toml")
    file.write_text(HOME_CLUSTER + text)
    file.chmod(0o600)
    environ = ENVIRON | {"HOME": str(Path.cwd())} | environ
    return load(file=file.absolute(), environ=environ).clusters[0].ssh


def refusal(text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        by_toml(text, **environ)
    return str(caught.value)


def test_without_any_setting_root_logs_in_with_the_usual_keys(empty_home):
    settings = by_variables()
    access = SshAccess(settings)
    assert access.node_at("pve1") == SshTarget("pve1", 22, "root")
    assert access.configured_node("pve1") is None
    assert access.guest(101) is None
    assert settings.known_hosts == (empty_home / ".ssh/known_hosts", Path("/etc/ssh/ssh_known_hosts"))
    assert settings.pins == empty_home / ".local/state/quorate/known_hosts"
    assert settings.max_output == 1024 * 1024


def test_the_variables_describe_how_nodes_are_reached(empty_home):
    settings = by_variables(
        PROXMOX_SSH_HOST="10.0.0.5",
        PROXMOX_SSH_PORT="2222",
        PROXMOX_SSH_USER="admin",
        PROXMOX_SSH_KEY="~/.ssh/quorate",
        PROXMOX_SSH_MAX_OUTPUT_BYTES="65536",
        PROXMOX_SSH_JUMP="me@bastion:2200,second",
    )
    access = SshAccess(settings)
    key = empty_home / ".ssh/quorate"
    assert access.single_host == "10.0.0.5"
    first = SshTarget("bastion", 2200, "me", key)
    assert access.node_at("10.0.0.5") == SshTarget(
        "10.0.0.5", 2222, "admin", key, jump=SshTarget("second", 22, "admin", key, jump=first)
    )
    assert settings.max_output == 65536


def test_the_variables_of_guests_are_read_when_they_are_used():
    environ = CLUSTER | {"PROXMOX_SSH_USER": "root", "PROXMOX_VM_SSH_USER": "ubuntu", "PROXMOX_VM_SSH_KEY": "/keys/vm"}
    access = SshAccess(load(environ=environ).clusters[0].ssh)
    assert access.guest(101) is None
    assert access.has_login_for_guests()
    assert access.guest(101, "192.0.2.7") == SshTarget("192.0.2.7", 22, "ubuntu", Path("/keys/vm"))
    environ |= {"PROXMOX_VM_101_SSH_HOST": "10.0.0.31:2222", "PROXMOX_VM_101_SSH_USER": "debian"}
    assert access.guest(101) == SshTarget("10.0.0.31", 2222, "debian", Path("/keys/vm"))
    environ["PROXMOX_VM_101_SSH_KEY"] = "~/own"
    assert access.guest_login(101).key == Path("~/own").expanduser()
    assert access.guest(102) is None


def test_with_several_clusters_a_variable_does_not_name_a_guest():
    second = HOME_CLUSTER.replace("clusters.home", "clusters.second")
    settings = by_toml(second, PROXMOX_VM_101_SSH_HOST="10.0.0.31")
    assert SshAccess(settings).guest(101) is None


def test_a_guest_without_a_login_of_its_own_uses_user_and_key_of_the_nodes_but_never_their_password():
    text = '[clusters.home.ssh]\nuser = "admin"\nkey = "/k"\npassword = { env = "PW" }\nguests.101.host = "10.0.0.31"\n'
    access = SshAccess(by_toml(text, PW="node-password"))
    assert access.node_at("pve1").password == Secret("node-password")
    assert access.guest(101) == SshTarget("10.0.0.31", 22, "admin", Path("/k"))
    assert access.secrets() == ["node-password"]


def test_settings_of_a_cluster_override_general_settings(empty_home):
    (empty_home / "hosts").write_text("")
    settings = by_toml(
        """
[ssh]
user = "all"
port = 22
known_hosts = "hosts"
[ssh.guests]
user = "guest"
[clusters.home.ssh]
user = "own"
nodes = { pve1 = "10.0.0.5", pve2 = "[fd00::2]:2222" }
[clusters.home.ssh.guests]
port = 2022
[clusters.home.ssh.guests.101]
host = "10.0.0.31"
user = "ubuntu"
key = "keys/101"
jump = { host = "pve1", user = "root", port = 2200, key = "keys/jump" }
""",
        PROXMOX_SSH_USER="variable",
        PROXMOX_SSH_PORT="2222",
    )
    access = SshAccess(settings)
    assert access.configured_node("pve1") == SshTarget("10.0.0.5", 2222, "own")
    assert access.configured_node("pve2") == SshTarget("fd00::2", 2222, "own")
    assert access.configured_node("pve3") is None
    jump = SshTarget("pve1", 2200, "root", empty_home / "keys/jump")
    assert access.guest(101) == SshTarget("10.0.0.31", 2022, "ubuntu", empty_home / "keys/101", jump=jump)
    assert access.guest_login(102).user == "guest"
    assert settings.known_hosts[0] == empty_home / "hosts"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[ssh]\nusr = 'x'", "Unknown setting \"usr\" in [ssh]. Did you mean 'user'?"),
        ("[clusters.home.ssh]\nnode = {}", "Unknown setting \"node\" in [clusters.home.ssh]. Did you mean 'nodes'?"),
        ("[ssh.guests]\nhosts = 'x'", 'Unknown setting "hosts" in [ssh.guests].'),
        ("[ssh.guests.101]\nhst = 'x'", "in [ssh.guests.101]. Did you mean 'host'?"),
        ("[ssh]\nguests = 5", "[ssh] must be a table, and so must the guests in it."),
        ("[ssh.guests]\n101 = 5", "[ssh.guests.101] must be a table"),
        ("[ssh]\nport = 0", "port in [ssh] must be a number from 1 to 65535."),
        ("[ssh]\nuser = 'a b'", "must be the name of a user"),
        ("[ssh]\nuser = '-oProxyCommand=x'", "must be the name of a user"),
        ("[ssh]\nhost = '-oProxyCommand=x'", "must be a host name or an IP address"),
        ("[ssh]\nhost = 'a:99999'", "must be a host name or an IP address"),
        ("[ssh]\nnodes = ['a']", "must map nodes to addresses"),
        ("[ssh]\nnodes = { pve1 = 'a b' }", "must be a host name or an IP address"),
        ("[ssh]\nkey = '-----BEGIN OPENSSH PRIVATE KEY-----'", "must be the path of a private key, not the key itself"),
        ("[ssh]\npassword = 'plain'", 'must be a reference to the secret, { file = "PATH" } or { env = "NAME" }'),
        ("[ssh]\npassword = { env = 'NOPE' }", "refers to the variable NOPE, which is not set"),
        ("[ssh]\nknown_hosts = 'nope'", "must be files with host keys, but "),
        ("[ssh]\njump = 'a b@host'", "must look like user@host"),
        ("[ssh]\njump = { user = 'x' }", "must name the jump host"),
        ("[ssh]\nmax_output_bytes = 5", "must be a number from 1024"),
        ("inside = 5", 'Unknown setting "inside"'),
        ("[inside]\nalow = []", "Did you mean 'allow'?"),
        ("[inside]\nallow = 'ls *'", "must be a list of patterns"),
        ("[inside]\ndeny = ['']", "must be a list of patterns"),
    ],
)
def test_a_mistake_is_one_clear_sentence(text, words):
    sentence = refusal(text)
    assert words in sentence
    assert "\n" not in sentence
    assert "plain" not in sentence.replace("plaintext", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host", ("host", None)),
        ("host:22", ("host", 22)),
        ("10.0.0.5:2222", ("10.0.0.5", 2222)),
        ("fd00::2", ("fd00::2", None)),
        ("[fd00::2]", ("fd00::2", None)),
        ("[fd00::2]:2222", ("fd00::2", 2222)),
    ],
)
def test_an_address_may_name_its_port(text, expected):
    assert split_port(text) == expected


def test_the_patterns_for_commands_are_read():
    file = Path("quorate.toml")
    file.write_text(HOME_CLUSTER + '[inside]\nallow = ["systemctl status *", "uptime"]\ndeny = ["*,*"]\n')
    rules = load(file=file.absolute(), environ=ENVIRON).command_rules
    assert (rules.allow, rules.deny) == (("systemctl status *", "uptime"), ("*,*",))
