"""`[watch]` and its channels."""

from __future__ import annotations

import datetime
import re

import pytest

from quorate.config import ConfigError, load
from quorate.config.watch import Digest
from quorate.secret import Secret


def loaded(tmp_path, text: str, **environ: str):
    file = tmp_path / "config.toml"
    file.write_text(text)
    file.chmod(0o600)
    return load(file=file, environ={"HOME": str(tmp_path), **environ}, tolerate=True).watch


def test_nothing_is_watched_by_default(tmp_path):
    assert loaded(tmp_path, "") is None
    assert loaded(tmp_path, "[watch]\nenabled = false\nevery = 30") is None
    assert loaded(tmp_path, "", QUORATE_WATCH="1") is not None
    assert loaded(tmp_path, "[watch]\nevery = 30").every == 30


def test_channels_are_read_with_their_routing_and_secrets(tmp_path):
    watch = loaded(
        tmp_path,
        """
[watch]
timezone = "UTC"
[watch.channels.phone]
type = "ntfy"
url = "https://ntfy.example.com/"
topic = "lab"
token = { env = "NTFY_TOKEN" }
severity = "critical"
hours = "07:00-22:00"
[watch.channels.mail]
type = "smtp"
host = "mail.example.com"
sender = "quorate@example.com"
to = ["a@example.com", "b@example.com"]
user = "quorate"
password = { vault = "mail" }
digest = ["08:00", "18:30"]
""",
        NTFY_TOKEN="tk_1",
    )
    phone, mail = watch.channels
    assert phone.options == {"url": "https://ntfy.example.com", "topic": "lab"}
    assert phone.secrets == {"token": Secret("tk_1")}
    assert mail.secrets == {"password": "vault:mail"}
    assert mail.options["to"] == "a@example.com,b@example.com"
    assert mail.digest is not None
    assert mail.digest.at == (480, 1110)
    assert "tk_1" not in repr(watch)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("watch = 1", "write [watch] above its settings"),
        ("[watch]\nevry = 3", "Did you mean 'every'"),
        ("[watch]\nevery = 1", "must be a number from 10 to 3600"),
        ("[watch.channels.a]\ntype = 'ntfi'", "Did you mean 'ntfy'"),
        ("[watch.channels.a]\ntype = 'ntfy'\nurl = 'https://x'", "The topic in [watch.channels.a] is missing"),
        ("[watch.channels.a]\ntype = 'slack'\nurl = 'https://x'\nroom = 'y'", "has no room"),
        ("[watch.channels.a]\ntype = 'ntfy'\nurl = 'x'\ntopic = 'y'", "must be an address"),
        ("[watch.channels.a]\ntype = 'slack'\nurl = 'https://x'\nseverity = 'bad'", "must be one of critical"),
        ("[watch.channels.a]\ntype = 'slack'\nurl = 'https://x'\ndigest = 'often'", "a time such as 08:00"),
        ("[watch.channels.a]\ntype = 'slack'\nurl = 'https://x'\nhours = 'late'", "must be hours such as"),
        ("[watch.channels.'a b']\ntype = 'slack'\nurl = 'https://x'", "a name of letters, digits"),
    ],
)
def test_mistakes_in_the_settings_are_reported(tmp_path, text, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        loaded(tmp_path, text)


def test_a_digest_knows_its_next_time():
    midnight = 1_768_435_200.0
    assert Digest(seconds=3600).next_after(midnight + 5) == midnight + 3600
    at_eight = Digest(at=(480,), zone=datetime.UTC)
    assert at_eight.next_after(midnight) == midnight + 8 * 3600
    assert at_eight.next_after(midnight + 8 * 3600) == midnight + 32 * 3600
