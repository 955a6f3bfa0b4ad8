"""What new guests get by default: `[defaults]` and its variables."""

from pathlib import Path

import pytest

from quorate.config import ConfigError, load
from quorate.config.clusters import GuestDefaults

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJkx9V0Zb1uH3vJQ0xq4Hq9l5mS1lq2oM3nU6c7kq0aZ ada@laptop"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def toml(home: Path, text: str) -> Path:
    file = home / "quorate.toml"
    file.write_text(text)
    return file


def test_nothing_is_chosen_unless_the_operator_says_so() -> None:
    assert load(environ={}).guest_defaults == GuestDefaults()


def test_keys_are_read_from_the_file_or_from_files_that_it_names(home: Path) -> None:
    (home / "ada.pub").write_text(f"# mine\n{KEY}\n")
    for line in (f'ssh_keys = "{KEY}"', 'ssh_keys = ["~/ada.pub"]', 'ssh_keys = "ada.pub"'):
        settings = load(environ={"HOME": str(home)}, file=toml(home, f'[defaults]\nuser = "ada"\n{line}\n'))
        assert (settings.guest_defaults.user, settings.guest_defaults.ssh_keys) == ("ada", (KEY,))


def test_a_variable_takes_precedence_over_the_file(home: Path) -> None:
    file = toml(home, '[defaults]\ntags = ["a"]\nbridge = "vmbr1"\n')
    defaults = load(environ={"QUORATE_DEFAULT_TAGS": "b,c"}, file=file).guest_defaults
    assert (defaults.tags, defaults.bridge) == (("b", "c"), "vmbr1")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('ssh_keys = "none.pub"', "cannot be read"),
        ('ssh_keys = "private"', "must be public keys"),
        ('dns = "router"', "must be IP addresses"),
        ('sshkeys = "x"', "ssh_keys"),
    ],
)
def test_a_mistake_is_refused_by_name(home: Path, line: str, why: str) -> None:
    (home / "private").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    with pytest.raises(ConfigError, match=why) as caught:
        load(environ={}, file=toml(home, f"[defaults]\n{line}\n"))
    assert "BEGIN" not in str(caught.value)
