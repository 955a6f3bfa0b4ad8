"""The homelab is configured by variables or in `[homelab]`; mistakes are one clear sentence."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from quorate.app import demo_settings
from quorate.config import ConfigError, load
from quorate.config.homelab import HOMELAB_OPTIONS, PRIVATE_NETWORKS, HomelabSettings
from quorate.secret import Secret
from quorate.ssh.settings import Login
from quorate.ssh.target import SshTarget
from tests.config.test_settings import DOCUMENT
from tests.rigs.mcp_session import rig

CLUSTER = '[clusters.home]\nurl = "pve1"\ntoken_id = "root@pam!mcp"\ntoken_secret = { env = "PVE_SECRET" }\n'


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def homelab(text: str = "", **environ: str) -> HomelabSettings:
    file = Path("quorate.toml").absolute()
    file.write_text(CLUSTER + text)
    file.chmod(0o600)
    return load(file=file, environ={"PVE_SECRET": "c0ffee", "HOME": str(Path.cwd()), **environ}).homelab


def refusal(text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        homelab(text, **environ)
    return str(caught.value)


def test_without_any_setting_our_own_folders_and_the_private_networks_are_used(empty_home):
    settings = homelab()
    assert settings.ssh.nodes == Login()
    assert settings.networks == PRIVATE_NETWORKS
    assert settings.ssh.known_hosts == (empty_home / ".ssh/known_hosts", Path("/etc/ssh/ssh_known_hosts"))
    assert settings.ssh.pins == empty_home / ".local/state/quorate/known_hosts"
    assert settings.secrets_file == empty_home / ".local/state/quorate/secrets.json"
    assert settings.secrets_folder == empty_home / ".config/quorate/secrets"
    assert settings.catalogue == empty_home / ".config/quorate/services"
    assert settings.work == empty_home / ".local/state/quorate/work"
    assert settings.passphrase is None


def test_the_folders_follow_xdg(empty_home):
    settings = homelab(XDG_STATE_HOME="/var/lib", XDG_CONFIG_HOME="/etc/xdg")
    assert settings.secrets_file == Path("/var/lib/quorate/secrets.json")
    assert settings.catalogue == Path("/etc/xdg/quorate/services")
    assert settings.scripts_index == Path("/var/lib/quorate/scripts.json")


def test_the_table_says_how_hosts_are_reached(empty_home):
    Path("word").write_text("open sesame, please\n")
    Path("hosts").write_text("")
    settings = homelab(
        '[homelab]\nuser = "admin"\nkey = "~/.ssh/lab"\njump = "me@bastion:2200"\nknown_hosts = ["hosts"]\n'
        'password = { env = "LAB_PASSWORD" }\nnetworks = ["192.0.2.0/24"]\nmax_output_bytes = 2048\n'
        'secrets_file = "vault"\nsecrets_folder = "mine"\nsecrets_passphrase = { file = "word" }\n'
        'catalogue = "templates"\nwork_folder = "work"\nservices_folder = "/srv/services/"\nscripts_url = "https://mirror.example.org/pve"\n',
        LAB_PASSWORD="lab-secret",
    )
    key = empty_home / ".ssh/lab"
    assert settings.ssh.nodes == Login(
        user="admin", key=key, password=Secret("lab-secret"), jump=SshTarget("bastion", 2200, "me", key)
    )
    assert settings.networks == (ipaddress.ip_network("192.0.2.0/24"),)
    assert settings.ssh.known_hosts[0] == empty_home / "hosts"
    assert settings.ssh.max_output == 2048
    assert (settings.secrets_file, settings.secrets_folder) == (empty_home / "vault", empty_home / "mine")
    assert (settings.catalogue, settings.work) == (empty_home / "templates", empty_home / "work")
    assert settings.scripts_url == "https://mirror.example.org/pve"
    assert settings.services_folder == "/srv/services"
    assert settings.passphrase == Secret("open sesame, please")


def test_variables_are_stronger_than_the_table(empty_home):
    settings = homelab(
        '[homelab]\nuser = "admin"\nnetworks = ["192.0.2.0/24"]\nsecrets_file = "vault"\n',
        QUORATE_HOMELAB_USER="pi",
        QUORATE_HOMELAB_NETWORKS="10.1.0.0/16, fd00::/64",
        QUORATE_HOMELAB_KEY="~/id",
        QUORATE_SECRETS_PASSPHRASE="from the environment",
    )
    assert (settings.ssh.nodes.user, settings.ssh.nodes.key) == ("pi", empty_home / "id")
    assert settings.networks == (ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd00::/64"))
    assert settings.secrets_file == empty_home / "vault"
    assert settings.passphrase == Secret("from the environment")


def test_the_passphrase_may_stand_in_a_file_that_a_variable_names():
    Path("word").write_text("from a file\n")
    assert homelab(QUORATE_SECRETS_PASSPHRASE_FILE="word").passphrase == Secret("from a file")


def test_variables_of_an_env_file_never_reach_references():
    Path(".env").write_text("SSH_NAS_PASSWORD=written-there\n")
    assert "SSH_NAS_PASSWORD" not in homelab().ssh.variables()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[homelab]\nusr = "x"\n', "Did you mean 'user'?"),
        ('[homelab]\nuser = "no body"\n', "user in [homelab] must be the name of a user"),
        ('[homelab]\npassword = "canary-word"\n', "must be a reference"),
        ('[homelab]\nsecrets_passphrase = "canary-word"\n', "must be a reference to the passphrase"),
        ('[homelab]\nnetworks = ["everywhere"]\n', "must be networks such as"),
        ('[homelab]\nknown_hosts = "nowhere"\n', "does not exist"),
        ('[homelab]\nkey = "-----BEGIN OPENSSH PRIVATE KEY-----"\n', "not the key itself"),
        ('[homelab]\nsecrets_passphrase = { file = "nowhere" }\n', "cannot be read"),
    ],
)
def test_a_mistake_is_one_sentence_without_the_secret(text, message):
    error = refusal(text)
    assert message in error
    assert "canary" not in error


def test_the_homelab_must_be_a_table():
    Path("quorate.toml").write_text("homelab = 1\n")
    with pytest.raises(ConfigError, match=r"write \[homelab\] above"):
        load(file=Path("quorate.toml").absolute(), environ={"HOME": str(Path.cwd())})


def test_every_variable_and_key_is_documented():
    text = DOCUMENT.read_text()
    for declared in HOMELAB_OPTIONS.values():
        for name in (*declared.variables, *(declared.keys or ())):
            assert f"`{name}`" in text


def test_no_cluster_can_be_called_homelab():
    assert 'A cluster cannot be called "homelab"' in refusal('[clusters.homelab]\nurl = "pve2"\n')


def test_a_rule_may_be_about_the_homelab_as_about_a_cluster():
    homelab('[[rules]]\ndeny = "destroy"\nclusters = ["homelab"]\n')
    assert "which does not exist" in refusal('[[rules]]\ndeny = "destroy"\nclusters = ["homelap"]\n')


@pytest.mark.anyio
async def test_the_demo_reaches_nobody_but_this_machine(tmp_path):
    settings = load(environ={"HOME": str(tmp_path), "QUORATE_HOMELAB_JUMP": "bastion.example.com"}, tolerate=True)
    async with demo_settings(settings) as demo:
        more = {"homelab": demo.homelab}
        async with rig(tmp_path, toolsets=("homelab",), more=more) as quorate:
            for address in ("192.0.2.7", "nas.example.com"):
                await quorate.facts("host_register", host="away", address=address, verify=False)
                facts = await quorate.facts("host_verify", host="away")
                assert facts["verified"] is False
                assert "is not allowed" in facts["why"]
                await quorate.facts("host_remove", host="away")
            assert all(network.is_loopback for network in demo.homelab.networks)
